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

enum operation {
    QUANTIZE, MATMUL_Q8, MATMUL_Q4, MATMUL_F32, MATMUL_F16, DOT_F32, DOT_F16, AXPY_F32, AXPY_F16, EXP_SUM, NARROW_F16,
    SWIGLU, SWIGLU_INTO_G, SWIGLU_INTO_U, OPERATIONS
};

static const char names[OPERATIONS][12] = {
    "quantize", "matmul_q8", "matmul_q4", "matmul_f32", "matmul_f16", "dot_f32", "dot_f16", "axpy_f32", "axpy_f16",
    "exp_sum", "narrow_f16", "swiglu", "swiglu", "swiglu",
};

/* What a kernel writes, and more, so that a stray write shows. */
struct outputs {
    float y[MAX_Y + MAX_VECTOR];
    uint16_t half[MAX_VECTOR + 1];
    bool finite;
};

/* All of the self-test's data: it lies in the caller's scratch. What is small comes first, where instructions reach it. */
struct selftest {
    /* The arguments of the next operation. */
    uint32_t tiles;  /* of rows */
    uint32_t depth;  /* of a product: blocks or columns */
    uint32_t n;      /* of a product: tokens; else numbers, or blocks to quantise */
    uint32_t x_stride, y_stride;
    float p; /* factor of axpy, largest value of exp_sum */
    uint32_t random;
    const struct col_kernels *kernels;
    struct colibri_selftest_report *report;
    int8_t xq[MAX_TOKENS * MAX_BLOCKS * COL_BLOCK];
    float xs[MAX_TOKENS * MAX_BLOCKS];
    float x[MAX_TOKENS * (MAX_COLS + GAP) + MAX_VECTOR];
    float u[MAX_VECTOR + 1];
    uint16_t half[MAX_VECTOR + 1];
    union {
        _Alignas(16) struct col_tile_q8 q8[MAX_TILES * MAX_BLOCKS];
        struct col_tile_q4 q4[MAX_TILES * MAX_BLOCKS];
        uint16_t f16[MAX_TILES * MAX_COLS * ROWS];
        float f32[MAX_TILES * MAX_COLS * ROWS];
        uint8_t bytes[1];
    } w;
    struct outputs expected; /* written by the scalar kernels, or known */
    struct outputs got;      /* written by the kernels under test */
};
_Static_assert(sizeof(struct selftest) <= COLIBRI_SELFTEST_BYTES, "COLIBRI_SELFTEST_BYTES is too small");

/* Appends to a report's text, which is filled with zeros and keeps the last of them. */
static void append(char *to, size_t capacity, const char *from)
{
    size_t at = 0;
    for (size_t i = 0; at + 1 < capacity && from[i] != '\0'; at++) {
        if (to[at] == '\0') {
            to[at] = from[i++];
        }
    }
}

