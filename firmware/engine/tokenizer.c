/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer.c: checks a tokenizer section, once, so completely that nothing needs a check afterwards.
 */
#include "tokenizer.h"

#include "compare.h"
#include "detail.h"
#include "rewrite.h"
#include "vocabulary.h"

#define BAD COLIBRI_E_IMAGE_TOKENIZER
#define TABLE_ALIGN 8u
#define TOKEN_FLAGS (COL_TOKEN_SPECIAL | COL_TOKEN_TAKES_BEFORE | COL_TOKEN_TAKES_AFTER | COL_TOKEN_WORD)
#define MAX_SCORE 1e30 /* sums stay finite */

static const uint32_t *words(const uint8_t *section, uint32_t offset)
{
    return (const uint32_t *)(const void *)(section + offset);
}

/* Fields of the head are named by their place in it, in words. */
#define WORD(field) (uint8_t)(offsetof(struct col_tokenizer, field) / sizeof(uint32_t))

/* What a field of the head may be, by kind. */
static const struct limit {
    char name[28];
    uint8_t field;
    uint8_t below; /* another field that it must not exceed, or this one */
    struct {
        uint32_t least;
        uint32_t most;
    } kind[COL_TOKENIZER_UNIGRAM];
} limits[] = {
    {"tokenizer.prefix", WORD(prefix), WORD(prefix), {{0, 0}, {0, COL_PREFIX_FIRST}, {0, COL_PREFIX_FIRST}}},
    {"tokenizer.strip", WORD(strip), WORD(strip), {{0, 0}, {0, COL_STRIP_TOKEN}, {0, COL_STRIP_TOKEN}}},
    {"tokenizer.vocab", WORD(vocab), WORD(vocab), {{1, UINT32_MAX}, {1, UINT32_MAX}, {1, UINT32_MAX}}},
    {"tokenizer.byte_count", WORD(byte_count), WORD(byte_count), {{256, 256}, {0, 256}, {0, 256}}},
    {"tokenizer.merge_slots", WORD(merge_slots), WORD(merge_slots), {{1, UINT32_MAX}, {1, UINT32_MAX}, {0, 0}}},
    {"tokenizer.merge_count", WORD(merge_count), WORD(merge_slots), {{0, UINT32_MAX}, {0, UINT32_MAX}, {0, 0}}},
    {"tokenizer.score_count", WORD(score_count), WORD(vocab), {{0, 0}, {0, 0}, {1, UINT32_MAX}}},
    {"tokenizer.class_count", WORD(class_count), WORD(class_count), {{1, UINT32_MAX}, {1, UINT32_MAX}, {1, UINT32_MAX}}},
    {"tokenizer.classes_used", WORD(classes_used), WORD(classes_used), {{1, 255}, {1, 255}, {1, 255}}},
    {"tokenizer.first_space", WORD(first_space), WORD(classes_used), {{0, 255}, {0, 255}, {0, 255}}},
    {"tokenizer.first_word", WORD(first_word), WORD(first_space), {{0, 255}, {0, 255}, {0, 255}}},
    {"tokenizer.split_count", WORD(split_count), WORD(split_count),
     {{0, COL_MAX_SPLITS}, {0, COL_MAX_SPLITS}, {0, COL_MAX_SPLITS}}},
    {"tokenizer.reserved", WORD(reserved[0]), WORD(reserved[0]), {{0, 0}, {0, 0}, {0, 0}}},
    {"tokenizer.reserved", WORD(reserved[1]), WORD(reserved[1]), {{0, 0}, {0, 0}, {0, 0}}},
};
_Static_assert(sizeof(((struct col_tokenizer *)0)->reserved) == 2 * sizeof(uint32_t), "all of them are in `limits`");

