/* SPDX-License-Identifier: Apache-2.0
 *
 * selftest.c: proves on the processor itself that a kernel set keeps the numeric contract.
 *
 * Two kinds of cases. Witnesses have results known from arithmetic alone, chosen so that a fused multiply-add, a
 * flushed denormal or another rounding mode gives other bits; every set must pass them, scalar too. Comparisons run a
 * set and the scalar reference on the same pseudo-random data and compare whole buffers, so that a stray write shows.
 */
#include "../colibri.h"
#include "common.h"

#define MAX_TILES 5u
#define MAX_BLOCKS 7u
#define MAX_TOKENS 5u
#define MAX_COLS 33u
#define MAX_VECTOR 259u
#define GAP 3u /* unused floats between two tokens' rows: nobody may write there */
#define MAX_Y (MAX_TOKENS * (MAX_TILES * ROWS + GAP) + ROWS)

/* All of the self-test's data: it lies in the caller's scratch. */
struct selftest {
    union {
        _Alignas(16) struct col_tile_q8 q8[MAX_TILES * MAX_BLOCKS];
        struct col_tile_q4 q4[MAX_TILES * MAX_BLOCKS];
        uint16_t f16[MAX_TILES * MAX_COLS * ROWS];
        float f32[MAX_TILES * MAX_COLS * ROWS];
    } w;
    float x[MAX_TOKENS * (MAX_COLS + GAP) + MAX_VECTOR];
    float u[MAX_VECTOR + 1];
    uint16_t half[MAX_VECTOR + 1];
    int8_t xq[MAX_TOKENS * MAX_BLOCKS * COL_BLOCK];
    float xs[MAX_TOKENS * MAX_BLOCKS];
    float expected[MAX_Y + MAX_VECTOR]; /* written by the scalar kernels */
    float got[MAX_Y + MAX_VECTOR];      /* written by the kernels under test */
    uint32_t random;
    const struct col_kernels *kernels;
    struct colibri_selftest_report *report;
};
_Static_assert(sizeof(struct selftest) <= COLIBRI_SELFTEST_BYTES, "COLIBRI_SELFTEST_BYTES is too small");

static void copy_text(char *to, size_t capacity, const char *from)
{
    size_t i = 0;
    for (; i + 1 < capacity && from[i] != '\0'; i++) {
        to[i] = from[i];
    }
    to[i] = '\0';
}

static void verdict(struct selftest *t, const char *operation, uint32_t size, bool right)
{
    t->report->cases++;
    if (!right) {
        if (t->report->failures == 0) {
            copy_text(t->report->failed, sizeof t->report->failed, operation);
            t->report->failed_size = size;
        }
        t->report->failures++;
    }
}

/* ---------------------------------------------------------------------------------------------------- random data */

/* Marsaglia's xorshift32: the same data on every target. */
static uint32_t next(struct selftest *t)
{
    uint32_t r = t->random;
    r ^= r << 13;
    r ^= r >> 17;
    r ^= r << 5;
    t->random = r;
    return r;
}

/* What floats look like in a case. */
enum flavour { ORDINARY, HUGE, TINY, SPECIAL, FLAVOURS };

/* A finite float. Magnitudes: ORDINARY 2^-8 .. 2^7, HUGE up to 2^50, TINY around the denormals, SPECIAL zeros of
 * both signs, halves (ties of the rounding) and small integers. */
static float any_float(struct selftest *t, enum flavour flavour)
{
    uint32_t r = next(t);
    uint32_t sign_and_fraction = r & 0x807fffffu;
    uint32_t e = (r >> 23) & 15u;
    switch (flavour) {
    case HUGE:
        return col_bits_float(sign_and_fraction | ((162u + e) << 23));
    case TINY:
        return col_bits_float(sign_and_fraction | ((e > 11u ? e - 11u : 0u) << 23));
    case SPECIAL: {
        float value = (float)(r & 0xffu) * 0.5f;
        value = (r & 0x300u) == 0 ? 0.0f : value;
        return (r >> 31) != 0 ? -value : value;
    }
    default:
        return col_bits_float(sign_and_fraction | ((119u + e) << 23));
    }
}

/* A finite binary16 of any magnitude: zeros, denormals and both signs included. */
static uint16_t any_half(struct selftest *t)
{
    uint16_t h = (uint16_t)(next(t) >> 9);
    return (h & 0x7c00u) == 0x7c00u ? (uint16_t)(h & 0x83ffu) : h;
}

