/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_model.h: what the models that make tokens of a piece have in common. Inside the tokenizer only.
 */
#ifndef COL_TOKENIZER_MODEL_H
#define COL_TOKENIZER_MODEL_H

#include "tokenizer.h"

#define COL_NONE 0xffffffffu
#define COL_WORDS_PER_POSITION 6u

/* What the ids go to. `count` goes on past the capacity, to state what is needed. */
struct col_id_list {
    uint32_t *ids;
    size_t capacity;
    size_t count;
};

static inline void col_put_id(struct col_id_list *list, uint32_t id)
{
    if (list->count < list->capacity) {
        list->ids[list->count] = id;
    }
    list->count++;
}

/* A piece of text, with the space in front of it that the tokenizer adds (`lead` 1) or without (0). Positions count
 * from that space on: 0 .. lead + bytes. */
struct col_piece {
    const struct col_tokenizer_view *view;
    const uint8_t *text;
    uint32_t bytes;
    uint32_t lead;
};

#define COL_SPACE_MARK "\xe2\x96\x81" /* U+2581, which SentencePiece writes for a space */

/* The character at a position, which is not the piece's end: returns its length in positions; its bytes are at *bytes,
 * *count of them. A space and U+2581 are both one byte, ' ', as in the tokens' texts. */
uint32_t col_piece_character(const struct col_piece *piece, uint32_t position, const uint8_t **bytes, uint32_t *count);

/* Byte-pair encoding of the piece. `scratch` has COL_WORDS_PER_POSITION words for each position, the
 * piece's end included. */
void col_encode_pairs(const struct col_piece *piece, uint32_t *scratch, struct col_id_list *list);

/* The tokens whose scores have the greatest sum. `scratch` as before, aligned to 8. */
void col_encode_unigram(const struct col_piece *piece, void *scratch, struct col_id_list *list);

#endif
