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

/* Unrolls the loop that follows, of at most eight turns, so that an array indexed by its counter becomes registers. Not
 * where a file is compiled for size. */
#if defined(__OPTIMIZE_SIZE__)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* The eight-lane reduction's last step. */
INLINE float col_tree(const float s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* The ways over a matrix. A strip is one row tile (or R of them) times T tokens; its weights stay in the nearest cache
 * while all tokens pass.
 *
 * Quantised products take one row tile at a time: their weights are then read from the first byte to the last, which
 * on x86-64 brought twice the bytes per second from memory that two tiles side by side did, prefetch instructions or
 * not. Float products add once per column instead of once per block and would wait for each addition: with few tokens
 * they take four row tiles at a time, four independent chains. */
#define EACH_STRIP(T)                                     \
    for (uint32_t tile = 0; tile < row_tiles; tile++) {   \
        uint32_t token = 0;                               \
        for (; n - token >= (T); token += (T)) {          \
            STRIP(T);                                     \
        }                                                 \
        for (; token < n; token++) {                      \
            STRIP(1);                                     \
        }                                                 \
    }

#define QUANTISED_STRIP_ARGUMENTS                                                                            \
    w + (size_t)tile * blocks, blocks, xq + (size_t)token * blocks * COL_BLOCK, xs + (size_t)token * blocks, \
        y + (size_t)token * y_stride + (size_t)tile * ROWS, y_stride

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

/* `R`: row tiles at a time when there are four tokens. */
#define EACH_WIDE_STRIP(R)    \
    uint32_t fours = n & ~3u; \
    SWEEP(R, 4, 0, fours)     \
    SWEEP(4, 1, fours, n)

#define FLOAT_STRIP_ARGUMENTS                                                         \
    w + (size_t)tile * cols * ROWS, cols, x + (size_t)token * x_stride, x_stride,     \
        y + (size_t)token * y_stride + (size_t)tile * ROWS, y_stride

#endif
