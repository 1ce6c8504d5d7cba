/* SPDX-License-Identifier: Apache-2.0
 *
 * scalar.c: the kernels in plain C, which define what kernels.h promises. Every other set is compared with this one,
 * bit for bit. It is written to be read; in float products the loop over a tile's rows is unrolled, so that the rows'
 * accumulators are registers.
 */
#include "common.h"

/* What two kernels have in common takes the difference as a constant. For speed each kernel has a copy of its own in
 * which the constant is folded, and exp is part of the loops; for size they share one. */
#if defined(__OPTIMIZE_SIZE__)
#define SHARED static __attribute__((noinline))
#define EXP col_exp
#else
#define SHARED INLINE
#define EXP col_exp_inline
#endif

static bool quantize(const float *x, uint32_t blocks, int8_t *q, float *scale)
{
    for (uint32_t b = 0; b < blocks; b++, x += COL_BLOCK, q += COL_BLOCK) {
        uint32_t largest = 0; /* magnitudes of floats order as their bits do, with infinity and NaN on top */
        for (uint32_t i = 0; i < COL_BLOCK; i++) {
            uint32_t magnitude = col_float_bits(x[i]) & 0x7fffffffu;
            largest = magnitude > largest ? magnitude : largest;
        }
        if (largest >= 0x7f800000u) {
            return false;
        }
        float amax = col_bits_float(largest);
        if (amax < 1e-30f) { /* also keeps `inverse` finite */
            scale[b] = 0.0f;
            __builtin_memset(q, 0, COL_BLOCK);
            continue;
        }
        scale[b] = amax / 127.0f;
        float inverse = 127.0f / amax;
        for (uint32_t i = 0; i < COL_BLOCK; i++) {
            int32_t value = col_round_even(x[i] * inverse);
            value = value > 127 ? 127 : value;
            value = value < -127 ? -127 : value;
            q[i] = (int8_t)value;
        }
    }
    return true;
}

/* One tile times one block of activations, added to the eight rows' accumulators. */
static inline void finish_tile(const uint16_t wscale[ROWS], float xscale, const int32_t sum[ROWS], float acc[ROWS])
{
    for (uint32_t r = 0; r < ROWS; r++) {
        acc[r] = acc[r] + (float)sum[r] * (col_half_to_float(wscale[r]) * xscale);
    }
}

/* The sums of the eight rows of one tile: int4's when `q4`, else int8's. Four bytes of each row are four columns in
 * int8 and eight in int4, the first four in the low nibbles. */
SHARED void tile_sums(const uint8_t *q, const int8_t *x, int32_t sum[ROWS], const bool q4)
{
    const uint32_t columns = q4 ? 8 : 4;
    for (uint32_t r = 0; r < ROWS; r++) {
        sum[r] = 0;
    }
    for (uint32_t column = 0; column < COL_BLOCK; column += columns, x += columns) {
        for (uint32_t r = 0; r < ROWS; r++, q += 4) {
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                sum[r] += q4 ? ((int32_t)(q[c] & 15u) - 8) * x[c] + ((int32_t)(q[c] >> 4) - 8) * x[4 + c]
                             : (int8_t)q[c] * x[c];
            }
        }
    }
}

_Static_assert(offsetof(struct col_tile_q8, scale) == 0 && offsetof(struct col_tile_q4, scale) == 0 &&
                   offsetof(struct col_tile_q8, q) == offsetof(struct col_tile_q4, q),
               "both tiles are their scales and behind them their integers");

SHARED void integer_product(const void *tiles, uint32_t row_tiles, uint32_t blocks, const int8_t *xq, const float *xs,
                            uint32_t n, float *y, uint32_t y_stride, const bool q4)
{
    const uint8_t *w = tiles;
    const size_t tile_bytes = q4 ? sizeof(struct col_tile_q4) : sizeof(struct col_tile_q8);
    for (uint32_t t = 0; t < row_tiles; t++, w += blocks * tile_bytes) {
        for (uint32_t token = 0; token < n; token++) {
            float acc[ROWS] = {0};
            for (uint32_t b = 0; b < blocks; b++) {
                const uint8_t *tile = w + b * tile_bytes;
                const size_t block = (size_t)token * blocks + b;
                int32_t sum[ROWS];
                tile_sums(tile + offsetof(struct col_tile_q8, q), xq + block * COL_BLOCK, sum, q4);
                finish_tile((const void *)tile, xs[block], sum, acc);
            }
            __builtin_memcpy(y + (size_t)token * y_stride + (size_t)t * ROWS, acc, sizeof acc);
        }
    }
}

