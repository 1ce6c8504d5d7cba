/* SPDX-License-Identifier: Apache-2.0
 *
 * rewrite.h: normalisation by rules (COL_REWRITE_* in image.h), as SentencePiece does it and as the tokenizers library
 * does it with SentencePiece's rules. Inside the tokenizer only.
 */
#ifndef COL_REWRITE_H
#define COL_REWRITE_H

#include "tokenizer.h"

/* What col_rewrite relies on: flags that go together, rules that end. */
COLIBRI_MUST_CHECK colibri_status col_rewrite_check(const struct col_tokenizer_view *view,
                                                    struct colibri_detail *detail);

/* Writes what the rules make of `text`, at least 1 byte, to `out`, which has room for `capacity` bytes;
 * COLIBRI_E_TEXT_SIZE when it is longer. `first`: nothing was tokenised before it. Bytes that are no valid UTF-8 stay as
 * they are. */
COLIBRI_MUST_CHECK colibri_status col_rewrite(const struct col_tokenizer_view *view, bool first, const uint8_t *text,
                                              size_t bytes, uint8_t *out, size_t capacity, size_t *length);

#endif
