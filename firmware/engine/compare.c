/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c: see compare.h. */
#include "compare.h"

bool col_same_bytes(const void *a, const void *b, size_t bytes)
{
    const uint8_t *x = a, *y = b;
    for (size_t i = 0; i < bytes; i++) {
        if (x[i] != y[i]) {
            return false;
        }
    }
    return true;
}

bool col_all_zero(const uint32_t *word, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (word[i] != 0u) {
            return false;
        }
    }
    return true;
}
