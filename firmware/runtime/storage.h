/* SPDX-License-Identifier: Apache-2.0
 *
 * storage.h: the block device after the loader is done with it. One owner for all who use it: the engine, which reads
 * experts while it computes, and updates, which read and write in between.
 *
 * Reads of experts move on whenever the engine asks about them (it does so from inside its products, too), and in pieces,
 * so that what uses the medium in between waits for a piece at most. Firmware with a public key also compares the digest
 * of each expert, which the image states and its signature covers. Nothing here calls the engine or the link.
 */
#ifndef COLIBRI_STORAGE_H
#define COLIBRI_STORAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "../engine/colibri.h"
#include "../hal/hal.h"
#include "medium.h"
#include "trust.h"

/* Reads of experts under way at once: one moves while the next waits, so that the device is never idle. A device that
 * takes more at once gets as many. */
#define STORAGE_READS 2u
#define STORAGE_MAX_READS COLIBRI_MAX_READS

/* An expert's read. */
struct storage_read {
    colibri_status status; /* COLIBRI_PENDING while it is under way */
    uint64_t block;        /* the next one that is to be asked for */
    uint64_t left;         /* blocks from there on */
    uint8_t *to;           /* where they go */
    uint64_t order;        /* reads are served in the order they came */
    uint32_t crc;          /* of what has come */
    const uint8_t *wanted; /* its digest, with a public key; NULL without one */
    struct trust_digest digest; /* of what has come */
    bool begun;            /* the device has had a piece of it */
    bool moving;           /* the device has one now */
};

/* A transfer of the device. */
struct storage_lane {
    struct storage_read *read; /* NULL: none */
    const uint8_t *piece;
    uint64_t block;
    uint32_t count;
    bool whole; /* the piece is the read, and the device computes its CRC */
};

struct storage {
    const struct hal_block *device;
    bool ready; /* the device answers */
    bool stale; /* it did not in time, and is to be brought up again before its next transfer */
    uint64_t blocks;
    uint64_t image_first; /* block at which the running image begins */
    uint64_t image_bytes;
    uint32_t depth;
    uint64_t orders;
    struct storage_read reads[STORAGE_MAX_READS];
    struct storage_lane lanes[STORAGE_MAX_READS];
    uint32_t lane_count;
    uint64_t failures;       /* of the device, since the start */
    hal_status last_failure; /* HAL_OK: none yet */
    uint64_t last_failure_block;
};

/* Brings the device up. COLIBRI_E_STORAGE: there is none, or it fails; detail says which. May be called again. */
COLIBRI_MUST_CHECK colibri_status storage_open(struct storage *storage, const struct hal_block *device,
                                               struct colibri_detail *detail);

/* What the engine's reads are offsets into: the image that begins at block `first`. No read may be under way. */
void storage_set_image(struct storage *storage, uint64_t first, uint64_t bytes);

/* The same storage for the engine. */
struct colibri_storage storage_for_engine(struct storage *storage);

/* The same storage for all else: reads and writes that are done when the function returns. Experts' reads wait
 * meanwhile and go on afterwards. Valid as long as *storage is. */
struct medium storage_medium(struct storage *storage);

#endif
