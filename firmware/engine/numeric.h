/* SPDX-License-Identifier: Apache-2.0
 *
 * numeric.h: the float operations that the engine needs beyond + - * /, each with one right result on every target.
 *
 * Nothing here calls a library: exp is a polynomial in separately rounded multiplies and adds, sqrt is the processor's
 * correctly rounded instruction, conversions from and to binary16 are bits. docs/numeric-contract.md says why.
 * Compile with -ffp-contract=off and -fno-math-errno; kernels/selftest.c fails at boot when a product was fused.
 */
#ifndef COLIBRI_NUMERIC_H
#define COLIBRI_NUMERIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__FAST_MATH__)
#error "the numeric contract forbids -ffast-math: see docs/numeric-contract.md"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "float expressions must be evaluated in binary32 (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif

_Static_assert(sizeof(float) == 4, "float must be IEEE-754 binary32");

/* The bits of a float, and the float of bits. memcpy, because a pointer cast would break strict aliasing. */
static inline uint32_t col_float_bits(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float col_bits_float(uint32_t bits)
{
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

/* False for NaN and both infinities. */
static inline bool col_is_finite(float x)
{
    return (col_float_bits(x) & 0x7f800000u) != 0x7f800000u;
}

/* Adding 1.5 * 2^23 leaves a sum whose unit in the last place is 1, so that the addition itself rounds to the nearest
 * integer, ties to even, and the integer stands in the low bits. Valid for |x| <= 2^22. */
#define COL_ROUND_MAGIC 12582912.0f
#define COL_ROUND_MAGIC_BITS 0x4b400000u

/* The integer nearest to x, ties to even. |x| must be at most 2^22 (4,194,304). */
static inline int32_t col_round_even(float x)
{
    return (int32_t)(col_float_bits(x + COL_ROUND_MAGIC) - COL_ROUND_MAGIC_BITS);
}

/* Correctly rounded square root of x >= 0. One instruction on every target with floats in hardware. */
static inline float col_sqrt(float x)
{
    return __builtin_sqrtf(x);
}

/* Constants of col_exp, shared with the vector kernels. The polynomial is that of Cephes' expf (S. Moshier, netlib):
 * exp(r) = 1 + r + r^2 * P(r) on |r| <= ln(2) / 2. ln(2) is split so that n * COL_EXP_LN2_HIGH is exact. */
#define COL_EXP_MAX 88.0f          /* larger arguments give exp(88) = 1.65e38, which is finite */
#define COL_EXP_MIN (-87.33654f)   /* smaller ones give +0: below this the result would be denormal */
#define COL_EXP_LOG2E 1.44269504f
#define COL_EXP_LN2_HIGH 0.693359375f
#define COL_EXP_LN2_LOW (-2.12194440e-4f)
#define COL_EXP_P0 1.9875691500e-4f
#define COL_EXP_P1 1.3981999507e-3f
#define COL_EXP_P2 8.3334519073e-3f
#define COL_EXP_P3 4.1665795894e-2f
#define COL_EXP_P4 1.6666665459e-1f
#define COL_EXP_P5 5.0000001201e-1f

/* e^x. At most 1.1 units in the last place from the exact value on [COL_EXP_MIN, COL_EXP_MAX] (tests/engine measures
 * it), exactly 1 at 0, +0 below COL_EXP_MIN (minus infinity too, which is how a masked logit vanishes), exp(88) above
 * COL_EXP_MAX, never denormal, NaN for NaN. The order of these operations is part of the numeric contract. */
float col_exp(float x);

/* col_exp for a loop in which a call would cost more than the code. */
static inline float col_exp_inline(float x)
{
    if (x < COL_EXP_MIN) {
        return 0.0f;
    }
    x = x > COL_EXP_MAX ? COL_EXP_MAX : x;
    float shifted = x * COL_EXP_LOG2E + COL_ROUND_MAGIC; /* low bits: n, the power of two nearest to e^x */
    float n = shifted - COL_ROUND_MAGIC;
    float r = (x - n * COL_EXP_LN2_HIGH) - n * COL_EXP_LN2_LOW;
    float p = COL_EXP_P0 * r + COL_EXP_P1;
    p = p * r + COL_EXP_P2;
    p = p * r + COL_EXP_P3;
    p = p * r + COL_EXP_P4;
    p = p * r + COL_EXP_P5;
    p = p * (r * r) + r;
    p = p + 1.0f;
    /* Adding n to the exponent of 1.0: the other bits of `shifted` leave at the top. n is -126 .. 127. */
    uint32_t power = (col_float_bits(shifted) << 23) + 0x3f800000u;
    return p * col_bits_float(power);
}

/* binary16 to binary32. Exact; infinities and NaN stay what they are. */
static inline float col_half_to_float(uint16_t half)
{
    uint32_t sign = ((uint32_t)half & 0x8000u) << 16;
    uint32_t rest = (uint32_t)half & 0x7fffu;
    if (rest - 0x0400u < 0x7800u) { /* normal: the exponent's bias goes from 15 to 127 */
        return col_bits_float(sign | ((rest << 13) + (112u << 23)));
    }
    if (rest >= 0x7c00u) { /* infinity or NaN */
        return col_bits_float(sign | 0x7f800000u | (rest << 13));
    }
    float magnitude = (float)rest * 0x1p-24f; /* zero or denormal */
    return col_bits_float(sign | col_float_bits(magnitude));
}

/* binary32 to binary16, round to nearest even, denormals kept. 65520 and more give infinity, NaN gives a NaN. */
static inline uint16_t col_float_to_half(float x)
{
    uint32_t bits = col_float_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t rest = bits & 0x7fffffffu;
    uint32_t half;
    if (rest >= 0x47800000u) { /* 65536 and more, infinity, NaN */
        half = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (rest >= 0x38800000u) { /* the result is normal: round at bit 13, a carry runs into the exponent */
        half = (rest - (112u << 23) + 0x0fffu + ((rest >> 13) & 1u)) >> 13;
    } else { /* below 2^-14: next to 0.5 the unit in the last place is 2^-24, as in binary16's denormals */
        half = col_float_bits(col_bits_float(rest) + 0.5f) - 0x3f000000u;
    }
    return (uint16_t)(sign | half);
}

/* 1 / (1 + e^-x). */
float col_sigmoid(float x);

/* True when none of x[0 .. n-1] is NaN or infinite. */
bool col_all_finite(const float *x, uint32_t n);

#endif
