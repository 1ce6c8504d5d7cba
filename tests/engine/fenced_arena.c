/* SPDX-License-Identifier: Apache-2.0
 *
 * fenced_arena.c: puts a fence behind everything that the engine claims in its arena, for AddressSanitizer, which sees the
 * arena as one block otherwise and nothing that goes from one buffer into the next.
 *
 * arena.c is compiled with col_arena_claim under another name, and this one is called in its place. Plan and engine both
 * come through here, so the fences have room. */
#include "arena.h"

#include <sanitizer/asan_interface.h>

#define FENCE 64u

void *col_arena_claim_bare(struct col_arena *arena, uint64_t count, uint64_t bytes);

/* The fence begins with the first byte that was not asked for. */
void *col_arena_claim(struct col_arena *arena, uint64_t count, uint64_t bytes)
{
    uint8_t *memory = col_arena_claim_bare(arena, count, bytes);
    uint8_t *fence = col_arena_claim_bare(arena, FENCE, 1);
    if (memory != NULL && fence != NULL) {
        uint8_t *end = memory + count * bytes;
        ASAN_POISON_MEMORY_REGION(end, (size_t)(fence + FENCE - end));
    }
    return memory;
}
