/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_bpe.c: byte-pair encoding. Within a piece the pair of neighbours with the lowest rank merges, the leftmost
 * of equals first, until no pair has a rank.
 *
 * The symbols of a piece are a linked list over its positions: a symbol is named by the position where it begins. A
 * binary heap holds each symbol that could merge with the one after it, once; slot[] finds it there, so that a pair
 * whose neighbour changed is moved or taken out at once and the heap never holds what is no longer true. That bounds it to
 * one entry per position, and a piece of n bytes takes O(n log n) steps.
 */
#include "tokenizer_model.h"
#include "vocabulary.h"

/* Six words for each position of a piece. */
struct pairs {
    const struct col_tokenizer_view *view;
    uint32_t *id;       /* token of the symbol */
    uint32_t *next;     /* the symbol after it, or COL_NONE */
    uint32_t *previous; /* the symbol before it, or COL_NONE */
    uint32_t *rank;     /* of the merge with the next one; counts while the symbol is in the heap */
    uint32_t *slot;     /* place in the heap, or COL_NONE */
    uint32_t *heap;     /* symbols, the next to merge first */
    uint32_t heap_count;
    uint32_t first;     /* symbol */
    uint32_t last;
};

static const struct col_merge *find_merge(const struct col_tokenizer_view *view, uint32_t left, uint32_t right)
{
    uint32_t mask = view->head->merge_slots - 1;
    for (uint32_t slot = col_merge_hash(left, right, view->head->merge_slots);; slot = (slot + 1) & mask) {
        const struct col_merge *merge = &view->merges[slot];
        if (merge->rank == COL_NO_RANK) {
            return NULL;
        }
        if (merge->left == left && merge->right == right) {
            return merge;
        }
    }
}

static bool before(const struct pairs *pairs, uint32_t a, uint32_t b)
{
    return pairs->rank[a] < pairs->rank[b] || (pairs->rank[a] == pairs->rank[b] && a < b);
}

static void place(struct pairs *pairs, uint32_t slot, uint32_t symbol)
{
    pairs->heap[slot] = symbol;
    pairs->slot[symbol] = slot;
}

static void sift_up(struct pairs *pairs, uint32_t slot)
{
    uint32_t symbol = pairs->heap[slot];
    while (slot > 0 && before(pairs, symbol, pairs->heap[(slot - 1) / 2])) {
        place(pairs, slot, pairs->heap[(slot - 1) / 2]);
        slot = (slot - 1) / 2;
    }
    place(pairs, slot, symbol);
}

static void sift_down(struct pairs *pairs, uint32_t slot)
{
    uint32_t symbol = pairs->heap[slot];
    while (slot < pairs->heap_count / 2) { /* while it has a child */
        uint32_t child = 2 * slot + 1;
        if (child + 1 < pairs->heap_count && before(pairs, pairs->heap[child + 1], pairs->heap[child])) {
            child++;
        }
        if (!before(pairs, pairs->heap[child], symbol)) {
            break;
        }
        place(pairs, slot, pairs->heap[child]);
        slot = child;
    }
    place(pairs, slot, symbol);
}

static void heap_remove(struct pairs *pairs, uint32_t symbol)
{
    uint32_t slot = pairs->slot[symbol];
    if (slot == COL_NONE) {
        return;
    }
    pairs->slot[symbol] = COL_NONE;
    uint32_t last = pairs->heap[--pairs->heap_count];
    if (last != symbol) {
        place(pairs, slot, last);
        sift_up(pairs, slot);
        sift_down(pairs, pairs->slot[last]);
    }
}

/* Looks up anew what the symbol and the one after it merge to. */
static void update_pair(struct pairs *pairs, uint32_t symbol)
{
    heap_remove(pairs, symbol);
    if (pairs->next[symbol] == COL_NONE) {
        return;
    }
    const struct col_merge *merge = find_merge(pairs->view, pairs->id[symbol], pairs->id[pairs->next[symbol]]);
    if (merge != NULL) {
        pairs->rank[symbol] = merge->rank;
        place(pairs, pairs->heap_count, symbol);
        sift_up(pairs, pairs->heap_count++);
    }
}

