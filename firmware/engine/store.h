/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h: where experts come from. Each has a place in the image, which a replacement moves. Where the image can be
 * addressed, an expert is a pointer to its place: no copy. Otherwise each layer has a shelf of slots in the arena, experts are
 * read into them (struct colibri_storage), and cache.h says which stay.
 *
 * A layer's step: the router has chosen, col_store_begin gives slots to the first of its experts and starts their reads.
 * col_store_expert waits for one of them, col_store_done lets the next have its slot. Meanwhile, col_store_poll moves the
 * reads on from inside of the products. col_store_end, at the end of each call of the engine, waits for the reads that are
 * still under way, so that nothing writes into the arena behind the caller's back. */
#ifndef COLIBRI_STORE_H
#define COLIBRI_STORE_H

#include "arena.h"
#include "cache.h"
#include "image_view.h"

struct col_pending {
    uint32_t layer;
    uint32_t expert;
    struct col_place place;
};

enum col_slot_state {
    COL_SLOT_READY = 0, /* holds its expert, or is empty */
    COL_SLOT_ASKED = 1, /* its expert's read has not begun */
    COL_SLOT_READING = 2,
    COL_SLOT_FAILED = 3
};

struct col_slot {
    colibri_status status; /* COL_SLOT_FAILED: why */
    uint32_t crc32;        /* COL_SLOT_FAILED: what was delivered instead */
    uint8_t state;         /* enum col_slot_state */
    bool written;          /* a read is under way, perhaps for an expert that has lost the slot again */
};

/* The slots of one layer. */
struct col_shelf {
    struct col_cache cache;
    struct col_slot *slot; /* [cache.slots] */
    uint8_t *memory;       /* [cache.slots][expert_bytes] */
};

/* A read under way. */
struct col_store_read {
    bool busy;
    uint32_t layer;
    uint32_t slot;
    uint32_t expert;
};

struct col_store {
    struct colibri_storage storage;
    uint32_t slots;          /* of a layer with that many experts; 0: experts are used where they lie */
    uint64_t slot_bytes;     /* of all slots together */
    bool prefetch;
    struct col_place *place; /* [expert_count], as the expert directory */
    struct col_shelf *shelf; /* [layers] */
    struct col_store_read read[COLIBRI_MAX_READS];
    /* the running step; its experts are the dispatcher's contexts */
    uint32_t layer;
    uint32_t count;
    uint32_t assigned; /* contexts with a slot */
    uint32_t asked;    /* contexts whose reads have begun, where they need one */
    uint32_t done;     /* contexts that have been computed */
    /* guesses for the layer behind */
    uint32_t guess_layer;
    uint32_t guess_count;
    uint32_t guess_asked;
    uint32_t guess[COL_MAX_TOP_K];
    /* replacements that wait for the next call */
    uint32_t pending_count;
    struct col_pending pending[COLIBRI_MAX_REPLACEMENTS];
    struct colibri_detail fault; /* of the last read that failed where it was needed */
};

#endif
