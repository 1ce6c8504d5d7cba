/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: tokens through all layers. A batch of prompt tokens and a single token take the same way. */
#include "engine.h"
#include "numeric.h"

static void embed(struct colibri *engine, const uint32_t *ids, uint32_t n)
{
    const struct col_tensor *embedding = &engine->image.model->embedding;
    for (uint32_t t = 0; t < n; t++) {
        col_tensor_row(embedding, engine->image.resident + embedding->offset, ids[t],
                       engine->buffers.x + (uint64_t)t * engine->buffers.hidden_stride);
    }
}

static colibri_status run_layer(struct colibri *engine, uint32_t layer, uint32_t n)
{
    struct colibri_layer_stats *stats = &engine->layer_stats[layer];
    const uint64_t start = col_now(engine);
    colibri_status status = col_attention(engine, layer, n);
    if (status != COLIBRI_OK) {
        return status;
    }
    const uint64_t attended = col_now(engine);
    const struct col_layer *l = &engine->image.layer[layer];
    const struct col_buffers *b = &engine->buffers;
    status = col_rms_norm(engine, &l->norm, l->attention.norm_eps, b->x, b->hidden_stride, n, b->norm);
    if (status == COLIBRI_OK) {
        status = col_route(engine, layer, n);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    const uint64_t routed = col_now(engine);
    status = col_experts(engine, layer, n);
    stats->attention_ticks += attended - start;
    stats->router_ticks += routed - attended;
    stats->expert_ticks += col_now(engine) - routed;
    /* No NaN and no infinity travels on: from here, everything that is compared or rounded is a number. */
    for (uint32_t t = 0; t < n && status == COLIBRI_OK; t++) {
        if (!col_all_finite(engine->buffers.x + (uint64_t)t * engine->buffers.hidden_stride,
                            engine->image.model->hidden)) {
            status = COLIBRI_E_NUMERIC;
        }
    }
    return status;
}

/* Logits of row `t` of the residual stream. */
static colibri_status run_head(struct colibri *engine, uint32_t t)
{
    const struct col_model *m = engine->image.model;
    struct col_buffers *b = &engine->buffers;
    const uint64_t start = col_now(engine);
    colibri_status status = col_rms_norm(engine, &m->final_norm, m->norm_eps, b->x + (uint64_t)t * b->hidden_stride,
                                         b->hidden_stride, 1, b->norm);
    if (status != COLIBRI_OK) {
        return status;
    }
    struct col_activation input = {.x = b->norm, .stride = b->hidden_stride, .cols = m->hidden, .n = 1,
                                   .q = b->q, .scale = b->scale};
    status = col_linear_apply(&engine->compute, &m->head, engine->image.resident, &input, b->logits,
                              col_round_up(m->vocab, COL_TILE_ROWS));
    engine->head_ticks += col_now(engine) - start;
    if (status != COLIBRI_OK) {
        return status;
    }
    return col_all_finite(b->logits, m->vocab) ? COLIBRI_OK : COLIBRI_E_NUMERIC;
}

/* All layers, for `count` tokens; *n is how many of them the last batch had. */
static colibri_status run_layers(struct colibri *engine, const uint32_t *ids, size_t count, uint32_t *n)
{
    for (size_t done = 0; done < count; done += *n) {
        *n = count - done < engine->batch ? (uint32_t)(count - done) : engine->batch;
        for (uint32_t t = 0; t < *n; t++) {
            engine->history[engine->position + t] = ids[done + t];
        }
        embed(engine, ids + done, *n);
        for (uint32_t layer = 0; layer < engine->image.model->layers; layer++) {
            const colibri_status status = run_layer(engine, layer, *n);
            if (status != COLIBRI_OK) {
                return status; /* the batch's positions do not count: they will be computed again */
            }
        }
        engine->position += *n;
        engine->tokens += *n;
    }
    return COLIBRI_OK;
}

colibri_status colibri_prefill(struct colibri *engine, const uint32_t *ids, size_t count, const float **logits)
{
    if (count == 0u) {
        return COLIBRI_E_NO_PROMPT;
    }
    if (count > engine->context - engine->position) {
        return COLIBRI_E_CONTEXT_FULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= engine->image.model->vocab) {
            return COLIBRI_E_TOKEN_RANGE;
        }
    }
    engine->has_logits = false;
    col_store_replace(engine);
    if (engine->position == 0u && engine->prompt_tokens == 0u) {
        engine->prompt_tokens = (uint32_t)count;
    }
    uint32_t n = 0;
    colibri_status status = run_layers(engine, ids, count, &n);
    if (status == COLIBRI_OK) {
        status = run_head(engine, n - 1u);
    }
    col_store_end(engine);
    if (status == COLIBRI_OK) {
        engine->has_logits = true;
        *logits = engine->buffers.logits;
    }
    return status;
}

colibri_status colibri_forward(struct colibri *engine, uint32_t id, const float **logits)
{
    return colibri_prefill(engine, &id, 1, logits);
}
