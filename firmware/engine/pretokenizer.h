/* SPDX-License-Identifier: Apache-2.0
 *
 * pretokenizer.h: cuts text into the pieces inside which byte pairs may merge.
 */
#ifndef COL_PRETOKENIZER_H
#define COL_PRETOKENIZER_H

#include "image.h"

#include <stddef.h>
#include <stdint.h>

/* Unicode classes as the image's table gives them. `ascii` is the table's answer for the first 128 code points. */
struct col_classes {
    const uint32_t *range; /* [count], first code point << 8 | enum col_char_class, ascending from code point 0 */
    uint32_t count;        /* at least 1 */
    uint8_t ascii[128];
};

/* Fills classes->ascii from a table whose order was checked. */
void col_classes_init(struct col_classes *classes, const uint32_t *range, uint32_t count);

/* enum col_char_class of a code point; COL_UTF8_INVALID is COL_CLASS_OTHER. */
uint32_t col_class_of(const struct col_classes *classes, uint32_t code_point);

/* Length in bytes of the piece at text[0], at least 1; `bytes` >= 1 bytes are readable. This is one match of GPT-2's
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * where a byte that belongs to no valid UTF-8 sequence is a character of none of these classes. */
size_t col_pretoken_gpt2(const struct col_classes *classes, const uint8_t *text, size_t bytes);

#endif
