/* SPDX-License-Identifier: Apache-2.0
 *
 * mutants.c: kernel sets with one mistake each, to see that the self-test finds it.
 *
 * Linked with scalar.c, selftest.c and a second scalar.c that was compiled with fused multiply-adds and calls its set
 * col_kernels_fused, but without choose.c: the table of sets is made here. Prints, for each mutant, its name, the
 * self-test's status, and the operation that it says failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"
#include "kernels/kernels.h"
#include "numeric.h"

extern const struct col_kernels col_kernels_fused;

static struct col_kernels mutant;

static bool always(void)
{
    return true;
}

const struct col_kernel_set col_kernel_sets[] = {{&mutant, always}, {NULL, NULL}};

const struct col_kernels *col_kernels_find(const char *name)
{
    return strcmp(name, mutant.name) == 0 ? &mutant : NULL;
}

/* ---------------------------------------------------------------------------------------------- hand-made mistakes */

static bool quantize_half_away(const float *x, uint32_t blocks, int8_t *q, float *scale)
{
    bool finite = col_kernels_scalar.quantize(x, blocks, q, scale);
    for (uint32_t i = 0; finite && i < blocks * COL_BLOCK; i++) {
        float v = scale[i / COL_BLOCK] > 0 ? x[i] * (127.0f / (scale[i / COL_BLOCK] * 127.0f)) : 0;
        if (v - (float)(int32_t)v == 0.5f) {
            q[i] = (int8_t)((int32_t)v + 1);
        }
    }
    return finite;
}

static bool quantize_accepts_anything(const float *x, uint32_t blocks, int8_t *q, float *scale)
{
    (void)col_kernels_scalar.quantize(x, blocks, q, scale);
    return true;
}

/* As a kernel that negates int8 weights would: -128 has no opposite. */
static void q8_negates_weights(const struct col_tile_q8 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                               const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    size_t count = (size_t)row_tiles * blocks;
    struct col_tile_q8 *copy = malloc(count * sizeof *copy);
    if (copy == NULL) {
        abort();
    }
    memcpy(copy, w, count * sizeof *copy);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t g = 0; g < 8; g++) {
            for (uint32_t c = 0; c < COL_BLOCK; c++) {
                copy[i].q[g][c] = copy[i].q[g][c] == -128 ? -127 : copy[i].q[g][c];
            }
        }
    }
    col_kernels_scalar.matmul_q8(copy, row_tiles, blocks, xq, xs, n, y, y_stride);
    free(copy);
}

/* Blocks added in descending order. */
static void q8_descends(const struct col_tile_q8 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                        const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    for (uint32_t t = 0; t < row_tiles; t++) {
        for (uint32_t token = 0; token < n; token++) {
            float *out = y + (size_t)token * y_stride + (size_t)t * COL_TILE_ROWS;
            memset(out, 0, COL_TILE_ROWS * sizeof(float));
            for (uint32_t b = blocks; b-- > 0;) {
                float part[COL_TILE_ROWS];
                size_t at = (size_t)token * blocks + b;
                const struct col_tile_q8 *tile = w + (size_t)t * blocks + b;
                col_kernels_scalar.matmul_q8(tile, 1, 1, xq + at * COL_BLOCK, xs + at, 1, part, 0);
                for (uint32_t r = 0; r < COL_TILE_ROWS; r++) {
                    out[r] = out[r] + part[r];
                }
            }
        }
    }
}

static void q4_writes_into_the_gap(const struct col_tile_q4 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                                   const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    col_kernels_scalar.matmul_q4(w, row_tiles, blocks, xq, xs, n, y, y_stride);
    if (y_stride > row_tiles * COL_TILE_ROWS) {
        y[row_tiles * COL_TILE_ROWS] = 0;
    }
}

