/* SPDX-License-Identifier: Apache-2.0
 *
 * neon.c: the kernels for AArch64, in two sets: "neon" for every ARMv8-A processor, "neon-dotprod" for those with the
 * dot-product extension, whose SDOT does a tile's group in two instructions. Only the integer products differ. The
 * file is empty for other architectures.
 *
 * Two 128-bit registers hold one value of each of a tile's eight rows, so that a row's accumulator is one lane and no
 * sum runs across lanes. T tokens at once share each load of the weights.
 */
#include "common.h"

#if defined(__aarch64__)

/* GCC's scheduler before register allocation moves so many loads up that a strip of four tokens spills over a hundred
 * registers; without it none. The scheduler after allocation still runs. */
#if !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif

#include <arm_neon.h>

#define MAX_R 4
#define MAX_T 4
#define DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))

/* One value for each of eight rows or lanes. */
struct eight {
    float32x4_t low, high;
};
struct eight_int {
    int32x4_t low, high;
};

INLINE struct eight load8(const float *p)
{
    return (struct eight){vld1q_f32(p), vld1q_f32(p + 4)};
}

INLINE void store8(float *p, struct eight v)
{
    vst1q_f32(p, v.low);
    vst1q_f32(p + 4, v.high);
}

INLINE struct eight load_halves(const uint16_t *p)
{
    float16x8_t half = vreinterpretq_f16_u16(vld1q_u16(p));
    return (struct eight){vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)};
}

/* The processor's conversions of one value, for the ends of vectors. */
INLINE float half_to_float(uint16_t half)
{
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}

INLINE uint16_t float_to_half(float x)
{
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}

/* acc + v * x: two roundings. */
INLINE struct eight add_product(struct eight acc, struct eight v, float x)
{
    return (struct eight){vaddq_f32(acc.low, vmulq_n_f32(v.low, x)), vaddq_f32(acc.high, vmulq_n_f32(v.high, x))};
}

/* acc + (float)sum * (wscale * xscale), as kernels.h orders it. */
INLINE struct eight finish_tile(struct eight acc, struct eight_int sum, struct eight wscale, float xscale)
{
    float32x4_t low = vmulq_f32(vcvtq_f32_s32(sum.low), vmulq_n_f32(wscale.low, xscale));
    float32x4_t high = vmulq_f32(vcvtq_f32_s32(sum.high), vmulq_n_f32(wscale.high, xscale));
    return (struct eight){vaddq_f32(acc.low, low), vaddq_f32(acc.high, high)};
}

/* Four bytes of activations in each lane: four columns for all rows. */
INLINE int8x16_t broadcast4(const int8_t *x)
{
    int32_t bytes;
    __builtin_memcpy(&bytes, x, sizeof bytes);
    return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}

/* Eight times the sum of a block's 32 activations, in each lane. */
INLINE int32x4_t eight_sums(const int8_t *x)
{
    int16x8_t pairs = vpadalq_s8(vpaddlq_s8(vld1q_s8(x)), vld1q_s8(x + 16));
    int32x4_t sum = vpaddlq_s16(pairs);
    sum = vpaddq_s32(sum, sum);
    return vshlq_n_s32(vpaddq_s32(sum, sum), 3);
}

/* The four registers of a tile's products without SDOT: rows 0-1, 2-3, 4-5, 6-7. */
#define QUARTERS 4

INLINE struct eight_int fold(const int32x4_t part[QUARTERS])
{
    return (struct eight_int){vpaddq_s32(part[0], part[1]), vpaddq_s32(part[2], part[3])};
}

/* ------------------------------------------------------------------------------------- one tile and T tokens' blocks
 * Each function sets sum[t] to the integer sums of the tile with token t's block at x + t * x_step. Without SDOT it goes
 * through the groups two by two: unrolled with one token, which is how answers are made; with more of them two groups
 * are so much to do that the loop's instructions do not count, while unrolled it would be much code. */
