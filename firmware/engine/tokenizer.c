/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer.c: checks a tokenizer section, once, so completely that nothing needs a check afterwards.
 */
#include "tokenizer.h"

#include "detail.h"

#define BAD COLIBRI_E_IMAGE_TOKENIZER
#define TABLE_ALIGN 8u

/* Tables lie in the order of their fields, each at the first multiple of TABLE_ALIGN after the one before. That makes
 * every offset a value to compare with, and overlaps impossible. Counts are 32 bits wide, so 64 bits cannot
 * overflow. */
static bool next_table(uint64_t *cursor, uint64_t limit, uint32_t offset, uint64_t count, uint64_t size)
{
    uint64_t start = (*cursor + TABLE_ALIGN - 1) & ~(uint64_t)(TABLE_ALIGN - 1);
    *cursor = start + count * size;
    return offset == start && *cursor <= limit;
}

static const uint32_t *words(const uint8_t *section, uint32_t offset)
{
    return (const uint32_t *)(const void *)(section + offset);
}

static colibri_status check_head(const struct col_tokenizer *head, uint32_t model_vocab, struct colibri_detail *detail)
{
    if (head->kind != COL_TOKENIZER_BYTE_BPE) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "tokenizer.kind", head->kind, COL_TOKENIZER_BYTE_BPE);
    }
    if (head->pretokenizer != COL_PRETOKENIZER_GPT2) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "tokenizer.pretokenizer", head->pretokenizer,
                        COL_PRETOKENIZER_GPT2);
    }
    if (head->vocab > model_vocab) {
        return col_fail(BAD, detail, "tokenizer.vocab", head->vocab, model_vocab);
    }
    if (head->merge_slots == 0 || (head->merge_slots & (head->merge_slots - 1)) != 0) {
        return col_fail(BAD, detail, "tokenizer.merge_slots", head->merge_slots, 1);
    }
    if (head->merge_count >= head->merge_slots) {
        return col_fail(BAD, detail, "tokenizer.merge_count", head->merge_count, head->merge_slots - 1u);
    }
    if (head->class_count == 0) {
        return col_fail(BAD, detail, "tokenizer.class_count", 0, 1);
    }
    for (uint32_t i = 0; i < sizeof head->reserved / sizeof head->reserved[0]; i++) {
        if (head->reserved[i] != 0) {
            return col_fail(BAD, detail, "tokenizer.reserved", head->reserved[i], 0);
        }
    }
    return COLIBRI_OK;
}

static colibri_status check_layout(const struct col_tokenizer *head, uint64_t bytes, struct colibri_detail *detail)
{
    const struct {
        const char *name;
        uint32_t offset;
        uint64_t count;
        uint64_t size;
    } table[] = {
        {"tokenizer.byte_ids", head->byte_ids, 256, sizeof(uint32_t)},
        {"tokenizer.token_offsets", head->token_offsets, (uint64_t)head->vocab + 1, sizeof(uint32_t)},
        {"tokenizer.token_flags", head->token_flags, head->vocab, sizeof(uint8_t)},
        {"tokenizer.token_text", head->token_text, head->text_bytes, sizeof(uint8_t)},
        {"tokenizer.merges", head->merges, head->merge_slots, sizeof(struct col_merge)},
        {"tokenizer.classes", head->classes, head->class_count, sizeof(uint32_t)},
    };
    uint64_t cursor = sizeof *head;
    for (uint32_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!next_table(&cursor, bytes, table[i].offset, table[i].count, table[i].size)) {
            uint64_t end = cursor > bytes ? cursor : table[i].offset;
            return col_fail(BAD, detail, table[i].name, end, cursor > bytes ? bytes : cursor);
        }
    }
    return cursor == bytes ? COLIBRI_OK : col_fail(BAD, detail, "tokenizer", bytes, cursor);
}

static uint32_t text_length(const struct col_tokenizer_view *view, uint32_t id)
{
    return view->token_offsets[id + 1] - view->token_offsets[id];
}

static colibri_status check_tokens(const struct col_tokenizer_view *view, uint32_t text_bytes,
                                   struct colibri_detail *detail)
{
    if (view->token_offsets[0] != 0) {
        return col_fail(BAD, detail, "tokenizer.token_offsets", view->token_offsets[0], 0);
    }
    uint32_t longest = 0;
    for (uint32_t id = 0; id < view->vocab; id++) {
        if (view->token_offsets[id + 1] < view->token_offsets[id] || view->token_offsets[id + 1] > text_bytes) {
            return col_fail(BAD, detail, "tokenizer.token_offsets", view->token_offsets[id + 1], text_bytes);
        }
        if ((view->token_flags[id] & ~COL_TOKEN_SPECIAL) != 0) {
            return col_fail(BAD, detail, "tokenizer.token_flags", view->token_flags[id], COL_TOKEN_SPECIAL);
        }
        uint32_t length = text_length(view, id);
        longest = length > longest ? length : longest;
    }
    if (view->token_offsets[view->vocab] != text_bytes) {
        return col_fail(BAD, detail, "tokenizer.text_bytes", text_bytes, view->token_offsets[view->vocab]);
    }
    if (longest != view->max_token_bytes) {
        return col_fail(BAD, detail, "tokenizer.max_token_bytes", view->max_token_bytes, longest);
    }
    return COLIBRI_OK;
}

