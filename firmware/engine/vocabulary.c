/* SPDX-License-Identifier: Apache-2.0
 *
 * vocabulary.c: see vocabulary.h.
 */
#include "vocabulary.h"

void col_search_begin(struct col_search *search, const struct col_tokenizer_view *view, const uint32_t *ids,
                      uint32_t count)
{
    *search = (struct col_search){.view = view, .ids = ids, .low = 0, .high = count};
}

/* Byte number `taken` of the token's text, plus 1; 0 where the text has ended. */
static uint32_t letter(const struct col_search *search, uint32_t index)
{
    const uint32_t *offset = &search->view->token_offsets[search->ids[index]];
    return offset[1] - offset[0] == search->taken ? 0 : search->view->token_text[offset[0] + search->taken] + 1u;
}

/* The first of the tokens left whose letter is not below `wanted`. */
static uint32_t first_from(const struct col_search *search, uint32_t wanted)
{
    uint32_t low = search->low;
    uint32_t high = search->high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (letter(search, middle) < wanted) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t col_search_next(struct col_search *search, uint8_t byte)
{
    uint32_t low = first_from(search, byte + 1u);
    search->high = first_from(search, byte + 2u);
    search->low = low;
    search->taken++;
    return search->low < search->high && letter(search, search->low) == 0 ? search->ids[search->low] : COL_NO_TOKEN;
}

uint32_t col_find_token(const struct col_tokenizer_view *view, const uint32_t *ids, uint32_t count, const uint8_t *text,
                        size_t bytes)
{
    struct col_search search;
    uint32_t found = COL_NO_TOKEN;
    col_search_begin(&search, view, ids, count);
    for (size_t i = 0; i < bytes && search.low < search.high; i++) {
        found = col_search_next(&search, text[i]);
    }
    return search.low < search.high ? found : COL_NO_TOKEN;
}

uint32_t col_longest_token(const struct col_tokenizer_view *view, const uint32_t *ids, uint32_t count,
                           const uint8_t *text, size_t bytes, size_t *length)
{
    struct col_search search;
    uint32_t longest = COL_NO_TOKEN;
    *length = 0;
    col_search_begin(&search, view, ids, count);
    for (size_t i = 0; i < bytes && search.low < search.high; i++) {
        uint32_t found = col_search_next(&search, text[i]);
        if (found != COL_NO_TOKEN) {
            longest = found;
            *length = i + 1;
        }
    }
    return longest;
}
