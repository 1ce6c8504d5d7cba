/* SPDX-License-Identifier: Apache-2.0
 *
 * dispatch.h: from the router's choices to the work of each chosen expert.
 *
 * A context exists only for an expert that some token chose; experts that nobody chose cost nothing. Contexts come in
 * ascending order of their expert, which fixes the order in which a token's experts are summed. */
#ifndef COLIBRI_DISPATCH_H
#define COLIBRI_DISPATCH_H

#include <stdint.h>

struct col_context {
    uint32_t expert;
    uint32_t first; /* index of its first assignment in `token` and `weight` */
    uint32_t count; /* tokens that chose it, ascending */
};

struct col_dispatch {
    uint32_t context_count;
    struct col_context *context; /* [min(experts, batch * top_k)] */
    uint32_t *token;             /* [batch * top_k] */
    float *weight;               /* [batch * top_k] */
    uint32_t *counter;           /* [experts]: working memory */
    uint32_t *chosen;            /* [batch][top_k], filled by the router, experts ascending in each row */
    float *chosen_weight;        /* [batch][top_k] */
    uint8_t *open;               /* [experts]: the router's open groups, working memory */
};

/* Sorts the choices of `n` tokens, top_k each, by expert. */
void col_dispatch_build(struct col_dispatch *dispatch, uint32_t n, uint32_t top_k, uint32_t experts);

#endif