#if defined(__clang__)
#define ROLL _Pragma("nounroll")
#else
#define ROLL _Pragma("GCC unroll 1")
#endif
#define EACH_PAIR(pair, statement)                             \
    if (T == 1) {                                              \
        UNROLL for (unsigned pair = 0; pair < 4; pair++) {     \
            statement;                                         \
        }                                                      \
    } else {                                                   \
        ROLL for (unsigned pair = 0; pair < 4; pair++) {       \
            statement;                                         \
        }                                                      \
    }

/* Two groups. As |w| <= 128 and, by the contract of quantize, |x| <= 127, their products fit into int16: 32512. */
INLINE void q8_groups(const int8_t (*q)[COL_BLOCK], const int8_t *x, size_t x_step, int32x4_t part[MAX_T][QUARTERS],
                      const unsigned T)
{
    int8x16_t a0 = vld1q_s8(q[0]);
    int8x16_t a1 = vld1q_s8(q[0] + 16);
    int8x16_t b0 = vld1q_s8(q[1]);
    int8x16_t b1 = vld1q_s8(q[1] + 16);
    UNROLL for (unsigned t = 0; t < T; t++) {
        int8x16_t xa = broadcast4(x + t * x_step);
        int8x16_t xb = broadcast4(x + t * x_step + 4);
        int8x8_t xa_low = vget_low_s8(xa);
        int8x8_t xb_low = vget_low_s8(xb);
        int32x4_t *p = part[t];
        p[0] = vpadalq_s16(p[0], vmlal_s8(vmull_s8(vget_low_s8(a0), xa_low), vget_low_s8(b0), xb_low));
        p[1] = vpadalq_s16(p[1], vmlal_high_s8(vmull_high_s8(a0, xa), b0, xb));
        p[2] = vpadalq_s16(p[2], vmlal_s8(vmull_s8(vget_low_s8(a1), xa_low), vget_low_s8(b1), xb_low));
        p[3] = vpadalq_s16(p[3], vmlal_high_s8(vmull_high_s8(a1, xa), b1, xb));
    }
}

INLINE void q8_block(const struct col_tile_q8 *w, const int8_t *x, size_t x_step, struct eight_int sum[MAX_T],
                     const unsigned T)
{
    int32x4_t part[MAX_T][QUARTERS];
    UNROLL for (unsigned t = 0; t < T; t++) {
        UNROLL for (unsigned i = 0; i < QUARTERS; i++) {
            part[t][i] = vdupq_n_s32(0);
        }
    }
    EACH_PAIR(p, q8_groups(w->q + 2 * p, x + 8 * p, x_step, part, T))
    UNROLL for (unsigned t = 0; t < T; t++) {
        sum[t] = fold(part[t]);
    }
}

/* Half of a tile: four groups. */
DOTPROD INLINE void q8_half_dotprod(const int8_t (*q)[COL_BLOCK], const int8_t *x, size_t x_step,
                                    struct eight_int sum[MAX_T], const unsigned T)
{
    int8x16_t v[MAX_T];
    UNROLL for (unsigned t = 0; t < T; t++) {
        v[t] = vld1q_s8(x + t * x_step);
    }
#define GROUP(lane)                                                       \
    {                                                                     \
        int8x16_t low = vld1q_s8(q[lane]);                                \
        int8x16_t high = vld1q_s8(q[lane] + 16);                          \
        UNROLL for (unsigned t = 0; t < T; t++) {                         \
            sum[t].low = vdotq_laneq_s32(sum[t].low, low, v[t], lane);    \
            sum[t].high = vdotq_laneq_s32(sum[t].high, high, v[t], lane); \
        }                                                                 \
    }
    GROUP(0)
    GROUP(1)
    GROUP(2)
    GROUP(3)
#undef GROUP
}

DOTPROD INLINE void q8_block_dotprod(const struct col_tile_q8 *w, const int8_t *x, size_t x_step,
                                     struct eight_int sum[MAX_T], const unsigned T)
{
    UNROLL for (unsigned t = 0; t < T; t++) {
        sum[t] = (struct eight_int){vdupq_n_s32(0), vdupq_n_s32(0)};
    }
    UNROLL for (unsigned half = 0; half < 2; half++) {
        q8_half_dotprod(w->q + 4 * half, x + 16 * half, x_step, sum, T);
    }
}