static void verdict(struct selftest *t, enum operation operation, const char *how, bool right)
{
    struct colibri_selftest_report *report = t->report;
    report->cases++;
    if (!right && report->failures++ == 0) {
        append(report->failed, sizeof report->failed, names[operation]);
        append(report->failed, sizeof report->failed, how);
        const bool integer = operation == QUANTIZE || operation == MATMUL_Q8 || operation == MATMUL_Q4;
        const uint32_t size = operation >= MATMUL_Q8 && operation <= MATMUL_F16 ? t->depth : t->n;
        report->failed_size = integer ? size * COL_BLOCK : size;
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

/* One of the integer tiles in t->w: the scales of its rows, and behind them its integers. */
static uint8_t *tile(struct selftest *t, enum operation operation, uint32_t i)
{
    return t->w.bytes + i * (operation == MATMUL_Q8 ? sizeof(struct col_tile_q8) : sizeof(struct col_tile_q4));
}
#define TILE_Q offsetof(struct col_tile_q8, q)
_Static_assert(TILE_Q == offsetof(struct col_tile_q4, q) && TILE_Q == ROWS * sizeof(uint16_t),
               "both tiles are the scales and behind them the integers");

/* Any integers, the lowest one in each tile, and any scales. */
static void fill_tiles(struct selftest *t, enum operation operation)
{
    const uint8_t *end = tile(t, operation, t->tiles * t->depth);
    for (uint8_t *p = t->w.bytes; p < end; p++) {
        *p = (uint8_t)(next(t) >> 11);
    }
    for (uint32_t i = 0; i < t->tiles * t->depth; i++) {
        uint8_t *one = tile(t, operation, i);
        fill_halves(t, (void *)one, ROWS);
        one[TILE_Q + next(t) % (4u * COL_BLOCK)] = 0x80;
    }
}

/* The same byte everywhere and scales of 1. */
static void set_tiles(struct selftest *t, enum operation operation, uint8_t byte)
{
    __builtin_memset(t->w.bytes, byte, sizeof t->w);
    for (uint32_t i = 0; i < t->tiles * t->depth * ROWS; i++) {
        ((uint16_t *)(void *)tile(t, operation, i / ROWS))[i % ROWS] = 0x3c00;
    }
}

/* Activations as quantize leaves them, never -128, the extremes often; scales never negative. */
static void fill_activations(struct selftest *t, enum flavour flavour)
{
    const uint32_t blocks = t->n * t->depth;
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
        t->expected.y[i] = col_bits_float(0x4a000000u + i);
    }
    for (uint32_t i = 0; i <= MAX_VECTOR; i++) {
        t->expected.half[i] = (uint16_t)i;
    }
    __builtin_memcpy(&t->got, &t->expected, sizeof t->got);
}

static bool same_outputs(const struct selftest *t)
{
    return __builtin_memcmp(&t->expected, &t->got, sizeof t->got) == 0;
}

static void run(const struct selftest *t, const struct col_kernels *k, enum operation operation, struct outputs *out)
{
    float *y = out->y;
    const uint32_t n = t->n;
    switch (operation) {
    case QUANTIZE: /* scales first */
        out->finite = k->quantize(t->x, n, (int8_t *)(y + n), y);
        break;
    case MATMUL_Q8:
        k->matmul_q8(t->w.q8, t->tiles, t->depth, t->xq, t->xs, n, y, t->y_stride);
        break;
    case MATMUL_Q4:
        k->matmul_q4(t->w.q4, t->tiles, t->depth, t->xq, t->xs, n, y, t->y_stride);
        break;
    case MATMUL_F32:
        k->matmul_f32(t->w.f32, t->tiles, t->depth, t->x, t->x_stride, n, y, t->y_stride);
        break;
    case MATMUL_F16:
        k->matmul_f16(t->w.f16, t->tiles, t->depth, t->x, t->x_stride, n, y, t->y_stride);
        break;
    case DOT_F32:
        y[0] = k->dot_f32(t->x, t->u, n);
        break;
    case DOT_F16:
        y[0] = k->dot_f16(t->x, t->half, n);
        break;
    case AXPY_F32:
        k->axpy_f32(t->p, t->x, y, n);
        break;
    case AXPY_F16:
        k->axpy_f16(t->p, t->half, y, n);
        break;
    case EXP_SUM:
        __builtin_memcpy(y + 1, t->x, n * sizeof(float));
        y[0] = k->exp_sum(y + 1, n, t->p);
        break;
    case NARROW_F16:
        k->narrow_f16(t->x, out->half, n);
        break;
    case SWIGLU_INTO_G: /* y may be g, and y may be u */
        __builtin_memcpy(y, t->x, n * sizeof(float));
        k->swiglu(y, t->u, y, n);
        break;
    case SWIGLU_INTO_U:
        __builtin_memcpy(y, t->u, n * sizeof(float));
        k->swiglu(t->x, y, y, n);
        break;
    default:
        k->swiglu(t->x, t->u, y, n);
        break;
    }
}

static void compare(struct selftest *t, enum operation operation)
{
    prepare_outputs(t);
    run(t, &col_kernels_scalar, operation < SWIGLU ? operation : SWIGLU, &t->expected);
    run(t, t->kernels, operation, &t->got);
    verdict(t, operation, operation < SWIGLU_INTO_G ? "" : operation == SWIGLU_INTO_G ? " into g" : " into u",
            same_outputs(t));
}

static void products(struct selftest *t, uint32_t blocks, uint32_t cols, enum flavour flavour)
{
    t->y_stride = t->tiles * ROWS + GAP;
    t->depth = blocks;
    fill_activations(t, flavour);
    for (enum operation operation = MATMUL_Q8; operation <= MATMUL_Q4; operation++) {
        fill_tiles(t, operation);
        compare(t, operation);
    }
    t->depth = cols;
    t->x_stride = cols + (t->n & 1u) * GAP;
    fill_floats(t, t->x, t->n * t->x_stride, flavour);
    fill_floats(t, t->w.f32, t->tiles * cols * ROWS, flavour == TINY ? ORDINARY : flavour);
    compare(t, MATMUL_F32);
    fill_halves(t, t->w.f16, t->tiles * cols * ROWS);
    compare(t, MATMUL_F16);
}

/* The largest sums there are: every product of a block at its extreme, with one sign or alternating. */
static void extreme_products(struct selftest *t, int8_t weight, int8_t x)
{
    t->tiles = 2;
    t->depth = 1;
    t->y_stride = 2 * ROWS;
    __builtin_memset(t->xq, (uint8_t)x, (size_t)t->n * COL_BLOCK);
    for (uint32_t i = 0; i < t->n; i++) {
        t->xs[i] = 1.0f;
    }
    for (enum operation operation = MATMUL_Q8; operation <= MATMUL_Q4; operation++) {
        const bool q8 = operation == MATMUL_Q8;
        const int32_t value = q8 ? weight : weight < 0 ? -8 : 7;
        set_tiles(t, operation, (uint8_t)(q8 ? weight : weight < 0 ? 0x00 : 0xff));
        prepare_outputs(t);
        run(t, t->kernels, operation, &t->got);
        for (uint32_t i = 0; i < t->n * 2 * ROWS; i++) {
            t->expected.y[i] = (float)(value * x * (int32_t)COL_BLOCK);
        }
        verdict(t, operation, " extreme", same_outputs(t));
    }
}

static void quantisation(struct selftest *t, uint32_t blocks, enum flavour flavour)
{
    uint32_t n = blocks * COL_BLOCK;
    t->n = blocks;
    fill_floats(t, t->x, n, flavour);
    if (flavour == SPECIAL) {
        t->x[n - 1] = -127.0f; /* the inverse is 1: halves are ties */
    }
    compare(t, QUANTIZE);
    verdict(t, QUANTIZE, " finite", t->got.finite);
    static const uint32_t not_finite[3] = {0x7f800000u, 0xff800000u, 0xffc00001u};
    t->x[next(t) % n] = col_bits_float(not_finite[next(t) % 3u]);
    run(t, t->kernels, QUANTIZE, &t->got);
    verdict(t, QUANTIZE, " non-finite", !t->got.finite);
}

/* Everything on vectors of n numbers. */
static void vectors(struct selftest *t, uint32_t n, enum flavour flavour)
{
    t->n = n;
    t->p = any_float(t, flavour == TINY ? ORDINARY : flavour);
    fill_floats(t, t->x, n, flavour);
    fill_floats(t, t->u, n, flavour == TINY ? ORDINARY : flavour);
    fill_halves(t, t->half, n);
    for (enum operation operation = DOT_F32; operation < OPERATIONS; operation++) {
        if (operation != EXP_SUM) {
            compare(t, operation);
        }
    }
    if (flavour == ORDINARY) { /* -121 .. 135 around the largest value: some exponentials vanish, some are clamped */
        for (uint32_t i = 0; i < n; i++) {
            t->x[i] = (float)(next(t) >> 8) * 0x1p-16f - 121.0f;
        }
    }
    t->p = flavour == HUGE ? 0.0f : 1.25f;
    compare(t, EXP_SUM);
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

/* Is each of the n numbers +0, as separate roundings leave them? */
static void expect_zeros(struct selftest *t, enum operation operation, uint32_t n)
{
    uint32_t bits = 0;
    run(t, t->kernels, operation, &t->got);
    for (uint32_t i = 0; i < n; i++) {
        bits |= col_float_bits(t->got.y[i]);
    }
    verdict(t, operation, " fused", bits == 0);
}

static void set_floats(float *x, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = value;
    }
}

static void set_halves(uint16_t *x, uint32_t n, uint16_t value)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = value;
    }
}