static void fill_floats(struct selftest *t, float *x, uint32_t n, enum flavour flavour)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = any_float(t, flavour);
    }
}

static void fill_halves(struct selftest *t, uint16_t *h, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        h[i] = any_half(t);
    }
}

static void fill_bytes(struct selftest *t, void *bytes, size_t n)
{
    uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)(next(t) >> 11);
    }
}

/* Activations as quantize leaves them, never -128, the extremes often; scales never negative. */
static void fill_activations(struct selftest *t, uint32_t blocks, enum flavour flavour)
{
    for (uint32_t i = 0; i < blocks * COL_BLOCK; i++) {
        uint32_t r = next(t);
        int32_t v = (int32_t)(r >> 8 & 0xffu) - 128;
        v = (r & 7u) == 0 ? ((r & 8u) != 0 ? 127 : -127) : v;
        t->xq[i] = (int8_t)(v < -127 ? -127 : v);
    }
    for (uint32_t i = 0; i < blocks; i++) {
        t->xs[i] = col_bits_float(col_float_bits(any_float(t, flavour)) & 0x7fffffffu);
    }
}

/* ---------------------------------------------------------------------------------------------------- comparisons */

/* Gives both outputs the same contents, which no kernel may leave where it has to write nor change elsewhere. */
static void prepare_outputs(struct selftest *t)
{
    for (uint32_t i = 0; i < MAX_Y + MAX_VECTOR; i++) {
        t->expected[i] = t->got[i] = col_bits_float(0x4a000000u + i);
    }
}

static void compare_outputs(struct selftest *t, const char *operation, uint32_t size)
{
    uint32_t different = 0;
    for (uint32_t i = 0; i < MAX_Y + MAX_VECTOR; i++) {
        different |= col_float_bits(t->expected[i]) ^ col_float_bits(t->got[i]);
    }
    verdict(t, operation, size, different == 0);
}

static void quantised_products(struct selftest *t, uint32_t tiles, uint32_t blocks, uint32_t n, enum flavour flavour)
{
    uint32_t stride = tiles * ROWS + GAP;
    fill_activations(t, n * blocks, flavour);

    prepare_outputs(t);
    fill_bytes(t, t->w.q8, sizeof(struct col_tile_q8) * tiles * blocks);
    for (uint32_t i = 0; i < tiles * blocks; i++) {
        fill_halves(t, t->w.q8[i].scale, ROWS);
        t->w.q8[i].q[i % 8u][next(t) % COL_BLOCK] = -128;
    }
    col_kernels_scalar.matmul_q8(t->w.q8, tiles, blocks, t->xq, t->xs, n, t->expected, stride);
    t->kernels->matmul_q8(t->w.q8, tiles, blocks, t->xq, t->xs, n, t->got, stride);
    compare_outputs(t, "matmul_q8", blocks * COL_BLOCK);

    prepare_outputs(t);
    fill_bytes(t, t->w.q4, sizeof(struct col_tile_q4) * tiles * blocks);
    for (uint32_t i = 0; i < tiles * blocks; i++) {
        fill_halves(t, t->w.q4[i].scale, ROWS);
    }
    col_kernels_scalar.matmul_q4(t->w.q4, tiles, blocks, t->xq, t->xs, n, t->expected, stride);
    t->kernels->matmul_q4(t->w.q4, tiles, blocks, t->xq, t->xs, n, t->got, stride);
    compare_outputs(t, "matmul_q4", blocks * COL_BLOCK);
}

