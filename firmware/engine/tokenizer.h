/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer.h: text to tokens and back with the tables of the image's tokenizer section (struct col_tokenizer in
 * image.h), used where they lie. docs/tokenizer.md explains it.
 *
 * Order of use: col_tokenizer_open checks the section once and fills a view; everything else trusts the view.
 */
#ifndef COL_TOKENIZER_H
#define COL_TOKENIZER_H

#include "colibri.h"
#include "image.h"
#include "normalizer.h"
#include "pretokenizer.h"

#include <stddef.h>
#include <stdint.h>

/* A checked tokenizer section. Pointers lead into the section; the view itself may be copied. */
struct col_tokenizer_view {
    const struct col_tokenizer *head;
    const uint32_t *byte_ids;       /* [256], the token of each byte; NULL where there are none */
    const uint32_t *token_offsets;  /* [vocab + 1], into token_text */
    const uint8_t *token_flags;     /* [vocab], COL_TOKEN_* */
    const uint8_t *token_text;
    const struct col_merge *merges; /* [head->merge_slots] */
    const double *scores;           /* [vocab] */
    const uint32_t *sorted;         /* [head->sorted_count], for vocabulary.h, as the next two */
    const uint32_t *early;          /* [head->early_count] */
    const uint32_t *late;           /* [head->late_count] */
    uint32_t vocab;                 /* tokens of the tokenizer, at most the model's */
    uint32_t max_token_bytes;       /* longest text of any token */
    struct col_classes classes;
    struct col_splits splits;
    const uint16_t *clusters;       /* moves whose matches are grapheme clusters; for rewrite.h, as the next two */
    const uint32_t *rules;          /* [head->rule_count] */
    const uint8_t *rule_text;       /* [head->rule_bytes] */
    struct col_normalizer normalizer;
};

/* Checks the whole section and fills *view. `section` must be aligned to 8 bytes, as it is in an image.
 *
 * What holds afterwards: no table reaches outside the section; every id in a table is below vocab; every byte has a
 * token whose text is that byte, or none has; every merge gives a token whose text is its parts' texts joined; no
 * special token is in any table, so that encoding can give none but the unknown token; every search and every walk
 * ends. With byte-level encoding the texts of the ids are the input, after normalisation, byte for byte.
 *
 * COLIBRI_E_IMAGE_TOKENIZER, or COLIBRI_E_IMAGE_UNSUPPORTED for an unknown kind; `detail` (may be NULL) names the
 * field, e.g. "tokenizer.merges". */
COLIBRI_MUST_CHECK colibri_status col_tokenizer_open(const uint8_t *section, uint64_t bytes, uint32_t model_vocab,
                                                     struct col_tokenizer_view *view, struct colibri_detail *detail);

/* Scratch memory, in bytes, that encoding a text of up to max_text_bytes needs; aligned to 8. */
uint64_t col_tokenizer_scratch_bytes(const struct col_tokenizer_view *view, uint32_t max_text_bytes);

/* Text to ids. `scratch` holds col_tokenizer_scratch_bytes(view, max_text_bytes) bytes, aligned to 8. `begins`: the
 * text is the beginning of what the model sees, nothing but tokens that stand before every text is in front of it. `ids` may
 * be NULL when `capacity` is 0. *count is the number of ids of the whole text; where that is more than `capacity`, the
 * first `capacity` are written and the result is COLIBRI_E_BUFFER_SIZE. A text of more than max_text_bytes, or whose
 * normal form is, gives COLIBRI_E_TEXT_SIZE and *count 0. Takes O(n log n) steps for n bytes. */
COLIBRI_MUST_CHECK colibri_status col_tokenizer_encode(const struct col_tokenizer_view *view, void *scratch,
                                                       uint32_t max_text_bytes, const char *text, size_t bytes,
                                                       bool begins, uint32_t *ids, size_t capacity, size_t *count);

/* The bytes a token stands for, in the section. A special token and an id that is not below vocab stand for none. */
void col_tokenizer_text(const struct col_tokenizer_view *view, uint32_t id, const uint8_t **text, uint32_t *bytes);

/* The same for the next token of a text that is put together: what begins the text loses the space that encoding put in
 * front of it. *begun is false before the first token, and becomes true with the first that stands for any bytes. */
void col_tokenizer_next_text(const struct col_tokenizer_view *view, uint32_t id, bool *begun, const uint8_t **text,
                             uint32_t *bytes);

#endif
