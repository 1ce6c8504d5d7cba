/* SPDX-License-Identifier: Apache-2.0
 *
 * scalar.c: the kernels in plain C, which define what kernels.h promises. Every other set is compared with this one,
 * bit for bit. It is written to be read; in float products the loop over a tile's rows is unrolled, so that the rows'
 * accumulators are registers.
 */
#include "common.h"

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

static void matmul_q8(const struct col_tile_q8 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                      const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    for (uint32_t t = 0; t < row_tiles; t++, w += blocks) {
        for (uint32_t token = 0; token < n; token++) {
            const int8_t *x = xq + (size_t)token * blocks * COL_BLOCK;
            float acc[ROWS] = {0};
            for (uint32_t b = 0; b < blocks; b++) {
                int32_t sum[ROWS] = {0};
                for (uint32_t g = 0; g < 8; g++, x += 4) {
                    const int8_t *q = w[b].q[g];
                    for (uint32_t r = 0; r < ROWS; r++, q += 4) {
                        sum[r] += q[0] * x[0] + q[1] * x[1] + q[2] * x[2] + q[3] * x[3];
                    }
                }
                finish_tile(w[b].scale, xs[(size_t)token * blocks + b], sum, acc);
            }
            __builtin_memcpy(y + (size_t)token * y_stride + (size_t)t * ROWS, acc, sizeof acc);
        }
    }
}

static void matmul_q4(const struct col_tile_q4 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                      const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    for (uint32_t t = 0; t < row_tiles; t++, w += blocks) {
        for (uint32_t token = 0; token < n; token++) {
            const int8_t *x = xq + (size_t)token * blocks * COL_BLOCK;
            float acc[ROWS] = {0};
            for (uint32_t b = 0; b < blocks; b++) {
                int32_t sum[ROWS] = {0};
                for (uint32_t p = 0; p < 4; p++, x += 8) {
                    const uint8_t *q = w[b].q[p];
                    for (uint32_t r = 0; r < ROWS; r++, q += 4) {
                        for (uint32_t c = 0; c < 4; c++) {
                            sum[r] += ((int32_t)(q[c] & 15u) - 8) * x[c] + ((int32_t)(q[c] >> 4) - 8) * x[4 + c];
                        }
                    }
                }
                finish_tile(w[b].scale, xs[(size_t)token * blocks + b], sum, acc);
            }
            __builtin_memcpy(y + (size_t)token * y_stride + (size_t)t * ROWS, acc, sizeof acc);
        }
    }
}

static void matmul_f16(const uint16_t *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                       uint32_t n, float *y, uint32_t y_stride)
{
    for (uint32_t t = 0; t < row_tiles; t++, w += (size_t)cols * ROWS) {
        uint32_t token = 0;
        for (; token + 2 <= n; token += 2) { /* two tokens share the widening of the weights */
            const float *x0 = x + (size_t)token * x_stride;
            const float *x1 = x0 + x_stride;
            float acc0[ROWS] = {0};
            float acc1[ROWS] = {0};
            for (uint32_t c = 0; c < cols; c++) {
                UNROLL for (uint32_t r = 0; r < ROWS; r++) {
                    float weight = col_half_to_float(w[(size_t)c * ROWS + r]);
                    acc0[r] = acc0[r] + weight * x0[c];
                    acc1[r] = acc1[r] + weight * x1[c];
                }
            }
            __builtin_memcpy(y + (size_t)token * y_stride + (size_t)t * ROWS, acc0, sizeof acc0);
            __builtin_memcpy(y + (size_t)(token + 1) * y_stride + (size_t)t * ROWS, acc1, sizeof acc1);
        }
        for (; token < n; token++) {
            const float *x0 = x + (size_t)token * x_stride;
            float acc[ROWS] = {0};
            for (uint32_t c = 0; c < cols; c++) {
                UNROLL for (uint32_t r = 0; r < ROWS; r++) {
                    acc[r] = acc[r] + col_half_to_float(w[(size_t)c * ROWS + r]) * x0[c];
                }
            }
            __builtin_memcpy(y + (size_t)token * y_stride + (size_t)t * ROWS, acc, sizeof acc);
        }
    }
}

static void matmul_f32(const float *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                       uint32_t n, float *y, uint32_t y_stride)
{
    for (uint32_t t = 0; t < row_tiles; t++, w += (size_t)cols * ROWS) {
        for (uint32_t token = 0; token < n; token++) {
            const float *x0 = x + (size_t)token * x_stride;
            float acc[ROWS] = {0};
            for (uint32_t c = 0; c < cols; c++) {
                UNROLL for (uint32_t r = 0; r < ROWS; r++) {
                    acc[r] = acc[r] + w[(size_t)c * ROWS + r] * x0[c];
                }
            }
            __builtin_memcpy(y + (size_t)token * y_stride + (size_t)t * ROWS, acc, sizeof acc);
        }
    }
}

static float dot_f32(const float *a, const float *b, uint32_t n)
{
    float s[LANES] = {0};
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            s[j] = s[j] + a[i + j] * b[i + j];
        }
    }
    for (uint32_t j = 0; i + j < n; j++) {
        s[j] = s[j] + a[i + j] * b[i + j];
    }
    return col_tree(s);
}

static float dot_f16(const float *a, const uint16_t *b, uint32_t n)
{
    float s[LANES] = {0};
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            s[j] = s[j] + a[i + j] * col_half_to_float(b[i + j]);
        }
    }
    for (uint32_t j = 0; i + j < n; j++) {
        s[j] = s[j] + a[i + j] * col_half_to_float(b[i + j]);
    }
    return col_tree(s);
}

static void axpy_f32(float p, const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = y[i] + p * x[i];
    }
}

static void axpy_f16(float p, const uint16_t *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = y[i] + p * col_half_to_float(x[i]);
    }
}

static float exp_sum(float *x, uint32_t n, float max)
{
    float s[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        x[i] = col_exp(x[i] - max);
        s[i % LANES] = s[i % LANES] + x[i];
    }
    return col_tree(s);
}

static void swiglu(const float *g, const float *u, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = (g[i] / (1.0f + col_exp(-g[i]))) * u[i];
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
