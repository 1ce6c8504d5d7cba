/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c: the cache's rule over recorded routing, without a model. */
#include "cache.h"
#include "image_view.h"

struct colibri_replay {
    uint32_t layers;
    struct col_cache *cache; /* [layers] */
};

static bool possible(uint32_t layers, const uint32_t *experts, uint32_t slots)
{
    bool good = layers <= COL_MAX_LAYERS && slots > 0u;
    for (uint32_t i = 0; i < layers && good; i++) {
        good = experts[i] <= COL_MAX_EXPERTS;
    }
    return good;
}

/* As layout.c does for an engine: once to measure, once for good. */
static struct colibri_replay *lay_out(struct col_arena *arena, uint32_t layers, const uint32_t *experts, uint32_t slots)
{
    struct colibri_replay *replay = col_arena_claim(arena, 1, sizeof *replay);
    struct col_cache *cache = col_arena_claim(arena, layers, sizeof *cache);
    for (uint32_t i = 0; i < layers; i++) {
        struct col_cache measured;
        col_cache_layout(cache == NULL ? &measured : &cache[i], arena, experts[i], slots);
    }
    if (replay != NULL) {
        *replay = (struct colibri_replay){.layers = layers, .cache = cache};
    }
    return replay;
}

uint64_t colibri_replay_bytes(uint32_t layers, const uint32_t *experts, uint32_t slots)
{
    struct col_arena arena = {0};
    if (!possible(layers, experts, slots)) {
        return 0;
    }
    (void)lay_out(&arena, layers, experts, slots);
    return arena.used;
}

colibri_status colibri_replay_begin(struct colibri_replay **replay, void *memory, uint64_t bytes, uint32_t layers,
                                    const uint32_t *experts, uint32_t slots, const uint32_t *pin)
{
    const uint64_t needed = colibri_replay_bytes(layers, experts, slots);
    if (needed == 0u) {
        return COLIBRI_E_ARGUMENT;
    }
    if (memory == NULL || ((uintptr_t)memory & (COLIBRI_ARENA_ALIGN - 1u)) != 0u) {
        return COLIBRI_E_ARENA_ALIGN;
    }
    if (bytes < needed) {
        return COLIBRI_E_ARENA_SIZE;
    }
    struct col_arena arena = {.base = memory};
    *replay = lay_out(&arena, layers, experts, slots);
    for (uint32_t i = 0; i < layers; i++) {
        struct col_cache *cache = &(*replay)->cache[i];
        col_cache_clear(cache);
        for (uint32_t e = 0; e < experts[i] && pin != NULL; e++) {
            col_cache_pin(cache, e, *pin++);
        }
    }
    return COLIBRI_OK;
}

colibri_status colibri_replay_step(struct colibri_replay *replay, uint32_t layer, const uint32_t *expert, uint32_t count,
                                   uint32_t *misses)
{
    *misses = 0;
    if (layer >= replay->layers) {
        return COLIBRI_E_ARGUMENT;
    }
    struct col_cache *cache = &replay->cache[layer];
    for (uint32_t i = 0; i < count; i++) {
        if (expert[i] >= cache->experts || (i > 0u && expert[i] <= expert[i - 1u])) {
            return COLIBRI_E_ARGUMENT;
        }
    }
    col_cache_begin(cache);
    for (uint32_t i = 0; i < count; i++) {
        col_cache_want(cache, expert[i]);
    }
    uint32_t assigned = 0;
    for (uint32_t done = 0; done < count; done++) {
        uint32_t slot = 0;
        bool hit = false;
        while (assigned < count && col_cache_assign(cache, expert[assigned], assigned == done, &slot, &hit)) {
            assigned++;
            *misses += hit ? 0u : 1u;
        }
        if (assigned <= done) {
            return COLIBRI_E_INTERNAL;
        }
        col_cache_done(cache, expert[done]);
    }
    return COLIBRI_OK;
}