/* A fused multiply-add in the vectors' operations. */
static void vector_witnesses(struct selftest *t)
{
    t->n = WITNESS_N;
    t->p = ONE_E;
    set_floats(t->x, WITNESS_N, ONE_E);
    set_floats(t->got.y, WITNESS_N, MINUS_SQUARE);
    expect_zeros(t, AXPY_F32, WITNESS_N);
    t->p = HALF_OTHER;
    set_halves(t->half, WITNESS_N, HALF_FACTOR);
    set_floats(t->got.y, WITNESS_N, MINUS_HALF_PRODUCT);
    expect_zeros(t, AXPY_F16, WITNESS_N);

    /* Lane j of the dot products takes -(product) * 1 first and the product second. */
    for (t->n = 9; t->n <= 16; t->n += 7) { /* the second in the tail, then in a vector */
        const uint32_t pairs = t->n - LANES;
        set_floats(t->x, LANES, 0.0f);
        set_floats(t->x, pairs, MINUS_SQUARE);
        set_floats(t->x + LANES, pairs, ONE_E);
        set_floats(t->u, LANES, 1.0f);
        set_floats(t->u + LANES, pairs, ONE_E);
        expect_zeros(t, DOT_F32, 1);
        set_floats(t->x, pairs, MINUS_HALF_PRODUCT);
        set_floats(t->x + LANES, pairs, HALF_OTHER);
        set_halves(t->half, LANES, 0x3c00u);
        set_halves(t->half + LANES, pairs, HALF_FACTOR);
        expect_zeros(t, DOT_F16, 1);
    }
}

