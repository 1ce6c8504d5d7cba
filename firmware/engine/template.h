/* SPDX-License-Identifier: Apache-2.0
 *
 * template.h: puts the chat template of the image (struct col_template in image.h) around a user's text.
 */
#ifndef COL_TEMPLATE_H
#define COL_TEMPLATE_H

#include "colibri.h"
#include "image.h"
#include "tokenizer.h"

#include <stddef.h>
#include <stdint.h>

/* A checked template section. Pointers lead into the section; the view itself may be copied. */
struct col_template_view {
    const uint8_t *section;
    const struct col_segment *segments; /* [segment_count] */
    uint32_t segment_count;
    uint32_t user;          /* index of the segment where the user's text stands */
    uint32_t beside_bytes;  /* text directly before and after the user's text, tokenised together with it */
    uint32_t longest_bytes; /* the longest text that stands by itself */
};

/* Checks the whole section and fills *view. `section` must be aligned to 8 bytes, as it is in an image.
 * COLIBRI_E_IMAGE_TOKENIZER on any inconsistency; `detail` (may be NULL) names the field, e.g. "template.value". */
COLIBRI_MUST_CHECK colibri_status col_template_open(const uint8_t *section, uint64_t bytes, uint32_t model_vocab,
                                                    struct col_template_view *view, struct colibri_detail *detail);

/* Scratch memory, in bytes, that col_template_encode needs for a user's text of up to max_text_bytes; aligned to 8.
 * Never less than col_tokenizer_scratch_bytes(tokenizer, max_text_bytes): one block serves both. */
uint64_t col_template_scratch_bytes(const struct col_template_view *view, const struct col_tokenizer_view *tokenizer,
                                    uint32_t max_text_bytes);

/* The user's text, with the template around it, to ids. `scratch` holds col_template_scratch_bytes(view,
 * max_text_bytes) bytes, aligned to 8. Results as those of col_tokenizer_encode. No text of the user becomes a
 * special token: those stand in the template as ids. */
COLIBRI_MUST_CHECK colibri_status col_template_encode(const struct col_template_view *view,
                                                      const struct col_tokenizer_view *tokenizer, void *scratch,
                                                      uint32_t max_text_bytes, const char *text, size_t bytes,
                                                      uint32_t *ids, size_t capacity, size_t *count);

#endif
