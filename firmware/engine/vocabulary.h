/* SPDX-License-Identifier: Apache-2.0
 *
 * vocabulary.h: tokens by their texts: tables of ids whose texts ascend, searched byte by byte.
 */
#ifndef COL_VOCABULARY_H
#define COL_VOCABULARY_H

#include "tokenizer.h"

/* The tokens that begin with the bytes taken so far. */
struct col_search {
    const struct col_tokenizer_view *view;
    const uint32_t *ids; /* ascending by text */
    uint32_t low;        /* those that are left are low .. high - 1 */
    uint32_t high;
    uint32_t taken;      /* bytes */
};

void col_search_begin(struct col_search *search, const struct col_tokenizer_view *view, const uint32_t *ids,
                      uint32_t count);

/* Takes one more byte; returns the token whose whole text was taken, or COL_NO_TOKEN. search->low == search->high when
 * no token begins so. */
uint32_t col_search_next(struct col_search *search, uint8_t byte);

/* The token with exactly this text, or COL_NO_TOKEN. */
uint32_t col_find_token(const struct col_tokenizer_view *view, const uint32_t *ids, uint32_t count, const uint8_t *text,
                        size_t bytes);

/* The token with the longest text that `text` begins with, or COL_NO_TOKEN; *length is that text's. */
uint32_t col_longest_token(const struct col_tokenizer_view *view, const uint32_t *ids, uint32_t count,
                           const uint8_t *text, size_t bytes, size_t *length);

#endif
