/* SPDX-License-Identifier: Apache-2.0
 *
 * experts.c: the feed-forward part of one layer: the block that every token takes (shared experts, or all of a dense
 * layer), then the chosen experts, weighted and summed.
 *
 * Each expert is visited once for all tokens of the batch that chose it, experts ascending and behind the shared block,
 * so that a token's sum has the same order whatever the batch is. */
#include "engine.h"
#include "numeric.h"

static void swiglu_clamped(float *gate, const float *up, uint32_t n, float limit, float alpha)
{
    for (uint32_t i = 0; i < n; i++) {
        const float g = gate[i] > limit ? limit : gate[i];
        const float u = up[i] > limit ? limit : (up[i] < -limit ? -limit : up[i]);
        const float glu = g / (1.0f + col_exp(-(g * alpha)));
        gate[i] = (u + 1.0f) * glu;
    }
}

/* delta = the block `f`, of `width`, for the tokens of `input`. */
static colibri_status run_block(struct colibri *engine, const struct col_layer *l, const struct col_ffn *f,
                                const uint8_t *base, uint32_t width, struct col_activation *input)
{
    const struct col_compute *compute = &engine->compute;
    struct col_buffers *b = &engine->buffers;
    colibri_status status = col_linear_apply(compute, &f->gate, base, input, b->gate, b->width_stride);
    if (status == COLIBRI_OK) {
        status = col_linear_apply(compute, &f->up, base, input, b->up, b->width_stride);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    for (uint32_t i = 0; i < input->n; i++) {
        float *gate = b->gate + (uint64_t)i * b->width_stride;
        const float *up = b->up + (uint64_t)i * b->width_stride;
        if (l->activation == COL_ACTIVATION_SWIGLU) {
            compute->kernels->swiglu(gate, up, gate, width);
        } else {
            swiglu_clamped(gate, up, width, l->limit, l->alpha);
        }
    }
    struct col_activation inner = {.x = b->gate, .stride = b->width_stride, .cols = width, .n = input->n, .q = b->q,
                                   .scale = b->scale};
    return col_linear_apply(compute, &f->down, base, &inner, b->delta, b->hidden_stride);
}

/* mixed = the shared block, times the sigmoid of its gate where it has one; zero without such a block. */
static colibri_status run_shared(struct colibri *engine, const struct col_layer *l, struct col_activation *input)
{
    struct col_buffers *b = &engine->buffers;
    const uint32_t hidden = engine->image.model->hidden;
    for (uint32_t t = 0; t < input->n; t++) {
        float *mixed = b->mixed + (uint64_t)t * b->hidden_stride;
        for (uint32_t i = 0; i < hidden; i++) {
            mixed[i] = 0.0f;
        }
    }
    if (l->shared_width == 0u) {
        return COLIBRI_OK;
    }
    float *gate = b->shared_gate;
    const bool gated = l->shared_gate.format != 0u;
    if (gated) {
        const colibri_status status = col_matmul(&engine->compute, &l->shared_gate,
                                                 engine->image.resident + l->shared_gate.offset, input, gate,
                                                 COL_TILE_ROWS);
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    const colibri_status status = run_block(engine, l, &l->shared, engine->image.resident, l->shared_width, input);
    for (uint32_t t = 0; t < input->n && status == COLIBRI_OK; t++) {
        const float weight = gated ? col_sigmoid(gate[t * COL_TILE_ROWS]) : 1.0f;
        engine->compute.kernels->axpy_f32(weight, b->delta + (uint64_t)t * b->hidden_stride,
                                          b->mixed + (uint64_t)t * b->hidden_stride, hidden);
    }
    return status;
}

/* The input rows of a context: those of all tokens when every token is meant, else a gathered copy. */
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

/* Guesses what the next layer will need and has it read behind what this layer needs. */
static colibri_status look_ahead(struct colibri *engine, uint32_t layer)
{
    if (layer == engine->image.model->layers || engine->image.layer[layer].router.experts == 0u) {
        return COLIBRI_OK;
    }
    uint32_t count = 0;
    const colibri_status status = col_route_ahead(engine, layer, &count);
    if (status == COLIBRI_OK) {
        col_store_guess(engine, layer, engine->dispatch.chosen, count);
    }
    return status;
}

static colibri_status run_expert(struct colibri *engine, uint32_t layer, const struct col_context *context, uint32_t n)
{
    const struct col_layer *l = &engine->image.layer[layer];
    struct col_buffers *b = &engine->buffers;
    const uint8_t *blob = NULL;
    colibri_status status = col_store_expert(engine, layer, context->expert, &blob);
    if (status != COLIBRI_OK) {
        return status;
    }
    struct col_activation input = inputs(engine, context, n);
    status = run_block(engine, l, &l->expert, blob, l->expert_width, &input);
    for (uint32_t i = 0; i < context->count && status == COLIBRI_OK; i++) {
        const uint32_t token = engine->dispatch.token[context->first + i];
        engine->compute.kernels->axpy_f32(engine->dispatch.weight[context->first + i],
                                          b->delta + (uint64_t)i * b->hidden_stride,
                                          b->mixed + (uint64_t)token * b->hidden_stride, engine->image.model->hidden);
    }
    return status;
}

colibri_status col_experts(struct colibri *engine, uint32_t layer, uint32_t n)
{
    const struct col_layer *l = &engine->image.layer[layer];
    struct col_buffers *b = &engine->buffers;
    struct colibri_expert_stats *stats = engine->expert_stats + (uint64_t)layer * engine->image.widest.experts;
    struct col_activation input = {.x = b->norm, .stride = b->hidden_stride, .cols = engine->image.model->hidden,
                                   .n = n, .q = b->q, .scale = b->scale};
    const uint32_t contexts = l->router.experts == 0u ? 0u : engine->dispatch.context_count;
    colibri_status status = contexts == 0u ? COLIBRI_OK : col_store_begin(engine, layer);
    if (status == COLIBRI_OK && contexts > 0u && n == 1u && engine->store.prefetch) {
        status = look_ahead(engine, layer + 1u);
    }
    if (status == COLIBRI_OK) {
        status = run_shared(engine, l, &input); /* while the first experts are being read */
    }
    for (uint32_t c = 0; c < contexts && status == COLIBRI_OK; c++) {
        const struct col_context *context = &engine->dispatch.context[c];
        const uint64_t start = col_now(engine);
        status = run_expert(engine, layer, context, n);
        if (status == COLIBRI_OK) {
            status = col_store_done(engine);
        }
        stats[context->expert].tokens += context->count;
        stats[context->expert].ticks += col_now(engine) - start;
    }
    for (uint32_t t = 0; t < n && status == COLIBRI_OK; t++) {
        engine->compute.kernels->axpy_f32(1.0f, b->mixed + (uint64_t)t * b->hidden_stride,
                                          b->x + (uint64_t)t * b->hidden_stride, engine->image.model->hidden);
    }
    return status;
}