/* 32 bytes of nibbles: columns c .. c+3 of all rows in the low ones, c+4 .. c+7 in the high ones. */
struct nibbles {
    int8x16_t low0, low1, high0, high1;
};

INLINE struct nibbles load_nibbles(const uint8_t *q)
{
    uint8x16_t both0 = vld1q_u8(q);
    uint8x16_t both1 = vld1q_u8(q + 16);
    return (struct nibbles){
        vreinterpretq_s8_u8(vandq_u8(both0, vdupq_n_u8(15))),
        vreinterpretq_s8_u8(vandq_u8(both1, vdupq_n_u8(15))),
        vreinterpretq_s8_u8(vshrq_n_u8(both0, 4)),
        vreinterpretq_s8_u8(vshrq_n_u8(both1, 4)),
    };
}

/* Two groups. */
INLINE void q4_groups(const uint8_t *q, const int8_t *x, size_t x_step, int16x8_t part[MAX_T][QUARTERS],
                      const unsigned T)
{
    struct nibbles v = load_nibbles(q);
    UNROLL for (unsigned t = 0; t < T; t++) {
        int8x16_t xa = broadcast4(x + t * x_step);
        int8x16_t xb = broadcast4(x + t * x_step + 4);
        int16x8_t *s = part[t];
        s[0] = vmlal_s8(s[0], vget_low_s8(v.low0), vget_low_s8(xa));
        s[1] = vmlal_high_s8(s[1], v.low0, xa);
        s[2] = vmlal_s8(s[2], vget_low_s8(v.low1), vget_low_s8(xa));
        s[3] = vmlal_high_s8(s[3], v.low1, xa);
        s[0] = vmlal_s8(s[0], vget_low_s8(v.high0), vget_low_s8(xb));
        s[1] = vmlal_high_s8(s[1], v.high0, xb);
        s[2] = vmlal_s8(s[2], vget_low_s8(v.high1), vget_low_s8(xb));
        s[3] = vmlal_high_s8(s[3], v.high1, xb);
    }
}

/* Nibbles are multiplied as they are, 0 .. 15, and 8 * sum(x) is taken off at the end. The products of all eight
 * groups fit into int16: 8 * 15 * 127 = 15240. */
INLINE void q4_block(const struct col_tile_q4 *w, const int8_t *x, size_t x_step, struct eight_int sum[MAX_T],
                     const unsigned T)
{
    int16x8_t part[MAX_T][QUARTERS];
    UNROLL for (unsigned t = 0; t < T; t++) {
        UNROLL for (unsigned i = 0; i < QUARTERS; i++) {
            part[t][i] = vdupq_n_s16(0);
        }
    }
    EACH_PAIR(p, q4_groups(w->q[p], x + 8 * p, x_step, part, T))
    UNROLL for (unsigned t = 0; t < T; t++) {
        int32x4_t offset = eight_sums(x + t * x_step);
        int32x4_t wide[QUARTERS];
        UNROLL for (unsigned i = 0; i < QUARTERS; i++) {
            wide[i] = vpaddlq_s16(part[t][i]);
        }
        sum[t] = fold(wide);
        sum[t].low = vsubq_s32(sum[t].low, offset);
        sum[t].high = vsubq_s32(sum[t].high, offset);
    }
}

/* Half of a tile: four groups. */
DOTPROD INLINE void q4_half_dotprod(const uint8_t (*q)[COL_BLOCK], const int8_t *x, size_t x_step,
                                    struct eight_int sum[MAX_T], const unsigned T)
{
    int8x16_t v[MAX_T];
    UNROLL for (unsigned t = 0; t < T; t++) {
        v[t] = vld1q_s8(x + t * x_step);
    }
#define GROUPS(index)                                                                \
    {                                                                                \
        struct nibbles u = load_nibbles(q[index]);                                   \
        UNROLL for (unsigned t = 0; t < T; t++) {                                    \
            sum[t].low = vdotq_laneq_s32(sum[t].low, u.low0, v[t], 2 * (index));     \
            sum[t].high = vdotq_laneq_s32(sum[t].high, u.low1, v[t], 2 * (index));   \
            sum[t].low = vdotq_laneq_s32(sum[t].low, u.high0, v[t], 2 * (index) + 1); \
            sum[t].high = vdotq_laneq_s32(sum[t].high, u.high1, v[t], 2 * (index) + 1); \
        }                                                                            \
    }
    GROUPS(0)
    GROUPS(1)
#undef GROUPS
}

