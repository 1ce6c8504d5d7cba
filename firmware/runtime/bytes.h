/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes.h: what the engine's compare.h has not of working with bytes, for want of a C library. */
#ifndef COLIBRI_BYTES_H
#define COLIBRI_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../engine/compare.h"

static inline bool bytes_zero(const void *data, size_t count)
{
    const uint8_t *x = data;
    for (size_t i = 0; i < count; i++) {
        if (x[i] != 0) {
            return false;
        }
    }
    return true;
}

/* The two do not overlap. */
static inline void bytes_copy(void *restrict to, const void *restrict from, size_t count)
{
    uint8_t *x = to;
    const uint8_t *y = from;
    for (size_t i = 0; i < count; i++) {
        x[i] = y[i];
    }
}

#endif
