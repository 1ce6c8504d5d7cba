/* SPDX-License-Identifier: Apache-2.0
 *
 * mem.c: the four functions that compilers call on their own. Word by word, with all accesses aligned, so that they
 * also work before the MMU is on (Device memory faults on unaligned access) and on cores that trap such accesses.
 * Little-endian. Compiled with -fno-tree-loop-distribute-patterns: the loops must not become calls of themselves.
 */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *restrict destination, const void *restrict source, size_t bytes);
void *memmove(void *destination, const void *source, size_t bytes);
void *memset(void *destination, int value, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);

typedef uint64_t __attribute__((may_alias)) word;
#define WORD sizeof(word)

/* Forward copy of words to an aligned destination from a source that is not aligned to a word: each destination word
 * is put together from two aligned source words. Reads only words that hold at least one source byte. */
static size_t copy_shifted(uint8_t *d, const uint8_t *s, size_t bytes)
{
    const size_t offset = (uintptr_t)s % WORD;
    const word *from = (const word *)(const void *)(s - offset);
    const unsigned low = (unsigned)offset * 8u;
    word *to = (word *)(void *)d;
    const size_t words = bytes / WORD;
    uint64_t held = from[0];
    for (size_t i = 0; i < words; i++) {
        const uint64_t next = from[i + 1];
        to[i] = held >> low | next << (64u - low);
        held = next;
    }
    return words * WORD;
}

static void copy_forward(uint8_t *d, const uint8_t *s, size_t bytes)
{
    size_t i = 0;
    if (bytes >= 4 * WORD) {
        while (((uintptr_t)d + i) % WORD != 0) {
            d[i] = s[i];
            i++;
        }
        if (((uintptr_t)s + i) % WORD == 0) {
            word *to = (word *)(void *)(d + i);
            const word *from = (const word *)(const void *)(s + i);
            size_t words = (bytes - i) / WORD;
            i += words * WORD;
            for (; words >= 4; words -= 4, to += 4, from += 4) {
                const word a = from[0], b = from[1], c = from[2], e = from[3];
                to[0] = a;
                to[1] = b;
                to[2] = c;
                to[3] = e;
            }
            for (; words > 0; words--) {
                *to++ = *from++;
            }
        } else {
            i += copy_shifted(d + i, s + i, bytes - i);
        }
    }
    for (; i < bytes; i++) {
        d[i] = s[i];
    }
}

void *memcpy(void *restrict destination, const void *restrict source, size_t bytes)
{
    copy_forward(destination, source, bytes);
    return destination;
}

void *memmove(void *destination, const void *source, size_t bytes)
{
    uint8_t *d = destination;
    const uint8_t *s = source;
    if ((uintptr_t)d - (uintptr_t)s >= bytes) { /* also when d lies before s: the difference wraps */
        if ((uintptr_t)s - (uintptr_t)d >= WORD || (uintptr_t)d >= (uintptr_t)s) {
            copy_forward(d, s, bytes);
        } else { /* closer than a word: copy_shifted would read a word after it was partly overwritten */
            for (size_t i = 0; i < bytes; i++) {
                d[i] = s[i];
            }
        }
        return destination;
    }
    size_t left = bytes;
    if (((uintptr_t)d ^ (uintptr_t)s) % WORD == 0) {
        for (; left > 0 && ((uintptr_t)d + left) % WORD != 0; left--) {
            d[left - 1] = s[left - 1];
        }
        for (; left >= WORD; left -= WORD) {
            *(word *)(void *)(d + left - WORD) = *(const word *)(const void *)(s + left - WORD);
        }
    }
    for (; left > 0; left--) {
        d[left - 1] = s[left - 1];
    }
    return destination;
}

void *memset(void *destination, int value, size_t bytes)
{
    uint8_t *d = destination;
    const uint8_t byte = (uint8_t)value;
    size_t i = 0;
    if (bytes >= 4 * WORD) {
        for (; ((uintptr_t)d + i) % WORD != 0; i++) {
            d[i] = byte;
        }
        const word pattern = 0x0101010101010101u * byte;
        for (; i + WORD <= bytes; i += WORD) {
            *(word *)(void *)(d + i) = pattern;
        }
    }
    for (; i < bytes; i++) {
        d[i] = byte;
    }
    return destination;
}

int memcmp(const void *a, const void *b, size_t bytes)
{
    const uint8_t *x = a;
    const uint8_t *y = b;
    size_t i = 0;
    if (((uintptr_t)x | (uintptr_t)y) % WORD == 0) {
        while (i + WORD <= bytes && *(const word *)(const void *)(x + i) == *(const word *)(const void *)(y + i)) {
            i += WORD;
        }
    }
    for (; i < bytes; i++) {
        if (x[i] != y[i]) {
            return x[i] < y[i] ? -1 : 1;
        }
    }
    return 0;
}