/* Fields of the head that say what is done; the limits of its counts. */
static colibri_status check_head(const struct col_tokenizer *head, uint32_t model_vocab, struct colibri_detail *detail)
{
    const uint32_t *field = (const uint32_t *)(const void *)head;
    const bool bytes = head->kind == COL_TOKENIZER_BYTE_BPE;
    const bool unigram = head->kind == COL_TOKENIZER_UNIGRAM;
    const uint32_t flags = bytes ? COL_TOKENIZER_WHOLE
                                 : COL_TOKENIZER_FUSE | (unigram ? COL_TOKENIZER_SINGLE : 0u);
    if (head->kind < COL_TOKENIZER_BYTE_BPE || head->kind > COL_TOKENIZER_UNIGRAM) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "tokenizer.kind", head->kind, COL_TOKENIZER_UNIGRAM);
    }
    if ((head->flags & ~flags) != 0) {
        return col_fail(BAD, detail, "tokenizer.flags", head->flags, flags);
    }
    for (uint32_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const struct limit *limit = &limits[i];
        const uint32_t got = field[limit->field];
        if (got < limit->kind[head->kind - 1].least || got > limit->kind[head->kind - 1].most ||
            got > field[limit->below]) {
            return col_fail(BAD, detail, limit->name, got, field[limit->below]);
        }
    }
    /* Sizes that are one of two, and what goes together. */
    if (head->vocab > model_vocab) {
        return col_fail(BAD, detail, "tokenizer.vocab", head->vocab, model_vocab);
    }
    if (unigram && head->score_count != head->vocab) {
        return col_fail(BAD, detail, "tokenizer.score_count", head->score_count, head->vocab);
    }
    if (!unigram && head->merge_count == head->merge_slots) {
        return col_fail(BAD, detail, "tokenizer.merge_count", head->merge_count, head->merge_slots);
    }
    if ((head->merge_slots & (head->merge_slots - 1)) != 0) {
        return col_fail(BAD, detail, "tokenizer.merge_slots", head->merge_slots, 1);
    }
    if (head->byte_count != 0 && head->byte_count != 256) {
        return col_fail(BAD, detail, "tokenizer.byte_count", head->byte_count, 256);
    }
    if (head->decomposition_count != 0 ? head->order_count == 0 : (head->order_count | head->composition_count) != 0) {
        return col_fail(BAD, detail, "tokenizer.order_count", head->order_count, head->decomposition_count);
    }
    if (head->unknown >= head->vocab ? head->unknown != COL_NO_TOKEN || unigram : bytes) {
        return col_fail(BAD, detail, "tokenizer.unknown", head->unknown, head->vocab);
    }
    return COLIBRI_OK;
}

/* The tables in their order. */
static const struct table {
    char name[26];
    uint8_t offset;
    uint8_t count;
    uint8_t more; /* entries beyond the count */
    uint8_t size; /* of an entry */
} tables[] = {
    {"tokenizer.byte_ids", WORD(byte_ids), WORD(byte_count), 0, sizeof(uint32_t)},
    {"tokenizer.token_offsets", WORD(token_offsets), WORD(vocab), 1, sizeof(uint32_t)},
    {"tokenizer.token_flags", WORD(token_flags), WORD(vocab), 0, sizeof(uint8_t)},
    {"tokenizer.token_text", WORD(token_text), WORD(text_bytes), 0, sizeof(uint8_t)},
    {"tokenizer.merges", WORD(merges), WORD(merge_slots), 0, sizeof(struct col_merge)},
    {"tokenizer.scores", WORD(scores), WORD(score_count), 0, sizeof(double)},
    {"tokenizer.sorted", WORD(sorted), WORD(sorted_count), 0, sizeof(uint32_t)},
    {"tokenizer.early", WORD(early), WORD(early_count), 0, sizeof(uint32_t)},
    {"tokenizer.late", WORD(late), WORD(late_count), 0, sizeof(uint32_t)},
    {"tokenizer.classes", WORD(classes), WORD(class_count), 0, sizeof(uint32_t)},
    {"tokenizer.splits", WORD(splits), WORD(split_count), 0, sizeof(uint32_t)},
    {"tokenizer.moves", WORD(moves), WORD(move_count), 0, sizeof(uint16_t)},
    {"tokenizer.decompositions", WORD(decompositions), WORD(decomposition_count), 0, sizeof(struct col_decomposition)},
    {"tokenizer.compositions", WORD(compositions), WORD(composition_count), 0, sizeof(struct col_composition)},
    {"tokenizer.orders", WORD(orders), WORD(order_count), 0, sizeof(uint32_t)},
    {"tokenizer.points", WORD(points), WORD(point_count), 0, sizeof(uint32_t)},
    {"tokenizer.rules", WORD(rules), WORD(rule_count), 0, sizeof(uint32_t)},
    {"tokenizer.rule_text", WORD(rule_text), WORD(rule_bytes), 0, sizeof(uint8_t)},
};

/* Each table lies at the first multiple of TABLE_ALIGN after the one before, zeros between them. That makes every
 * offset a value to compare with, and overlaps impossible. Counts are 32 bits wide, so 64 bits cannot overflow. */
