/* SPDX-License-Identifier: Apache-2.0
 *
 * numeric.c: the parts of numeric.h that are too long to inline.
 */
#include "numeric.h"

/* Never part of its callers here: this function is the one copy that all of the engine shares. */
__attribute__((noinline)) float col_exp(float x)
{
    return col_exp_inline(x);
}

float col_sigmoid(float x)
{
    return 1.0f / (1.0f + col_exp(-x));
}

bool col_all_finite(const float *x, uint32_t n)
{
    uint32_t carry = 0; /* an exponent of all ones, and only that, runs over into bit 31 when one is added to it */
    for (uint32_t i = 0; i < n; i++) { /* no early exit: in a healthy model there is nothing to find */
        carry |= (col_float_bits(x[i]) & 0x7f800000u) + 0x00800000u;
    }
    return carry >> 31 == 0;
}
