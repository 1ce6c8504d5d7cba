/* SPDX-License-Identifier: Apache-2.0
 *
 * pretokenizer.c: the byte-level split of GPT-2, by hand. Each alternative of the pattern begins with a different
 * kind of character, so one look at the start decides and every byte is read once.
 */
#include "pretokenizer.h"

#include "utf8.h"

#define FIRST_POINT(entry) ((entry) >> 8)
#define CLASS(entry) ((entry) & 0xffu)

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

void col_classes_init(struct col_classes *classes, const uint32_t *range, uint32_t count)
{
    classes->range = range;
    classes->count = count;
    for (uint32_t i = 0; i < sizeof classes->ascii; i++) {
        classes->ascii[i] = (uint8_t)search(classes, i);
    }
}

uint32_t col_class_of(const struct col_classes *classes, uint32_t code_point)
{
    if (code_point < sizeof classes->ascii) {
        return classes->ascii[code_point];
    }
    return code_point == COL_UTF8_INVALID ? (uint32_t)COL_CLASS_OTHER : search(classes, code_point);
}

static uint32_t class_at(const struct col_classes *classes, const uint8_t *text, size_t bytes, uint32_t *length)
{
    return col_class_of(classes, col_utf8_decode(text, bytes, length));
}

/* 's 't 'm 'd 're 've 'll: the length with the apostrophe, or 0. */
static size_t contraction(const uint8_t *text, size_t bytes)
{
    if (bytes < 2 || text[0] != '\'') {
        return 0;
    }
    if (text[1] == 's' || text[1] == 't' || text[1] == 'm' || text[1] == 'd') {
        return 2;
    }
    if (bytes >= 3 && ((text[1] == 'r' && text[2] == 'e') || (text[1] == 'v' && text[2] == 'e') ||
                       (text[1] == 'l' && text[2] == 'l'))) {
        return 3;
    }
    return 0;
}

/* Where the run of characters of one class that contains position `at` ends; *last is where its last one begins. */
static size_t run_end(const struct col_classes *classes, const uint8_t *text, size_t bytes, size_t at, uint32_t class,
                      size_t *last)
{
    while (at < bytes) {
        uint32_t length;
        if (class_at(classes, text + at, bytes - at, &length) != class) {
            break;
        }
        *last = at;
        at += length;
    }
    return at;
}

size_t col_pretoken_gpt2(const struct col_classes *classes, const uint8_t *text, size_t bytes)
{
    size_t length = contraction(text, bytes);
    if (length != 0) {
        return length;
    }
    size_t start = 0; /* of the run, after the one space that may lead it */
    uint32_t first_length;
    uint32_t class = class_at(classes, text, bytes, &first_length);
    if (text[0] == ' ' && bytes > 1) {
        uint32_t second_length;
        uint32_t second = class_at(classes, text + 1, bytes - 1, &second_length);
        if (second != COL_CLASS_SPACE) {
            class = second;
            start = 1;
        }
    }
    size_t last = start;
    size_t end = run_end(classes, text, bytes, start, class, &last);
    /* A run of white space before something else leaves its last character to that: \s+(?!\S). */
    if (class == COL_CLASS_SPACE && end < bytes && last > 0) {
        return last;
    }
    return end;
}