/* A fused multiply-add in the matrix products: two columns, or blocks, of which the second takes the first off. */
static void matrix_witnesses(struct selftest *t)
{
    const uint32_t outputs = t->tiles * ROWS * t->n;
    t->depth = t->x_stride = 2;
    t->y_stride = t->tiles * ROWS;
    for (uint32_t i = 0; i < t->tiles * 2; i++) { /* columns: -(product), one factor */
        set_floats(t->w.f32 + i * ROWS, ROWS, i % 2u == 0 ? MINUS_SQUARE : ONE_E);
    }
    for (uint32_t i = 0; i < t->n; i++) {
        t->x[2 * i] = 1.0f;
        t->x[2 * i + 1] = ONE_E;
    }
    expect_zeros(t, MATMUL_F32, outputs);
    for (uint32_t i = 0; i < t->tiles * 2; i++) {
        set_halves(t->w.f16 + i * ROWS, ROWS, i % 2u == 0 ? 0x3c00u : HALF_FACTOR);
    }
    for (uint32_t i = 0; i < t->n; i++) {
        t->x[2 * i] = MINUS_HALF_PRODUCT;
        t->x[2 * i + 1] = HALF_OTHER;
    }
    expect_zeros(t, MATMUL_F16, outputs);

    /* Block 0: 1 * -1 with scale 2^12 (1 + 2e); block 1: an integer sum of 2^12 (1 + e) = 4097 = 4 * 7 * 127
     * + 7 * 77 + 2 * 1 with scale 1 + e. */
    static const int8_t weights[6] = {7, 7, 7, 7, 7, 2};
    static const int8_t factors[6] = {127, 127, 127, 127, 77, 1};
    __builtin_memset(t->xq, 0, (size_t)t->n * 2 * COL_BLOCK);
    for (uint32_t i = 0; i < t->n; i++) {
        int8_t *x = t->xq + (size_t)i * 2 * COL_BLOCK;
        x[0] = -1;
        __builtin_memcpy(x + COL_BLOCK, factors, sizeof factors);
        t->xs[2 * i] = 0x1.002p12f;
        t->xs[2 * i + 1] = ONE_E;
    }
    for (enum operation operation = MATMUL_Q8; operation <= MATMUL_Q4; operation++) {
        set_tiles(t, operation, 0);
        for (uint32_t i = 0; i < t->tiles * 2; i++) {
            for (uint32_t r = 0; r < ROWS; r++) {
                uint8_t *q = tile(t, operation, i) + TILE_Q + 4 * r;
                for (uint32_t c = 0; c < 6; c++) {
                    const int32_t weight = i % 2u == 0 ? 1 : weights[c];
                    if (operation == MATMUL_Q8) { /* columns 4-7 are the next group */
                        q[c / 4u * COL_BLOCK + c % 4u] = (uint8_t)weight;
                    } else { /* columns 0-3 lie in low nibbles, 4-7 in high ones */
                        q[c % 4u] |= (uint8_t)((uint32_t)(weight + 8) << (c / 4u * 4u));
                    }
                }
            }
        }
        expect_zeros(t, operation, outputs);
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
    t->n = 14;
    t->p = 0.0f;
    for (uint32_t start = 0; start < 14; start++) { /* each value in each place: vector and tail */
        for (uint32_t i = 0; i < 14; i++) {
            t->x[i] = col_bits_float(exp_witness[(start + i) % 14u][0]);
        }
        run(t, t->kernels, EXP_SUM, &t->got);
        for (uint32_t i = 0; i < 14; i++) {
            different |= col_float_bits(t->got.y[1 + i]) ^ exp_witness[(start + i) % 14u][1];
        }
    }
    verdict(t, EXP_SUM, " fused", different == 0);
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
    t->n = 1;
    for (uint32_t i = 0; i < 4; i++) {
        bool right = true;
        const int8_t *q = (const int8_t *)(t->got.y + 1);
        for (uint32_t at = 0; at < COL_BLOCK; at++) {
            set_floats(t->x, COL_BLOCK, col_bits_float(quantize_witness[i].value));
            t->x[at] = col_bits_float(quantize_witness[i].largest);
            run(t, t->kernels, QUANTIZE, &t->got);
            for (uint32_t j = 0; j < COL_BLOCK; j++) {
                right &= t->got.finite && q[j] == (j == at ? 127 : quantize_witness[i].expected);
            }
        }
        verdict(t, QUANTIZE, " fused", right);
    }
}

/* Denormals that must survive, and rounding to nearest even: results a processor in another mode would not give. */
static void mode_witnesses(struct selftest *t)
{
    static const uint32_t sums[4][3] = {
        /* y, x, y + 1 * x */
        {0x00000000u, 0x00000001u, 0x00000001u}, /* the smallest denormal as input and result */
        {0x3f800000u, 0x33800000u, 0x3f800000u}, /* 1 + 2^-24: a tie, down to even */
        {0x3f800001u, 0x33800000u, 0x3f800002u}, /* 1 + 2^-23 + 2^-24: a tie, up to even */
        {0xbf800000u, 0xb3c00000u, 0xbf800001u}, /* -1 - 1.5 * 2^-24: away from zero */
    };
    t->n = WITNESS_N;
    t->p = 1.0f;
    for (uint32_t i = 0; i < 4; i++) {
        prepare_outputs(t);
        set_floats(t->got.y, WITNESS_N, col_bits_float(sums[i][0]));
        set_floats(t->x, WITNESS_N, col_bits_float(sums[i][1]));
        set_floats(t->expected.y, WITNESS_N, col_bits_float(sums[i][2]));
        run(t, t->kernels, AXPY_F32, &t->got);
        verdict(t, AXPY_F32, i == 0 ? " denormals" : " rounding", same_outputs(t));
    }
    t->n = 1;
    t->x[0] = 0x1p-100f;
    t->u[0] = 0x1p-40f;
    run(t, t->kernels, DOT_F32, &t->got);
    verdict(t, DOT_F32, " denormals", col_float_bits(t->got.y[0]) == 0x200u);
}

/* ---------------------------------------------------------------------------------------------------- everything */

static void compare_with_scalar(struct selftest *t)
{
    static const uint32_t blocks[3] = {1, 2, MAX_BLOCKS};
    static const uint32_t cols[3] = {1, 8, MAX_COLS};
    uint32_t turn = 0;
    for (t->tiles = 1; t->tiles <= MAX_TILES; t->tiles++) {
        for (t->n = 1; t->n <= MAX_TOKENS; t->n++) {
            for (uint32_t i = 0; i < 3; i++, turn++) {
                products(t, blocks[i], cols[i], turn % FLAVOURS);
            }
        }
    }
    for (uint32_t flavour = ORDINARY; flavour < FLAVOURS; flavour++) {
        for (uint32_t count = 1; count <= MAX_BLOCKS; count++) {
            quantisation(t, count, flavour);
        }
        for (uint32_t n = 0; n <= MAX_VECTOR; n += n < 19 ? 1 : n < 31 ? 12 : 76) {
            vectors(t, n, flavour);
        }
    }
}

static void test_set(struct selftest *t, const struct col_kernels *kernels, struct colibri_selftest_report *report)
{
    __builtin_memset(report, 0, sizeof *report);
    append(report->kernels, sizeof report->kernels, kernels->name);
    t->kernels = kernels;
    t->report = report;
    t->random = 0x243f6a88u;
    vector_witnesses(t);
    for (t->tiles = 1; t->tiles <= MAX_TILES; t->tiles++) {
        for (t->n = 1; t->n <= MAX_TOKENS; t->n++) {
            matrix_witnesses(t);
        }
    }
    exp_witnesses(t);
    quantize_witnesses(t);
    mode_witnesses(t);
    for (t->n = 1; t->n <= MAX_TOKENS; t->n += 3) {
        for (uint32_t signs = 0; signs < 4; signs++) {
            extreme_products(t, (signs & 1u) != 0 ? -128 : 127, (signs & 2u) != 0 ? -127 : 127);
        }
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