DOTPROD INLINE void q4_block_dotprod(const struct col_tile_q4 *w, const int8_t *x, size_t x_step,
                                     struct eight_int sum[MAX_T], const unsigned T)
{
    UNROLL for (unsigned t = 0; t < T; t++) {
        int32x4_t start = vnegq_s32(eight_sums(x + t * x_step));
        sum[t] = (struct eight_int){start, start};
    }
    UNROLL for (unsigned half = 0; half < 2; half++) {
        q4_half_dotprod(w->q + 2 * half, x + 16 * half, x_step, sum, T);
    }
}

/* -------------------------------------------------------------------------------------------- quantised products
 * A strip is one row tile times T tokens, which share the loads of the weights. A product has a function for its widest
 * strip and one for a single token; what calls them is the same for all products. */

typedef void quantised_strip(const void *w, uint32_t blocks, const int8_t *xq, const float *xs, float *y,
                             uint32_t y_stride);

struct quantised_strips {
    quantised_strip *wide, *one;
    uint32_t tokens; /* of a wide strip */
    uint32_t tile_bytes;
};

/* One row tile at a time: its weights are read from the first byte to the last, and again for the next tokens. */
static __attribute__((noinline)) void quantised_product(const void *w, uint32_t row_tiles, uint32_t blocks,
                                                        const int8_t *xq, const float *xs, uint32_t n, float *y,
                                                        uint32_t y_stride, const struct quantised_strips *strips)
{
    const uint8_t *tiles = w;
    for (uint32_t tile = 0; tile < row_tiles; tile++, tiles += (size_t)blocks * strips->tile_bytes, y += ROWS) {
        for (uint32_t token = 0; token < n;) {
            const size_t first = (size_t)token * blocks;
            const bool wide = n - token >= strips->tokens;
            (wide ? strips->wide : strips->one)(tiles, blocks, xq + first * COL_BLOCK, xs + first,
                                                y + (size_t)token * y_stride, y_stride);
            token += wide ? strips->tokens : 1u;
        }
    }
}

/* The four products differ in tile and block function only; a macro makes them, since a type cannot be a parameter of
 * a function in C. Without SDOT the products cost so much more than the loads that two tokens are enough; four would
 * only be more code. */
