/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h: where experts come from. Each has a place in the image, which a replacement moves. Where the image can be
 * addressed, an expert is a pointer to its place: no copy. */
#ifndef COLIBRI_STORE_H
#define COLIBRI_STORE_H

#include "arena.h"
#include "cache.h"

struct col_expert_place {
    uint64_t offset;       /* from the image's start */
    uint32_t crc32;
    uint32_t generation;
    const uint8_t *digest; /* 32 bytes, or NULL */
};

struct col_pending {
    uint32_t layer;
    uint32_t expert;
    struct col_expert_place place;
};

struct col_store {
    struct col_expert_place *place; /* [expert_count], as the expert directory */
    uint32_t pending_count;
    struct col_pending pending[COLIBRI_MAX_REPLACEMENTS];
    struct colibri_detail fault;
};

#endif
