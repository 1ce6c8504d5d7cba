/* SPDX-License-Identifier: Apache-2.0
 *
 * medium.h: what a model lies on, as seen by the code that changes it: whole sectors, read and written at once. On a
 * board storage.c provides it and keeps it apart from its own reads; the power-cut simulator has one of its own. */
#ifndef COLIBRI_MEDIUM_H
#define COLIBRI_MEDIUM_H

#include <stdbool.h>
#include <stdint.h>

#include "../hal/hal.h" /* HAL_BLOCK, hal_status */

struct medium {
    void *user;
    uint64_t blocks; /* of HAL_BLOCK bytes; 0: there is none */
    bool writable;
    /* `data` is aligned to 4. A write is on the medium when it returns; the order of its sectors is the medium's affair. */
    hal_status (*read)(void *user, uint64_t block, uint32_t count, void *data);
    hal_status (*write)(void *user, uint64_t block, uint32_t count, const void *data);
};

/* Reads, up to three times: for a read whose failing once would cost more than a moment. */
hal_status medium_read(const struct medium *medium, uint64_t block, uint32_t count, void *data);

/* What failed, for a detail's `where`. */
const char *medium_failure(hal_status status);

#endif