/* The largest sums there are: every product of a block at its extreme, with one sign or alternating. */
static void extreme_products(struct selftest *t, int8_t weight, int8_t x, uint32_t n)
{
    __builtin_memset(&t->w, 0, sizeof t->w);
    for (uint32_t i = 0; i < 2; i++) {
        __builtin_memset(t->w.q8[i].q, (uint8_t)weight, sizeof t->w.q8[i].q);
        for (uint32_t r = 0; r < ROWS; r++) {
            t->w.q8[i].scale[r] = 0x3c00; /* 1 */
        }
    }
    __builtin_memset(t->xq, (uint8_t)x, (size_t)n * COL_BLOCK);
    for (uint32_t i = 0; i < n; i++) {
        t->xs[i] = 1.0f;
    }
    prepare_outputs(t);
    t->kernels->matmul_q8(t->w.q8, 2, 1, t->xq, t->xs, n, t->got, 2 * ROWS);
    for (uint32_t i = 0; i < n * 2 * ROWS; i++) {
        t->expected[i] = (float)(weight * x * (int32_t)COL_BLOCK);
    }
    compare_outputs(t, "matmul_q8 extreme", COL_BLOCK);

    for (uint32_t i = 0; i < 2; i++) {
        __builtin_memset(t->w.q4[i].q, weight < 0 ? 0x00 : 0xff, sizeof t->w.q4[i].q);
        for (uint32_t r = 0; r < ROWS; r++) {
            t->w.q4[i].scale[r] = 0x3c00;
        }
    }
    prepare_outputs(t);
    t->kernels->matmul_q4(t->w.q4, 2, 1, t->xq, t->xs, n, t->got, 2 * ROWS);
    for (uint32_t i = 0; i < n * 2 * ROWS; i++) {
        t->expected[i] = (float)((weight < 0 ? -8 : 7) * x * (int32_t)COL_BLOCK);
    }
    compare_outputs(t, "matmul_q4 extreme", COL_BLOCK);
}

static void float_products(struct selftest *t, uint32_t tiles, uint32_t cols, uint32_t n, enum flavour flavour)
{
    uint32_t stride = tiles * ROWS + GAP;
    uint32_t x_stride = cols + (n & 1u) * GAP;
    fill_floats(t, t->x, n * x_stride, flavour);

    prepare_outputs(t);
    fill_floats(t, t->w.f32, tiles * cols * ROWS, flavour == TINY ? ORDINARY : flavour);
    col_kernels_scalar.matmul_f32(t->w.f32, tiles, cols, t->x, x_stride, n, t->expected, stride);
    t->kernels->matmul_f32(t->w.f32, tiles, cols, t->x, x_stride, n, t->got, stride);
    compare_outputs(t, "matmul_f32", cols);

    prepare_outputs(t);
    fill_halves(t, t->w.f16, tiles * cols * ROWS);
    col_kernels_scalar.matmul_f16(t->w.f16, tiles, cols, t->x, x_stride, n, t->expected, stride);
    t->kernels->matmul_f16(t->w.f16, tiles, cols, t->x, x_stride, n, t->got, stride);
    compare_outputs(t, "matmul_f16", cols);
}

static void quantisation(struct selftest *t, uint32_t blocks, enum flavour flavour)
{
    uint32_t n = blocks * COL_BLOCK;
    fill_floats(t, t->x, n, flavour);
    if (flavour == SPECIAL) {
        t->x[n - 1] = -127.0f; /* the inverse is 1: halves are ties */
    }
    prepare_outputs(t);
    /* Both quantise into the heads of the two output buffers, scales first. */
    bool expected = col_kernels_scalar.quantize(t->x, blocks, (int8_t *)(t->expected + blocks), t->expected);
    bool got = t->kernels->quantize(t->x, blocks, (int8_t *)(t->got + blocks), t->got);
    compare_outputs(t, "quantize", n);
    verdict(t, "quantize finite", n, expected && got);
    static const uint32_t not_finite[3] = {0x7f800000u, 0xff800000u, 0xffc00001u};
    t->x[next(t) % n] = col_bits_float(not_finite[next(t) % 3u]);
    verdict(t, "quantize non-finite", n, !t->kernels->quantize(t->x, blocks, t->xq, t->xs));
}

static void reductions(struct selftest *t, uint32_t n, enum flavour flavour)
{
    fill_floats(t, t->x, n, flavour);
    fill_floats(t, t->u, n, flavour == TINY ? ORDINARY : flavour);
    fill_halves(t, t->half, n);
    prepare_outputs(t);
    t->expected[0] = col_kernels_scalar.dot_f32(t->x, t->u, n);
    t->got[0] = t->kernels->dot_f32(t->x, t->u, n);
    compare_outputs(t, "dot_f32", n);
    t->expected[0] = col_kernels_scalar.dot_f16(t->x, t->half, n);
    t->got[0] = t->kernels->dot_f16(t->x, t->half, n);
    compare_outputs(t, "dot_f16", n);

    /* Exponentials of -121 .. 135 around the largest value, so that some vanish and some are clamped. */
    for (uint32_t i = 0; i < n; i++) {
        float x = (float)(next(t) >> 8) * 0x1p-16f - 121.0f;
        t->expected[1 + i] = t->got[1 + i] = flavour == ORDINARY ? x : t->x[i];
    }
    t->expected[0] = col_kernels_scalar.exp_sum(t->expected + 1, n, flavour == HUGE ? 0.0f : 1.25f);
    t->got[0] = t->kernels->exp_sum(t->got + 1, n, flavour == HUGE ? 0.0f : 1.25f);
    compare_outputs(t, "exp_sum", n);
}

