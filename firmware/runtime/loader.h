/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.h: finds the image on a block device and reads it into memory. The image lies either at block 0 (the whole
 * device is the image) or in a partition of type LOADER_PARTITION_TYPE of an MBR partition table. */
#ifndef COLIBRI_LOADER_H
#define COLIBRI_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "../engine/colibri.h"
#include "../hal/hal.h"

#define LOADER_PARTITION_TYPE 0xdau /* "non-file-system data" in the list of partition types */

struct loader {
    const struct hal_block *block;
    uint8_t *memory; /* where the image goes, aligned to a page */
    uint64_t memory_bytes;
    void *user;
    /* Called between reads, which are short while it returns true: somebody is talking on a line whose receiver
     * buffers little. May be NULL. */
    bool (*between)(void *user);
    uint64_t loaded; /* bytes so far */
    uint64_t total;  /* bytes of the image; 0 until known */
};

/* Loads the image to loader->memory. Its header page is checked before the rest is read; everything else is the
 * engine's to check. COLIBRI_E_STORAGE (detail: what failed, got = the block), COLIBRI_E_STORAGE_EMPTY,
 * COLIBRI_E_IMAGE_SIZE (longer than its partition), COLIBRI_E_IMAGE_CHECKSUM (header), COLIBRI_E_MODEL_TOO_LARGE
 * (got = bytes needed, wanted = bytes there). */
COLIBRI_MUST_CHECK colibri_status loader_load(struct loader *loader, struct colibri_detail *detail);

#endif
