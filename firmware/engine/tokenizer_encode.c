/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_encode.c: byte-pair encoding. Within each piece of the pre-tokeniser the pair of neighbours with the
 * lowest rank merges, the leftmost of equals first, until no pair has a rank.
 *
 * The symbols of a piece are a linked list over its bytes: symbol i begins at byte i and is named by it. A binary heap
 * holds each symbol that could merge with the one after it, once; slot[] finds it there, so that a pair whose
 * neighbour changed is moved or taken out at once and the heap never holds what is no longer true. That bounds it to
 * one entry per byte, and a piece of n bytes takes O(n log n) steps.
 */
#include "tokenizer.h"

#define NONE 0xffffffffu

/* Six words for each byte of a piece; all arrays are [bytes of the piece]. */
struct piece {
    const struct col_tokenizer_view *view;
    uint32_t *id;       /* token of the symbol */
    uint32_t *next;     /* the symbol after it, or NONE */
    uint32_t *previous; /* the symbol before it, or NONE */
    uint32_t *rank;     /* of the merge with the next one; counts while the symbol is in the heap */
    uint32_t *slot;     /* place in the heap, or NONE */
    uint32_t *heap;     /* symbols, the next to merge first */
    uint32_t heap_count;
};
#define WORDS_PER_BYTE 6u

uint64_t col_tokenizer_scratch_bytes(uint32_t max_text_bytes)
{
    return (uint64_t)max_text_bytes * (WORDS_PER_BYTE * sizeof(uint32_t));
}

static const struct col_merge *find_merge(const struct col_tokenizer_view *view, uint32_t left, uint32_t right)
{
    uint32_t mask = view->merge_slots - 1;
    for (uint32_t slot = col_merge_hash(left, right, view->merge_slots);; slot = (slot + 1) & mask) {
        const struct col_merge *merge = &view->merges[slot];
        if (merge->rank == COL_NO_RANK) {
            return NULL;
        }
        if (merge->left == left && merge->right == right) {
            return merge;
        }
    }
}

static bool before(const struct piece *piece, uint32_t a, uint32_t b)
{
    return piece->rank[a] < piece->rank[b] || (piece->rank[a] == piece->rank[b] && a < b);
}

static void place(struct piece *piece, uint32_t slot, uint32_t symbol)
{
    piece->heap[slot] = symbol;
    piece->slot[symbol] = slot;
}

static void sift_up(struct piece *piece, uint32_t slot)
{
    uint32_t symbol = piece->heap[slot];
    while (slot > 0 && before(piece, symbol, piece->heap[(slot - 1) / 2])) {
        place(piece, slot, piece->heap[(slot - 1) / 2]);
        slot = (slot - 1) / 2;
    }
    place(piece, slot, symbol);
}

static void sift_down(struct piece *piece, uint32_t slot)
{
    uint32_t symbol = piece->heap[slot];
    while (slot < piece->heap_count / 2) { /* while it has a child */
        uint32_t child = 2 * slot + 1;
        if (child + 1 < piece->heap_count && before(piece, piece->heap[child + 1], piece->heap[child])) {
            child++;
        }
        if (!before(piece, piece->heap[child], symbol)) {
            break;
        }
        place(piece, slot, piece->heap[child]);
        slot = child;
    }
    place(piece, slot, symbol);
}

static void heap_remove(struct piece *piece, uint32_t symbol)
{
    uint32_t slot = piece->slot[symbol];
    if (slot == NONE) {
        return;
    }
    piece->slot[symbol] = NONE;
    uint32_t last = piece->heap[--piece->heap_count];
    if (last != symbol) {
        place(piece, slot, last);
        sift_up(piece, slot);
        sift_down(piece, piece->slot[last]);
    }
}

/* Looks up anew what the symbol and the one after it merge to. */
static void update_pair(struct piece *piece, uint32_t symbol)
{
    heap_remove(piece, symbol);
    if (piece->next[symbol] == NONE) {
        return;
    }
    const struct col_merge *merge = find_merge(piece->view, piece->id[symbol], piece->id[piece->next[symbol]]);
    if (merge != NULL) {
        piece->rank[symbol] = merge->rank;
        place(piece, piece->heap_count, symbol);
        sift_up(piece, piece->heap_count++);
    }
}

static void merge_first(struct piece *piece)
{
    uint32_t symbol = piece->heap[0];
    uint32_t gone = piece->next[symbol];
    const struct col_merge *merge = find_merge(piece->view, piece->id[symbol], piece->id[gone]);
    heap_remove(piece, gone);
    piece->id[symbol] = merge->merged;
    piece->next[symbol] = piece->next[gone];
    if (piece->next[gone] != NONE) {
        piece->previous[piece->next[gone]] = symbol;
    }
    update_pair(piece, symbol);
    if (piece->previous[symbol] != NONE) {
        update_pair(piece, piece->previous[symbol]);
    }
}

static void merge_piece(struct piece *piece, uint32_t *scratch, const uint8_t *text, uint32_t bytes)
{
    piece->id = scratch;
    piece->next = scratch + bytes;
    piece->previous = scratch + 2 * (size_t)bytes;
    piece->rank = scratch + 3 * (size_t)bytes;
    piece->slot = scratch + 4 * (size_t)bytes;
    piece->heap = scratch + 5 * (size_t)bytes;
    piece->heap_count = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        piece->id[i] = piece->view->byte_ids[text[i]];
        piece->next[i] = i + 1 < bytes ? i + 1 : NONE;
        piece->previous[i] = i > 0 ? i - 1 : NONE;
        piece->slot[i] = NONE;
    }
    for (uint32_t i = 0; i < bytes; i++) {
        update_pair(piece, i);
    }
    while (piece->heap_count > 0) {
        merge_first(piece);
    }
}

colibri_status col_tokenizer_encode(const struct col_tokenizer_view *view, void *scratch, uint32_t max_text_bytes,
                                    const char *text, size_t bytes, uint32_t *ids, size_t capacity, size_t *count)
{
    *count = 0;
    if (bytes > max_text_bytes) {
        return COLIBRI_E_TEXT_SIZE;
    }
    const uint8_t *at = (const uint8_t *)text;
    struct piece piece = {.view = view};
    for (size_t done = 0; done < bytes;) {
        size_t length = col_pretoken_gpt2(&view->classes, at + done, bytes - done);
        merge_piece(&piece, scratch, at + done, (uint32_t)length);
        for (uint32_t symbol = 0; symbol != NONE; symbol = piece.next[symbol]) {
            if (*count < capacity) {
                ids[*count] = piece.id[symbol];
            }
            ++*count;
        }
        done += length;
    }
    return *count <= capacity ? COLIBRI_OK : COLIBRI_E_BUFFER_SIZE;
}
