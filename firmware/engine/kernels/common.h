/* SPDX-License-Identifier: Apache-2.0
 *
 * common.h: what the kernel files share: the reduction tree and the way over row tiles and tokens.
 */
#ifndef COLIBRI_KERNELS_COMMON_H
#define COLIBRI_KERNELS_COMMON_H

#include "../numeric.h"
#include "kernels.h"

#define ROWS COL_TILE_ROWS
#define LANES 8u /* of the long reductions; every set has eight, however wide its registers are */

#define INLINE static inline __attribute__((always_inline))

/* Unrolls the loop that follows, of at most eight turns, so that an array indexed by its counter becomes registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* The eight-lane reduction's last step. */
INLINE float col_tree(const float s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* Runs STRIP(R, T) over all row tiles, R at a time, for tokens from .. to - 1, T at a time; single tiles at the end get
 * STRIP(1, T). It uses the variables `row_tiles`, `tile` and `token`. A strip's weights stay in the nearest cache while
 * the tokens pass. */
#define SWEEP(R, T, from, to)                                           \
    for (uint32_t tile = 0; tile < row_tiles;) {                        \
        if (row_tiles - tile >= (R)) {                                  \
            for (uint32_t token = (from); token < (to); token += (T)) { \
                STRIP(R, T);                                            \
            }                                                           \
            tile += (R);                                                \
        } else {                                                        \
            for (uint32_t token = (from); token < (to); token += (T)) { \
                STRIP(1, T);                                            \
            }                                                           \
            tile++;                                                     \
        }                                                               \
    }

#endif