static void f16_flushes_denormals(const uint16_t *w, uint32_t row_tiles, uint32_t cols, const float *x,
                                  uint32_t x_stride, uint32_t n, float *y, uint32_t y_stride)
{
    size_t count = (size_t)row_tiles * cols * COL_TILE_ROWS;
    uint16_t *copy = malloc(count * sizeof *copy);
    if (copy == NULL) {
        abort();
    }
    for (size_t i = 0; i < count; i++) {
        copy[i] = (w[i] & 0x7c00u) == 0 ? (uint16_t)(w[i] & 0x8000u) : w[i];
    }
    col_kernels_scalar.matmul_f16(copy, row_tiles, cols, x, x_stride, n, y, y_stride);
    free(copy);
}

static float dot_in_order(const float *a, const float *b, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum = sum + a[i] * b[i];
    }
    return sum;
}

/* Four lanes instead of eight. */
static float dot_f16_four_lanes(const float *a, const uint16_t *b, uint32_t n)
{
    float s[4] = {0};
    for (uint32_t i = 0; i < n; i++) {
        s[i % 4u] = s[i % 4u] + a[i] * col_half_to_float(b[i]);
    }
    return (s[0] + s[2]) + (s[1] + s[3]);
}

static void axpy_skips_the_last(float p, const float *x, float *y, uint32_t n)
{
    col_kernels_scalar.axpy_f32(p, x, y, n % 8u == 7u ? n - 1 : n);
}

static void axpy_f16_one_too_many(float p, const uint16_t *x, float *y, uint32_t n)
{
    col_kernels_scalar.axpy_f16(p, x, y, n);
    if (n > 8 && n % 8u == 0) {
        y[n] = 0;
    }
}

static float exp_sum_without_limit(float *x, uint32_t n, float max)
{
    float s[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        float d = x[i] - max;
        x[i] = d < -80.0f ? 0.0f : col_exp(d);
        s[i % 8u] = s[i % 8u] + x[i];
    }
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static void swiglu_multiplies_first(const float *g, const float *u, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = (g[i] * u[i]) / (1.0f + col_exp(-g[i]));
    }
}

static void narrow_truncates(const float *x, uint16_t *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half = col_float_to_half(x[i]);
        float magnitude = col_bits_float(col_float_bits(x[i]) & 0x7fffffffu);
        if (col_half_to_float((uint16_t)(half & 0x7fffu)) > magnitude) {
            half--;
        }
        y[i] = half;
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void report(const char *name)
{
    struct colibri_selftest_report r;
    void *scratch = aligned_alloc(COLIBRI_ARENA_ALIGN, COLIBRI_SELFTEST_BYTES);
    mutant.name = "mutant";
    colibri_status status = colibri_selftest("mutant", scratch, COLIBRI_SELFTEST_BYTES, &r);
    printf("%s\t%d\t%u\t%s\n", name, status, r.failures, r.failed);
    free(scratch);
}

#define MUTANT(field, function)         \
    do {                                \
        mutant = col_kernels_scalar;    \
        mutant.field = (function);      \
        report(#field "\t" #function);  \
    } while (0)

#define FUSED(field) MUTANT(field, col_kernels_fused.field)

int main(void)
{
    mutant = col_kernels_scalar;
    report("none\tnone");
    FUSED(quantize);
    FUSED(matmul_q8);
    FUSED(matmul_q4);
    FUSED(matmul_f16);
    FUSED(matmul_f32);
    FUSED(dot_f32);
    FUSED(dot_f16);
    FUSED(axpy_f32);
    FUSED(axpy_f16);
    FUSED(exp_sum);
    FUSED(swiglu);
    MUTANT(quantize, quantize_half_away);
    MUTANT(quantize, quantize_accepts_anything);
    MUTANT(matmul_q8, q8_negates_weights);
    MUTANT(matmul_q8, q8_descends);
    MUTANT(matmul_q4, q4_writes_into_the_gap);
    MUTANT(matmul_f16, f16_flushes_denormals);
    MUTANT(dot_f32, dot_in_order);
    MUTANT(dot_f16, dot_f16_four_lanes);
    MUTANT(axpy_f32, axpy_skips_the_last);
    MUTANT(axpy_f16, axpy_f16_one_too_many);
    MUTANT(exp_sum, exp_sum_without_limit);
    MUTANT(swiglu, swiglu_multiplies_first);
    MUTANT(narrow_f16, narrow_truncates);
    return 0;
}
