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
#include "kv.h"
#include "sampler.h"
#include "store.h"
#include "stream.h"
#include "tensor.h"

/* One step's working memory. Rows of activations are padded to a multiple of 32 floats, because quantisation works in
 * blocks of 32 and matrix products write tiles of 8 rows. */
struct col_buffers {
    uint32_t hidden_stride;   /* floats from one token's row to the next, in x, norm, mixed, gathered, delta */
    uint32_t rank_stride;     /* query_rank */
    uint32_t query_stride;    /* query */
    uint32_t attended_stride; /* attention */
    uint32_t kv_stride;       /* key, value */
    uint32_t width_stride;    /* gate, up */
    uint32_t router_stride;   /* router_logits */
    float *x;                 /* [batch][hidden]: the residual stream */
    float *norm;              /* [batch][hidden]: input of attention or experts */
    float *mixed;             /* [batch][hidden]: weighted sum of the experts */
    float *gathered;          /* [batch][hidden]: the tokens of one expert */
    float *delta;             /* [batch][hidden]: what attention or one expert adds */
    float *query_rank;        /* [batch][rank]: the low-rank query */
    float *query;             /* [batch][heads * query_dim] */
    float *attention;         /* [batch][heads * output_dim] */
    float *key;               /* [batch][kv_heads * head_dim] */
    float *value;             /* [batch][kv_heads * value_dim] */
    float *head_in;           /* [one head]: copied, padded input of a product per head, or a cache row as floats */
    float *head_query;        /* [one head]: a query in the latent space */
    float *head_latent;       /* [one head]: an attended latent */
    float *scores;            /* [context] */
    float *gate;              /* [batch][width] */
    float *up;                /* [batch][width] */
    float *shared_gate;       /* [batch][8]: the gate of the shared block, one number and a tile's padding */
    float *router_logits;     /* [batch][experts] */
    float *router_choice;     /* [experts]: what one token's choice is made by */
    int8_t *q;                /* [batch][widest row]: quantised inputs */
    float *scale;             /* [batch][widest row / 32] */
    float *logits;            /* [vocab, padded to 8] */
};

struct colibri {
    struct col_image image;
    struct col_compute compute; /* kernels and poll hook */
    struct colibri_hooks hooks;
    uint64_t arena_bytes;
    uint32_t context;
    uint32_t batch;
    uint32_t max_text_bytes;
    uint32_t kv_format;         /* enum colibri_kv_format, not 0 */
    uint32_t prompt_tokens;     /* length of the whole prompt, for dynamic expert maps */
    uint32_t position;          /* positions computed since the last reset */
    bool has_logits;            /* buffers.logits are those of the last position */
    struct col_buffers buffers;
    struct col_kv *kv;          /* [layers] */
    struct col_dispatch dispatch;
    struct col_store store;
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
 * tokens of positions engine->position and following, whose ids stand in engine->history. */
COLIBRI_MUST_CHECK colibri_status col_attention(struct colibri *engine, uint32_t layer, uint32_t n);
COLIBRI_MUST_CHECK colibri_status col_route(struct colibri *engine, uint32_t layer, uint32_t n);
COLIBRI_MUST_CHECK colibri_status col_experts(struct colibri *engine, uint32_t layer, uint32_t n);

/* y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i] for n rows; y may be x. COLIBRI_E_NUMERIC when a mean overflows. */
COLIBRI_MUST_CHECK colibri_status col_rms_norm(const struct colibri *engine, const struct col_tensor *weight, float eps,
                                               const float *x, uint32_t stride, uint32_t n, float *y);

/* y = W x + bias for all tokens of `a`; `base` is where the offsets of the linear map's tensors count from. */
COLIBRI_MUST_CHECK colibri_status col_linear_apply(const struct col_compute *compute, const struct col_linear *linear,
                                                   const uint8_t *base, struct col_activation *a, float *y,
                                                   uint32_t y_stride);

/* The experts that the router would choose for the only token of the batch if `layer` saw the residual stream as it is
 * now: top_k ids, ascending, in dispatch.chosen. *count is 0 when there is nothing to be seen. Keeps x, norm, mixed and the
 * dispatcher's contexts. */
COLIBRI_MUST_CHECK colibri_status col_route_ahead(struct colibri *engine, uint32_t layer, uint32_t *count);

/* The store's part of the arena (store.slots is set), and its state at the start. */
void col_store_layout(struct colibri *engine, struct col_arena *arena);
void col_store_init(struct colibri *engine);

/* Between tokens: replacements that wait take effect. */
void col_store_replace(struct colibri *engine);

/* A step of `layer` begins; its experts are the dispatcher's contexts. */
COLIBRI_MUST_CHECK colibri_status col_store_begin(struct colibri *engine, uint32_t layer);

/* Where the blob of one of the step's experts lies in memory, as soon as it does; until the step's next expert is asked for.
 * Experts are asked for in the order of their contexts, and each is done before the next. */
COLIBRI_MUST_CHECK colibri_status col_store_expert(struct colibri *engine, uint32_t layer, uint32_t expert,
                                                   const uint8_t **blob);
COLIBRI_MUST_CHECK colibri_status col_store_done(struct colibri *engine);

/* Experts that the next step, which is of `layer`, may need. */
void col_store_guess(struct colibri *engine, uint32_t layer, const uint32_t *expert, uint32_t count);

/* Moves reads on, then asks the caller's poll hook; `user` is the engine. */
bool col_store_poll(void *user);

/* The end of a call of the engine, after success and failure alike. */
void col_store_end(struct colibri *engine);

static inline struct col_place *col_place_of(const struct colibri *engine, uint32_t layer, uint32_t expert)
{
    return &engine->store.place[engine->image.layer[layer].first_expert + expert];
}

#endif