static void elementwise(struct selftest *t, uint32_t n, enum flavour flavour)
{
    float p = any_float(t, flavour == TINY ? ORDINARY : flavour);
    fill_floats(t, t->x, n, flavour);
    fill_floats(t, t->u, n, flavour == TINY ? ORDINARY : flavour);
    fill_halves(t, t->half, n);
    prepare_outputs(t);
    col_kernels_scalar.axpy_f32(p, t->x, t->expected, n);
    t->kernels->axpy_f32(p, t->x, t->got, n);
    compare_outputs(t, "axpy_f32", n);
    col_kernels_scalar.axpy_f16(p, t->half, t->expected, n);
    t->kernels->axpy_f16(p, t->half, t->got, n);
    compare_outputs(t, "axpy_f16", n);

    prepare_outputs(t);
    col_kernels_scalar.swiglu(t->x, t->u, t->expected, n);
    t->kernels->swiglu(t->x, t->u, t->got, n);
    compare_outputs(t, "swiglu", n);
    __builtin_memcpy(t->got, t->x, n * sizeof(float)); /* y may be g, and y may be u */
    t->kernels->swiglu(t->got, t->u, t->got, n);
    compare_outputs(t, "swiglu into g", n);
    __builtin_memcpy(t->got, t->u, n * sizeof(float));
    t->kernels->swiglu(t->x, t->got, t->got, n);
    compare_outputs(t, "swiglu into u", n);

    uint16_t *expected = t->w.f16;
    uint16_t *got = t->w.f16 + MAX_VECTOR + 1;
    for (uint32_t i = 0; i <= MAX_VECTOR; i++) {
        expected[i] = got[i] = (uint16_t)i;
    }
    col_kernels_scalar.narrow_f16(t->x, expected, n);
    t->kernels->narrow_f16(t->x, got, n);
    uint32_t different = 0;
    for (uint32_t i = 0; i <= MAX_VECTOR; i++) {
        different |= (uint32_t)(expected[i] ^ got[i]);
    }
    verdict(t, "narrow_f16", n, different == 0);
}

/* ------------------------------------------------------------------------------------------------------ witnesses
 * With e = 2^-12: (1 + e)^2 = 1 + 2e + e^2, and e^2 is half a unit in the last place of 1 + 2e, which is even. Rounded
 * on its own the product is 1 + 2e; a fused multiply-add onto -(1 + 2e) leaves e^2 = 2^-24 instead of 0. */
#define ONE_E 0x1.001p0f       /* 1 + e */
#define MINUS_SQUARE -0x1.002p0f /* -(1 + 2e) */
/* The same with a factor that fits into binary16: (1 + 2^-10) (1 + 2^-14). */
#define HALF_FACTOR 0x3c01u
#define HALF_OTHER 0x1.0004p0f
#define MINUS_HALF_PRODUCT -0x1.0044p0f

#define WITNESS_N 17u /* two full vectors and a tail */

static bool is_zero(const float *y, uint32_t n, uint32_t step)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < n; i += step) {
        bits |= col_float_bits(y[i]);
    }
    return bits == 0;
}

