/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_tokenizer.c: libFuzzer target for the tokenizer and template sections and for the text.
 *
 * An input is, words little-endian: section bytes, template bytes, the model's vocabulary, flags; then the tokenizer
 * section, the template section, and the text to the input's end. A section that opens must tokenise any text without
 * leaving its memory, never give a special token for text but the unknown one, and, where it goes byte by byte, spell the
 * text again by its ids.
 */
#include <string.h>

#include "fuzz.h"
#include "template.h"
#include "utf8.h"

#define HEAD_BYTES 16u
#define MAX_TEXT 4096u /* the time per run is for many inputs, not for long texts */

/* A copy of exactly that size, so that the sanitizer sees any access beyond it. */
static uint8_t *exact(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes + (bytes == 0));
    require(copy != NULL);
    memcpy(copy, data, bytes);
    return copy;
}

/* Whether the tokens of a text spell it again, byte for byte: nothing rewrites it, no token takes more than its text. */
static int spells_again(const struct col_tokenizer_view *view)
{
    int takes = 0;
    for (uint32_t i = 0; i < view->head->early_count; i++) {
        takes |= view->token_flags[view->early[i]];
    }
    for (uint32_t i = 0; i < view->head->late_count; i++) {
        takes |= view->token_flags[view->late[i]];
    }
    return view->head->kind == COL_TOKENIZER_BYTE_BPE && view->head->decomposition_count == 0 &&
           (takes & (int)(COL_TOKEN_TAKES_BEFORE | COL_TOKEN_TAKES_AFTER)) == 0;
}

static void check_text(const struct col_tokenizer_view *view, const uint8_t *text, uint32_t bytes)
{
    void *scratch = malloc((size_t)col_tokenizer_scratch_bytes(view, bytes) + 1);
    uint32_t *ids = malloc((2 * (size_t)bytes + 1) * sizeof *ids);
    require(scratch != NULL && ids != NULL);
    size_t count;
    size_t room = 2 * (size_t)bytes + 1;
    colibri_status status = col_tokenizer_encode(view, scratch, bytes, (const char *)text, bytes, true, ids, room,
                                                 &count);
    bool exact_text = spells_again(view) != 0;
    require(status == COLIBRI_OK || (!exact_text && status == COLIBRI_E_TEXT_SIZE) ||
            (status == COLIBRI_E_BUFFER_SIZE && count > room));
    count = count < room ? count : room;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *part;
        uint32_t length;
        require(ids[i] < view->vocab);
        require((view->token_flags[ids[i]] & COL_TOKEN_SPECIAL) == 0 || ids[i] == view->head->unknown);
        col_tokenizer_text(view, ids[i], &part, &length);
        require(!exact_text || (length > 0 && length <= bytes - at && memcmp(text + at, part, length) == 0));
        at += length;
    }
    require(!exact_text || at == bytes);
    free(ids);
    free(scratch);
}

static void check_template(const struct col_template_view *template, const struct col_tokenizer_view *view,
                           const uint8_t *text, uint32_t bytes)
{
    uint64_t scratch_bytes = col_template_scratch_bytes(template, view, bytes);
    require(scratch_bytes >= col_tokenizer_scratch_bytes(view, bytes));
    void *scratch = malloc((size_t)scratch_bytes + 1);
    require(scratch != NULL);
    size_t needed;
    size_t count;
    colibri_status status = col_template_encode(template, view, scratch, bytes, (const char *)text, bytes, NULL, 0,
                                                &needed);
    require(status == COLIBRI_E_TEXT_SIZE || status == (needed == 0 ? COLIBRI_OK : COLIBRI_E_BUFFER_SIZE));
    uint32_t *ids = malloc((needed + 1) * sizeof *ids);
    require(ids != NULL);
    colibri_status again = col_template_encode(template, view, scratch, bytes, (const char *)text, bytes, ids, needed,
                                               &count);
    require(again == (status == COLIBRI_E_TEXT_SIZE ? status : COLIBRI_OK) && count == needed);
    free(ids);
    free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t head[HEAD_BYTES / sizeof(uint32_t)];
    if (size < HEAD_BYTES) {
        return 0;
    }
    memcpy(head, data, HEAD_BYTES);
    data += HEAD_BYTES;
    size -= HEAD_BYTES;
    size_t section_bytes = head[0] < size ? head[0] : size;
    size_t template_bytes = head[1] < size - section_bytes ? head[1] : size - section_bytes;
    size_t text_bytes = size - section_bytes - template_bytes;
    text_bytes = text_bytes < MAX_TEXT ? text_bytes : MAX_TEXT;
    uint8_t *section = exact(data, section_bytes);
    uint8_t *template = exact(data + section_bytes, template_bytes);
    uint8_t *text = exact(data + section_bytes + template_bytes, text_bytes);

    struct col_tokenizer_view view;
    struct col_template_view filled;
    struct colibri_detail detail;
    if (col_tokenizer_open(section, section_bytes, head[2], &view, &detail) == COLIBRI_OK) {
        check_text(&view, text, (uint32_t)text_bytes);
        if (col_template_open(template, template_bytes, head[2], &filled, NULL) == COLIBRI_OK) {
            check_template(&filled, &view, text, (uint32_t)text_bytes);
        }
    } else {
        require(memchr(detail.where, '\0', sizeof detail.where) != NULL && detail.where[0] != '\0');
    }
    require(col_utf8_complete(text, text_bytes) <= text_bytes);
    free(text);
    free(template);
    free(section);
    return 0;
}

/* Nearly every byte of an input is a table, and nearly every change to a table is refused at once. So mutate the text,
 * the template and the head for themselves most of the time. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
    uint32_t head[HEAD_BYTES / sizeof(uint32_t)];
    if (size < HEAD_BYTES || seed % 8 == 0) {
        return LLVMFuzzerMutate(data, size, capacity);
    }
    memcpy(head, data, HEAD_BYTES);
    size_t section = HEAD_BYTES + (head[0] < size - HEAD_BYTES ? head[0] : size - HEAD_BYTES);
    size_t template = section + (head[1] < size - section ? head[1] : size - section);
    if (seed % 8 == 1) { /* the head of the section, its length kept */
        size_t end = HEAD_BYTES + sizeof(struct col_tokenizer);
        end = end < size ? end : size;
        LLVMFuzzerMutate(data, end, end);
        return size;
    }
    if (seed % 8 == 2 && template > section) { /* the template, its length kept */
        LLVMFuzzerMutate(data + section, template - section, template - section);
        return size;
    }
    return template + LLVMFuzzerMutate(data + template, size - template, capacity - template);
}
