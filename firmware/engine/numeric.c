/* SPDX-License-Identifier: Apache-2.0
 *
 * numeric.c: the parts of numeric.h that are too long to inline.
 */
#include "numeric.h"

bool col_all_finite(const float *x, uint32_t n)
{
    uint32_t bad = 0; /* no early exit: the loop vectorises, and in a healthy model there is nothing to find */
    for (uint32_t i = 0; i < n; i++) {
        bad |= (uint32_t)((col_float_bits(x[i]) & 0x7f800000u) == 0x7f800000u);
    }
    return bad == 0;
}