/* A fused multiply-add in the vectors' operations. */
static void vector_witnesses(struct selftest *t)
{
    float *y = t->got;
    for (uint32_t i = 0; i < WITNESS_N; i++) {
        t->x[i] = ONE_E;
        y[i] = MINUS_SQUARE;
        t->half[i] = HALF_FACTOR;
    }
    t->kernels->axpy_f32(ONE_E, t->x, y, WITNESS_N);
    verdict(t, "axpy_f32 fused", WITNESS_N, is_zero(y, WITNESS_N, 1));
    for (uint32_t i = 0; i < WITNESS_N; i++) {
        y[i] = MINUS_HALF_PRODUCT;
    }
    t->kernels->axpy_f16(HALF_OTHER, t->half, y, WITNESS_N);
    verdict(t, "axpy_f16 fused", WITNESS_N, is_zero(y, WITNESS_N, 1));

    /* Lane j of the dot products takes -(product) * 1 first and the product second. */
    for (uint32_t n = 9; n <= 16; n += 7) { /* the second in the tail, then in a vector */
        for (uint32_t i = 0; i < 16; i++) {
            t->x[i] = i < n - 8 ? MINUS_SQUARE : i < 8 ? 0.0f : ONE_E;
            t->u[i] = i < 8 ? 1.0f : ONE_E;
        }
        float sum = t->kernels->dot_f32(t->x, t->u, n);
        verdict(t, "dot_f32 fused", n, is_zero(&sum, 1, 1));
        for (uint32_t i = 0; i < 16; i++) {
            t->x[i] = i < n - 8 ? MINUS_HALF_PRODUCT : i < 8 ? 0.0f : HALF_OTHER;
            t->half[i] = i < 8 ? 0x3c00u : HALF_FACTOR;
        }
        sum = t->kernels->dot_f16(t->x, t->half, n);
        verdict(t, "dot_f16 fused", n, is_zero(&sum, 1, 1));
    }
}

/* A fused multiply-add in the matrix products. */
static void matrix_witnesses(struct selftest *t)
{
    for (uint32_t tiles = 1; tiles <= MAX_TILES; tiles++) {
        for (uint32_t n = 1; n <= MAX_TOKENS; n++) {
            for (uint32_t i = 0; i < tiles * 2; i++) { /* columns: -(product), one factor */
                for (uint32_t r = 0; r < ROWS; r++) {
                    t->w.f32[i * ROWS + r] = i % 2u == 0 ? MINUS_SQUARE : ONE_E;
                }
            }
            for (uint32_t i = 0; i < n; i++) {
                t->x[2 * i] = 1.0f;
                t->x[2 * i + 1] = ONE_E;
            }
            prepare_outputs(t);
            t->kernels->matmul_f32(t->w.f32, tiles, 2, t->x, 2, n, t->got, tiles * ROWS);
            verdict(t, "matmul_f32 fused", 2, is_zero(t->got, n * tiles * ROWS, 1));

            for (uint32_t i = 0; i < tiles * 2 * ROWS; i++) {
                t->w.f16[i] = i / ROWS % 2u == 0 ? 0x3c00u : HALF_FACTOR;
            }
            for (uint32_t i = 0; i < n; i++) {
                t->x[2 * i] = MINUS_HALF_PRODUCT;
                t->x[2 * i + 1] = HALF_OTHER;
            }
            prepare_outputs(t);
            t->kernels->matmul_f16(t->w.f16, tiles, 2, t->x, 2, n, t->got, tiles * ROWS);
            verdict(t, "matmul_f16 fused", 2, is_zero(t->got, n * tiles * ROWS, 1));

            /* Block 0: 1 * -1 with scale 2^12 (1 + 2e); block 1: an integer sum of 2^12 (1 + e) = 4097 = 4 * 7 * 127
             * + 7 * 77 + 2 * 1 with scale 1 + e. */
            static const int8_t weights[6] = {7, 7, 7, 7, 7, 2};
            static const int8_t factors[6] = {127, 127, 127, 127, 77, 1};
            __builtin_memset(t->xq, 0, (size_t)n * 2 * COL_BLOCK);
            for (uint32_t i = 0; i < n; i++) {
                int8_t *x = t->xq + (size_t)i * 2 * COL_BLOCK;
                x[0] = -1;
                __builtin_memcpy(x + COL_BLOCK, factors, sizeof factors);
                t->xs[2 * i] = 0x1.002p12f;
                t->xs[2 * i + 1] = ONE_E;
            }
            __builtin_memset(&t->w, 0, sizeof t->w);
            for (uint32_t i = 0; i < tiles * 2; i++) {
                for (uint32_t r = 0; r < ROWS; r++) {
                    t->w.q8[i].scale[r] = 0x3c00;
                    for (uint32_t c = 0; c < 6; c++) {
                        t->w.q8[i].q[c / 4u][4 * r + c % 4u] = i % 2u == 0 ? 1 : weights[c];
                    }
                }
            }
            prepare_outputs(t);
            t->kernels->matmul_q8(t->w.q8, tiles, 2, t->xq, t->xs, n, t->got, tiles * ROWS);
            verdict(t, "matmul_q8 fused", 2 * COL_BLOCK, is_zero(t->got, n * tiles * ROWS, 1));

            __builtin_memset(&t->w, 0, sizeof t->w);
            for (uint32_t i = 0; i < tiles * 2; i++) {
                for (uint32_t r = 0; r < ROWS; r++) {
                    t->w.q4[i].scale[r] = 0x3c00;
                    for (uint32_t c = 0; c < 6; c++) { /* columns 0-3 in low nibbles, 4-7 in high ones */
                        uint32_t nibble = (uint32_t)((i % 2u == 0 ? 1 : weights[c]) + 8);
                        t->w.q4[i].q[0][4 * r + c % 4u] |= (uint8_t)(nibble << (c / 4u * 4u));
                    }
                }
            }
            prepare_outputs(t);
            t->kernels->matmul_q4(t->w.q4, tiles, 2, t->xq, t->xs, n, t->got, tiles * ROWS);
            verdict(t, "matmul_q4 fused", 2 * COL_BLOCK, is_zero(t->got, n * tiles * ROWS, 1));
        }
    }
}

