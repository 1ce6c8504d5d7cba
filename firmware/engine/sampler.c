/* SPDX-License-Identifier: Apache-2.0
 *
 * sampler.c: repetition penalty (Keskar et al., 2019), temperature, top-k, top-p (Holtzman et al., 2020), in this order.
 *
 * The draw comes from an integer generator, and every float sum has one order, so a seed gives the same tokens on every
 * target. Candidates are ordered by logit, ties by the lower id. */
#include "sampler.h"

#include "numeric.h"

#define LARGEST_LOGIT 3.0e38f

void col_sampler_layout(struct col_sampler *sampler, struct col_arena *arena, uint32_t vocab)
{
    sampler->candidate = col_arena_claim(arena, vocab, sizeof *sampler->candidate);
    sampler->probability = col_arena_claim(arena, vocab, sizeof *sampler->probability);
    sampler->seen = col_arena_claim(arena, vocab / 32u + 1u, sizeof *sampler->seen);
}

static bool in_range(float x, float low, float high)
{
    return col_is_finite(x) && x >= low && x <= high;
}

colibri_status col_sampling_check(const struct colibri_sampling *sampling)
{
    const bool ok = in_range(sampling->temperature, 0.0f, 100.0f) && in_range(sampling->top_p, 0.0f, 1.0f) &&
                    in_range(sampling->repetition_penalty, 0.0f, 100.0f);
    return ok ? COLIBRI_OK : COLIBRI_E_ARGUMENT;
}

void col_sampler_seed(struct col_sampler *sampler, uint64_t seed)
{
    sampler->state = seed;
}

/* SplitMix64 (Steele, Lea and Flood, 2014): COL_PRNG_SPLITMIX64 of the image. */
static uint64_t next_random(struct col_sampler *sampler)
{
    sampler->state += 0x9e3779b97f4a7c15u;
    uint64_t z = sampler->state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool before(const struct col_candidate *a, const struct col_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Heap of `count` candidates with the foremost at index 0: restores the order below `i`. */
static void sift_down(struct col_candidate *heap, uint32_t count, uint32_t i)
{
    for (;;) {
        uint32_t best = i;
        const uint32_t left = 2u * i + 1u;
        if (left < count && before(&heap[left], &heap[best])) {
            best = left;
        }
        if (left + 1u < count && before(&heap[left + 1u], &heap[best])) {
            best = left + 1u;
        }
        if (best == i) {
            return;
        }
        const struct col_candidate swap = heap[i];
        heap[i] = heap[best];
        heap[best] = swap;
        i = best;
    }
}

/* Divides positive logits of tokens already seen by the penalty and multiplies negative ones, once for each token. */
static void penalise(struct col_sampler *sampler, float penalty, uint32_t vocab, const uint32_t *history, uint32_t count)
{
    for (uint32_t i = 0; i < vocab / 32u + 1u; i++) {
        sampler->seen[i] = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = history[i];
        const uint32_t bit = 1u << (id % 32u);
        if ((sampler->seen[id / 32u] & bit) == 0u) {
            sampler->seen[id / 32u] |= bit;
            float *logit = &sampler->candidate[id].logit;
            *logit = *logit > 0.0f ? *logit / penalty : *logit * penalty;
            if (!col_is_finite(*logit)) { /* an absurd logit times an absurd penalty: still a number */
                *logit = *logit > 0.0f ? LARGEST_LOGIT : -LARGEST_LOGIT;
            }
        }
    }
}

static uint32_t foremost(const struct col_candidate *candidate, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (before(&candidate[i], &candidate[best])) {
            best = i;
        }
    }
    return best;
}

static void heapify(struct col_candidate *candidate, uint32_t count)
{
    for (uint32_t i = count / 2u; i-- > 0u;) {
        sift_down(candidate, count, i);
    }
}

/* From here on, a candidate's logit is relative to the foremost one's and its probability is exp(logit), not divided by
 * the sum.
 *
 * Moves the foremost candidates from the heap to the array's end, foremost last, until *kept are there or their
 * probabilities reach `mass`. Sets *kept to their number and returns their sum. */
static float take(struct col_candidate *heap, uint32_t count, uint32_t *kept, float mass)
{
    float sum = 0.0f;
    uint32_t taken = 0;
    while (taken < *kept && sum < mass) {
        const uint32_t last = count - taken - 1u;
        const struct col_candidate top = heap[0];
        heap[0] = heap[last];
        heap[last] = top;
        sift_down(heap, last, 0);
        sum += col_exp(top.logit);
        taken++;
    }
    *kept = taken;
    return sum;
}

/* The same on candidates that `take` has put before `end`: how many of them reach `mass`. */
static float keep(const struct col_candidate *end, uint32_t *kept, float mass)
{
    float sum = 0.0f;
    uint32_t within = 0;
    while (within < *kept && sum < mass) {
        within++;
        sum += col_exp((end - within)->logit);
    }
    *kept = within;
    return sum;
}

/* The first of the `kept` candidates before `end` at which the probabilities passed exceed `target`. */
static uint32_t draw_taken(const struct col_candidate *end, uint32_t kept, float target)
{
    float passed = 0.0f;
    for (uint32_t i = 1; i <= kept; i++) {
        passed += col_exp((end - i)->logit);
        if (passed > target) {
            return (end - i)->id;
        }
    }
    return (end - kept)->id;
}

/* Sum of all probabilities; leaves each in `probability`, candidates' order. */
static float sum_all(struct col_sampler *sampler, const struct col_kernels *kernels, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab; i++) {
        sampler->probability[i] = sampler->candidate[i].logit;
    }
    return kernels->exp_sum(sampler->probability, vocab, 0.0f);
}