static void merge_first(struct pairs *pairs)
{
    uint32_t symbol = pairs->heap[0];
    uint32_t gone = pairs->next[symbol];
    const struct col_merge *merge = find_merge(pairs->view, pairs->id[symbol], pairs->id[gone]);
    heap_remove(pairs, gone);
    pairs->id[symbol] = merge->merged;
    pairs->next[symbol] = pairs->next[gone];
    if (pairs->next[gone] != COL_NONE) {
        pairs->previous[pairs->next[gone]] = symbol;
    }
    update_pair(pairs, symbol);
    if (pairs->previous[symbol] != COL_NONE) {
        update_pair(pairs, pairs->previous[symbol]);
    }
}

static void add_symbol(struct pairs *pairs, uint32_t position, uint32_t id)
{
    pairs->id[position] = id;
    pairs->next[position] = COL_NONE;
    pairs->previous[position] = pairs->last;
    pairs->slot[position] = COL_NONE;
    if (pairs->last == COL_NONE) {
        pairs->first = position;
    } else {
        pairs->next[pairs->last] = position;
    }
    pairs->last = position;
}

/* A character without a token: its bytes, or the unknown token, or nothing. */
static void add_unknown(struct pairs *pairs, uint32_t position, const uint8_t *bytes, uint32_t count)
{
    const struct col_tokenizer *head = pairs->view->head;
    if (pairs->view->byte_ids != NULL) {
        for (uint32_t i = 0; i < count; i++) {
            add_symbol(pairs, position + i, pairs->view->byte_ids[bytes[i]]);
        }
    } else if (head->unknown != COL_NO_TOKEN) {
        bool fuse = (head->flags & COL_TOKENIZER_FUSE) != 0 && pairs->last != COL_NONE;
        if (!fuse || pairs->id[pairs->last] != head->unknown) {
            add_symbol(pairs, position, head->unknown);
        }
    }
}

static void add_characters(struct pairs *pairs, const struct col_piece *piece)
{
    const struct col_tokenizer_view *view = piece->view;
    for (uint32_t at = 0; at < piece->lead + piece->bytes;) {
        const uint8_t *bytes;
        uint32_t count;
        uint32_t length = col_piece_character(piece, at, &bytes, &count);
        uint32_t id = col_find_token(view, view->sorted, view->head->sorted_count, bytes, count);
        if (id != COL_NO_TOKEN) {
            add_symbol(pairs, at, id);
        } else {
            add_unknown(pairs, at, bytes, count);
        }
        at += length;
    }
}

void col_encode_pairs(const struct col_piece *piece, uint32_t *scratch, struct col_id_list *list)
{
    const struct col_tokenizer_view *view = piece->view;
    size_t positions = (size_t)piece->lead + piece->bytes;
    struct pairs pairs = {
        .view = view,
        .id = scratch,
        .next = scratch + positions,
        .previous = scratch + 2 * positions,
        .rank = scratch + 3 * positions,
        .slot = scratch + 4 * positions,
        .heap = scratch + 5 * positions,
        .first = COL_NONE,
        .last = COL_NONE,
    };
    if (view->head->kind == COL_TOKENIZER_BYTE_BPE) {
        for (uint32_t i = 0; i < piece->bytes; i++) {
            add_symbol(&pairs, i, view->byte_ids[piece->text[i]]);
        }
    } else {
        add_characters(&pairs, piece);
    }
    for (uint32_t symbol = pairs.first; symbol != COL_NONE; symbol = pairs.next[symbol]) {
        update_pair(&pairs, symbol);
    }
    while (pairs.heap_count > 0) {
        merge_first(&pairs);
    }
    for (uint32_t symbol = pairs.first; symbol != COL_NONE; symbol = pairs.next[symbol]) {
        col_put_id(list, pairs.id[symbol]);
    }
}