#define QUANTISED_MATMUL(name, attributes, tile_type, block_function, wide_tokens)                                  \
    attributes INLINE void name##_strip(const tile_type *w, uint32_t blocks, const int8_t *xq, const float *xs,     \
                                        float *y, uint32_t y_stride, const unsigned T)                              \
    {                                                                                                               \
        struct eight acc[MAX_T];                                                                                    \
        UNROLL for (unsigned t = 0; t < T; t++) {                                                                   \
            acc[t] = (struct eight){vdupq_n_f32(0), vdupq_n_f32(0)};                                                \
        }                                                                                                           \
        for (uint32_t b = 0; b < blocks; b++) {                                                                     \
            struct eight_int sum[MAX_T];                                                                            \
            block_function(w + b, xq + (size_t)b * COL_BLOCK, (size_t)blocks * COL_BLOCK, sum, T);                  \
            struct eight wscale = load_halves(w[b].scale);                                                          \
            UNROLL for (unsigned t = 0; t < T; t++) {                                                               \
                acc[t] = finish_tile(acc[t], sum[t], wscale, xs[(size_t)t * blocks + b]);                           \
            }                                                                                                       \
        }                                                                                                           \
        UNROLL for (unsigned t = 0; t < T; t++) {                                                                   \
            store8(y + (size_t)t * y_stride, acc[t]);                                                               \
        }                                                                                                           \
    }                                                                                                               \
    attributes static void name##_wide(const void *w, uint32_t blocks, const int8_t *xq, const float *xs, float *y, \
                                       uint32_t y_stride)                                                           \
    {                                                                                                               \
        name##_strip(w, blocks, xq, xs, y, y_stride, wide_tokens);                                                  \
    }                                                                                                               \
    attributes static void name##_one(const void *w, uint32_t blocks, const int8_t *xq, const float *xs, float *y,  \
                                      uint32_t y_stride)                                                            \
    {                                                                                                               \
        name##_strip(w, blocks, xq, xs, y, y_stride, 1);                                                            \
    }                                                                                                               \
    static void name(const tile_type *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq, const float *xs,    \
                     uint32_t n, float *y, uint32_t y_stride)                                                       \
    {                                                                                                               \
        static const struct quantised_strips strips = {name##_wide, name##_one, wide_tokens, sizeof(tile_type)};    \
        quantised_product(w, row_tiles, blocks, xq, xs, n, y, y_stride, &strips);                                   \
    }

QUANTISED_MATMUL(matmul_q8, , struct col_tile_q8, q8_block, 2)
QUANTISED_MATMUL(matmul_q8_dotprod, DOTPROD, struct col_tile_q8, q8_block_dotprod, 4)
QUANTISED_MATMUL(matmul_q4, , struct col_tile_q4, q4_block, 2)
QUANTISED_MATMUL(matmul_q4_dotprod, DOTPROD, struct col_tile_q4, q4_block_dotprod, 4)

/* ------------------------------------------------------------------------------------------------ float products
 * These add once per column instead of once per block and would wait for each addition: a strip is one row tile and
 * four tokens or, with fewer tokens, four row tiles and one token, which are eight chains either way. */

typedef void float_strip(const void *w, uint32_t cols, const float *x, uint32_t x_stride, float *y, uint32_t y_stride);

struct float_strips {
    float_strip *tokens, *tiles, *one; /* four tokens, four row tiles, one of each */
    uint32_t column_bytes;
};

static __attribute__((noinline)) void float_product(const void *w, uint32_t row_tiles, uint32_t cols, const float *x,
                                                    uint32_t x_stride, uint32_t n, float *y, uint32_t y_stride,
                                                    const struct float_strips *strips)
{
    const uint8_t *tiles = w;
    const size_t tile_bytes = (size_t)cols * strips->column_bytes;
    const uint32_t fours = n & ~3u;
    const uint32_t quads = row_tiles & ~3u;
    for (uint32_t tile = 0; tile < row_tiles; tile++, tiles += tile_bytes, y += ROWS) {
        for (uint32_t token = 0; token < fours; token += 4) {
            strips->tokens(tiles, cols, x + (size_t)token * x_stride, x_stride, y + (size_t)token * y_stride, y_stride);
        }
        if (tile < quads && tile % 4u != 0) {
            continue; /* the first of the four took the rest for all */
        }
        float_strip *rest = tile < quads ? strips->tiles : strips->one;
        for (uint32_t token = fours; token < n; token++) {
            rest(tiles, cols, x + (size_t)token * x_stride, x_stride, y + (size_t)token * y_stride, y_stride);
        }
    }
}

/* Eight numbers at p from number i on: binary16 when `half`, else floats. */
INLINE struct eight load_any(const void *p, size_t i, const bool half)
{
    return half ? load_halves((const uint16_t *)p + i) : load8((const float *)p + i);
}

INLINE float load1(const void *p, size_t i, const bool half)
{
    return half ? half_to_float(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE void any_float_strip(const void *w, uint32_t cols, const float *x, uint32_t x_stride, float *y,
                            uint32_t y_stride, const unsigned R, const unsigned T, const bool half)
{
    struct eight acc[MAX_R][MAX_T];
    UNROLL for (unsigned r = 0; r < R; r++) {
        UNROLL for (unsigned t = 0; t < T; t++) {
            acc[r][t] = (struct eight){vdupq_n_f32(0), vdupq_n_f32(0)};
        }
    }
    for (uint32_t c = 0; c < cols; c++) {
        UNROLL for (unsigned r = 0; r < R; r++) {
            struct eight weight = load_any(w, ((size_t)r * cols + c) * ROWS, half);
            UNROLL for (unsigned t = 0; t < T; t++) {
                acc[r][t] = add_product(acc[r][t], weight, x[(size_t)t * x_stride + c]);
            }
        }
    }
    UNROLL for (unsigned r = 0; r < R; r++) {
        UNROLL for (unsigned t = 0; t < T; t++) {
            store8(y + (size_t)t * y_stride + (size_t)r * ROWS, acc[r][t]);
        }
    }
}

#define FLOAT_STRIP(name, R, T, half)                                                                            \
    static void name(const void *w, uint32_t cols, const float *x, uint32_t x_stride, float *y, uint32_t y_stride) \
    {                                                                                                            \
        any_float_strip(w, cols, x, x_stride, y, y_stride, R, T, half);                                          \
    }

#define FLOAT_MATMUL(name, type, half)                                                                              \
    FLOAT_STRIP(name##_tokens, 1, 4, half)                                                                          \
    FLOAT_STRIP(name##_tiles, 4, 1, half)                                                                           \
    FLOAT_STRIP(name##_one, 1, 1, half)                                                                             \
    static void name(const type *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride, uint32_t n, \
                     float *y, uint32_t y_stride)                                                                   \
    {                                                                                                               \
        static const struct float_strips strips = {name##_tokens, name##_tiles, name##_one, ROWS * sizeof(type)};   \
        float_product(w, row_tiles, cols, x, x_stride, n, y, y_stride, &strips);                                    \
    }

FLOAT_MATMUL(matmul_f16, uint16_t, true)
FLOAT_MATMUL(matmul_f32, float, false)

/* ------------------------------------------------------------------------------------------------------- vectors */

static bool quantize(const float *x, uint32_t blocks, int8_t *q, float *scale)
{
    for (uint32_t b = 0; b < blocks; b++, x += COL_BLOCK, q += COL_BLOCK) {
        float32x4_t v[8];
        uint32x4_t largest = vdupq_n_u32(0); /* magnitudes of floats order as their bits do */
        UNROLL for (unsigned i = 0; i < 8; i++) {
            v[i] = vld1q_f32(x + 4 * i);
            largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(v[i])));
        }
        uint32_t bits = vmaxvq_u32(largest);
        if (bits >= 0x7f800000u) {
            return false;
        }
        float amax = col_bits_float(bits);
        if (amax < 1e-30f) {
            scale[b] = 0.0f;
            vst1q_s8(q, vdupq_n_s8(0));
            vst1q_s8(q + 16, vdupq_n_s8(0));
            continue;
        }
        scale[b] = amax / 127.0f;
        float inverse = 127.0f / amax;
        UNROLL for (unsigned i = 0; i < 8; i += 4) {
            /* |x * inverse| <= 127 * (1 + 2^-24)^2, so that rounding cannot leave [-127, 127]. */
            int16x4_t n0 = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse)));
            int16x4_t n1 = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[i + 1], inverse)));
            int16x4_t n2 = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[i + 2], inverse)));
            int16x4_t n3 = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[i + 3], inverse)));
            vst1q_s8(q + 4 * i, vcombine_s8(vmovn_s16(vcombine_s16(n0, n1)), vmovn_s16(vcombine_s16(n2, n3))));
        }
    }
    return true;
}

