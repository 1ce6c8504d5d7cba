/* SPDX-License-Identifier: Apache-2.0
 *
 * avx2.c: the kernels for x86-64 processors with AVX2 and F16C. The file switches these on for itself; choose.c asks
 * the processor before anything here is called. The file is empty for other architectures.
 *
 * One 256-bit register holds one value of each of a tile's eight rows, so that a row's accumulator is one lane and no
 * sum runs across lanes. T tokens at once share each load of the weights.
 */
#include "common.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#include <immintrin.h>

#define MAX_R 4
#define MAX_T 4

/* Four bytes of activations in each lane: columns 4g .. 4g+3 for all eight rows. */
INLINE __m256i broadcast4(const int8_t *x)
{
    int32_t bytes;
    __builtin_memcpy(&bytes, x, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

INLINE __m256 load_halves(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* acc + (float)sum * (wscale * xscale), as kernels.h orders it. */
INLINE __m256 finish_tile(__m256 acc, __m256i sum, __m256 wscale, float xscale)
{
    return _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(wscale, _mm256_set1_ps(xscale))));
}

/* vpmaddubsw multiplies unsigned by signed bytes and adds pairs with saturation to int16. As |w| <= 128 and, by the
 * contract of quantize, |x| <= 127, a pair is at most 32512: |w| times x with the sign of w is exact. */
INLINE void q8_strip(const struct col_tile_q8 *w, uint32_t blocks, const int8_t *xq, const float *xs, float *y,
                     uint32_t y_stride, const unsigned T)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 acc[MAX_T];
    UNROLL for (unsigned t = 0; t < T; t++) {
        acc[t] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++) {
        __m256i sum[MAX_T];
        UNROLL for (unsigned t = 0; t < T; t++) {
            sum[t] = _mm256_setzero_si256();
        }
        UNROLL for (unsigned g = 0; g < 8; g++) {
            __m256i weight = _mm256_loadu_si256((const __m256i *)(const void *)w[b].q[g]);
            __m256i magnitude = _mm256_abs_epi8(weight);
            UNROLL for (unsigned t = 0; t < T; t++) {
                __m256i x = broadcast4(xq + ((size_t)t * blocks + b) * COL_BLOCK + 4 * g);
                __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, weight));
                sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(pairs, ones));
            }
        }
        __m256 wscale = load_halves(w[b].scale);
        UNROLL for (unsigned t = 0; t < T; t++) {
            acc[t] = finish_tile(acc[t], sum[t], wscale, xs[(size_t)t * blocks + b]);
        }
    }
    UNROLL for (unsigned t = 0; t < T; t++) {
        _mm256_storeu_ps(y + (size_t)t * y_stride, acc[t]);
    }
}

/* Eight times the sum of a block's 32 activations, in each lane. */
INLINE __m256i eight_sums(const int8_t *x)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)x);
    v = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(8), v), _mm256_set1_epi16(1));
    v = _mm256_add_epi32(v, _mm256_permute4x64_epi64(v, 0x4e));
    v = _mm256_add_epi32(v, _mm256_shuffle_epi32(v, 0x4e));
    return _mm256_add_epi32(v, _mm256_shuffle_epi32(v, 0xb1));
}

/* Nibbles are multiplied as they are, 0 .. 15, and 8 * sum(x) is taken off once per block. All eight groups fit into
 * int16: 8 * 2 * 15 * 127 = 30480. */
