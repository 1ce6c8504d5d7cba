/* SPDX-License-Identifier: Apache-2.0
 *
 * router.c: which experts a token gets, and with which weights. Ties go to the lower index everywhere. */
#include "engine.h"
#include "numeric.h"

#define SMALLEST_SUM 1e-20f /* of weights that are normalised: sigmoids can all be 0 */

/* Experts that a choice may fall on: those below `in_use` whose group is open. */
struct col_field {
    uint32_t in_use;
    uint32_t group_size;
    const uint8_t *open; /* [groups], NULL: all groups are */
};

/* Ids of the `k` largest of `x`, largest first: insertion into a short sorted row. */
static void top_k(const float *x, const struct col_field *field, uint32_t k, uint32_t *ids)
{
    uint32_t filled = 0;
    for (uint32_t e = 0; e < field->in_use; e++) {
        if (field->open != NULL && field->open[e / field->group_size] == 0u) {
            continue;
        }
        if (filled == k && !(x[e] > x[ids[k - 1u]])) {
            continue;
        }
        uint32_t place = filled < k ? filled++ : k - 1u;
        while (place > 0u && x[e] > x[ids[place - 1u]]) {
            ids[place] = ids[place - 1u];
            place--;
        }
        ids[place] = e;
    }
}

static void sort_ascending(uint32_t *ids, uint32_t k)
{
    for (uint32_t i = 1; i < k; i++) {
        const uint32_t id = ids[i];
        uint32_t place = i;
        for (; place > 0u && id < ids[place - 1u]; place--) {
            ids[place] = ids[place - 1u];
        }
        ids[place] = id;
    }
}

/* The largest of x[n], n at least 1. */
static float largest(const float *x, uint32_t n)
{
    float max = x[0];
    for (uint32_t i = 1; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

static void softmax(const struct colibri *engine, float *x, uint32_t n)
{
    const float factor = 1.0f / engine->compute.kernels->exp_sum(x, n, largest(x, n));
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] * factor;
    }
}

/* Opens the groups with the best experts. */
static void open_groups(const struct col_router *r, const float *x, uint8_t *open)
{
    const uint32_t size = r->experts / r->groups;
    for (uint32_t g = 0; g < r->groups; g++) {
        open[g] = 0;
    }
    for (uint32_t chosen = 0; chosen < r->top_groups; chosen++) {
        uint32_t best = r->groups;
        float best_worth = 0.0f;
        for (uint32_t g = 0; g < r->groups; g++) {
            const float *member = x + (uint64_t)g * size;
            float first = member[0];
            float second = 0.0f;
            for (uint32_t i = 1; i < size; i++) {
                const float low = member[i] > first ? first : member[i];
                first = member[i] > first ? member[i] : first;
                second = i == 1u || low > second ? low : second;
            }
            const float worth = r->group_score == COL_GROUP_TOP_TWO ? first + second : first;
            if (open[g] == 0u && (best == r->groups || worth > best_worth)) {
                best = g;
                best_worth = worth;
            }
        }
        open[best] = 1;
    }
}

/* The float routers. `logits` become scores; the choice goes to ids, ascending, and weight. */
static void choose(const struct colibri *engine, const struct col_router *r, uint32_t in_use, float *logits,
                   uint32_t *ids, float *weight)
{
    float *choice = engine->buffers.router_choice;
    if (r->score == COL_SCORE_SOFTMAX) {
        softmax(engine, logits, r->experts);
    } else if (r->score == COL_SCORE_SIGMOID) {
        for (uint32_t e = 0; e < r->experts; e++) {
            logits[e] = col_sigmoid(logits[e]);
        }
    }
    const float *correction = (const float *)(const void *)(engine->image.resident + r->correction.offset);
    for (uint32_t e = 0; e < r->experts; e++) {
        choice[e] = r->correction.format == 0u ? logits[e] : logits[e] + correction[e];
    }
    struct col_field field = {.in_use = in_use, .group_size = r->experts / r->groups};
    if (r->groups > 1u) {
        open_groups(r, choice, engine->dispatch.open);
        field.open = engine->dispatch.open;
    }
    top_k(choice, &field, r->top_k, ids);
    sort_ascending(ids, r->top_k);
    for (uint32_t i = 0; i < r->top_k; i++) {
        weight[i] = logits[ids[i]];
    }
    if (r->score == COL_SCORE_LOGIT) {
        softmax(engine, weight, r->top_k);
    }
    if (r->normalise != 0u) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < r->top_k; i++) {
            sum += weight[i];
        }
        const float smallest = r->smallest_sum > 0.0f ? r->smallest_sum : SMALLEST_SUM;
        sum = sum > smallest ? sum : smallest;
        for (uint32_t i = 0; i < r->top_k; i++) {
            weight[i] = weight[i] / sum;
        }
    }
}