INLINE struct eight add_products(struct eight acc, struct eight a, struct eight b)
{
    return (struct eight){vaddq_f32(acc.low, vmulq_f32(a.low, b.low)), vaddq_f32(acc.high, vmulq_f32(a.high, b.high))};
}

/* col_tree without going through memory: s[j] + s[j + 4], then these two apart, then neighbours. */
INLINE float tree8(struct eight s)
{
    float32x4_t four = vaddq_f32(s.low, s.high);
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

INLINE float dot(const float *a, const void *b, uint32_t n, const bool half)
{
    struct eight sum = {vdupq_n_f32(0), vdupq_n_f32(0)};
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        sum = add_products(sum, load8(a + i), load_any(b, i, half));
    }
    if (i == n) {
        return tree8(sum);
    }
    float s[LANES];
    store8(s, sum);
    for (uint32_t j = 0; i + j < n; j++) {
        s[j] = s[j] + a[i + j] * load1(b, i + j, half);
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

INLINE void axpy(float p, const void *x, float *y, uint32_t n, const bool half)
{
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        store8(y + i, add_product(load8(y + i), load_any(x, i, half), p));
    }
    for (; i < n; i++) {
        y[i] = y[i] + p * load1(x, i, half);
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

/* col_exp of four values, operation by operation. */
INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(COL_ROUND_MAGIC);
    uint32x4_t vanishes = vcltq_f32(x, vdupq_n_f32(COL_EXP_MIN));
    x = vminq_f32(x, vdupq_n_f32(COL_EXP_MAX)); /* NaN stays NaN */
    float32x4_t shifted = vaddq_f32(vmulq_f32(x, vdupq_n_f32(COL_EXP_LOG2E)), magic);
    float32x4_t n = vsubq_f32(shifted, magic);
    float32x4_t r = vsubq_f32(x, vmulq_f32(n, vdupq_n_f32(COL_EXP_LN2_HIGH)));
    r = vsubq_f32(r, vmulq_f32(n, vdupq_n_f32(COL_EXP_LN2_LOW)));
    float32x4_t p = vaddq_f32(vmulq_f32(vdupq_n_f32(COL_EXP_P0), r), vdupq_n_f32(COL_EXP_P1));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(COL_EXP_P2));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(COL_EXP_P3));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(COL_EXP_P4));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(COL_EXP_P5));
    p = vaddq_f32(vmulq_f32(p, vmulq_f32(r, r)), r);
    p = vaddq_f32(p, vdupq_n_f32(1.0f));
    uint32x4_t power = vaddq_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23), vdupq_n_u32(0x3f800000u));
    uint32x4_t result = vreinterpretq_u32_f32(vmulq_f32(p, vreinterpretq_f32_u32(power)));
    return vreinterpretq_f32_u32(vbicq_u32(result, vanishes));
}

