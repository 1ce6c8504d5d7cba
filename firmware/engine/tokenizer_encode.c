/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_encode.c: the way of a text to its tokens: added tokens are found, what is between them is normalised,
 * added tokens are found in that, what is between them is cut into pieces, and a model turns each piece into tokens.
 */
#include "rewrite.h"
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

/* How long a text may be after normalisation: rewriting puts a space in front, which does not count. */
static uint64_t normal_capacity(const struct col_tokenizer_view *view, uint32_t max_text_bytes)
{
    return (uint64_t)max_text_bytes + ((view->head->rewrite & COL_REWRITE_PREFIX) != 0 ? 1 : 0);
}

static uint64_t normal_bytes(const struct col_tokenizer_view *view, uint32_t max_text_bytes)
{
    bool as_it_is = view->head->decomposition_count == 0 && view->head->rewrite == 0;
    return as_it_is ? 0 : round_up_8(normal_capacity(view, max_text_bytes));
}

uint64_t col_tokenizer_scratch_bytes(const struct col_tokenizer_view *view, uint32_t max_text_bytes)
{
    return normal_bytes(view, max_text_bytes) +
           max_positions(view, max_text_bytes) * (COL_WORDS_PER_POSITION * sizeof(uint32_t));
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

/* An added token in a text. It takes the bytes from `begin` to `end`; the next one is looked for from `next` on, which
 * lies before `end` where white space behind the token became part of it. */
struct found {
    uint32_t id; /* COL_NO_TOKEN: none is left, `begin` and `end` are the text's end */
    size_t begin;
    size_t end;
    size_t next;
};

static bool word_before(const struct col_tokenizer_view *view, const uint8_t *text, size_t at)
{
    uint32_t length;
    return at > 0 && col_is_word(&view->classes, col_utf8_last(text, at, &length));
}

static bool word_behind(const struct col_tokenizer_view *view, const uint8_t *text, size_t bytes, size_t at)
{
    uint32_t length;
    return at < bytes && col_is_word(&view->classes, col_utf8_decode(text + at, bytes - at, &length));
}

/* Lets the token take the white space beside it, what is before `done` excepted. */
static void take_space(const struct col_tokenizer_view *view, const uint8_t *text, size_t bytes, size_t done,
                       struct found *found)
{
    uint32_t length;
    const uint32_t flags = view->token_flags[found->id];
    while ((flags & COL_TOKEN_TAKES_BEFORE) != 0 && found->begin > done &&
           col_is_space(&view->classes, col_utf8_last(text, found->begin, &length))) {
        found->begin -= length;
    }
    while ((flags & COL_TOKEN_TAKES_AFTER) != 0 && found->end < bytes &&
           col_is_space(&view->classes, col_utf8_decode(text + found->end, bytes - found->end, &length))) {
        found->end += length;
    }
}

/* The next of the added tokens `ids` at or behind `at`. What is before `done` belongs to others. */
static struct found find_added(const struct col_tokenizer_view *view, const uint32_t *ids, uint32_t count,
                               const uint8_t *text, size_t bytes, size_t at, size_t done)
{
    while (count > 0 && at < bytes) {
        size_t length;
        uint32_t id = col_longest_token(view, ids, count, text + at, bytes - at, &length);
        if (id == COL_NO_TOKEN) {
            at++;
            continue;
        }
        struct found found = {id, at, at + length, at + length};
        at += length;
        if ((view->token_flags[id] & COL_TOKEN_WORD) != 0 &&
            (word_before(view, text, found.begin) || word_behind(view, text, bytes, found.end))) {
            continue;
        }
        take_space(view, text, bytes, done, &found);
        return found;
    }
    return (struct found){COL_NO_TOKEN, bytes, bytes, bytes};
}

/* The parts of a text that are added tokens of a table, and those between them. */
struct parts {
    const uint32_t *ids;
    uint32_t count;
    colibri_status (*encode_rest)(struct encoding *encoding, const uint8_t *text, size_t bytes);
};

static colibri_status encode_parts(struct encoding *encoding, const struct parts *parts, const uint8_t *text,
                                   size_t bytes)
{
    size_t at = 0;
    size_t done = 0;
    for (;;) {
        struct found found = find_added(encoding->view, parts->ids, parts->count, text, bytes, at, done);
        if (done < found.begin) {
            colibri_status status = parts->encode_rest(encoding, text + done, found.begin - done);
            if (status != COLIBRI_OK) {
                return status;
            }
        }
        if (found.id == COL_NO_TOKEN) {
            return COLIBRI_OK;
        }
        col_put_id(&encoding->list, found.id);
        encoding->fresh = false;
        done = found.end;
        at = found.next;
    }
}

static colibri_status encode_pieces(struct encoding *encoding, const uint8_t *text, size_t bytes)
{
    struct col_pieces pieces;
    col_pieces_begin(&pieces, &encoding->view->classes, &encoding->view->splits, text, bytes);
    for (size_t at = 0; at < bytes;) {
        size_t end = col_pieces_next(&pieces, at);
        encode_piece(encoding, text + at, end - at, at == 0);
        at = end;
    }
    encoding->fresh = false;
    return COLIBRI_OK;
}

static colibri_status encode_raw(struct encoding *encoding, const uint8_t *text, size_t bytes)
{
    const struct col_tokenizer_view *view = encoding->view;
    const size_t capacity = (size_t)normal_capacity(view, encoding->max_text_bytes);
    colibri_status status = COLIBRI_OK;
    size_t length = bytes;
    if (view->head->rewrite != 0) {
        status = col_rewrite(view, encoding->fresh, text, bytes, encoding->normal, capacity, &length);
        text = encoding->normal;
    } else if (view->head->decomposition_count != 0) {
        status = col_normalize(&view->normalizer, text, bytes, encoding->normal, capacity, &length);
        text = encoding->normal;
    }
    const bool whole = view->head->kind == COL_TOKENIZER_UNIGRAM && (view->head->flags & COL_TOKENIZER_SINGLE) != 0;
    const struct parts late = {view->late, whole ? 0 : view->head->late_count, encode_pieces};
    return status == COLIBRI_OK ? encode_parts(encoding, &late, text, length) : status;
}

colibri_status col_tokenizer_encode(const struct col_tokenizer_view *view, void *scratch, uint32_t max_text_bytes,
                                    const char *text, size_t bytes, bool begins, uint32_t *ids, size_t capacity,
                                    size_t *count)
{
    struct encoding encoding = {
        .view = view,
        .normal = scratch,
        .model = (uint8_t *)scratch + normal_bytes(view, max_text_bytes),
        .max_text_bytes = max_text_bytes,
        .begins = begins,
        .fresh = true,
        .list = {ids, capacity, 0},
    };
    const struct parts early = {view->early, view->head->early_count, encode_raw};
    *count = 0;
    if (bytes > max_text_bytes) {
        return COLIBRI_E_TEXT_SIZE;
    }
    colibri_status status = encode_parts(&encoding, &early, (const uint8_t *)text, bytes);
    if (status != COLIBRI_OK) {
        return status;
    }
    *count = encoding.list.count;
    return *count <= capacity ? COLIBRI_OK : COLIBRI_E_BUFFER_SIZE;
}
