/* SPDX-License-Identifier: Apache-2.0
 *
 * volume.h: what lies on a medium beside images: a volume with two slots for an image each, and the boot state that
 * says which of them starts (docs/field-update.md). colibri_sdk/flash/volume.py mirrors these structs, and a test
 * compares the two through DWARF.
 *
 * A volume begins at block 0 of a medium or at the start of a partition of type VOLUME_PARTITION_TYPE. Where an image
 * lies there instead, the medium is that one image: its experts can be replaced, the model as a whole cannot.
 *
 * Rules as in image.h: little-endian, sizes asserted, no implicit padding, reserved fields zero. Each struct is one
 * sector, so that a write changes all of it or, when power fails, leaves a wrong checksum.
 */
#ifndef COLIBRI_VOLUME_H
#define COLIBRI_VOLUME_H

#include <stdint.h>

#include "../engine/image.h" /* COL_PAGE, COL_ASSERT_SIZE */

#define VOLUME_PARTITION_TYPE 0xdau /* "non-file-system data" in the list of partition types */

#define COL_VOLUME_MAGIC "COLIVOL\x1a"
#define COL_VOLUME_VERSION 1u
#define COL_SLOTS 2u

/* All offsets are in bytes from the volume's start, multiples of COL_PAGE as are all lengths; nothing overlaps. */
struct col_volume_slot {
    uint64_t offset;
    uint64_t bytes; /* the longest image it takes */
};
COL_ASSERT_SIZE(struct col_volume_slot, 16);

/* Page 0 of a volume. Devices never write it. */
struct col_volume {
    uint8_t magic[8];                       /* COL_VOLUME_MAGIC */
    uint32_t version;                       /* COL_VOLUME_VERSION */
    uint32_t slots;                         /* COL_SLOTS */
    struct col_volume_slot slot[COL_SLOTS]; /* A, B */
    uint64_t state_offset;                  /* two pages, with a struct col_boot_state at the start of each */
    uint32_t reserved[113];
    uint32_t crc32;                         /* over the 508 bytes before */
};
COL_ASSERT_SIZE(struct col_volume, 512);

#define COL_BOOT_MAGIC "COLIBOT\x1a"
#define COL_BOOT_TRIES 3u      /* of a trial, unless its update says otherwise */
#define COL_BOOT_MAX_TRIES 100u

/* What became of the last model that was on trial. */
enum col_boot_result {
    COL_BOOT_NONE = 0,        /* there was none */
    COL_BOOT_ON_TRIAL = 1,    /* written and checked; it starts at the next boots, until it is confirmed */
    COL_BOOT_CONFIRMED = 2,   /* it is the active one now */
    COL_BOOT_WITHDRAWN = 3,   /* the host asked for the old model */
    COL_BOOT_TRIES_USED = 4,  /* it started `tries` times and was never confirmed */
    COL_BOOT_INVALID = 5      /* it did not load, or failed a check or the self-test; last_status says why */
};

/* Of the two, the valid one with the higher sequence counts; a change is written to the other one, whole. One that leaves
 * nothing on trial is written to both, one after the other. */
struct col_boot_state {
    uint8_t magic[8];     /* COL_BOOT_MAGIC */
    uint64_t sequence;    /* counts changes, from 1 */
    uint32_t active;      /* the slot that starts: 0 is A, 1 is B */
    uint32_t trial;       /* 0: none; else slot + 1 of the model on trial, which starts instead while tries are left */
    uint32_t tries_left;  /* counted down before each start of the trial */
    uint32_t tries;       /* with which the trial began */
    uint64_t counter;     /* security counter: nothing signed with a lower one is accepted */
    uint32_t last_result; /* enum col_boot_result */
    int32_t last_status;  /* COL_BOOT_INVALID: a colibri_status; else 0 */
    uint32_t reserved[115];
    uint32_t crc32;       /* over the 508 bytes before */
};
COL_ASSERT_SIZE(struct col_boot_state, 512);

#endif
