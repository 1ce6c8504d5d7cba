/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_piece.c: the characters of a piece, which both models read. */
#include "tokenizer_model.h"
#include "utf8.h"

uint32_t col_piece_character(const struct col_piece *piece, uint32_t position, const uint8_t **bytes, uint32_t *count)
{
    static const uint8_t space = ' ';
    *bytes = &space;
    *count = 1;
    if (position < piece->lead) {
        return 1;
    }
    const uint8_t *at = piece->text + (position - piece->lead);
    uint32_t length;
    if (col_utf8_decode(at, piece->bytes - (position - piece->lead), &length) != 0x2581) {
        *bytes = at;
        *count = length;
    }
    return length;
}
