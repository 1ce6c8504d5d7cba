/* SPDX-License-Identifier: Apache-2.0
 *
 * numeric.c: the parts of numeric.h that are too long to inline.
 */
#include "numeric.h"

bool col_all_finite(const float *x, uint32_t n)
{
    uint32_t carry = 0; /* an exponent of all ones, and only that, runs over into bit 31 when one is added to it */
    for (uint32_t i = 0; i < n; i++) { /* no early exit: in a healthy model there is nothing to find */
        carry |= (col_float_bits(x[i]) & 0x7f800000u) + 0x00800000u;
    }
    return carry >> 31 == 0;
}