INLINE void q4_strip(const struct col_tile_q4 *w, uint32_t blocks, const int8_t *xq, const float *xs, float *y,
                     uint32_t y_stride, const unsigned T)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i low = _mm256_set1_epi8(15);
    __m256 acc[MAX_T];
    UNROLL for (unsigned t = 0; t < T; t++) {
        acc[t] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++) {
        __m256i sum[MAX_T];
        UNROLL for (unsigned t = 0; t < T; t++) {
            sum[t] = _mm256_setzero_si256();
        }
        UNROLL for (unsigned p = 0; p < 4; p++) {
            __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)w[b].q[p]);
            __m256i w0 = _mm256_and_si256(both, low);
            __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
            UNROLL for (unsigned t = 0; t < T; t++) {
                const int8_t *x = xq + ((size_t)t * blocks + b) * COL_BLOCK + 8 * p;
                sum[t] = _mm256_add_epi16(sum[t], _mm256_maddubs_epi16(w0, broadcast4(x)));
                sum[t] = _mm256_add_epi16(sum[t], _mm256_maddubs_epi16(w1, broadcast4(x + 4)));
            }
        }
        __m256 wscale = load_halves(w[b].scale);
        UNROLL for (unsigned t = 0; t < T; t++) {
            size_t at = (size_t)t * blocks + b;
            __m256i offset = eight_sums(xq + at * COL_BLOCK);
            __m256i exact = _mm256_sub_epi32(_mm256_madd_epi16(sum[t], ones), offset);
            acc[t] = finish_tile(acc[t], exact, wscale, xs[at]);
        }
    }
    UNROLL for (unsigned t = 0; t < T; t++) {
        _mm256_storeu_ps(y + (size_t)t * y_stride, acc[t]);
    }
}

/* Eight numbers at p from number i on: binary16 when `half`, else floats. */
INLINE __m256 load8(const void *p, size_t i, const bool half)
{
    return half ? load_halves((const uint16_t *)p + i) : _mm256_loadu_ps((const float *)p + i);
}

INLINE float load1(const void *p, size_t i, const bool half)
{
    return half ? col_half_to_float(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE void float_strip(const void *w, uint32_t cols, const float *x, uint32_t x_stride, float *y, uint32_t y_stride,
                        const unsigned R, const unsigned T, const bool half)
{
    __m256 acc[MAX_R][MAX_T];
    UNROLL for (unsigned r = 0; r < R; r++) {
        UNROLL for (unsigned t = 0; t < T; t++) {
            acc[r][t] = _mm256_setzero_ps();
        }
    }
    for (uint32_t c = 0; c < cols; c++) {
        UNROLL for (unsigned r = 0; r < R; r++) {
            __m256 weight = load8(w, ((size_t)r * cols + c) * ROWS, half);
            UNROLL for (unsigned t = 0; t < T; t++) {
                __m256 product = _mm256_mul_ps(weight, _mm256_set1_ps(x[(size_t)t * x_stride + c]));
                acc[r][t] = _mm256_add_ps(acc[r][t], product);
            }
        }
    }
    UNROLL for (unsigned r = 0; r < R; r++) {
        UNROLL for (unsigned t = 0; t < T; t++) {
            _mm256_storeu_ps(y + (size_t)t * y_stride + (size_t)r * ROWS, acc[r][t]);
        }
    }
}

#define STRIP(T) q8_strip(QUANTISED_STRIP_ARGUMENTS, T)
static void matmul_q8(const struct col_tile_q8 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                      const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    EACH_STRIP(4)
}
#undef STRIP

#define STRIP(T) q4_strip(QUANTISED_STRIP_ARGUMENTS, T)
static void matmul_q4(const struct col_tile_q4 *w, uint32_t row_tiles, uint32_t blocks, const int8_t *xq,
                      const float *xs, uint32_t n, float *y, uint32_t y_stride)
{
    EACH_STRIP(4)
}
#undef STRIP

#define STRIP(R, T) float_strip(FLOAT_STRIP_ARGUMENTS, R, T, true)
static void matmul_f16(const uint16_t *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                       uint32_t n, float *y, uint32_t y_stride)
{
    EACH_WIDE_STRIP(2)
}
#undef STRIP

#define STRIP(R, T) float_strip(FLOAT_STRIP_ARGUMENTS, R, T, false)
static void matmul_f32(const float *w, uint32_t row_tiles, uint32_t cols, const float *x, uint32_t x_stride,
                       uint32_t n, float *y, uint32_t y_stride)
{
    EACH_WIDE_STRIP(2)
}
#undef STRIP

static bool quantize(const float *x, uint32_t blocks, int8_t *q, float *scale)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    for (uint32_t b = 0; b < blocks; b++, x += COL_BLOCK, q += COL_BLOCK) {
        __m256 v[4];
        __m256i largest = _mm256_setzero_si256(); /* magnitudes of floats order as their bits do */
        UNROLL for (unsigned i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + i * LANES);
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        }
        __m128i half = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
        half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
        half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
        uint32_t bits = (uint32_t)_mm_cvtsi128_si32(half);
        if (bits >= 0x7f800000u) {
            return false;
        }
        float amax = col_bits_float(bits);
        __m256i *out = (__m256i *)(void *)q;
        if (amax < 1e-30f) {
            scale[b] = 0.0f;
            _mm256_storeu_si256(out, _mm256_setzero_si256());
            continue;
        }
        scale[b] = amax / 127.0f;
        __m256 inverse = _mm256_set1_ps(127.0f / amax);
        __m256i n[4]; /* |x * inverse| <= 127 * (1 + 2^-24)^2, so that rounding cannot leave [-127, 127] */
        UNROLL for (unsigned i = 0; i < 4; i++) {
            n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
        }
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
        /* The packs work in 128-bit halves: put the groups of four bytes back in order. */
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(out, _mm256_permutevar8x32_epi32(bytes, order));
    }
    return true;
}