/* Draws from all candidates, which are still in the order of their ids: nothing needs sorting. */
static uint32_t draw_any(struct col_sampler *sampler, const struct col_kernels *kernels, uint32_t vocab,
                         float draw)
{
    const float target = draw * sum_all(sampler, kernels, vocab);
    float passed = 0.0f;
    for (uint32_t i = 0; i < vocab; i++) {
        passed += sampler->probability[i];
        if (passed > target) {
            return sampler->candidate[i].id;
        }
    }
    return sampler->candidate[vocab - 1u].id;
}

uint32_t col_sample(struct col_sampler *sampler, const struct colibri_sampling *sampling,
                    const struct col_kernels *kernels, const float *logits, uint32_t vocab, const uint32_t *history,
                    uint32_t count)
{
    struct col_candidate *candidate = sampler->candidate;
    for (uint32_t i = 0; i < vocab; i++) {
        candidate[i] = (struct col_candidate){.logit = logits[i], .id = i};
    }
    if (sampling->repetition_penalty != 0.0f && sampling->repetition_penalty != 1.0f) {
        penalise(sampler, sampling->repetition_penalty, vocab, history, count);
    }
    const uint32_t best = foremost(candidate, vocab);
    if (sampling->temperature == 0.0f || sampling->top_k == 1u) {
        return candidate[best].id;
    }
    /* Relative to the foremost, so that no temperature makes an infinity minus an infinity. */
    const float top = candidate[best].logit;
    for (uint32_t i = 0; i < vocab; i++) {
        candidate[i].logit = (candidate[i].logit - top) / sampling->temperature;
    }
    const float draw = (float)(next_random(sampler) >> 40) * 0x1p-24f;
    const bool nucleus = sampling->top_p > 0.0f && sampling->top_p < 1.0f;
    const bool limited = sampling->top_k > 0u && sampling->top_k < vocab;
    if (!nucleus && !limited) {
        return draw_any(sampler, kernels, vocab, draw);
    }
    heapify(candidate, vocab);
    /* top-p refers to the probabilities that top-k left, so their sum comes first. */
    uint32_t kept = limited ? sampling->top_k : vocab;
    float sum = 0.0f;
    if (limited) {
        sum = take(candidate, vocab, &kept, (float)vocab + 1.0f);
    } else {
        sum = sum_all(sampler, kernels, vocab);
    }
    if (nucleus) {
        const float mass = sum * sampling->top_p;
        sum = limited ? keep(candidate + vocab, &kept, mass) : take(candidate, vocab, &kept, mass);
    }
    return draw_taken(candidate + vocab, kept, draw * sum);
}