static void matmul_q8(const struct col_tile_q8 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                      const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    integer_product(w, row_tiles, blocks, xq, xs, n, y, y_stride, false);
}

static void matmul_q4(const struct col_tile_q4 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                      const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    integer_product(w, row_tiles, blocks, xq, xs, n, y, y_stride, true);
}

/* Number i at p: a binary16 when `half`, else a float. */
INLINE float load(const void *p, size_t i, const bool half)
{
    return half ? col_half_to_float(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* One tile of rows times one token, or two, which share the loads of the weights. */
SHARED void float_strip(const void *w, uint32_t cols, const float *x, uint32_t x_stride, float *y, uint32_t y_stride,
                        const uint32_t tokens, const bool half)
{
    float acc[2][ROWS] = {{0}};
    for (uint32_t c = 0; c < cols; c++) {
        UNROLL for (uint32_t r = 0; r < ROWS; r++) {
            const float weight = load(w, (size_t)c * ROWS + r, half);
            UNROLL for (uint32_t t = 0; t < tokens; t++) {
                acc[t][r] = acc[t][r] + weight * x[(size_t)t * x_stride + c];
            }
        }
    }
    for (uint32_t t = 0; t < tokens; t++) {
        __builtin_memcpy(y + (size_t)t * y_stride, acc[t], sizeof acc[t]);
    }
}

SHARED void float_product(const void *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                          uint32_t n, float *y, uint32_t y_stride, const bool half)
{
    for (uint32_t t = 0; t < row_tiles; t++) {
        const size_t first = (size_t)t * cols * ROWS;
        const void *tile = half ? (const void *)((const uint16_t *)w + first) : (const float *)w + first;
        float *rows = y + (size_t)t * ROWS;
        uint32_t token = 0;
        for (; n - token >= 2; token += 2) {
            float_strip(tile, cols, x + (size_t)token * x_stride, x_stride, rows + (size_t)token * y_stride, y_stride,
                        2, half);
        }
        if (token < n) {
            float_strip(tile, cols, x + (size_t)token * x_stride, 0, rows + (size_t)token * y_stride, 0, 1, half);
        }
    }
}

static void matmul_f16(const uint16_t *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                       uint32_t n, float *y, uint32_t y_stride)
{
    float_product(w, row_tiles, cols, x, x_stride, n, y, y_stride, true);
}

static void matmul_f32(const float *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                       uint32_t n, float *y, uint32_t y_stride)
{
    float_product(w, row_tiles, cols, x, x_stride, n, y, y_stride, false);
}

SHARED float dot(const float *a, const void *b, uint32_t n, const bool half)
{
    float s[LANES] = {0};
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            s[j] = s[j] + a[i + j] * load(b, i + j, half);
        }
    }
    for (uint32_t j = 0; i + j < n; j++) {
        s[j] = s[j] + a[i + j] * load(b, i + j, half);
    }
    return col_tree(s);
}

static float dot_f32(const float *a, const float *b, uint32_t n)
{
    return dot(a, b, n, false);
}

static float dot_f16(const float *a, const uint16_t *b, uint32_t n)
{
    return dot(a, b, n, true);
}

SHARED void axpy(float p, const void *x, float *y, uint32_t n, const bool half)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = y[i] + p * load(x, i, half);
    }
}

static void axpy_f32(float p, const float *x, float *y, uint32_t n)
{
    axpy(p, x, y, n, false);
}

static void axpy_f16(float p, const uint16_t *x, float *y, uint32_t n)
{
    axpy(p, x, y, n, true);
}

static float exp_sum(float *x, uint32_t n, float max)
{
    float s[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        x[i] = EXP(x[i] - max);
        s[i % LANES] = s[i % LANES] + x[i];
    }
    return col_tree(s);
}

static void swiglu(const float *g, const float *u, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = (g[i] / (1.0f + EXP(-g[i]))) * u[i];
    }
}

static void narrow_f16(const float *x, uint16_t *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = col_float_to_half(x[i]);
    }
}

const struct col_kernels col_kernels_scalar = {
    .name = "scalar",
    .quantize = quantize,
    .matmul_q8 = matmul_q8,
    .matmul_q4 = matmul_q4,
    .matmul_f16 = matmul_f16,
    .matmul_f32 = matmul_f32,
    .dot_f32 = dot_f32,
    .dot_f16 = dot_f16,
    .axpy_f32 = axpy_f32,
    .axpy_f16 = axpy_f16,
    .exp_sum = exp_sum,
    .swiglu = swiglu,
    .narrow_f16 = narrow_f16,
};
