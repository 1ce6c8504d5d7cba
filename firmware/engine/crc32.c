/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32.c: CRC-32 of IEEE 802.3, the one of zlib. tests/engine compares every way below with it.
 *
 * AArch64 has instructions for it (FEAT_CRC32; every core since the Cortex-A53 has them, and a board whose core had not
 * could not run this file). x86-64 folds long stretches with carry-less multiplication where the processor can. All
 * others, and what that leaves, go eight bytes at a time through tables ("slicing-by-8", Kounavis and Berry, 2005).
 *
 * slice[k][i] is the remainder of byte i followed by k zero bytes. Remainders are linear over GF(2), so that each entry
 * is the exclusive or of the entries of i's single bits; only these 64 are written down and the compiler makes the
 * rest. In the order slice[0][128], slice[0][64], ... slice[0][1], slice[1][128], ... each of them is the one before,
 * shifted right by one and, if the bit shifted out was 1, exclusive-ored with the polynomial; the first is the
 * polynomial, 0xedb88320.
 */
#include "colibri.h"

#if defined(__aarch64__)

/* The register after `bytes` bytes. By its own name for the extension, the file needs no flag for it. */
static uint32_t run(uint32_t state, const uint8_t *p, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        __builtin_memcpy(&word, p, sizeof word);
        __asm__(".arch_extension crc\n\tcrc32x %w0, %w0, %1" : "+r"(state) : "r"(word));
    }
    for (; bytes > 0; bytes--, p++) {
        __asm__(".arch_extension crc\n\tcrc32b %w0, %w0, %w1" : "+r"(state) : "r"(*p));
    }
    return state;
}

#else

#define BIT(i, n, value) (((i) >> (n)) & 1u ? (value) : 0u)
#define ENTRY(i, b0, b1, b2, b3, b4, b5, b6, b7)                                                                  \
    (BIT(i, 0, b0) ^ BIT(i, 1, b1) ^ BIT(i, 2, b2) ^ BIT(i, 3, b3) ^ BIT(i, 4, b4) ^ BIT(i, 5, b5) ^ BIT(i, 6, b6) ^ \
     BIT(i, 7, b7))
#define ENTRIES_4(i, ...)                                                                                         \
    ENTRY((i), __VA_ARGS__), ENTRY((i) + 1u, __VA_ARGS__), ENTRY((i) + 2u, __VA_ARGS__), ENTRY((i) + 3u, __VA_ARGS__)
#define ENTRIES_16(i, ...)                                                                                        \
    ENTRIES_4((i), __VA_ARGS__), ENTRIES_4((i) + 4u, __VA_ARGS__), ENTRIES_4((i) + 8u, __VA_ARGS__),               \
        ENTRIES_4((i) + 12u, __VA_ARGS__)
#define ENTRIES_64(i, ...)                                                                                        \
    ENTRIES_16((i), __VA_ARGS__), ENTRIES_16((i) + 16u, __VA_ARGS__), ENTRIES_16((i) + 32u, __VA_ARGS__),          \
        ENTRIES_16((i) + 48u, __VA_ARGS__)
#define SLICE(...)                                                                                                \
    {ENTRIES_64(0u, __VA_ARGS__), ENTRIES_64(64u, __VA_ARGS__), ENTRIES_64(128u, __VA_ARGS__),                     \
     ENTRIES_64(192u, __VA_ARGS__)}

/* Arguments: the entries of bytes 1, 2, 4, 8, 16, 32, 64 and 128. */
static const uint32_t slice[8][256] = {
    SLICE(0x77073096u, 0xee0e612cu, 0x076dc419u, 0x0edb8832u,
          0x1db71064u, 0x3b6e20c8u, 0x76dc4190u, 0xedb88320u),
    SLICE(0x191b3141u, 0x32366282u, 0x646cc504u, 0xc8d98a08u,
          0x4ac21251u, 0x958424a2u, 0xf0794f05u, 0x3b83984bu),
    SLICE(0x01c26a37u, 0x0384d46eu, 0x0709a8dcu, 0x0e1351b8u,
          0x1c26a370u, 0x384d46e0u, 0x709a8dc0u, 0xe1351b80u),
    SLICE(0xb8bc6765u, 0xaa09c88bu, 0x8f629757u, 0xc5b428efu,
          0x5019579fu, 0xa032af3eu, 0x9b14583du, 0xed59b63bu),
    SLICE(0x3d6029b0u, 0x7ac05360u, 0xf580a6c0u, 0x30704bc1u,
          0x60e09782u, 0xc1c12f04u, 0x58f35849u, 0xb1e6b092u),
    SLICE(0xcb5cd3a5u, 0x4dc8a10bu, 0x9b914216u, 0xec53826du,
          0x03d6029bu, 0x07ac0536u, 0x0f580a6cu, 0x1eb014d8u),
    SLICE(0xa6770bb4u, 0x979f1129u, 0xf44f2413u, 0x33ef4e67u,
          0x67de9cceu, 0xcfbd399cu, 0x440b7579u, 0x8816eaf2u),
    SLICE(0xccaa009eu, 0x4225077du, 0x844a0efau, 0xd3e51bb5u,
          0x7cbb312bu, 0xf9766256u, 0x299dc2edu, 0x533b85dau),
};

