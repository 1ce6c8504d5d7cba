/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h: the engine's state, private to firmware/engine. It lies at the arena's start; everything that it points
 * to lies behind it in the arena, or in the image. */
#ifndef COLIBRI_ENGINE_H
#define COLIBRI_ENGINE_H

#include "arena.h"
#include "colibri.h"
#include "dispatch.h"
#include "image_view.h"
#include "sampler.h"
#include "stream.h"
#include "tensor.h"

/* KV cache of one layer: [kv_heads][context][head_dim], binary32 or binary16. */
struct col_kv {
    void *key;
    void *value;
};

/* One step's working memory. Rows of activations are padded to a multiple of 32 floats, because quantisation works in
 * blocks of 32 and matrix products write tiles of 8 rows. */
struct col_buffers {
    uint32_t hidden_stride; /* floats from one token's row to the next, in x, norm, mixed, gathered, delta */
    uint32_t query_stride;  /* query, attention */
    uint32_t kv_stride;     /* key, value */
    uint32_t width_stride;  /* gate, up */
    uint32_t router_stride; /* router_logits */
    float *x;               /* [batch][hidden]: the residual stream */
    float *norm;            /* [batch][hidden]: input of attention or experts */
    float *mixed;           /* [batch][hidden]: weighted sum of the experts */
    float *gathered;        /* [batch][hidden]: the tokens of one expert */
    float *delta;           /* [batch][hidden]: what attention or one expert adds */
    float *query;           /* [batch][heads * head_dim] */
    float *attention;       /* [batch][heads * head_dim] */
    float *key;             /* [batch][kv_heads * head_dim] */
    float *value;           /* [batch][kv_heads * head_dim] */
    float *scores;          /* [context] */
    float *gate;            /* [batch][expert_width] */
    float *up;              /* [batch][expert_width] */
    float *router_logits;   /* [batch][experts] */
    int8_t *q;              /* [batch][widest row]: quantised inputs */
    float *scale;           /* [batch][widest row / 32] */
    float *logits;          /* [vocab, padded to 8] */
};

struct colibri {
    struct col_image image;
    struct col_compute compute; /* kernels and poll hook */
    struct colibri_hooks hooks;
    uint64_t arena_bytes;
    uint64_t arena_peak_bytes;
    uint32_t context;
    uint32_t batch;
    uint32_t max_text_bytes;
    uint32_t kv_format;         /* enum colibri_kv_format, not 0 */
    uint32_t position;          /* positions computed since the last reset */
    bool has_logits;            /* buffers.logits are those of the last position */
    struct col_buffers buffers;
    struct col_kv *kv;          /* [layers] */
    struct col_dispatch dispatch;
    struct col_sampler sampler;
    struct col_stream stream;
    uint32_t *history;          /* [context]: the tokens of the computed positions */
    void *scratch;              /* tokenizer and self-test, never at the same time */
    uint64_t tokens;            /* statistics from here on */
    uint64_t head_ticks;
    uint64_t sampler_ticks;
    uint64_t tokenizer_ticks;
    struct colibri_layer_stats *layer_stats;   /* [layers] */
    struct colibri_expert_stats *expert_stats; /* [layers][widest.experts] */
};

static inline uint64_t col_now(const struct colibri *engine)
{
    return engine->hooks.now == NULL ? 0u : engine->hooks.now(engine->hooks.user);
}

/* Claims everything that `engine` needs, itself first; image, context, batch, max_text_bytes and kv_format are set.
 * With a measuring arena, pointers become NULL. */
void col_layout(struct colibri *engine, struct col_arena *arena);

/* The rooms of one layer, in the order in which a token passes them. All work on the first `n` rows of the buffers, the
 * tokens of positions engine->position and following. */
COLIBRI_MUST_CHECK colibri_status col_attention(struct colibri *engine, uint32_t layer, uint32_t n);
COLIBRI_MUST_CHECK colibri_status col_route(struct colibri *engine, uint32_t layer, uint32_t n);
COLIBRI_MUST_CHECK colibri_status col_experts(struct colibri *engine, uint32_t layer, uint32_t n);

/* y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i] for n rows. COLIBRI_E_NUMERIC when a mean overflows. */
COLIBRI_MUST_CHECK colibri_status col_rms_norm(const struct colibri *engine, const struct col_tensor *weight, float eps,
                                               const float *x, uint32_t stride, uint32_t n, float *y);

/* Where an expert's blob lies in memory. */
COLIBRI_MUST_CHECK colibri_status col_store_expert(const struct colibri *engine, uint32_t layer, uint32_t expert,
                                                   const uint8_t **blob);

#endif