/* An id that encoding may give. */
static bool is_plain(const struct col_tokenizer_view *view, uint32_t id)
{
    return id < view->vocab && (view->token_flags[id] & COL_TOKEN_SPECIAL) == 0;
}

static colibri_status check_bytes(const struct col_tokenizer_view *view, struct colibri_detail *detail)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t id = view->byte_ids[byte];
        if (!is_plain(view, id) || text_length(view, id) != 1 ||
            view->token_text[view->token_offsets[id]] != byte) {
            return col_fail(BAD, detail, "tokenizer.byte_ids", id, byte);
        }
    }
    return COLIBRI_OK;
}

static bool equal(const uint8_t *a, const uint8_t *b, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++) {
        if (a[i] != b[i]) {
            return false;
        }
    }
    return true;
}

/* Whether the text of `whole` is that of `left` followed by that of `right`. */
static bool is_joined(const struct col_tokenizer_view *view, uint32_t whole, uint32_t left, uint32_t right)
{
    const uint8_t *pool = view->token_text;
    const uint32_t *offset = view->token_offsets;
    uint32_t left_length = text_length(view, left);
    uint32_t right_length = text_length(view, right);
    if ((uint64_t)left_length + right_length != text_length(view, whole)) {
        return false;
    }
    return equal(pool + offset[whole], pool + offset[left], left_length) &&
           equal(pool + offset[whole] + left_length, pool + offset[right], right_length);
}

static colibri_status check_merges(const struct col_tokenizer_view *view, uint32_t merge_count,
                                   struct colibri_detail *detail)
{
    uint32_t used = 0;
    for (uint32_t slot = 0; slot < view->merge_slots; slot++) {
        const struct col_merge *merge = &view->merges[slot];
        if (merge->rank == COL_NO_RANK) {
            continue;
        }
        used++;
        if (merge->rank >= merge_count) {
            return col_fail(BAD, detail, "tokenizer.merges.rank", merge->rank, merge_count);
        }
        if (!is_plain(view, merge->left) || !is_plain(view, merge->right)) {
            return col_fail(BAD, detail, "tokenizer.merges.left", slot, view->vocab);
        }
        if (!is_plain(view, merge->merged) || !is_joined(view, merge->merged, merge->left, merge->right)) {
            return col_fail(BAD, detail, "tokenizer.merges.merged", slot, view->vocab);
        }
    }
    /* merge_count < merge_slots: at least one slot is empty, so that every search ends. */
    return used == merge_count ? COLIBRI_OK : col_fail(BAD, detail, "tokenizer.merge_count", merge_count, used);
}

static colibri_status check_classes(const uint32_t *range, uint32_t count, struct colibri_detail *detail)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = range[i] >> 8;
        bool ordered = i == 0 ? first == 0 : first > range[i - 1] >> 8;
        if (!ordered || first > 0x10ffff || (range[i] & 0xffu) > COL_CLASS_SPACE) {
            return col_fail(BAD, detail, "tokenizer.classes", range[i], i);
        }
    }
    return COLIBRI_OK;
}

colibri_status col_tokenizer_open(const uint8_t *section, uint64_t bytes, uint32_t model_vocab,
                                  struct col_tokenizer_view *view, struct colibri_detail *detail)
{
    const struct col_tokenizer *head = (const struct col_tokenizer *)(const void *)section;
    if ((uintptr_t)section % TABLE_ALIGN != 0) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "tokenizer", (uintptr_t)section % TABLE_ALIGN, 0);
    }
    if (bytes < sizeof *head) {
        return col_fail(BAD, detail, "tokenizer", bytes, sizeof *head);
    }
    colibri_status status = check_head(head, model_vocab, detail);
    if (status == COLIBRI_OK) {
        status = check_layout(head, bytes, detail);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    view->byte_ids = words(section, head->byte_ids);
    view->token_offsets = words(section, head->token_offsets);
    view->token_flags = section + head->token_flags;
    view->token_text = section + head->token_text;
    view->merges = (const struct col_merge *)(const void *)(section + head->merges);
    view->vocab = head->vocab;
    view->merge_slots = head->merge_slots;
    view->max_token_bytes = head->max_token_bytes;
    status = check_classes(words(section, head->classes), head->class_count, detail);
    if (status == COLIBRI_OK) {
        col_classes_init(&view->classes, words(section, head->classes), head->class_count);
        status = check_tokens(view, head->text_bytes, detail);
    }
    if (status == COLIBRI_OK) {
        status = check_bytes(view, detail);
    }
    return status == COLIBRI_OK ? check_merges(view, head->merge_count, detail) : status;
}

void col_tokenizer_text(const struct col_tokenizer_view *view, uint32_t id, const uint8_t **text, uint32_t *bytes)
{
    *text = view->token_text;
    *bytes = 0;
    if (is_plain(view, id)) {
        *text = view->token_text + view->token_offsets[id];
        *bytes = text_length(view, id);
    }
}
