/* SPDX-License-Identifier: Apache-2.0
 *
 * pretokenizer.h: cuts text into the pieces inside which tokens form. The packer compiled the tokenizer's regular
 * expressions into tables (struct col_tokenizer in image.h); here they are walked, one look-up for each character.
 */
#ifndef COL_PRETOKENIZER_H
#define COL_PRETOKENIZER_H

#include "image.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Classes of characters as the image's table gives them. `ascii` is its answer for the first 128 code points. */
struct col_classes {
    const uint32_t *range; /* [count], first code point << 8 | class, ascending from code point 0 */
    uint32_t count;        /* at least 1 */
    uint32_t used;         /* classes are below it */
    uint32_t first_word;   /* from here on they are parts of words, */
    uint32_t first_space;  /* and from here on white space */
    uint8_t ascii[128];
};

/* Fills classes->ascii; the other fields are set and the table's order was checked. */
void col_classes_init(struct col_classes *classes);

/* Class of a code point. COL_UTF8_INVALID is of the class of U+10FFFF, which no version of Unicode assigns. */
uint32_t col_class_of(const struct col_classes *classes, uint32_t code_point);

bool col_is_space(const struct col_classes *classes, uint32_t code_point);

bool col_is_word(const struct col_classes *classes, uint32_t code_point);

/* The splits, in the order in which they cut. */
struct col_splits {
    const uint16_t *moves[COL_MAX_SPLITS]; /* each [states][classes used + 1] */
    uint32_t count;
};

/* Length of the match of `moves` at the text's beginning, 0 when there is none. `bytes` is at least 1. */
size_t col_match(const struct col_classes *classes, const uint16_t *moves, const uint8_t *text, size_t bytes);

/* A text that is being cut. end[i] is where the piece of split i ends that contains the current place. */
struct col_pieces {
    const struct col_classes *classes;
    const struct col_splits *splits;
    const uint8_t *text;
    size_t bytes;
    size_t end[COL_MAX_SPLITS];
};

void col_pieces_begin(struct col_pieces *pieces, const struct col_classes *classes, const struct col_splits *splits,
                      const uint8_t *text, size_t bytes);

/* End of the piece that begins at `at` < bytes. Call it with 0, then with each result, up to the text's end. */
size_t col_pieces_next(struct col_pieces *pieces, size_t at);

#endif
