/* SPDX-License-Identifier: Apache-2.0
 *
 * stats.c: what the engine counted. */
#include "engine.h"

void colibri_get_stats(const struct colibri *engine, struct colibri_stats *stats)
{
    *stats = (struct colibri_stats){
        .arena_bytes = engine->arena_bytes,
        .arena_peak_bytes = col_arena_high_water(engine, engine->arena_bytes), /* the engine lies at its start */
        .tokens = engine->tokens,
        .head_ticks = engine->head_ticks,
        .sampler_ticks = engine->sampler_ticks,
        .tokenizer_ticks = engine->tokenizer_ticks,
        .ticks_per_second = engine->hooks.now == NULL ? 0u : engine->hooks.ticks_per_second,
        .layers = engine->image.model->layers,
        .max_experts = engine->image.widest.experts,
        .layer = engine->layer_stats,
        .expert = engine->expert_stats,
    };
}

void colibri_clear_stats(struct colibri *engine)
{
    const uint32_t layers = engine->image.model->layers;
    const uint64_t experts = (uint64_t)layers * engine->image.widest.experts;
    engine->tokens = 0;
    engine->head_ticks = 0;
    engine->sampler_ticks = 0;
    engine->tokenizer_ticks = 0;
    for (uint32_t i = 0; i < layers; i++) {
        engine->layer_stats[i] = (struct colibri_layer_stats){0};
    }
    for (uint64_t i = 0; i < experts; i++) {
        engine->expert_stats[i] = (struct colibri_expert_stats){0};
    }
}