/* exp in separate operations: arguments for which fused ones give another result. The pairs (x, e^x) come from a
 * program of its own that rounds after each operation; tests/engine makes them again. */
static const uint32_t exp_witness[14][2] = {
    {0xc17889e1u, 0x3440a068u}, {0xc0a4652au, 0x3bc0744cu}, {0xbeac4fb8u, 0x3f36d7fdu}, {0xc157e68eu, 0x35b92757u},
    {0xc197814cu, 0x31cccbf8u}, {0xc0ff8bd7u, 0x39b26406u}, {0xc19d6666u, 0x31440944u}, {0xc02a1ea4u, 0x3d8f8604u},
    {0xc198f713u, 0x31aaa1d0u}, {0xc1142faeu, 0x38c73a62u}, {0xc26763c0u, 0x15ba9a45u}, {0xc28cc66fu, 0x0caf1ef9u},
    {0xc248fb1cu, 0x1b3676abu}, {0xc205431du, 0x2774dd1du},
};

static void exp_witnesses(struct selftest *t)
{
    uint32_t different = 0;
    for (uint32_t start = 0; start < 14; start++) { /* each value in each place: vector and tail */
        for (uint32_t i = 0; i < 14; i++) {
            t->x[i] = col_bits_float(exp_witness[(start + i) % 14u][0]);
        }
        (void)t->kernels->exp_sum(t->x, 14, 0.0f);
        for (uint32_t i = 0; i < 14; i++) {
            different |= col_float_bits(t->x[i]) ^ exp_witness[(start + i) % 14u][1];
        }
    }
    verdict(t, "exp fused", 14, different == 0);
}

/* Quantising in separate operations: the block's largest value, another value whose product with the inverse rounds to
 * a tie, and the even integer that the tie goes to; the unrounded product lies on the other side of the half. */
static const struct {
    uint32_t largest, value;
    int8_t expected;
} quantize_witness[4] = {
    {0x3f8af68du, 0x3e4db58au, 24}, /* fused: 23 */
    {0x3fe69029u, 0x3edd7c60u, 30}, /* fused: 31 */
    {0x3fca8449u, 0x3dbf5abau, 8},  /* fused: 7 */
    {0x3fb71ed2u, 0x3f68250eu, 80}, /* fused: 81 */
};

static void quantize_witnesses(struct selftest *t)
{
    for (uint32_t i = 0; i < 4; i++) {
        bool right = true;
        for (uint32_t at = 0; at < COL_BLOCK; at++) {
            for (uint32_t j = 0; j < COL_BLOCK; j++) {
                t->x[j] = col_bits_float(quantize_witness[i].value);
            }
            t->x[at] = col_bits_float(quantize_witness[i].largest);
            right &= t->kernels->quantize(t->x, 1, t->xq, t->xs);
            for (uint32_t j = 0; j < COL_BLOCK; j++) {
                right &= t->xq[j] == (j == at ? 127 : quantize_witness[i].expected);
            }
        }
        verdict(t, "quantize fused", COL_BLOCK, right);
    }
}

