/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.h: reads an image from its place on a medium into memory, whole or its front: what stands before the experts,
 * which is all that must be in memory when experts are read on demand. boot.h says where an image lies. */
#ifndef COLIBRI_LOADER_H
#define COLIBRI_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "../engine/colibri.h"
#include "boot.h"
#include "medium.h"

struct loader {
    const struct medium *medium;
    struct extent where; /* of the image, which may be shorter */
    uint8_t *memory;     /* where it goes, aligned to a page */
    uint64_t memory_bytes;
    void *user;
    /* Called between reads, which are short while it returns true: somebody is talking on a line whose receiver
     * buffers little. May be NULL. */
    bool (*between)(void *user);
    uint64_t loaded; /* bytes so far */
    uint64_t total;  /* bytes that are to be read; 0 until known */
};

/* What an image's first page says. */
struct loader_image {
    uint64_t image_bytes;
    uint64_t updates_offset; /* of the table of replaced experts; front_bytes where there is none */
    uint64_t front_bytes;    /* image_bytes in an image without experts */
};

/* Reads the image's first page to loader->memory and checks its checksum; everything else is the engine's to check.
 * COLIBRI_E_STORAGE (detail: what failed, got = the block), COLIBRI_E_IMAGE_SIZE (longer than its place),
 * COLIBRI_E_IMAGE_CHECKSUM (header), COLIBRI_E_IMAGE_MAGIC, COLIBRI_E_MODEL_TOO_LARGE (not even a page of memory). */
COLIBRI_MUST_CHECK colibri_status loader_open(struct loader *loader, struct loader_image *image,
                                              struct colibri_detail *detail);

/* Reads the image's bytes from `from` up to `to` to the same place in memory. Both are multiples of HAL_BLOCK, and `to`
 * is at most memory_bytes. */
COLIBRI_MUST_CHECK colibri_status loader_read(struct loader *loader, uint64_t from, uint64_t to,
                                              struct colibri_detail *detail);

#endif
