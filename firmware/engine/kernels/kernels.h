/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h: the numeric contract between the engine and its kernels (docs/numeric-contract.md has the reasons).
 *
 * Every function below has one right result, to the bit, on every target. scalar.c is the reference; selftest.c
 * compares every other set with it. The rules:
 *
 *  - IEEE-754 binary32, round to nearest even, denormals kept. Products and sums are rounded separately: no FMA.
 *  - Matrices are [8 * row_tiles][cols] in the tile formats of image.h. y[token * y_stride + row] is written for all
 *    8 * row_tiles rows, also for the padding rows of the last tile. Callers pad their buffers accordingly.
 *  - Quantised products: per block of 32 columns the sum is exact in int32, then
 *        acc = acc + (float)isum * (wscale * xscale)
 *    blocks ascending from 0, one accumulator per row, starting at +0.
 *  - Float products: acc = acc + w * x, columns ascending from 0, one accumulator per row, starting at +0.
 *    binary16 weights are widened exactly.
 *  - Long reductions (dot): eight partial sums starting at +0, lane j taking elements j, j + 8, ... in ascending order
 *    (a tail shorter than 8 reaches the first lanes only), then the tree
 *        ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)).
 *  - exp is col_exp of numeric.h, elementwise.
 *  - Tokens are independent: n tokens at once give what n calls give.
 *
 * Pointers: x, q, scales and y are aligned to 4 bytes, weights to 16 (tiles lie at multiples of 16 in the image);
 * lengths may be any number. Kernels keep no state.
 */
#ifndef COLIBRI_KERNELS_H
#define COLIBRI_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../image.h"

struct col_kernels {
    const char *name;

    /* Quantises `blocks` x 32 floats. Per block: amax = max |x|; scale = amax / 127, inverse = 127 / amax,
     * q = round-half-even(x * inverse) clamped to [-127, 127]; a block with amax < 1e-30 gives scale 0 and zeros.
     * False when any x is NaN or infinite (q and scale are then unspecified). */
    bool (*quantize)(const float *x, uint32_t blocks, int8_t *q, float *scale);

    /* y = W x for n tokens. xq: [n][32 * blocks], xs: [n][blocks]; w: row_tiles x blocks tiles. */
    void (*matmul_q8)(const struct col_tile_q8 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                      const float *xs, uint32_t n, float *y, uint32_t y_stride);
    void (*matmul_q4)(const struct col_tile_q4 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                      const float *xs, uint32_t n, float *y, uint32_t y_stride);

    /* y = W x for n tokens. x: [n][x_stride]; w: [row_tiles][cols][8]. */
    void (*matmul_f16)(const uint16_t *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                       uint32_t n, float *y, uint32_t y_stride);
    void (*matmul_f32)(const float *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                       uint32_t n, float *y, uint32_t y_stride);

    /* Eight-lane dot products (see above); b in binary32 or binary16. */
    float (*dot_f32)(const float *a, const float *b, uint32_t n);
    float (*dot_f16)(const float *a, const uint16_t *b, uint32_t n);

    /* y[i] = y[i] + p * x[i]; x in binary32 or binary16. */
    void (*axpy_f32)(float p, const float *x, float *y, uint32_t n);
    void (*axpy_f16)(float p, const uint16_t *x, float *y, uint32_t n);

    /* x[i] = exp(x[i] - max); returns their eight-lane sum (lanes and tree as in dot). */
    float (*exp_sum)(float *x, uint32_t n, float max);

    /* y[i] = (g[i] / (1 + exp(-g[i]))) * u[i]. y may be g or u. */
    void (*swiglu)(const float *g, const float *u, float *y, uint32_t n);

    /* y[i] = binary16(x[i]), round to nearest even; overflow gives infinity. */
    void (*narrow_f16)(const float *x, uint16_t *y, uint32_t n);
};

/* Kernel sets of this build, NULL-terminated, from the least to the most preferred; scalar is first. A set is listed
 * when it was compiled in; `usable` asks the processor. */
struct col_kernel_set {
    const struct col_kernels *kernels;
    bool (*usable)(void);
};
extern const struct col_kernel_set col_kernel_sets[];

/* One set per file and instruction set; declared everywhere, defined where the compiler can make them. */
extern const struct col_kernels col_kernels_scalar;
extern const struct col_kernels col_kernels_avx2;         /* x86-64: avx2.c */
extern const struct col_kernels col_kernels_neon;         /* AArch64: neon.c */
extern const struct col_kernels col_kernels_neon_dotprod; /* AArch64 with FEAT_DotProd: neon.c */

/* The set of that name that this processor can run, or NULL. */
const struct col_kernels *col_kernels_find(const char *name);

/* Chooses a set: usable, passing the self-test, then the fastest of a micro-benchmark of a few milliseconds when a
 * clock is given, else the most preferred. `scratch` has COLIBRI_SELFTEST_BYTES. Never NULL: scalar is always right. */
const struct col_kernels *col_kernels_choose(uint64_t (*now)(void *user), void *user, uint64_t ticks_per_second,
                                             void *scratch);

#endif
