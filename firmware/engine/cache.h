/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.h: which slot of a layer an expert gets. The rule alone: no bytes, no reads, no time.
 *
 * A step is one layer of one batch: the distinct experts that its tokens chose, ascending. What is kept follows from the
 * sequence of steps and from nothing else, so that recorded routing tells what a device will read. The rule is stated in
 * docs/expert-store.md; a second model of it in tests/engine holds this one to every word. */
#ifndef COLIBRI_CACHE_H
#define COLIBRI_CACHE_H

#include "arena.h"

/* Steps after which a use counts half: short against a conversation, long against a sentence. */
#define COL_CACHE_HALF_LIFE 64u
#define COL_CACHE_USE 65536u /* what one use adds to a frequency: sixteen halvings make it nothing */

#define COL_CACHE_NONE UINT32_MAX

enum col_cache_need {
    COL_NEED_NONE = 0,
    COL_NEED_LATER = 1, /* in the running step, without a slot of its own yet; or guessed for the next one */
    COL_NEED_NOW = 2    /* it has its slot and has not been computed yet */
};

struct col_cache_expert {
    uint32_t slot;      /* COL_CACHE_NONE: not kept */
    uint32_t frequency; /* uses, each worth COL_CACHE_USE when it happens */
    uint32_t used;      /* number of the last step that needed it */
    uint8_t need;       /* enum col_cache_need */
    bool pinned;
    bool guessed;       /* kept because it was guessed, and not needed since */
};

/* One layer's experts. */
struct col_cache {
    uint32_t experts;
    uint32_t slots; /* at most `experts` */
    uint32_t step;  /* number of the running or last step; wraps, ages are differences */
    uint32_t pins;  /* pinned experts, fewer than slots */
    struct col_cache_expert *expert; /* [experts] */
    uint32_t *held;                  /* [slots]: the expert in each, or COL_CACHE_NONE */
};

/* Claims the tables; `slots` beyond `experts` are none. */
void col_cache_layout(struct col_cache *cache, struct col_arena *arena, uint32_t experts, uint32_t slots);

/* Empties all slots and forgets all uses and pins. */
void col_cache_clear(struct col_cache *cache);

/* An expert whose pin is from 1 to slots - 1 stays once it is kept. One slot is left for the others: where pins are doubled,
 * as no packer does it, the first slots - 1 experts that this is called for count. */
void col_cache_pin(struct col_cache *cache, uint32_t expert, uint32_t pin);

/* A step: begin, then want for each of its experts, ascending. Then assign in the same order, each as soon as it succeeds, and
 * done for each that was computed, or won't be. */
void col_cache_begin(struct col_cache *cache);
void col_cache_want(struct col_cache *cache, uint32_t expert);

/* The slot of an expert; *hit: it holds the expert already. False: another expert has to be done first. `alone` says that none
 * is left to be; then it succeeds. */
bool col_cache_assign(struct col_cache *cache, uint32_t expert, bool alone, uint32_t *slot, bool *hit);
void col_cache_done(struct col_cache *cache, uint32_t expert);

/* Guesses for the next step: expect for each expert that it may need, then guess for each, and done for each when the step
 * begins; until then no guess takes the slot of another. Guess takes a slot for an expert; false: it is kept already, or no slot
 * may be given up for it. */
void col_cache_expect(struct col_cache *cache, uint32_t expert);
bool col_cache_guess(struct col_cache *cache, uint32_t expert, uint32_t *slot);

/* The expert's bytes are not, or no longer, in its slot. */
void col_cache_forget(struct col_cache *cache, uint32_t expert);

#endif
