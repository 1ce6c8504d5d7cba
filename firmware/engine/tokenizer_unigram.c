/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_unigram.c: the tokens of a piece whose scores have the greatest sum (Viterbi). Of ways with equal sums the
 * one that was found first stays: from left to right, shorter tokens before longer ones, as in the libraries.
 */
#include "tokenizer_model.h"
#include "vocabulary.h"

/* The best way to each position of a piece; all arrays are [positions + 1]. */
struct ways {
    const struct col_piece *piece;
    double *sum;
    uint32_t *from; /* where the last token begins, or COL_NONE: no way leads here yet */
    uint32_t *id;   /* the last token */
};

static void offer(struct ways *ways, uint32_t from, uint32_t to, uint32_t id)
{
    const struct col_tokenizer_view *view = ways->piece->view;
    double sum = ways->sum[from] + view->scores[id];
    if ((view->head->flags & COL_TOKENIZER_SINGLE) != 0) {
        sum = (double)(float)sum;
    }
    if (ways->from[to] == COL_NONE || sum > ways->sum[to]) {
        ways->sum[to] = sum;
        ways->from[to] = from;
        ways->id[to] = id;
    }
}

/* All tokens that begin at `from`; the unknown one for a character that is no token. */
static void offer_tokens(struct ways *ways, uint32_t from)
{
    const struct col_piece *piece = ways->piece;
    const struct col_tokenizer_view *view = piece->view;
    struct col_search search;
    col_search_begin(&search, view, view->sorted, view->head->sorted_count);
    uint32_t end = from;
    uint32_t one = 0; /* length of the first character */
    bool known = false;
    while (end < piece->lead + piece->bytes && (one == 0 || search.low < search.high)) {
        const uint8_t *bytes;
        uint32_t count;
        uint32_t length = col_piece_character(piece, end, &bytes, &count);
        uint32_t found = COL_NO_TOKEN;
        for (uint32_t i = 0; i < count; i++) {
            found = col_search_next(&search, bytes[i]);
        }
        end += length;
        if (found != COL_NO_TOKEN) {
            offer(ways, from, end, found);
            known = known || one == 0;
        }
        one = one == 0 ? length : one;
    }
    if (!known) {
        offer(ways, from, from + one, view->head->unknown);
    }
}

/* Makes `from` lead forwards along the best way: afterwards from[p] is where the token that begins at p ends. */
static void turn(struct ways *ways, uint32_t end)
{
    uint32_t next = COL_NONE;
    for (uint32_t at = end; at != 0;) {
        uint32_t before = ways->from[at];
        ways->from[at] = next;
        next = at;
        at = before;
    }
    ways->from[0] = next;
}

static void put_unknown(const struct col_piece *piece, uint32_t begin, uint32_t end, struct col_id_list *list)
{
    const struct col_tokenizer_view *view = piece->view;
    if (view->byte_ids == NULL) {
        col_put_id(list, view->head->unknown);
        return;
    }
    for (uint32_t at = begin; at < end; at++) { /* never the space in front, which is a token */
        col_put_id(list, view->byte_ids[piece->text[at - piece->lead]]);
    }
}

void col_encode_unigram(const struct col_piece *piece, void *scratch, struct col_id_list *list)
{
    const struct col_tokenizer *head = piece->view->head;
    uint32_t end = piece->lead + piece->bytes;
    size_t places = (size_t)end + 1;
    struct ways ways = {.piece = piece, .sum = scratch};
    ways.from = (uint32_t *)(void *)(ways.sum + places);
    ways.id = ways.from + places;
    for (size_t i = 0; i < places; i++) {
        ways.from[i] = COL_NONE;
    }
    ways.sum[0] = 0;
    for (uint32_t at = 0; at < end;) {
        const uint8_t *bytes;
        uint32_t count;
        offer_tokens(&ways, at);
        at += col_piece_character(piece, at, &bytes, &count);
    }
    turn(&ways, end);
    for (uint32_t at = 0; at < end;) {
        uint32_t next = ways.from[at];
        uint32_t id = ways.id[next];
        if (id == head->unknown) {
            while ((head->flags & COL_TOKENIZER_FUSE) != 0 && next < end && ways.id[ways.from[next]] == id) {
                next = ways.from[next];
            }
            put_unknown(piece, at, next, list);
        } else {
            col_put_id(list, id);
        }
        at = next;
    }
}