/* col_tree without going through memory: s[j] + s[j + 4], then these two apart, then neighbours. */
INLINE float tree8(__m256 s)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE float dot(const float *a, const void *b, uint32_t n, const bool half)
{
    __m256 sum = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_loadu_ps(a + i), load8(b, i, half)));
    }
    if (i == n) {
        return tree8(sum);
    }
    float s[LANES];
    _mm256_storeu_ps(s, sum);
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
    const __m256 factor = _mm256_set1_ps(p);
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        __m256 product = _mm256_mul_ps(factor, load8(x, i, half));
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), product));
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

/* col_exp of eight values, operation by operation. */
INLINE __m256 exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(COL_ROUND_MAGIC);
    __m256 vanishes = _mm256_cmp_ps(x, _mm256_set1_ps(COL_EXP_MIN), _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(COL_EXP_MAX), x); /* in this order NaN stays NaN */
    __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(COL_EXP_LOG2E)), magic);
    __m256 n = _mm256_sub_ps(shifted, magic);
    __m256 r = _mm256_sub_ps(x, _mm256_mul_ps(n, _mm256_set1_ps(COL_EXP_LN2_HIGH)));
    r = _mm256_sub_ps(r, _mm256_mul_ps(n, _mm256_set1_ps(COL_EXP_LN2_LOW)));
    __m256 p = _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(COL_EXP_P0), r), _mm256_set1_ps(COL_EXP_P1));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(COL_EXP_P2));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(COL_EXP_P3));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(COL_EXP_P4));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(COL_EXP_P5));
    p = _mm256_add_ps(_mm256_mul_ps(p, _mm256_mul_ps(r, r)), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    power = _mm256_add_epi32(power, _mm256_set1_epi32(0x3f800000));
    return _mm256_andnot_ps(vanishes, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

static float exp_sum(float *x, uint32_t n, float max)
{
    const __m256 top = _mm256_set1_ps(max);
    __m256 sum = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), top));
        _mm256_storeu_ps(x + i, e);
        sum = _mm256_add_ps(sum, e);
    }
    float s[LANES];
    _mm256_storeu_ps(s, sum);
    for (uint32_t j = 0; i + j < n; j++) {
        x[i + j] = col_exp(x[i + j] - max);
        s[j] = s[j] + x[i + j];
    }
    return col_tree(s);
}

static void swiglu(const float *g, const float *u, float *y, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        __m256 gate = _mm256_loadu_ps(g + i);
        __m256 silu = _mm256_div_ps(gate, _mm256_add_ps(one, exp8(_mm256_xor_ps(gate, sign))));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(silu, _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) {
        y[i] = (g[i] / (1.0f + col_exp(-g[i]))) * u[i];
    }
}

static void narrow_f16(const float *x, uint16_t *y, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(y + i), half);
    }
    for (; i < n; i++) {
        y[i] = col_float_to_half(x[i]);
    }
}

const struct col_kernels col_kernels_avx2 = {
    .name = "avx2",
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

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
