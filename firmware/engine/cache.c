/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.c: frequency that ages, then recency, and the needs of the running step before both. See cache.h. */
#include "cache.h"

void col_cache_layout(struct col_cache *cache, struct col_arena *arena, uint32_t experts, uint32_t slots)
{
    cache->experts = experts;
    cache->slots = slots < experts ? slots : experts;
    cache->expert = col_arena_claim(arena, experts, sizeof *cache->expert);
    cache->held = col_arena_claim(arena, cache->slots, sizeof *cache->held);
}

void col_cache_clear(struct col_cache *cache)
{
    cache->step = 0;
    cache->pins = 0;
    for (uint32_t e = 0; e < cache->experts; e++) {
        cache->expert[e] = (struct col_cache_expert){.slot = COL_CACHE_NONE};
    }
    for (uint32_t s = 0; s < cache->slots; s++) {
        cache->held[s] = COL_CACHE_NONE;
    }
}

void col_cache_pin(struct col_cache *cache, uint32_t expert, uint32_t pin)
{
    if (pin != 0u && pin < cache->slots && cache->pins + 1u < cache->slots) {
        cache->expert[expert].pinned = true;
        cache->pins++;
    }
}

void col_cache_begin(struct col_cache *cache)
{
    cache->step++;
    if (cache->step % COL_CACHE_HALF_LIFE == 0u) {
        for (uint32_t e = 0; e < cache->experts; e++) {
            cache->expert[e].frequency /= 2u;
        }
    }
}

void col_cache_want(struct col_cache *cache, uint32_t expert)
{
    struct col_cache_expert *e = &cache->expert[expert];
    e->frequency += COL_CACHE_USE;
    e->used = cache->step;
    e->need = COL_NEED_LATER;
}

/* Of two experts that the step does not need, the one to give up. */
static bool worth_less(const struct col_cache *cache, uint32_t a, uint32_t b)
{
    const struct col_cache_expert *x = &cache->expert[a];
    const struct col_cache_expert *y = &cache->expert[b];
    if (x->frequency != y->frequency) {
        return x->frequency < y->frequency;
    }
    const uint32_t x_age = cache->step - x->used;
    const uint32_t y_age = cache->step - y->used;
    return x_age != y_age ? x_age > y_age : a < b;
}

/* The slot to be given up, or COL_CACHE_NONE. `later`: also one whose expert is needed later, the last of these. */
static uint32_t victim(const struct col_cache *cache, bool later)
{
    uint32_t best = COL_CACHE_NONE;
    uint32_t last = COL_CACHE_NONE;
    for (uint32_t s = 0; s < cache->slots; s++) {
        const uint32_t e = cache->held[s];
        if (e == COL_CACHE_NONE) {
            return s;
        }
        const struct col_cache_expert *expert = &cache->expert[e];
        if (expert->pinned || expert->need == COL_NEED_NOW) {
            continue;
        }
        if (expert->need == COL_NEED_LATER) {
            last = last == COL_CACHE_NONE || e > cache->held[last] ? s : last;
        } else if (best == COL_CACHE_NONE || worth_less(cache, e, cache->held[best])) {
            best = s;
        }
    }
    return best == COL_CACHE_NONE && later ? last : best;
}

static void put(struct col_cache *cache, uint32_t expert, uint32_t slot)
{
    if (cache->held[slot] != COL_CACHE_NONE) {
        col_cache_forget(cache, cache->held[slot]);
    }
    cache->held[slot] = expert;
    cache->expert[expert].slot = slot;
}

bool col_cache_assign(struct col_cache *cache, uint32_t expert, bool alone, uint32_t *slot, bool *hit)
{
    struct col_cache_expert *e = &cache->expert[expert];
    *hit = e->slot != COL_CACHE_NONE;
    if (!*hit) {
        const uint32_t found = victim(cache, alone);
        if (found == COL_CACHE_NONE) {
            return false;
        }
        put(cache, expert, found);
    }
    e->need = COL_NEED_NOW;
    e->guessed = false;
    *slot = e->slot;
    return true;
}

void col_cache_done(struct col_cache *cache, uint32_t expert)
{
    cache->expert[expert].need = COL_NEED_NONE;
}

void col_cache_expect(struct col_cache *cache, uint32_t expert)
{
    cache->expert[expert].need = COL_NEED_LATER;
}

bool col_cache_guess(struct col_cache *cache, uint32_t expert, uint32_t *slot)
{
    struct col_cache_expert *e = &cache->expert[expert];
    if (e->slot != COL_CACHE_NONE) {
        return false;
    }
    const uint32_t found = victim(cache, false);
    if (found == COL_CACHE_NONE) {
        return false;
    }
    put(cache, expert, found);
    e->guessed = true;
    *slot = found;
    return true;
}

void col_cache_forget(struct col_cache *cache, uint32_t expert)
{
    struct col_cache_expert *e = &cache->expert[expert];
    if (e->slot != COL_CACHE_NONE) {
        cache->held[e->slot] = COL_CACHE_NONE;
        e->slot = COL_CACHE_NONE;
    }
    e->guessed = false;
}
