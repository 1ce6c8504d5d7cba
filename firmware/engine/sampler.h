/* SPDX-License-Identifier: Apache-2.0
 *
 * sampler.h: from logits to a token id, the same on every target. */
#ifndef COLIBRI_SAMPLER_H
#define COLIBRI_SAMPLER_H

#include "arena.h"
#include "colibri.h"
#include "kernels/kernels.h"

struct col_candidate {
    float logit;
    uint32_t id;
};

struct col_sampler {
    struct col_candidate *candidate; /* [vocab] */
    float *probability;              /* [vocab] */
    uint32_t *seen;                  /* [vocab / 32, rounded up]: one bit per token already in the context */
    uint64_t state;                  /* of the generator */
};

void col_sampler_layout(struct col_sampler *sampler, struct col_arena *arena, uint32_t vocab);

/* COLIBRI_E_ARGUMENT when a parameter is not a number or out of its documented range. */
COLIBRI_MUST_CHECK colibri_status col_sampling_check(const struct colibri_sampling *sampling);

/* Starts the generator; the same seed gives the same draws. */
void col_sampler_seed(struct col_sampler *sampler, uint64_t seed);

/* Chooses a token of `vocab` finite logits. `history` are the `count` tokens of the context, for the repetition
 * penalty. Draws from the generator only when the temperature is not 0. */
uint32_t col_sample(struct col_sampler *sampler, const struct colibri_sampling *sampling,
                    const struct col_kernels *kernels, const float *logits, uint32_t vocab, const uint32_t *history,
                    uint32_t count);

#endif
