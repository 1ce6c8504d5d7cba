/* SPDX-License-Identifier: Apache-2.0
 *
 * template.c: the chat template as the packer compiled it: ids of special tokens, and texts. A text and the user's text
 * beside it are one piece for the tokenizer, so that the ids equal those of the rendered whole.
 */
#include "template.h"

#include "detail.h"
#include "utf8.h"

#define BAD COLIBRI_E_IMAGE_TOKENIZER
#define USER_FLAGS (COL_USER_TRIM | COL_USER_BEGINS | COL_USER_AFTER_TAKER | COL_USER_BEFORE_TAKER)

static uint64_t round_up_8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* *cursor is where the next text must begin: texts follow each other without gaps up to the section's end. */
static colibri_status check_segment(const struct col_segment *segment, uint64_t *cursor, uint64_t bytes,
                                    uint32_t model_vocab, struct colibri_detail *detail)
{
    if (segment->reserved != 0) {
        return col_fail(BAD, detail, "template.reserved", segment->reserved, 0);
    }
    switch (segment->kind) {
    case COL_SEGMENT_TOKEN:
        if (segment->value >= model_vocab) {
            return col_fail(BAD, detail, "template.value", segment->value, model_vocab);
        }
        break;
    case COL_SEGMENT_TEXT:
        if (segment->value != *cursor) {
            return col_fail(BAD, detail, "template.value", segment->value, *cursor);
        }
        if (segment->bytes == 0 || segment->bytes > COL_TEMPLATE_MAX_TEXT || segment->bytes > bytes - *cursor) {
            return col_fail(BAD, detail, "template.bytes", segment->bytes, bytes - *cursor);
        }
        *cursor += segment->bytes;
        return COLIBRI_OK;
    case COL_SEGMENT_USER:
        if ((segment->value & ~USER_FLAGS) != 0) {
            return col_fail(BAD, detail, "template.value", segment->value, USER_FLAGS);
        }
        break;
    default:
        return col_fail(BAD, detail, "template.kind", segment->kind, COL_SEGMENT_USER);
    }
    return segment->bytes == 0 ? COLIBRI_OK : col_fail(BAD, detail, "template.bytes", segment->bytes, 0);
}

static bool is_text(const struct col_template_view *view, uint32_t index)
{
    return index < view->segment_count && view->segments[index].kind == COL_SEGMENT_TEXT;
}

/* The text before (`index` = user - 1, which wraps to no index at user 0) or after the user's text, or none. */
static uint32_t beside(const struct col_template_view *view, uint32_t index)
{
    return is_text(view, index) ? view->segments[index].bytes : 0;
}

colibri_status col_template_open(const uint8_t *section, uint64_t bytes, uint32_t model_vocab,
                                 struct col_template_view *view, struct colibri_detail *detail)
{
    const struct col_template *head = (const struct col_template *)(const void *)section;
    if ((uintptr_t)section % 8 != 0) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "template", (uintptr_t)section % 8, 0);
    }
    if (bytes < sizeof *head) {
        return col_fail(BAD, detail, "template", bytes, sizeof *head);
    }
    for (uint32_t i = 0; i < sizeof head->reserved / sizeof head->reserved[0]; i++) {
        if (head->reserved[i] != 0) {
            return col_fail(BAD, detail, "template.reserved", head->reserved[i], 0);
        }
    }
    uint64_t cursor = sizeof *head + (uint64_t)head->segment_count * sizeof(struct col_segment);
    if (head->segment_count == 0 || cursor > bytes) {
        return col_fail(BAD, detail, "template.segment_count", head->segment_count,
                        (bytes - sizeof *head) / sizeof(struct col_segment));
    }
    *view = (struct col_template_view){
        .section = section,
        .segments = (const struct col_segment *)(const void *)(section + sizeof *head),
        .segment_count = head->segment_count,
    };
    uint64_t users = 0;
    for (uint32_t i = 0; i < view->segment_count; i++) {
        colibri_status status = check_segment(&view->segments[i], &cursor, bytes, model_vocab, detail);
        if (status != COLIBRI_OK) {
            return status;
        }
        if (view->segments[i].kind == COL_SEGMENT_USER) {
            view->user = i;
            users++;
        } else if (is_text(view, i)) {
            if (i > 0 && is_text(view, i - 1)) { /* would be two pieces where the rendered text is one */
                return col_fail(BAD, detail, "template.kind", i, COL_SEGMENT_TEXT);
            }
            uint32_t length = view->segments[i].bytes;
            view->longest_bytes = length > view->longest_bytes ? length : view->longest_bytes;
        }
    }
    if (users != 1) {
        return col_fail(BAD, detail, "template.user", users, 1);
    }
    if (cursor != bytes) {
        return col_fail(BAD, detail, "template", bytes, cursor);
    }
    view->beside_bytes = beside(view, view->user - 1) + beside(view, view->user + 1);
    return COLIBRI_OK;
}

/* The longest piece that may come, in bytes. Past what 32 bits count, encoding answers COLIBRI_E_TEXT_SIZE. */
static uint32_t longest_piece(const struct col_template_view *view, uint32_t max_text_bytes)
{
    uint64_t longest = (uint64_t)max_text_bytes + view->beside_bytes;
    longest = longest < view->longest_bytes ? view->longest_bytes : longest;
    return longest > UINT32_MAX ? UINT32_MAX : (uint32_t)longest;
}

