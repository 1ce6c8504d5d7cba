/* SPDX-License-Identifier: Apache-2.0
 *
 * runtime.h: what a board may ask of the runtime beyond hal.h. */
#ifndef COLIBRI_RUNTIME_H
#define COLIBRI_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>

/* How the experts are reached. */
enum store_mode {
    STORE_AUTO = 0,   /* as mapped where it is; else in memory when all fits, else from the block device */
    STORE_MEMORY = 1, /* the whole image in memory (or mapped) */
    STORE_BLOCK = 2,  /* the image's front in memory, experts in slots of the arena */
    STORE_MAPPED = 3  /* never asked for: used where the image is mapped */
};

struct store_options {
    uint32_t mode;         /* enum store_mode, not STORE_MAPPED */
    uint32_t cache_slots;  /* STORE_BLOCK: experts that each layer keeps; 0: as many as the memory takes */
    bool prefetch;         /* STORE_BLOCK: guess the next layer's experts */
    uint64_t memory_limit; /* bytes for image, arena and prompt; 0: what the board has */
};

/* Zeros are the defaults. A board that wants others sets them before runtime_main. */
struct runtime_options {
    uint32_t context;    /* positions; 0: the image's maximum */
    const char *kernels; /* name of the kernel set; NULL: the best */
    struct store_options store;
};
extern struct runtime_options runtime_options;

#endif
