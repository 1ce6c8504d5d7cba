/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c: everything an engine keeps in its arena. This one function makes the plan and the engine. */
#include "engine.h"

static float *claim_floats(struct col_arena *arena, uint64_t count)
{
    return col_arena_claim(arena, count, sizeof(float));
}

static void layout_activations(struct colibri *engine, struct col_arena *arena)
{
    const struct col_image *image = &engine->image;
    const struct col_widths *w = &image->widest;
    struct col_buffers *b = &engine->buffers;
    const uint64_t n = engine->batch;
    b->hidden_stride = col_round_up(image->model->hidden, COL_BLOCK);
    b->rank_stride = col_round_up(w->rank, COL_BLOCK);
    b->query_stride = col_round_up(w->query, COL_BLOCK);
    b->attended_stride = col_round_up(w->attended, COL_BLOCK);
    b->kv_stride = col_round_up(w->kv, COL_BLOCK);
    b->width_stride = col_round_up(w->ffn, COL_BLOCK);
    const uint32_t head = col_round_up(w->head, COL_BLOCK);
    const uint32_t widest = col_max(col_max(b->hidden_stride, b->rank_stride),
                                    col_max(b->attended_stride, b->width_stride));

    col_arena_region(arena, "activations");
    b->x = claim_floats(arena, n * b->hidden_stride);
    b->norm = claim_floats(arena, n * b->hidden_stride);
    b->mixed = claim_floats(arena, n * b->hidden_stride);
    b->gathered = claim_floats(arena, n * b->hidden_stride);
    b->delta = claim_floats(arena, n * b->hidden_stride);
    b->query_rank = claim_floats(arena, n * b->rank_stride);
    b->query = claim_floats(arena, n * b->query_stride);
    b->attention = claim_floats(arena, n * b->attended_stride);
    b->key = claim_floats(arena, n * b->kv_stride);
    b->value = claim_floats(arena, n * b->kv_stride);
    b->head_in = claim_floats(arena, head);
    b->head_query = claim_floats(arena, head);
    b->head_latent = claim_floats(arena, head);
    b->scores = claim_floats(arena, engine->context);
    b->gate = claim_floats(arena, n * b->width_stride);
    b->up = claim_floats(arena, n * b->width_stride);
    b->q = col_arena_claim(arena, n * col_max(widest, head), sizeof(int8_t));
    b->scale = claim_floats(arena, n * (col_max(widest, head) / COL_BLOCK));
}

static void layout_router(struct colibri *engine, struct col_arena *arena)
{
    const struct col_widths *w = &engine->image.widest;
    struct col_buffers *b = &engine->buffers;
    struct col_dispatch *d = &engine->dispatch;
    const uint64_t n = engine->batch;
    const uint64_t pairs = n * w->top_k;
    b->router_stride = col_round_up(w->experts, COL_TILE_ROWS);
    col_arena_region(arena, "router");
    b->shared_gate = claim_floats(arena, n * COL_TILE_ROWS);
    b->router_logits = claim_floats(arena, n * b->router_stride);
    b->router_choice = claim_floats(arena, w->experts);
    d->context = col_arena_claim(arena, pairs < w->experts ? pairs : w->experts, sizeof *d->context);
    d->token = col_arena_claim(arena, pairs, sizeof *d->token);
    d->weight = col_arena_claim(arena, pairs, sizeof *d->weight);
    d->counter = col_arena_claim(arena, w->experts, sizeof *d->counter);
    d->chosen = col_arena_claim(arena, pairs, sizeof *d->chosen);
    d->chosen_weight = col_arena_claim(arena, pairs, sizeof *d->chosen_weight);
    d->open = col_arena_claim(arena, w->experts, sizeof *d->open);
}

static void layout_kv(struct colibri *engine, struct col_arena *arena)
{
    col_arena_region(arena, "kv cache");
    engine->kv = col_arena_claim(arena, engine->image.model->layers, sizeof *engine->kv);
    for (uint32_t i = 0; i < engine->image.model->layers; i++) {
        const struct col_attention *a = &engine->image.layer[i].attention;
        const uint64_t rows = (uint64_t)a->kv_heads * engine->context;
        uint8_t *key = col_arena_claim(arena, rows, col_kv_row_bytes(engine->kv_format, a->head_dim));
        uint8_t *value = NULL;
        if (a->value.weight.format != 0u) {
            value = col_arena_claim(arena, rows, col_kv_row_bytes(engine->kv_format, a->value_dim));
        }
        if (engine->kv != NULL) {
            engine->kv[i] = (struct col_kv){.key = key, .value = value};
        }
    }
}

void col_layout(struct colibri *engine, struct col_arena *arena)
{
    const struct col_image *image = &engine->image;
    const uint32_t vocab = image->model->vocab;
    col_arena_region(arena, "engine");
    (void)col_arena_claim(arena, 1, sizeof *engine); /* the caller's, at the arena's start */
    layout_kv(engine, arena);
    layout_activations(engine, arena);
    layout_router(engine, arena);
    col_store_layout(engine, arena);

    col_arena_region(arena, "logits");
    engine->buffers.logits = col_arena_claim(arena, col_round_up(vocab, COL_TILE_ROWS), sizeof(float));
    col_arena_region(arena, "sampler");
    engine->history = col_arena_claim(arena, engine->context, sizeof *engine->history);
    col_sampler_layout(&engine->sampler, arena, vocab);
    col_arena_region(arena, "text");
    col_stream_layout(&engine->stream, arena, image->has_tokenizer ? image->tokenizer.max_token_bytes : 0u);

    col_arena_region(arena, "scratch");
    uint64_t scratch = COLIBRI_SELFTEST_BYTES;
    if (image->has_tokenizer) {
        const uint64_t text = col_template_scratch_bytes(&image->chat, &image->tokenizer,
                                                         engine->max_text_bytes);
        scratch = text > scratch ? text : scratch;
    }
    engine->scratch = col_arena_claim(arena, scratch, 1);

    /* Last, because all of it is surely written: the high-water mark measures up to here. */
    col_arena_region(arena, "statistics");
    engine->layer_stats = col_arena_claim(arena, image->model->layers, sizeof *engine->layer_stats);
    engine->expert_stats = col_arena_claim(arena, (uint64_t)image->model->layers * image->widest.experts,
                                           sizeof *engine->expert_stats);
}