/* Denormals that must survive, and rounding to nearest even: results a processor in another mode would not give. */
static void mode_witnesses(struct selftest *t)
{
    float *y = t->got;
    static const uint32_t sums[4][3] = {
        /* y, x, y + 1 * x */
        {0x00000000u, 0x00000001u, 0x00000001u}, /* the smallest denormal as input and result */
        {0x3f800000u, 0x33800000u, 0x3f800000u}, /* 1 + 2^-24: a tie, down to even */
        {0x3f800001u, 0x33800000u, 0x3f800002u}, /* 1 + 2^-23 + 2^-24: a tie, up to even */
        {0xbf800000u, 0xb3c00000u, 0xbf800001u}, /* -1 - 1.5 * 2^-24: away from zero */
    };
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t different = 0;
        for (uint32_t j = 0; j < WITNESS_N; j++) {
            y[j] = col_bits_float(sums[i][0]);
            t->x[j] = col_bits_float(sums[i][1]);
        }
        t->kernels->axpy_f32(1.0f, t->x, y, WITNESS_N);
        for (uint32_t j = 0; j < WITNESS_N; j++) {
            different |= col_float_bits(y[j]) ^ sums[i][2];
        }
        verdict(t, i == 0 ? "denormals" : "rounding mode", WITNESS_N, different == 0);
    }
    t->x[0] = 0x1p-100f;
    t->u[0] = 0x1p-40f;
    verdict(t, "denormals", 1, col_float_bits(t->kernels->dot_f32(t->x, t->u, 1)) == 0x200u);
}

/* ---------------------------------------------------------------------------------------------------- everything */

static void compare_with_scalar(struct selftest *t)
{
    uint32_t turn = 0;
    for (uint32_t tiles = 1; tiles <= MAX_TILES; tiles++) {
        for (uint32_t n = 1; n <= MAX_TOKENS; n++) {
            static const uint32_t blocks[3] = {1, 2, MAX_BLOCKS};
            static const uint32_t cols[3] = {1, 8, MAX_COLS};
            for (uint32_t i = 0; i < 3; i++, turn++) {
                quantised_products(t, tiles, blocks[i], n, turn % FLAVOURS);
                float_products(t, tiles, cols[i], n, turn % FLAVOURS);
            }
        }
    }
    for (uint32_t flavour = ORDINARY; flavour < FLAVOURS; flavour++) {
        for (uint32_t blocks = 1; blocks <= MAX_BLOCKS; blocks++) {
            quantisation(t, blocks, flavour);
        }
        for (uint32_t n = 0; n <= 19; n++) {
            reductions(t, n, flavour);
            elementwise(t, n, flavour);
        }
        for (uint32_t n = 31; n <= MAX_VECTOR; n += 76) {
            reductions(t, n, flavour);
            elementwise(t, n, flavour);
        }
    }
}

static void test_set(struct selftest *t, const struct col_kernels *kernels, struct colibri_selftest_report *report)
{
    __builtin_memset(report, 0, sizeof *report);
    copy_text(report->kernels, sizeof report->kernels, kernels->name);
    t->kernels = kernels;
    t->report = report;
    t->random = 0x243f6a88u;
    vector_witnesses(t);
    matrix_witnesses(t);
    exp_witnesses(t);
    quantize_witnesses(t);
    mode_witnesses(t);
    for (uint32_t n = 1; n <= MAX_TOKENS; n += 3) {
        extreme_products(t, -128, 127, n);
        extreme_products(t, -128, -127, n);
        extreme_products(t, 127, 127, n);
        extreme_products(t, 127, -127, n);
    }
    if (kernels != &col_kernels_scalar) {
        compare_with_scalar(t);
    }
}

colibri_status colibri_selftest(const char *kernels, void *scratch, size_t scratch_bytes,
                                struct colibri_selftest_report *report)
{
    if (scratch == NULL || report == NULL || scratch_bytes < COLIBRI_SELFTEST_BYTES ||
        (uintptr_t)scratch % COLIBRI_ARENA_ALIGN != 0) {
        return COLIBRI_E_ARGUMENT;
    }
    if (kernels != NULL) {
        const struct col_kernels *set = col_kernels_find(kernels);
        if (set == NULL) {
            return COLIBRI_E_KERNELS_UNKNOWN;
        }
        test_set(scratch, set, report);
        return report->failures == 0 ? COLIBRI_OK : COLIBRI_E_KERNELS_WRONG;
    }
    for (const struct col_kernel_set *set = col_kernel_sets; set->kernels != NULL; set++) {
        if (set->usable()) {
            test_set(scratch, set->kernels, report);
            if (report->failures != 0) {
                return COLIBRI_E_KERNELS_WRONG;
            }
        }
    }
    return COLIBRI_OK;
}
