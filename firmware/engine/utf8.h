/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8.h: strict UTF-8 (RFC 3629: shortest form, no surrogates, at most U+10FFFF), one code point at a time.
 */
#ifndef COL_UTF8_H
#define COL_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define COL_UTF8_INVALID 0xffffffffu /* not a code point */

/* The code point at text[0], `bytes` >= 1 bytes being readable; *length is the number of bytes it takes. A byte that
 * starts no valid sequence, or whose sequence is cut short, gives COL_UTF8_INVALID and *length 1, so that each
 * invalid byte counts as one character. */
uint32_t col_utf8_decode(const uint8_t *text, size_t bytes, uint32_t *length);

/* The same for the last code point of text[0..bytes), `bytes` >= 1. */
uint32_t col_utf8_last(const uint8_t *text, size_t bytes, uint32_t *length);

/* Writes a code point that is no surrogate and at most U+10FFFF; returns the number of bytes, at most 4. */
uint32_t col_utf8_encode(uint32_t code_point, uint8_t out[4]);

/* Length of the longest prefix of text[0..bytes) that does not end inside a character. Only a tail that more bytes
 * could complete is held back, at most 3 bytes; invalid bytes count as complete. */
size_t col_utf8_complete(const uint8_t *text, size_t bytes);

#endif
