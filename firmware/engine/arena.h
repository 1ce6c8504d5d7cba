/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h: the one block of memory an engine lives in.
 *
 * The same layout code runs twice: once without memory, to state the plan, and once with it, to hand out pointers.
 * So the plan can't differ from what is used. */
#ifndef COLIBRI_ARENA_H
#define COLIBRI_ARENA_H

#include "colibri.h"

struct col_arena {
    uint8_t *base;             /* NULL: measure only */
    uint64_t used;             /* bytes claimed so far, a multiple of COLIBRI_ARENA_ALIGN */
    bool overflow;             /* a size did not fit 64 bits, or the regions their table */
    struct colibri_plan *plan; /* receives the regions; may be NULL */
};

/* Everything claimed from now on belongs to region `name` (at most 23 characters). */
void col_arena_region(struct col_arena *arena, const char *name);

/* `count` elements of `size` bytes, aligned to COLIBRI_ARENA_ALIGN, contents undefined. NULL while measuring. */
void *col_arena_claim(struct col_arena *arena, uint64_t count, uint64_t size);

/* What is claimed next begins at a multiple of the power of two `align` from the arena's start. */
void col_arena_align(struct col_arena *arena, uint64_t align);

/* Marks all of `bytes` as never written. */
void col_arena_paint(void *arena, uint64_t bytes);

/* Bytes up to the last one that was written since it was painted, rounded up to COLIBRI_ARENA_ALIGN. */
uint64_t col_arena_high_water(const void *arena, uint64_t bytes);

#endif
