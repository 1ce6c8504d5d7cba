/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c: everything an engine keeps in its arena. This one function makes the plan and the engine. */
#include "engine.h"

static void layout_activations(struct colibri *engine, struct col_arena *arena)
{
    const struct col_image *image = &engine->image;
    const struct col_widths *w = &image->widest;
    struct col_buffers *b = &engine->buffers;
    const uint64_t n = engine->batch;
    b->hidden_stride = col_round_up(image->model->hidden, COL_BLOCK);
    b->query_stride = col_round_up(w->query, COL_BLOCK);
    b->kv_stride = col_round_up(w->kv, COL_BLOCK);
    b->width_stride = col_round_up(w->expert, COL_BLOCK);
    b->router_stride = col_round_up(w->experts, COL_TILE_ROWS);
    uint32_t widest = b->hidden_stride > b->query_stride ? b->hidden_stride : b->query_stride;
    widest = widest > b->width_stride ? widest : b->width_stride;

    col_arena_region(arena, "activations");
    b->x = col_arena_claim(arena, n * b->hidden_stride, sizeof(float));
    b->norm = col_arena_claim(arena, n * b->hidden_stride, sizeof(float));
    b->mixed = col_arena_claim(arena, n * b->hidden_stride, sizeof(float));
    b->gathered = col_arena_claim(arena, n * b->hidden_stride, sizeof(float));
    b->delta = col_arena_claim(arena, n * b->hidden_stride, sizeof(float));
    b->query = col_arena_claim(arena, n * b->query_stride, sizeof(float));
    b->attention = col_arena_claim(arena, n * b->query_stride, sizeof(float));
    b->key = col_arena_claim(arena, n * b->kv_stride, sizeof(float));
    b->value = col_arena_claim(arena, n * b->kv_stride, sizeof(float));
    b->scores = col_arena_claim(arena, engine->context, sizeof(float));
    b->gate = col_arena_claim(arena, n * b->width_stride, sizeof(float));
    b->up = col_arena_claim(arena, n * b->width_stride, sizeof(float));
    b->q = col_arena_claim(arena, n * widest, sizeof(int8_t));
    b->scale = col_arena_claim(arena, n * (widest / COL_BLOCK), sizeof(float));

    struct col_dispatch *d = &engine->dispatch;
    const uint64_t pairs = n * w->top_k;
    col_arena_region(arena, "router");
    b->router_logits = col_arena_claim(arena, n * b->router_stride, sizeof(float));
    d->context = col_arena_claim(arena, pairs < w->experts ? pairs : w->experts, sizeof *d->context);
    d->token = col_arena_claim(arena, pairs, sizeof *d->token);
    d->weight = col_arena_claim(arena, pairs, sizeof *d->weight);
    d->counter = col_arena_claim(arena, w->experts, sizeof *d->counter);
    d->chosen = col_arena_claim(arena, pairs, sizeof *d->chosen);
    d->chosen_weight = col_arena_claim(arena, pairs, sizeof *d->chosen_weight);
}

static void layout_kv(struct colibri *engine, struct col_arena *arena)
{
    const uint64_t element = engine->kv_format == COLIBRI_KV_F16 ? sizeof(uint16_t) : sizeof(float);
    col_arena_region(arena, "kv cache");
    engine->kv = col_arena_claim(arena, engine->image.model->layers, sizeof *engine->kv);
    for (uint32_t i = 0; i < engine->image.model->layers; i++) {
        const struct col_layer *l = &engine->image.layer[i];
        const uint64_t elements = (uint64_t)l->kv_heads * l->head_dim * engine->context;
        void *key = col_arena_claim(arena, elements, element);
        void *value = col_arena_claim(arena, elements, element);
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

    col_arena_region(arena, "logits");
    engine->buffers.logits = col_arena_claim(arena, col_round_up(vocab, COL_TILE_ROWS), sizeof(float));
    col_arena_region(arena, "sampler");
    engine->history = col_arena_claim(arena, engine->context, sizeof *engine->history);
    col_sampler_layout(&engine->sampler, arena, vocab);
    col_arena_region(arena, "text");
    col_stream_layout(&engine->stream, arena, image->has_tokenizer ? image->tokenizer.max_token_bytes : 0u);

    col_arena_region(arena, "statistics");
    engine->layer_stats = col_arena_claim(arena, image->model->layers, sizeof *engine->layer_stats);
    engine->expert_stats = col_arena_claim(arena, (uint64_t)image->model->layers * image->widest.experts,
                                           sizeof *engine->expert_stats);
    col_arena_region(arena, "scratch");
    uint64_t scratch = COLIBRI_SELFTEST_BYTES;
    if (image->has_tokenizer) {
        const uint64_t text = col_template_scratch_bytes(&image->chat, engine->max_text_bytes);
        scratch = text > scratch ? text : scratch;
    }
    engine->scratch = col_arena_claim(arena, scratch, 1);
}