static uint32_t table_entry(const float *table, uint32_t i)
{
    const float entry = table[i];
    return entry > 0.0f ? (uint32_t)(entry < 65536.0f ? entry : 65536.0f) : 0u;
}

/* 65536 times the exponential of minus `below` steps: between two entries of the table on a straight line, and the last
 * entry from there on. */
static uint32_t integer_exp(const struct col_router *r, const float *table, uint32_t below)
{
    const uint32_t i = below >> r->integer_shift;
    if (i >= 255u) {
        return table_entry(table, 255u);
    }
    const uint64_t step = (uint64_t)1 << r->integer_shift;
    const uint64_t part = below & (step - 1u);
    const uint64_t sum = table_entry(table, i) * (step - part) + table_entry(table, i + 1u) * part;
    return (uint32_t)((sum + (step >> 1)) >> r->integer_shift);
}

/* The softmax of the chosen in integers: each looks up the exponential of its distance below the largest logit, and a weight
 * is a Q16.16 share of their sum. Only these distances are taken and rounded in floats. */
static void choose_integer(const struct colibri *engine, const struct col_router *r, uint32_t in_use, float *logits,
                           uint32_t *ids, float *weight)
{
    const float *table = (const float *)(const void *)(engine->image.resident + r->integer_table.offset);
    const float max = largest(logits, in_use);
    for (uint32_t e = 0; e < r->experts; e++) {
        const float steps = (logits[e] - max) * r->integer_scale;
        const float limit = 4194304.0f; /* 2^22: where col_round_even ends */
        const float clamped = steps > limit ? limit : (steps < -limit ? -limit : steps);
        logits[e] = (float)col_round_even(clamped); /* exact: a binary32 holds these integers */
    }
    const struct col_field field = {.in_use = in_use, .group_size = r->experts};
    top_k(logits, &field, r->top_k, ids);
    sort_ascending(ids, r->top_k);
    uint32_t share[COL_MAX_TOP_K];
    uint32_t sum = 0;
    for (uint32_t i = 0; i < r->top_k; i++) {
        share[i] = integer_exp(r, table, (uint32_t)-(int32_t)logits[ids[i]]);
        sum += share[i];
    }
    for (uint32_t i = 0; i < r->top_k; i++) {
        const uint32_t q16 = sum == 0u ? 65536u / r->top_k : (uint32_t)(((uint64_t)share[i] << 16) / sum);
        weight[i] = (float)q16 * 0x1p-16f;
    }
}

/* No logits: the token's id says which experts. See COL_SCORE_HASH. */
static void choose_hash(const struct col_router *r, uint32_t layer, uint32_t in_use, uint32_t id, uint32_t *ids,
                        float *weight)
{
    for (uint32_t i = 0; i < r->top_k; i++) {
        uint32_t expert = ((col_token_hash(id, i) % r->experts) ^ layer) % in_use;
        for (uint32_t j = 0; j < i; j++) {
            if (ids[j] == expert) {
                expert = (expert + 1u) % in_use;
                j = UINT32_MAX; /* the next free one: look at all again */
            }
        }
        ids[i] = expert;
    }
    sort_ascending(ids, r->top_k);
    for (uint32_t i = 0; i < r->top_k; i++) {
        weight[i] = 1.0f / (float)r->top_k;
    }
}