uint64_t col_template_scratch_bytes(const struct col_template_view *view, const struct col_tokenizer_view *tokenizer,
                                    uint32_t max_text_bytes)
{
    uint32_t longest = longest_piece(view, max_text_bytes);
    uint64_t joined = view->beside_bytes == 0 ? 0 : round_up_8(longest);
    return round_up_8(col_tokenizer_scratch_bytes(tokenizer, longest)) + joined;
}

/* Leaves out white space: at both ends, as Python's str.strip() sees it, which chat templates trim with (COL_USER_TRIM: the
 * class of spaces and the four separators U+001C to U+001F); of that class alone where a token takes it. */
static void trim(const struct col_classes *classes, uint32_t how, const uint8_t **text, size_t *bytes)
{
    size_t begin = *bytes;
    size_t end = *bytes;
    for (size_t i = 0; i < *bytes;) {
        uint32_t length;
        uint32_t point = col_utf8_decode(*text + i, *bytes - i, &length);
        bool separator = how == COL_USER_TRIM && point >= 0x1c && point <= 0x1f;
        if (!separator && !col_is_space(classes, point)) {
            begin = i < begin ? i : begin;
            end = i + length;
        }
        i += length;
    }
    begin = (how & (COL_USER_TRIM | COL_USER_AFTER_TAKER)) != 0 ? begin : 0;
    end = (how & (COL_USER_TRIM | COL_USER_BEFORE_TAKER)) != 0 ? end : *bytes;
    *text += begin;
    *bytes = begin < end ? end - begin : 0;
}

static size_t append(uint8_t *to, size_t at, const uint8_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        to[at + i] = from[i];
    }
    return at + bytes;
}

/* What the ids go to. `count` goes on past the capacity, to state what is needed. */
struct output {
    uint32_t *ids;
    size_t capacity;
    size_t count;
};

static colibri_status encode_text(const struct col_tokenizer_view *tokenizer, void *scratch, uint32_t max_bytes,
                                  const uint8_t *text, size_t bytes, bool begins, struct output *out)
{
    size_t count;
    size_t room = out->count < out->capacity ? out->capacity - out->count : 0;
    uint32_t *ids = room > 0 ? out->ids + out->count : NULL;
    colibri_status status = col_tokenizer_encode(tokenizer, scratch, max_bytes, (const char *)text, bytes, begins, ids,
                                                 room, &count);
    out->count += count;
    return status == COLIBRI_E_BUFFER_SIZE ? COLIBRI_OK : status;
}

colibri_status col_template_encode(const struct col_template_view *view, const struct col_tokenizer_view *tokenizer,
                                   void *scratch, uint32_t max_text_bytes, const char *text, size_t bytes,
                                   uint32_t *ids, size_t capacity, size_t *count)
{
    *count = 0;
    if (bytes > max_text_bytes || bytes > UINT32_MAX - view->beside_bytes) {
        return COLIBRI_E_TEXT_SIZE;
    }
    const uint32_t how = view->segments[view->user].value;
    const uint8_t *said = (const uint8_t *)text;
    if ((how & COL_USER_TRIM) != 0) {
        trim(&tokenizer->classes, COL_USER_TRIM, &said, &bytes);
    }
    uint32_t longest = longest_piece(view, max_text_bytes);
    uint8_t *joined = (uint8_t *)scratch + round_up_8(col_tokenizer_scratch_bytes(tokenizer, longest));
    struct output out = {.ids = ids, .capacity = capacity};
    for (uint32_t i = 0; i < view->segment_count; i++) {
        const struct col_segment *segment = &view->segments[i];
        const uint8_t *piece = said;
        size_t piece_bytes = bytes;
        if (segment->kind == COL_SEGMENT_TOKEN) {
            if (out.count < out.capacity) {
                out.ids[out.count] = segment->value;
            }
            out.count++;
            continue;
        }
        if (segment->kind == COL_SEGMENT_TEXT) {
            if (i + 1 == view->user) {
                continue; /* joined with the user's text, next */
            }
            piece = view->section + segment->value;
            piece_bytes = segment->bytes;
        } else if (view->beside_bytes != 0) {
            piece = joined;
            piece_bytes = 0;
            if (is_text(view, i - 1)) {
                piece_bytes = append(joined, 0, view->section + segment[-1].value, segment[-1].bytes);
            }
            piece_bytes = append(joined, piece_bytes, said, bytes);
            if (is_text(view, i + 1)) {
                piece_bytes = append(joined, piece_bytes, view->section + segment[1].value, segment[1].bytes);
                i++; /* done with it */
            }
        }
        if (segment->kind == COL_SEGMENT_USER) {
            trim(&tokenizer->classes, how & (COL_USER_AFTER_TAKER | COL_USER_BEFORE_TAKER), &piece, &piece_bytes);
        }
        bool begins = out.count == 0 || (segment->kind == COL_SEGMENT_USER && (segment->value & COL_USER_BEGINS) != 0);
        colibri_status status = encode_text(tokenizer, scratch, longest, piece, piece_bytes, begins, &out);
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    *count = out.count;
    return out.count <= out.capacity ? COLIBRI_OK : COLIBRI_E_BUFFER_SIZE;
}
