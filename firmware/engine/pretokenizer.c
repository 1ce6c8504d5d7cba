/* SPDX-License-Identifier: Apache-2.0
 *
 * pretokenizer.c: see pretokenizer.h. A split cuts a text into the matches of its pattern and the gaps between them;
 * the next split sees each of these pieces as a text of its own.
 */
#include "pretokenizer.h"

#include "utf8.h"

#define FIRST_POINT(entry) ((entry) >> 8)
#define CLASS(entry) ((entry) & 0xffu)
#define STOP 0u  /* nothing more can match */
#define START 1u

/* The last range that begins at or before the code point. */
static uint32_t search(const struct col_classes *classes, uint32_t code_point)
{
    uint32_t low = 0;
    uint32_t high = classes->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (FIRST_POINT(classes->range[middle]) <= code_point) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return CLASS(classes->range[low]);
}

void col_classes_init(struct col_classes *classes)
{
    for (uint32_t i = 0; i < sizeof classes->ascii; i++) {
        classes->ascii[i] = (uint8_t)search(classes, i);
    }
}

uint32_t col_class_of(const struct col_classes *classes, uint32_t code_point)
{
    if (code_point < sizeof classes->ascii) {
        return classes->ascii[code_point];
    }
    return search(classes, code_point == COL_UTF8_INVALID ? 0x10ffffu : code_point);
}

bool col_is_space(const struct col_classes *classes, uint32_t code_point)
{
    return col_class_of(classes, code_point) >= classes->first_space;
}

bool col_is_word(const struct col_classes *classes, uint32_t code_point)
{
    uint32_t class = col_class_of(classes, code_point);
    return class >= classes->first_word && class < classes->first_space;
}

/* One character of a text on its way through one split. */
struct walk {
    const struct col_classes *classes;
    const uint16_t *moves;
    const uint8_t *text;
    size_t bytes;
};

/* The move from `state` at position `at`; *length is the character's, 0 at the text's end. */
static uint32_t move(const struct walk *walk, uint32_t state, size_t at, uint32_t *length)
{
    uint32_t class = walk->classes->used;
    *length = 0;
    if (at < walk->bytes) {
        class = col_class_of(walk->classes, col_utf8_decode(walk->text + at, walk->bytes - at, length));
    }
    return walk->moves[state * (walk->classes->used + 1u) + class];
}

/* End of the match that begins at `start`, or `start` when there is none. *second is the state that was reached behind
 * the second character. */
static size_t match_end(const struct walk *walk, size_t start, uint32_t *second)
{
    size_t matched = start;
    size_t at = start;
    uint32_t state = START;
    *second = STOP;
    for (uint32_t steps = 1; state != STOP; steps++) {
        uint32_t length;
        uint32_t next = move(walk, state, at, &length);
        if ((next & COL_SPLIT_MATCH) != 0) {
            matched = at;
        }
        state = next & ~COL_SPLIT_MATCH;
        at += length;
        *second = steps == 2 ? state : *second;
    }
    return matched;
}

size_t col_match(const struct col_classes *classes, const uint16_t *moves, const uint8_t *text, size_t bytes)
{
    struct walk walk = {classes, moves, text, bytes};
    uint32_t second;
    return match_end(&walk, 0, &second);
}

/* End of the piece that begins at `start`: a match, or what lies before the next one.
 *
 * An attempt to match that fails may have looked at the whole rest. When the attempt one character further on comes, at
 * the same place, into the same state, it fails as well and need not look again. Without this, a pattern like \s+$
 * would take n * n steps for n spaces before a letter. */
static size_t piece_end(const struct walk *walk, size_t start)
{
    uint32_t second;
    size_t end = match_end(walk, start, &second);
    if (end > start) {
        return end;
    }
    uint32_t length;
    (void)move(walk, START, start, &length);
    for (end = start + length; end < walk->bytes; end += length) {
        uint32_t first = move(walk, START, end, &length) & ~COL_SPLIT_MATCH;
        if (first != STOP && first == second) {
            uint32_t unused;
            second = move(walk, first, end + length, &unused) & ~COL_SPLIT_MATCH;
        } else if (match_end(walk, end, &second) > end) {
            break;
        }
    }
    return end;
}

void col_pieces_begin(struct col_pieces *pieces, const struct col_classes *classes, const struct col_splits *splits,
                      const uint8_t *text, size_t bytes)
{
    *pieces = (struct col_pieces){.classes = classes, .splits = splits, .text = text, .bytes = bytes};
}

size_t col_pieces_next(struct col_pieces *pieces, size_t at)
{
    size_t limit = pieces->bytes;
    for (uint32_t i = 0; i < pieces->splits->count; i++) {
        if (pieces->end[i] <= at) {
            struct walk walk = {pieces->classes, pieces->splits->moves[i], pieces->text + at, limit - at};
            pieces->end[i] = at + piece_end(&walk, 0);
        }
        limit = pieces->end[i];
    }
    return limit;
}