static uint32_t experts_in_use(const struct colibri *engine, const struct col_router *r)
{
    if (r->map_first == 0u) {
        return r->experts;
    }
    const uint32_t more = engine->prompt_tokens / r->map_tokens;
    return more < r->experts - r->map_first ? r->map_first + more : r->experts;
}

/* The router's product for `n` rows of `x`. */
static colibri_status router_logits(struct colibri *engine, const struct col_router *r, float *x, uint32_t n)
{
    struct col_buffers *b = &engine->buffers;
    if (r->score == COL_SCORE_HASH) {
        return COLIBRI_OK;
    }
    struct col_activation input = {.x = x, .stride = b->hidden_stride, .cols = engine->image.model->hidden, .n = n,
                                   .q = b->q, .scale = b->scale};
    return col_linear_apply(&engine->compute, &r->gate, engine->image.resident, &input, b->router_logits,
                            b->router_stride);
}

/* Row `t`'s choice, from its logits; COLIBRI_E_NUMERIC when one is not finite. */
static colibri_status choose_row(struct colibri *engine, uint32_t layer, uint32_t in_use, uint32_t t)
{
    const struct col_router *r = &engine->image.layer[layer].router;
    float *logits = engine->buffers.router_logits + (uint64_t)t * engine->buffers.router_stride;
    uint32_t *ids = engine->dispatch.chosen + (uint64_t)t * r->top_k;
    float *weight = engine->dispatch.chosen_weight + (uint64_t)t * r->top_k;
    if (r->score == COL_SCORE_HASH) {
        choose_hash(r, layer, in_use, engine->history[engine->position + t], ids, weight);
    } else if (!col_all_finite(logits, r->experts)) {
        return COLIBRI_E_NUMERIC;
    } else {
        (r->score == COL_SCORE_INTEGER ? choose_integer : choose)(engine, r, in_use, logits, ids, weight);
    }
    for (uint32_t i = 0; i < r->top_k; i++) {
        weight[i] = weight[i] * r->scale;
    }
    return COLIBRI_OK;
}

colibri_status col_route_ahead(struct colibri *engine, uint32_t layer, uint32_t *count)
{
    const struct col_layer *l = &engine->image.layer[layer];
    const struct col_buffers *b = &engine->buffers;
    /* A single token gathers no rows: their buffer is free. */
    colibri_status status =
        col_rms_norm(engine, &l->norm, l->attention.norm_eps, b->x, b->hidden_stride, 1, b->gathered);
    if (status == COLIBRI_OK) {
        status = router_logits(engine, &l->router, b->gathered, 1);
    }
    if (status == COLIBRI_OK) {
        status = choose_row(engine, layer, experts_in_use(engine, &l->router), 0);
    }
    *count = status == COLIBRI_OK ? l->router.top_k : 0u;
    return status == COLIBRI_E_NUMERIC ? COLIBRI_OK : status; /* no guess: what is computed may be finite all the same */
}

colibri_status col_route(struct colibri *engine, uint32_t layer, uint32_t n)
{
    const struct col_router *r = &engine->image.layer[layer].router;
    struct col_dispatch *d = &engine->dispatch;
    if (r->experts == 0u) {
        return COLIBRI_OK;
    }
    colibri_status status = router_logits(engine, r, engine->buffers.norm, n);
    const uint32_t in_use = experts_in_use(engine, r);
    for (uint32_t t = 0; t < n && status == COLIBRI_OK; t++) {
        status = choose_row(engine, layer, in_use, t);
        if (status == COLIBRI_OK && engine->hooks.route != NULL) {
            const uint64_t first = (uint64_t)t * r->top_k;
            engine->hooks.route(engine->hooks.user, layer, engine->position + t, r->top_k, d->chosen + first,
                                d->chosen_weight + first);
        }
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    col_dispatch_build(d, n, r->top_k, r->experts);
    return COLIBRI_OK;
}
