/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.c: a bump allocator that never frees. See arena.h. */
#include "arena.h"

#define PAINT 0xa5u /* no small number and no float of a usual size begins or ends with it */

void col_arena_region(struct col_arena *arena, const char *name)
{
    struct colibri_plan *plan = arena->plan;
    if (plan == NULL) {
        return;
    }
    if (plan->region_count >= COLIBRI_MAX_REGIONS) {
        arena->overflow = true;
        return;
    }
    struct colibri_region *region = &plan->region[plan->region_count++];
    size_t i = 0;
    for (; name[i] != '\0' && i + 1 < sizeof region->name; i++) {
        region->name[i] = name[i];
    }
    for (; i < sizeof region->name; i++) {
        region->name[i] = '\0';
    }
    region->offset = arena->used;
    region->bytes = 0;
}

static bool take(struct col_arena *arena, uint64_t bytes)
{
    uint64_t end = 0;
    if (__builtin_add_overflow(arena->used, bytes, &end)) {
        arena->overflow = true;
        return false;
    }
    arena->used = end;
    if (arena->plan != NULL && arena->plan->region_count > 0) {
        arena->plan->region[arena->plan->region_count - 1u].bytes += bytes;
    }
    return true;
}

void *col_arena_claim(struct col_arena *arena, uint64_t count, uint64_t size)
{
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, (uint64_t)COLIBRI_ARENA_ALIGN - 1u, &bytes)) {
        arena->overflow = true;
        return NULL;
    }
    uint8_t *memory = arena->base == NULL ? NULL : arena->base + arena->used;
    return take(arena, bytes & ~((uint64_t)COLIBRI_ARENA_ALIGN - 1u)) ? memory : NULL;
}

void col_arena_align(struct col_arena *arena, uint64_t align)
{
    (void)take(arena, -arena->used & (align - 1u));
}

void col_arena_paint(void *arena, uint64_t bytes)
{
    __builtin_memset(arena, PAINT, (size_t)bytes);
}

uint64_t col_arena_high_water(const void *arena, uint64_t bytes)
{
    const uint8_t *byte = arena;
    while (bytes > 0u && byte[bytes - 1u] == PAINT) {
        bytes--;
    }
    return (bytes + COLIBRI_ARENA_ALIGN - 1u) & ~((uint64_t)COLIBRI_ARENA_ALIGN - 1u);
}
