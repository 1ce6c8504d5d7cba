/* SPDX-License-Identifier: Apache-2.0
 *
 * sha256.c: SHA-256 as FIPS 180-4 states it, with the names of functions and constants of its sections 4.1.2 and 4.2.2.
 */
#include "sha256.h"

static const uint32_t K[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u,
};

static uint32_t rotr(uint32_t x, unsigned n)
{
    return (x >> n) | (x << (32u - n));
}

static uint32_t load_be32(const uint8_t *p)
{
    return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | (uint32_t)p[3];
}

static void store_be32(uint8_t *p, uint32_t x)
{
    p[0] = (uint8_t)(x >> 24);
    p[1] = (uint8_t)(x >> 16);
    p[2] = (uint8_t)(x >> 8);
    p[3] = (uint8_t)x;
}

/* FIPS 180-4, section 6.2.2. The message schedule keeps its last 16 words only: 64 bytes of stack, not 256. */
static void compress(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[16];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (unsigned t = 0; t < 64; t++) {
        uint32_t word;
        if (t < 16) {
            word = load_be32(block + 4 * t);
        } else {
            uint32_t w2 = w[(t - 2) & 15u];
            uint32_t w15 = w[(t - 15) & 15u];
            uint32_t sigma1 = rotr(w2, 17) ^ rotr(w2, 19) ^ (w2 >> 10);
            uint32_t sigma0 = rotr(w15, 7) ^ rotr(w15, 18) ^ (w15 >> 3);
            word = sigma1 + w[(t - 7) & 15u] + sigma0 + w[t & 15u];
        }
        w[t & 15u] = word;
        uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
        uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + K[t] + word;
        uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
        uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void col_sha256_init(struct col_sha256 *hash)
{
    static const uint32_t initial[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    for (unsigned i = 0; i < 8; i++) {
        hash->state[i] = initial[i];
    }
    hash->bytes = 0;
}

void col_sha256_update(struct col_sha256 *hash, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t held = (size_t)(hash->bytes % 64u);
    hash->bytes += bytes;
    while (bytes > 0) {
        if (held == 0 && bytes >= 64) { /* whole blocks are hashed where they lie */
            compress(hash->state, p);
            p += 64;
            bytes -= 64;
            continue;
        }
        size_t take = 64 - held < bytes ? 64 - held : bytes;
        __builtin_memcpy(hash->block + held, p, take);
        held += take;
        p += take;
        bytes -= take;
        if (held == 64) {
            compress(hash->state, hash->block);
            held = 0;
        }
    }
}

void col_sha256_final(struct col_sha256 *hash, uint8_t digest[32])
{
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = hash->bytes * 8u;
    size_t held = (size_t)(hash->bytes % 64u);
    col_sha256_update(hash, padding, (held < 56 ? 56 : 120) - held);
    uint8_t length[8];
    store_be32(length, (uint32_t)(bits >> 32));
    store_be32(length + 4, (uint32_t)bits);
    col_sha256_update(hash, length, sizeof length);
    for (unsigned i = 0; i < 8; i++) {
        store_be32(digest + 4 * i, hash->state[i]);
    }
}
