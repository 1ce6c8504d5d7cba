/* SPDX-License-Identifier: Apache-2.0
 *
 * experts.c: the chosen experts of one layer: down(silu(gate(x)) * up(x)), weighted and summed.
 *
 * Each expert is visited once for all tokens of the batch that chose it, experts ascending, so that a token's sum has
 * the same order whatever the batch is. */
#include "engine.h"

/* The input rows of a context: the norm buffer itself when every token is meant, else a gathered copy. */
static struct col_activation inputs(struct colibri *engine, const struct col_context *context, uint32_t n)
{
    struct col_buffers *b = &engine->buffers;
    const uint32_t hidden = engine->image.model->hidden;
    struct col_activation input = {.x = b->norm, .stride = b->hidden_stride, .cols = hidden, .n = context->count,
                                   .q = b->q, .scale = b->scale};
    if (context->count < n) {
        for (uint32_t i = 0; i < context->count; i++) {
            const float *from = b->norm + (uint64_t)engine->dispatch.token[context->first + i] * b->hidden_stride;
            float *to = b->gathered + (uint64_t)i * b->hidden_stride;
            for (uint32_t c = 0; c < hidden; c++) {
                to[c] = from[c];
            }
        }
        input.x = b->gathered;
    }
    return input;
}

static colibri_status run_expert(struct colibri *engine, uint32_t layer, const struct col_context *context, uint32_t n)
{
    const struct col_layer *l = &engine->image.layer[layer];
    const struct col_compute *compute = &engine->compute;
    struct col_buffers *b = &engine->buffers;
    const uint8_t *blob = NULL;
    colibri_status status = col_store_expert(engine, layer, context->expert, &blob);
    if (status != COLIBRI_OK) {
        return status;
    }
    struct col_activation input = inputs(engine, context, n);
    status = col_matmul(compute, &l->gate, blob + l->gate.offset, &input, b->gate, b->width_stride);
    if (status == COLIBRI_OK) {
        status = col_matmul(compute, &l->up, blob + l->up.offset, &input, b->up, b->width_stride);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    for (uint32_t i = 0; i < context->count; i++) {
        float *gate = b->gate + (uint64_t)i * b->width_stride;
        compute->kernels->swiglu(gate, b->up + (uint64_t)i * b->width_stride, gate, l->expert_width);
    }
    struct col_activation inner = {.x = b->gate, .stride = b->width_stride, .cols = l->expert_width,
                                   .n = context->count, .q = b->q, .scale = b->scale};
    status = col_matmul(compute, &l->down, blob + l->down.offset, &inner, b->delta, b->hidden_stride);
    if (status != COLIBRI_OK) {
        return status;
    }
    for (uint32_t i = 0; i < context->count; i++) {
        const uint32_t token = engine->dispatch.token[context->first + i];
        compute->kernels->axpy_f32(engine->dispatch.weight[context->first + i],
                                   b->delta + (uint64_t)i * b->hidden_stride,
                                   b->mixed + (uint64_t)token * b->hidden_stride, engine->image.model->hidden);
    }
    return COLIBRI_OK;
}

colibri_status col_experts(struct colibri *engine, uint32_t layer, uint32_t n)
{
    struct col_buffers *b = &engine->buffers;
    const uint32_t hidden = engine->image.model->hidden;
    struct colibri_expert_stats *stats =
        engine->expert_stats + (uint64_t)layer * engine->image.widest.experts;
    for (uint32_t t = 0; t < n; t++) {
        float *mixed = b->mixed + (uint64_t)t * b->hidden_stride;
        for (uint32_t i = 0; i < hidden; i++) {
            mixed[i] = 0.0f;
        }
    }
    for (uint32_t c = 0; c < engine->dispatch.context_count; c++) {
        const struct col_context *context = &engine->dispatch.context[c];
        const uint64_t start = col_now(engine);
        const colibri_status status = run_expert(engine, layer, context, n);
        if (status != COLIBRI_OK) {
            return status;
        }
        stats[context->expert].tokens += context->count;
        stats[context->expert].ticks += col_now(engine) - start;
    }
    for (uint32_t t = 0; t < n; t++) {
        engine->compute.kernels->axpy_f32(1.0f, b->mixed + (uint64_t)t * b->hidden_stride,
                                          b->x + (uint64_t)t * b->hidden_stride, hidden);
    }
    return COLIBRI_OK;
}
