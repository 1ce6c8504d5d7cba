/* SPDX-License-Identifier: Apache-2.0
 *
 * dispatch.c: a counting sort of (token, expert) pairs. See dispatch.h. */
#include "dispatch.h"

void col_dispatch_build(struct col_dispatch *dispatch, uint32_t n, uint32_t top_k, uint32_t experts)
{
    const uint32_t pairs = n * top_k;
    uint32_t *counter = dispatch->counter;
    for (uint32_t e = 0; e < experts; e++) {
        counter[e] = 0;
    }
    for (uint32_t i = 0; i < pairs; i++) {
        counter[dispatch->chosen[i]]++;
    }
    uint32_t first = 0;
    uint32_t contexts = 0;
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t count = counter[e];
        counter[e] = first;
        if (count > 0u) {
            dispatch->context[contexts++] = (struct col_context){.expert = e, .first = first, .count = count};
            first += count;
        }
    }
    dispatch->context_count = contexts;
    for (uint32_t i = 0; i < pairs; i++) {
        const uint32_t place = counter[dispatch->chosen[i]]++;
        dispatch->token[place] = i / top_k;
        dispatch->weight[place] = dispatch->chosen_weight[i];
    }
}
