/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_encode.c: the way of a text to its tokens: added tokens are found, what is between them is normalised,
 * added tokens are found in that, what is between them is cut into pieces, and a model turns each piece into tokens.
 */
#include "tokenizer_model.h"
#include "utf8.h"
#include "vocabulary.h"

struct encoding {
    const struct col_tokenizer_view *view;
    uint8_t *normal; /* [max_text_bytes], of a tokenizer that normalises */
    void *model;     /* its scratch memory */
    uint32_t max_text_bytes;
    bool begins; /* the text is the input's beginning */
    bool fresh;  /* nothing of it was encoded yet */
    struct col_id_list list;
};

static uint64_t round_up_8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* Positions of the longest piece, its end included; see tokenizer_model.h. */
static uint64_t max_positions(const struct col_tokenizer_view *view, uint32_t max_text_bytes)
{
    return view->head->kind == COL_TOKENIZER_BYTE_BPE ? max_text_bytes : (uint64_t)max_text_bytes + 2;
}

static uint64_t normal_bytes(const struct col_tokenizer_view *view, uint32_t max_text_bytes)
{
    return view->head->decomposition_count == 0 ? 0 : round_up_8(max_text_bytes);
}

uint64_t col_tokenizer_scratch_bytes(const struct col_tokenizer_view *view, uint32_t max_text_bytes)
{
    return normal_bytes(view, max_text_bytes) +
           max_positions(view, max_text_bytes) * (COL_WORDS_PER_POSITION * sizeof(uint32_t));
}

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

static bool begins_with_space(const uint8_t *text, size_t bytes)
{
    uint32_t length;
    return bytes > 0 && (text[0] == ' ' || col_utf8_decode(text, bytes, &length) == 0x2581);
}

/* Whether the tokenizer puts a space before a piece; `opens`: the piece is the first of a text between added tokens. */
static bool needs_space(const struct encoding *encoding, const uint8_t *text, size_t bytes, bool opens)
{
    switch (encoding->view->head->prefix) {
    case COL_PREFIX_EACH:
        return opens;
    case COL_PREFIX_MISSING:
        return !begins_with_space(text, bytes);
    case COL_PREFIX_FIRST:
        return opens && encoding->fresh && encoding->begins && !begins_with_space(text, bytes);
    case COL_PREFIX_START:
        return opens && encoding->fresh;
    default:
        return false;
    }
}

static void encode_piece(struct encoding *encoding, const uint8_t *text, size_t bytes, bool opens)
{
    const struct col_tokenizer_view *view = encoding->view;
    struct col_piece piece = {view, text, (uint32_t)bytes, needs_space(encoding, text, bytes, opens) ? 1 : 0};
    if ((view->head->flags & COL_TOKENIZER_WHOLE) != 0) {
        uint32_t whole = col_find_token(view, view->sorted, view->head->sorted_count, text, bytes);
        if (whole != COL_NO_TOKEN) {
            col_put_id(&encoding->list, whole);
            return;
        }
    }
    if (view->head->kind == COL_TOKENIZER_UNIGRAM) {
        col_encode_unigram(&piece, encoding->model, &encoding->list);
    } else {
        col_encode_pairs(&piece, encoding->model, &encoding->list);
    }
}

static void encode_pieces(struct encoding *encoding, const uint8_t *text, size_t bytes)
{
    struct col_pieces pieces;
    col_pieces_begin(&pieces, &encoding->view->classes, &encoding->view->splits, text, bytes);
    for (size_t at = 0; at < bytes;) {
        size_t end = col_pieces_next(&pieces, at);
        encode_piece(encoding, text + at, end - at, at == 0);
        at = end;
    }
    encoding->fresh = encoding->fresh && bytes == 0;
}

/* The next of the added tokens `ids` at or behind `at`; its place at *begin and *end, or the text's end twice. */
static uint32_t find_added(const struct col_tokenizer_view *view, const uint32_t *ids, uint32_t count,
                           const uint8_t *text, size_t bytes, size_t at, size_t *begin, size_t *end)
{
    for (; count > 0 && at < bytes; at++) {
        size_t length;
        uint32_t id = col_longest_token(view, ids, count, text + at, bytes - at, &length);
        if (id != COL_NO_TOKEN) {
            *begin = at;
            *end = at + length;
            return id;
        }
    }
    *begin = bytes;
    *end = bytes;
    return COL_NO_TOKEN;
}

static void encode_normal(struct encoding *encoding, const uint8_t *text, size_t bytes)
{
    const struct col_tokenizer_view *view = encoding->view;
    for (size_t at = 0; at < bytes;) {
        size_t begin;
        size_t end;
        uint32_t id = find_added(view, view->late, view->head->late_count, text, bytes, at, &begin, &end);
        encode_pieces(encoding, text + at, begin - at);
        if (id != COL_NO_TOKEN) {
            col_put_id(&encoding->list, id);
            encoding->fresh = false;
        }
        at = end;
    }
}

static colibri_status encode_raw(struct encoding *encoding, const uint8_t *text, size_t bytes)
{
    if (encoding->view->head->decomposition_count != 0) {
        size_t length;
        colibri_status status = col_normalize(&encoding->view->normalizer, text, bytes, encoding->normal,
                                              encoding->max_text_bytes, &length);
        if (status != COLIBRI_OK) {
            return status;
        }
        text = encoding->normal;
        bytes = length;
    }
    encode_normal(encoding, text, bytes);
    return COLIBRI_OK;
}

colibri_status col_tokenizer_encode(const struct col_tokenizer_view *view, void *scratch, uint32_t max_text_bytes,
                                    const char *text, size_t bytes, bool begins, uint32_t *ids, size_t capacity,
                                    size_t *count)
{
    const uint8_t *from = (const uint8_t *)text;
    struct encoding encoding = {
        .view = view,
        .normal = scratch,
        .model = (uint8_t *)scratch + normal_bytes(view, max_text_bytes),
        .max_text_bytes = max_text_bytes,
        .begins = begins,
        .fresh = true,
        .list = {ids, capacity, 0},
    };
    *count = 0;
    if (bytes > max_text_bytes) {
        return COLIBRI_E_TEXT_SIZE;
    }
    for (size_t at = 0; at < bytes;) {
        size_t begin;
        size_t end;
        uint32_t id = find_added(view, view->early, view->head->early_count, from, bytes, at, &begin, &end);
        colibri_status status = encode_raw(&encoding, from + at, begin - at);
        if (status != COLIBRI_OK) {
            return status;
        }
        if (id != COL_NO_TOKEN) {
            if (encoding.fresh && view->head->prefix == COL_PREFIX_START) {
                encode_piece(&encoding, from, 0, true); /* the space alone */
            }
            col_put_id(&encoding.list, id);
            encoding.fresh = false;
        }
        at = end;
    }
    *count = encoding.list.count;
    return *count <= capacity ? COLIBRI_OK : COLIBRI_E_BUFFER_SIZE;
}