static float exp_sum(float *x, uint32_t n, float max)
{
    const float32x4_t top = vdupq_n_f32(max);
    struct eight sum = {vdupq_n_f32(0), vdupq_n_f32(0)};
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        struct eight v = load8(x + i);
        v = (struct eight){exp4(vsubq_f32(v.low, top)), exp4(vsubq_f32(v.high, top))};
        store8(x + i, v);
        sum = (struct eight){vaddq_f32(sum.low, v.low), vaddq_f32(sum.high, v.high)};
    }
    float s[LANES];
    store8(s, sum);
    for (uint32_t j = 0; i + j < n; j++) {
        x[i + j] = col_exp(x[i + j] - max);
        s[j] = s[j] + x[i + j];
    }
    return col_tree(s);
}

static void swiglu(const float *g, const float *u, float *y, uint32_t n)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    uint32_t i = 0;
    for (; n - i >= 4; i += 4) {
        float32x4_t gate = vld1q_f32(g + i);
        float32x4_t silu = vdivq_f32(gate, vaddq_f32(one, exp4(vnegq_f32(gate))));
        vst1q_f32(y + i, vmulq_f32(silu, vld1q_f32(u + i)));
    }
    for (; i < n; i++) {
        y[i] = (g[i] / (1.0f + col_exp(-g[i]))) * u[i];
    }
}

static void narrow_f16(const float *x, uint16_t *y, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= 4; i += 4) {
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    }
    for (; i < n; i++) {
        y[i] = float_to_half(x[i]);
    }
}

#define SHARED_KERNELS                                                                                              \
    .quantize = quantize, .matmul_f16 = matmul_f16, .matmul_f32 = matmul_f32, .dot_f32 = dot_f32, .dot_f16 = dot_f16, \
    .axpy_f32 = axpy_f32, .axpy_f16 = axpy_f16, .exp_sum = exp_sum, .swiglu = swiglu, .narrow_f16 = narrow_f16

const struct col_kernels col_kernels_neon = {
    .name = "neon",
    .matmul_q8 = matmul_q8,
    .matmul_q4 = matmul_q4,
    SHARED_KERNELS,
};

const struct col_kernels col_kernels_neon_dotprod = {
    .name = "neon-dotprod",
    .matmul_q8 = matmul_q8_dotprod,
    .matmul_q4 = matmul_q4_dotprod,
    SHARED_KERNELS,
};

#endif