static colibri_status check_layout(const uint8_t *section, uint64_t bytes, struct colibri_detail *detail)
{
    const uint32_t *head = words(section, 0);
    uint64_t end = sizeof(struct col_tokenizer); /* of the table before */
    for (uint32_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const struct table *table = &tables[i];
        uint64_t start = (end + TABLE_ALIGN - 1) & ~(uint64_t)(TABLE_ALIGN - 1);
        if (head[table->offset] != start) {
            return col_fail(BAD, detail, table->name, head[table->offset], start);
        }
        for (; end < start && end < bytes; end++) {
            if (section[end] != 0) {
                return col_fail(BAD, detail, table->name, section[end], 0);
            }
        }
        end = start + ((uint64_t)head[table->count] + table->more) * table->size;
        if (end > bytes) {
            return col_fail(BAD, detail, table->name, end, bytes);
        }
    }
    return end == bytes ? COLIBRI_OK : col_fail(BAD, detail, "tokenizer", bytes, end);
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
        if ((view->token_flags[id] & ~TOKEN_FLAGS) != 0) {
            return col_fail(BAD, detail, "tokenizer.token_flags", view->token_flags[id], TOKEN_FLAGS);
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
    for (uint32_t byte = 0; byte < view->head->byte_count; byte++) {
        uint32_t id = view->byte_ids[byte];
        if (!is_plain(view, id) || text_length(view, id) != 1 ||
            view->token_text[view->token_offsets[id]] != byte) {
            return col_fail(BAD, detail, "tokenizer.byte_ids", id, byte);
        }
    }
    return COLIBRI_OK;
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
    return col_same_bytes(pool + offset[whole], pool + offset[left], left_length) &&
           col_same_bytes(pool + offset[whole] + left_length, pool + offset[right], right_length);
}

static colibri_status check_merges(const struct col_tokenizer_view *view, struct colibri_detail *detail)
{
    uint32_t used = 0;
    for (uint32_t slot = 0; slot < view->head->merge_slots; slot++) {
        const struct col_merge *merge = &view->merges[slot];
        if (merge->rank == COL_NO_RANK) {
            continue;
        }
        used++;
        if (merge->rank >= view->head->merge_count) {
            return col_fail(BAD, detail, "tokenizer.merges.rank", merge->rank, view->head->merge_count);
        }
        if (!is_plain(view, merge->left) || !is_plain(view, merge->right)) {
            return col_fail(BAD, detail, "tokenizer.merges.left", slot, view->vocab);
        }
        if (!is_plain(view, merge->merged) || !is_joined(view, merge->merged, merge->left, merge->right)) {
            return col_fail(BAD, detail, "tokenizer.merges.merged", slot, view->vocab);
        }
    }
    /* merge_count < merge_slots: at least one slot is empty, so that every search ends. */
    return used == view->head->merge_count
               ? COLIBRI_OK
               : col_fail(BAD, detail, "tokenizer.merge_count", view->head->merge_count, used);
}

/* Tokens that are looked up by their texts: none special, none empty, texts strictly ascending. */
static colibri_status check_sorted(const struct col_tokenizer_view *view, const uint32_t *ids, uint32_t count,
                                   const char *name, struct colibri_detail *detail)
{
    const uint8_t *before = NULL;
    uint32_t before_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *text;
        uint32_t bytes;
        col_tokenizer_text(view, ids[i], &text, &bytes);
        uint32_t same = 0;
        while (same < bytes && same < before_bytes && text[same] == before[same]) {
            same++;
        }
        if (same == bytes || (same < before_bytes && text[same] < before[same])) {
            return col_fail(BAD, detail, name, ids[i], i);
        }
        before = text;
        before_bytes = bytes;
    }
    return COLIBRI_OK;
}

/* What SentencePiece's kinds rely on: the space is a token, scores are numbers. */
static colibri_status check_characters(const struct col_tokenizer_view *view, struct colibri_detail *detail)
{
    const uint8_t space = ' ';
    if (view->head->kind == COL_TOKENIZER_BYTE_BPE) {
        return COLIBRI_OK;
    }
    if (col_find_token(view, view->sorted, view->head->sorted_count, &space, 1) == COL_NO_TOKEN) {
        return col_fail(BAD, detail, "tokenizer.sorted", view->head->sorted_count, ' ');
    }
    for (uint32_t i = 0; i < view->head->score_count; i++) {
        if (!(view->scores[i] > -MAX_SCORE && view->scores[i] < MAX_SCORE)) {
            return col_fail(BAD, detail, "tokenizer.scores", i, view->head->score_count);
        }
    }
    return COLIBRI_OK;
}

static colibri_status check_classes(const struct col_classes *classes, struct colibri_detail *detail)
{
    for (uint32_t i = 0; i < classes->count; i++) {
        uint32_t first = classes->range[i] >> 8;
        bool ordered = i == 0 ? first == 0 : first > classes->range[i - 1] >> 8;
        if (!ordered || first > 0x10ffff || (classes->range[i] & 0xffu) >= classes->used) {
            return col_fail(BAD, detail, "tokenizer.classes", classes->range[i], i);
        }
    }
    return COLIBRI_OK;
}

