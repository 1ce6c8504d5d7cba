/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_ids.c: tokenises what a file says and prints ids, on any processor and under any sanitizer.
 *
 * The file is a row of records, words little-endian: section bytes, template bytes, text bytes, the model's vocabulary,
 * then the section, the template and the text; with a vocabulary of 0, the sections of the record before. Each record gives one line: the status of opening the tokenizer section,
 * that of the template section, and when both are 0 the ids of the text inside the template, and after a bar those of
 * the text alone; after a failure the place that was at fault. Sections are copied into blocks of their exact size, so
 * that a sanitizer sees any access beyond them.
 */
#include "template.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *why)
{
    fprintf(stderr, "tokenizer_ids: %s\n", why);
    exit(1);
}

static void *block(uint64_t bytes)
{
    void *memory = bytes <= SIZE_MAX ? malloc(bytes == 0 ? 1 : (size_t)bytes) : NULL;
    if (memory == NULL) {
        die("out of memory");
    }
    return memory;
}

static uint8_t *read_block(FILE *file, uint32_t bytes)
{
    uint8_t *memory = block(bytes);
    if (fread(memory, 1, bytes, file) != bytes) {
        die("the file ends inside a record");
    }
    return memory;
}

static void print_ids(const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        printf(" %" PRIu32, ids[i]);
    }
}

/* Byte by byte, the ids' texts joined must be the text again, whatever the section says: opening it has checked that.
 * Other kinds, and normal forms, spell it in their own way. */
static void check_round_trip(const struct col_tokenizer_view *view, const uint32_t *ids, size_t count,
                             const uint8_t *text, uint32_t text_bytes)
{
    size_t at = 0;
    if (view->head->kind != COL_TOKENIZER_BYTE_BPE || view->head->decomposition_count != 0) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const uint8_t *part;
        uint32_t bytes;
        col_tokenizer_text(view, ids[i], &part, &bytes);
        if (bytes == 0 || bytes > text_bytes - at || memcmp(text + at, part, bytes) != 0) {
            die("the ids do not spell the text");
        }
        at += bytes;
    }
    if (at != text_bytes) {
        die("the ids spell less than the text");
    }
}

static void encode(const struct col_tokenizer_view *tokenizer, const struct col_template_view *template,
                   const uint8_t *text, uint32_t text_bytes)
{
    size_t needed;
    /* A normal form may be longer; see NFKC of U+FDFA. */
    uint32_t limit = tokenizer->head->decomposition_count == 0 && tokenizer->head->rewrite == 0 ? text_bytes
                                                                                                : 12 * text_bytes;
    void *scratch = block(col_template_scratch_bytes(template, tokenizer, limit));
    colibri_status status = col_template_encode(template, tokenizer, scratch, limit, (const char *)text, text_bytes,
                                                NULL, 0, &needed);
    if (status != COLIBRI_E_BUFFER_SIZE && needed != 0) {
        die("no room was enough");
    }
    size_t count;
    uint32_t *ids = block(needed * sizeof *ids);
    colibri_status again = col_template_encode(template, tokenizer, scratch, limit, (const char *)text, text_bytes, ids,
                                               needed, &count);
    if (again != (status == COLIBRI_E_BUFFER_SIZE ? COLIBRI_OK : status) || count != needed) {
        die("the second count differs from the first");
    }
    print_ids(ids, count);
    free(ids);
    free(scratch);

    scratch = block(col_tokenizer_scratch_bytes(tokenizer, limit));
    uint64_t room = (uint64_t)limit * 2 + 1; /* each byte, and a space in front of each piece */
    ids = block(room * sizeof *ids);
    status = col_tokenizer_encode(tokenizer, scratch, limit, (const char *)text, text_bytes, true, ids, (size_t)room,
                                  &count);
    if (status != COLIBRI_OK && status != COLIBRI_E_TEXT_SIZE) {
        die("more ids than bytes");
    }
    if (status == COLIBRI_OK) {
        check_round_trip(tokenizer, ids, count, text, text_bytes);
    }
    printf(" |");
    print_ids(ids, count);
    free(ids);
    free(scratch);
}

int main(int argc, char **argv)
{
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL) {
        die("cannot open the file; give its name");
    }
    uint32_t head[4];
    uint8_t *section = NULL;
    uint8_t *template = NULL;
    struct col_tokenizer_view tokenizer_view;
    struct col_template_view template_view;
    struct colibri_detail detail;
    colibri_status opened = COLIBRI_E_ARGUMENT;
    colibri_status filled = COLIBRI_E_ARGUMENT;
    while (fread(head, sizeof head, 1, file) == 1) {
        if (head[3] != 0) {
            free(section);
            free(template);
            section = read_block(file, head[0]);
            template = read_block(file, head[1]);
            detail = (struct colibri_detail){{0}, 0, 0};
            opened = col_tokenizer_open(section, head[0], head[3], &tokenizer_view, &detail);
            filled = COLIBRI_OK;
            if (opened == COLIBRI_OK) {
                filled = col_template_open(template, head[1], head[3], &template_view, &detail);
            }
        }
        uint8_t *text = read_block(file, head[2]);
        printf("%d %d", opened, filled);
        if (opened == COLIBRI_OK && filled == COLIBRI_OK) {
            encode(&tokenizer_view, &template_view, text, head[2]);
        } else {
            printf(" %s", detail.where);
        }
        printf("\n");
        free(text);
    }
    free(template);
    free(section);
    fclose(file);
    return 0;
}
