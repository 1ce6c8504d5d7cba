/* SPDX-License-Identifier: Apache-2.0
 *
 * router.c: which experts a token gets, and with which weights. */
#include "engine.h"
#include "numeric.h"

/* Ids of the `k` largest of `count` logits, largest first, ties to the lower id: insertion into a short sorted row. */
static void top_k(const float *logits, uint32_t count, uint32_t k, uint32_t *ids)
{
    uint32_t filled = 0;
    for (uint32_t e = 0; e < count; e++) {
        if (filled == k && !(logits[e] > logits[ids[k - 1u]])) {
            continue;
        }
        uint32_t place = filled < k ? filled++ : k - 1u;
        while (place > 0u && logits[e] > logits[ids[place - 1u]]) {
            ids[place] = ids[place - 1u];
            place--;
        }
        ids[place] = e;
    }
}

/* Softmax over the chosen; `ids` come largest first and leave ascending, the weights with them. */
static void weigh(const struct colibri *engine, const float *logits, uint32_t k, uint32_t *ids, float *weight)
{
    const float max = logits[ids[0]];
    for (uint32_t i = 1; i < k; i++) {
        const uint32_t id = ids[i];
        uint32_t place = i;
        for (; place > 0u && id < ids[place - 1u]; place--) {
            ids[place] = ids[place - 1u];
        }
        ids[place] = id;
    }
    for (uint32_t i = 0; i < k; i++) {
        weight[i] = logits[ids[i]];
    }
    const float factor = 1.0f / engine->compute.kernels->exp_sum(weight, k, max);
    for (uint32_t i = 0; i < k; i++) {
        weight[i] = weight[i] * factor;
    }
}

colibri_status col_route(struct colibri *engine, uint32_t layer, uint32_t n)
{
    const struct col_layer *l = &engine->image.layer[layer];
    struct col_buffers *b = &engine->buffers;
    struct col_dispatch *d = &engine->dispatch;
    colibri_status status = col_rms_norm(engine, &l->expert_norm, l->norm_eps, b->x, b->hidden_stride, n, b->norm);
    if (status != COLIBRI_OK) {
        return status;
    }
    struct col_activation input = {.x = b->norm, .stride = b->hidden_stride, .cols = engine->image.model->hidden,
                                   .n = n, .q = b->q, .scale = b->scale};
    status = col_matmul(&engine->compute, &l->router, engine->image.resident + l->router.offset, &input,
                        b->router_logits, b->router_stride);
    if (status != COLIBRI_OK) {
        return status;
    }
    for (uint32_t t = 0; t < n; t++) {
        const float *logits = b->router_logits + (uint64_t)t * b->router_stride;
        uint32_t *ids = d->chosen + (uint64_t)t * l->top_k;
        float *weight = d->chosen_weight + (uint64_t)t * l->top_k;
        if (!col_all_finite(logits, l->experts)) {
            return COLIBRI_E_NUMERIC;
        }
        top_k(logits, l->experts, l->top_k, ids);
        weigh(engine, logits, l->top_k, ids, weight);
        if (engine->hooks.route != NULL) {
            engine->hooks.route(engine->hooks.user, layer, engine->position + t, l->top_k, ids, weight);
        }
    }
    col_dispatch_build(d, n, l->top_k, l->experts);
    return COLIBRI_OK;
}