/* The splits' tables follow each other without gaps. Nothing moves on behind the text's end, so every walk ends. */
static colibri_status check_splits(const struct col_tokenizer *head, const uint32_t *states, const uint16_t *moves,
                                   struct col_splits *splits, struct colibri_detail *detail)
{
    const uint32_t columns = head->classes_used + 1u;
    uint64_t used = 0;
    splits->count = head->split_count;
    for (uint32_t i = 0; i < head->split_count; i++) {
        if (states[i] < 2 || states[i] > COL_MAX_SPLIT_STATES) {
            return col_fail(BAD, detail, "tokenizer.splits", states[i], COL_MAX_SPLIT_STATES);
        }
        splits->moves[i] = moves + used;
        used += (uint64_t)states[i] * columns;
        if (used > head->move_count) {
            return col_fail(BAD, detail, "tokenizer.move_count", head->move_count, used);
        }
        for (uint32_t at = 0; at < states[i] * columns; at++) {
            uint32_t state = splits->moves[i][at] & ~COL_SPLIT_MATCH;
            if (state >= (at % columns == head->classes_used ? 1u : states[i])) {
                return col_fail(BAD, detail, "tokenizer.moves", state, states[i]);
            }
        }
    }
    return used == head->move_count ? COLIBRI_OK
                                    : col_fail(BAD, detail, "tokenizer.move_count", head->move_count, used);
}

static void fill_view(struct col_tokenizer_view *view, const uint8_t *section, const struct col_tokenizer *head)
{
    *view = (struct col_tokenizer_view){
        .head = head,
        .byte_ids = head->byte_count == 0 ? NULL : words(section, head->byte_ids),
        .token_offsets = words(section, head->token_offsets),
        .token_flags = section + head->token_flags,
        .token_text = section + head->token_text,
        .merges = (const struct col_merge *)(const void *)(section + head->merges),
        .scores = (const double *)(const void *)(section + head->scores),
        .sorted = words(section, head->sorted),
        .early = words(section, head->early),
        .late = words(section, head->late),
        .vocab = head->vocab,
        .max_token_bytes = head->max_token_bytes,
        .classes = {.range = words(section, head->classes),
                    .count = head->class_count,
                    .used = head->classes_used,
                    .first_word = head->first_word,
                    .first_space = head->first_space},
        .rules = words(section, head->rules),
        .rule_text = section + head->rule_text,
        .normalizer = {.decompositions = (const struct col_decomposition *)words(section, head->decompositions),
                       .compositions = (const struct col_composition *)words(section, head->compositions),
                       .orders = words(section, head->orders),
                       .points = words(section, head->points),
                       .decomposition_count = head->decomposition_count,
                       .composition_count = head->composition_count,
                       .order_count = head->order_count},
    };
}

static colibri_status check_tables(struct col_tokenizer_view *view, const uint8_t *section,
                                   struct colibri_detail *detail)
{
    const struct col_tokenizer *head = view->head;
    const uint16_t *moves = (const uint16_t *)(const void *)(section + head->moves);
    colibri_status status = check_classes(&view->classes, detail);
    if (status == COLIBRI_OK) {
        status = check_splits(head, words(section, head->splits), moves, &view->splits, detail);
    }
    if (status == COLIBRI_OK && (head->rewrite & COL_REWRITE_CLUSTERS) != 0 && head->split_count != 0) {
        view->clusters = view->splits.moves[--view->splits.count];
    }
    if (status == COLIBRI_OK) {
        status = col_rewrite_check(view, detail);
    }
    if (status == COLIBRI_OK) {
        status = col_normalizer_check(&view->normalizer, head->point_count, detail);
    }
    if (status == COLIBRI_OK) {
        status = check_tokens(view, head->text_bytes, detail);
    }
    if (status == COLIBRI_OK) {
        status = check_bytes(view, detail);
    }
    if (status == COLIBRI_OK) {
        status = check_merges(view, detail);
    }
    if (status == COLIBRI_OK) {
        status = check_sorted(view, view->sorted, head->sorted_count, "tokenizer.sorted", detail);
    }
    if (status == COLIBRI_OK) {
        status = check_sorted(view, view->early, head->early_count, "tokenizer.early", detail);
    }
    if (status == COLIBRI_OK) {
        status = check_sorted(view, view->late, head->late_count, "tokenizer.late", detail);
    }
    return status == COLIBRI_OK ? check_characters(view, detail) : status;
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
        status = check_layout(section, bytes, detail);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    fill_view(view, section, head);
    status = check_tables(view, section, detail);
    if (status == COLIBRI_OK) {
        col_classes_init(&view->classes);
    }
    return status;
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

void col_tokenizer_next_text(const struct col_tokenizer_view *view, uint32_t id, bool *begun, const uint8_t **text,
                             uint32_t *bytes)
{
    col_tokenizer_text(view, id, text, bytes);
    if (*begun || *bytes == 0) {
        return;
    }
    *begun = true;
    const uint32_t most = view->head->strip == COL_STRIP_TOKEN ? *bytes : view->head->strip;
    for (uint32_t i = 0; i < most && *bytes > 0 && **text == ' '; i++) {
        ++*text;
        --*bytes;
    }
}