static uint32_t load_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | ((uint32_t)p[1] << 8) | ((uint32_t)p[2] << 16) | ((uint32_t)p[3] << 24);
}

static uint32_t run_tables(uint32_t state, const uint8_t *p, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint32_t a = load_le32(p) ^ state;
        uint32_t b = load_le32(p + 4);
        state = slice[7][a & 0xffu] ^ slice[6][(a >> 8) & 0xffu] ^ slice[5][(a >> 16) & 0xffu] ^ slice[4][a >> 24] ^
                slice[3][b & 0xffu] ^ slice[2][(b >> 8) & 0xffu] ^ slice[1][(b >> 16) & 0xffu] ^ slice[0][b >> 24];
    }
    for (; bytes > 0; bytes--, p++) {
        state = (state >> 8) ^ slice[0][(state ^ *p) & 0xffu];
    }
    return state;
}

#if defined(__x86_64__)

/* Carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
 * Intel, 2009).
 *
 * 16 bytes are a polynomial h x^64 + l over GF(2), the first bit its highest power; its remainder is unchanged when it
 * is replaced by h (x^(d+64) mod P) + l (x^d mod P) and added to what stands d bits behind it. So four registers walk
 * through the bytes, and at the end come together; what is left has 128 bits and the CRC of all that went in.
 *
 * With the bits of a byte in a CRC-32's order, the lowest is the highest power, and a product of two reflected factors
 * comes out one bit short. The constants are therefore x^(d+32) and x^(d-32) mod P, reflected and shifted by one: 32
 * because a reflected remainder stands in the low half of its 64 bits.
 */
#include <immintrin.h>

#define CLMUL __attribute__((target("pclmul")))
#define FOLD_BYTES 64u /* of a step */
#define REMAINDER_BYTES 16u
#define X_544 0x154442bd4 /* x^(512+32) mod P */
#define X_480 0x1c6e41596
#define X_160 0x1751997d0 /* x^(128+32) mod P */
#define X_96 0x0ccaa009e

CLMUL static __m128i load(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* `sum` moved on by the distance of `powers`, and `next` added. */
CLMUL static __m128i fold(__m128i sum, __m128i powers, __m128i next)
{
    const __m128i low = _mm_clmulepi64_si128(sum, powers, 0x00);
    const __m128i high = _mm_clmulepi64_si128(sum, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* `bytes` is a multiple of FOLD_BYTES and not 0. The register that is `state` before these bytes is behind them what it
 * is behind `remainder` when it is 0 before. */
CLMUL static void fold_all(uint32_t state, const uint8_t *p, size_t bytes, uint8_t remainder[REMAINDER_BYTES])
{
    const __m128i far = _mm_set_epi64x(X_480, X_544);
    const __m128i near = _mm_set_epi64x(X_96, X_160);
    __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128((int32_t)state));
    __m128i b = load(p + 16);
    __m128i c = load(p + 32);
    __m128i d = load(p + 48);
    for (bytes -= FOLD_BYTES, p += FOLD_BYTES; bytes > 0; bytes -= FOLD_BYTES, p += FOLD_BYTES) {
        a = fold(a, far, load(p));
        b = fold(b, far, load(p + 16));
        c = fold(c, far, load(p + 32));
        d = fold(d, far, load(p + 48));
    }
    _mm_storeu_si128((__m128i *)(void *)remainder, fold(fold(fold(a, near, b), near, c), near, d));
}

#endif

static uint32_t run(uint32_t state, const uint8_t *p, size_t bytes)
{
#if defined(__x86_64__)
    const size_t folded = bytes - bytes % FOLD_BYTES;
    if (folded > 0 && __builtin_cpu_supports("pclmul")) {
        uint8_t remainder[REMAINDER_BYTES];
        fold_all(state, p, folded, remainder);
        state = run_tables(0, remainder, sizeof remainder);
        p += folded;
        bytes -= folded;
    }
#endif
    return run_tables(state, p, bytes);
}

#endif

uint32_t colibri_crc32(uint32_t crc, const void *data, size_t bytes)
{
    return ~run(~crc, data, bytes);
}
