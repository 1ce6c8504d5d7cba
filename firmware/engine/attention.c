/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.c: grouped-query attention with rotary embedding and a KV cache, and multi-head latent attention
 * (DeepSeek-AI, 2024) as a form of it.
 *
 * Rotary embedding after Su et al. (2021) in the half-split form: dimension i of the first half of the rotating part
 * turns together with dimension i of the second half; the packer sorts the rows of checkpoints that pair neighbours. The
 * angles come from the image's table; there is no sine on the device.
 *
 * Latent attention caches one vector for all heads: rotating dimensions, then the latent. A head's query is brought into
 * the latent space (`absorb`), scored against the cached vectors, and the attended latent is brought back (`expand`), so
 * that keys and values of single heads never exist. */
#include "engine.h"
#include "numeric.h"

/* Turns `heads` heads of `dim` in place, for one token. */
static void rotate(float *x, uint32_t heads, uint32_t dim, uint32_t half, const float *cosine, const float *sine)
{
    for (uint32_t h = 0; h < heads; h++, x += dim) {
        for (uint32_t i = 0; i < half; i++) {
            const float a = x[i];
            const float b = x[half + i];
            x[i] = a * cosine[i] - b * sine[i];
            x[half + i] = b * cosine[i] + a * sine[i];
        }
    }
}

static void clip(float *x, uint32_t n, float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] > limit ? limit : (x[i] < -limit ? -limit : x[i]);
    }
}

/* Norms of one token's query and key, as the layer has them. */
static colibri_status normalise(const struct colibri *engine, const struct col_attention *a, float *query, float *key)
{
    colibri_status status = COLIBRI_OK;
    switch (a->qk_norm) {
    case COL_QK_NORM_HEAD:
        status = col_rms_norm(engine, &a->query_norm, a->qk_norm_eps, query, a->query_dim, a->heads, query);
        return status != COLIBRI_OK
                   ? status
                   : col_rms_norm(engine, &a->key_norm, a->qk_norm_eps, key, a->head_dim, a->kv_heads, key);
    case COL_QK_NORM_FULL:
        status = col_rms_norm(engine, &a->query_norm, a->qk_norm_eps, query, 0, 1, query);
        return status != COLIBRI_OK ? status : col_rms_norm(engine, &a->key_norm, a->qk_norm_eps, key, 0, 1, key);
    case COL_QK_NORM_LATENT:
        key += a->rotary_dim;
        return col_rms_norm(engine, &a->key_norm, a->qk_norm_eps, key, 0, 1, key);
    default: return COLIBRI_OK;
    }
}

/* Queries, keys and values of n tokens, from the residual stream to the buffers. */
static colibri_status project(struct colibri *engine, const struct col_attention *a, uint32_t n)
{
    struct col_buffers *b = &engine->buffers;
    const uint8_t *resident = engine->image.resident;
    const struct col_compute *compute = &engine->compute;
    colibri_status status = col_rms_norm(engine, &a->norm, a->norm_eps, b->x, b->hidden_stride, n, b->norm);
    if (status != COLIBRI_OK) {
        return status;
    }
    struct col_activation input = {.x = b->norm, .stride = b->hidden_stride, .cols = engine->image.model->hidden,
                                   .n = n, .q = b->q, .scale = b->scale};
    status = col_linear_apply(compute, &a->key, resident, &input, b->key, b->kv_stride);
    if (status == COLIBRI_OK && a->value.weight.format != 0u) {
        status = col_linear_apply(compute, &a->value, resident, &input, b->value, b->kv_stride);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    if (a->query_down.weight.format == 0u) {
        return col_linear_apply(compute, &a->query, resident, &input, b->query, b->query_stride);
    }
    status = col_linear_apply(compute, &a->query_down, resident, &input, b->query_rank, b->rank_stride);
    if (status == COLIBRI_OK) {
        status = col_rms_norm(engine, &a->query_down_norm, a->qk_norm_eps, b->query_rank, b->rank_stride, n, b->query_rank);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    struct col_activation rank = {.x = b->query_rank, .stride = b->rank_stride, .cols = a->query_down.weight.rows,
                                  .n = n, .q = b->q, .scale = b->scale};
    return col_linear_apply(compute, &a->query, resident, &rank, b->query, b->query_stride);
}

/* The cached rows of key/value head `head`: keys, or values where the layer has their own. */
static struct col_kv_rows rows_of(const struct colibri *engine, uint8_t *rows, uint32_t head, uint32_t dim)
{
    const uint64_t bytes = (uint64_t)engine->context * col_kv_row_bytes(engine->kv_format, dim);
    return (struct col_kv_rows){.row = rows + head * bytes, .dim = dim, .format = engine->kv_format,
                                .scratch = engine->buffers.head_in};
}

/* Norms, rotation and cache of token `t` of the batch. */
static colibri_status remember(struct colibri *engine, uint32_t layer, uint32_t t)
{
    const struct col_attention *a = &engine->image.layer[layer].attention;
    const struct col_kv *kv = &engine->kv[layer];
    const struct col_kernels *k = engine->compute.kernels;
    struct col_buffers *b = &engine->buffers;
    const uint32_t position = engine->position + t;
    const uint32_t half = a->rotary_dim / 2u;
    const float *cosine = engine->image.cosines + (uint64_t)position * half;
    const float *sine = engine->image.sines + (uint64_t)position * half;
    float *query = b->query + (uint64_t)t * b->query_stride;
    float *key = b->key + (uint64_t)t * b->kv_stride;
    float *value = b->value + (uint64_t)t * b->kv_stride;

    const colibri_status status = normalise(engine, a, query, key);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (a->clip > 0.0f) {
        clip(query, a->heads * a->query_dim, a->clip);
        clip(key, a->kv_heads * a->head_dim, a->clip);
        clip(value, kv->value == NULL ? 0u : a->kv_heads * a->value_dim, a->clip);
    }
    rotate(query, a->heads, a->query_dim, half, cosine, sine);
    rotate(key, a->kv_heads, a->head_dim, half, cosine, sine);
    for (uint32_t h = 0; h < a->kv_heads; h++) {
        const struct col_kv_rows keys = rows_of(engine, kv->key, h, a->head_dim);
        if (!col_kv_put(k, &keys, position, key + (uint64_t)h * a->head_dim)) {
            return COLIBRI_E_NUMERIC;
        }
        if (kv->value != NULL) {
            const struct col_kv_rows values = rows_of(engine, kv->value, h, a->value_dim);
            if (!col_kv_put(k, &values, position, value + (uint64_t)h * a->value_dim)) {
                return COLIBRI_E_NUMERIC;
            }
        }
    }
    return COLIBRI_OK;
}

/* One head of one token: out[value_dim] = sum over positions of softmax(scale * q . key) * value. A sink is one more
 * logit in the softmax, without a value. */
static colibri_status attend(struct colibri *engine, uint32_t layer, uint32_t head, uint32_t position, const float *q,
                             float *out)
{
    const struct col_attention *a = &engine->image.layer[layer].attention;
    const struct col_kv *kv = &engine->kv[layer];
    const struct col_kernels *k = engine->compute.kernels;
    const uint32_t kv_head = head / (a->heads / a->kv_heads);
    const struct col_kv_rows keys = rows_of(engine, kv->key, kv_head, a->head_dim);
    const bool latent = kv->value == NULL;
    const struct col_kv_rows values = latent ? keys : rows_of(engine, kv->value, kv_head, a->value_dim);
    const uint32_t first = a->window > 0u && position >= a->window ? position - a->window + 1u : 0u;
    const uint32_t count = position - first + 1u;
    float *scores = engine->buffers.scores;
    float max = 0.0f;
    for (uint32_t t = 0; t < count; t++) {
        scores[t] = col_kv_dot(k, &keys, first + t, q) * a->scale;
        max = t == 0u || scores[t] > max ? scores[t] : max;
    }
    if (!col_all_finite(scores, count)) {
        return COLIBRI_E_NUMERIC;
    }
    float sum = 0.0f;
    if (a->sinks.format != 0u) {
        const float sink = ((const float *)(const void *)(engine->image.resident + a->sinks.offset))[head];
        max = sink > max ? sink : max;
        sum = k->exp_sum(scores, count, max) + col_exp(sink - max);
    } else {
        sum = k->exp_sum(scores, count, max);
    }
    const float factor = 1.0f / sum;
    for (uint32_t i = 0; i < a->value_dim; i++) {
        out[i] = 0.0f;
    }
    for (uint32_t t = 0; t < count; t++) {
        col_kv_axpy(k, &values, first + t, latent ? a->rotary_dim : 0u, a->value_dim, scores[t] * factor, out);
    }
    return COLIBRI_OK;
}

/* y[rows of one head, padded to a tile] = the head's part of `tensor` times x[cols]; x is copied, because a product's
 * input is padded. */
static colibri_status head_product(struct colibri *engine, const struct col_tensor *tensor, uint32_t head,
                                   uint32_t rows, const float *x, float *y)
{
    struct col_buffers *b = &engine->buffers;
    const struct col_tensor part = {.rows = rows, .cols = tensor->cols, .format = tensor->format};
    const uint8_t *data = engine->image.resident + tensor->offset +
                          head * col_tensor_bytes(tensor->format, rows, tensor->cols);
    for (uint32_t i = 0; i < tensor->cols; i++) {
        b->head_in[i] = x[i];
    }
    struct col_activation input = {.x = b->head_in, .stride = col_round_up(tensor->cols, COL_BLOCK),
                                   .cols = tensor->cols, .n = 1, .q = b->q, .scale = b->scale};
    return col_matmul(&engine->compute, &part, data, &input, y, rows);
}

static colibri_status attend_latent(struct colibri *engine, uint32_t layer, uint32_t head, uint32_t position,
                                    const float *q, float *out)
{
    const struct col_attention *a = &engine->image.layer[layer].attention;
    struct col_buffers *b = &engine->buffers;
    for (uint32_t i = 0; i < a->rotary_dim; i++) {
        b->head_query[i] = q[i];
    }
    colibri_status status = head_product(engine, &a->absorb, head, a->value_dim, q + a->rotary_dim,
                                         b->head_query + a->rotary_dim);
    if (status == COLIBRI_OK) {
        status = attend(engine, layer, head, position, b->head_query, b->head_latent);
    }
    if (status == COLIBRI_OK) {
        status = head_product(engine, &a->expand, head, a->output_dim, b->head_latent, b->head_query);
    }
    for (uint32_t i = 0; i < a->output_dim && status == COLIBRI_OK; i++) {
        out[i] = b->head_query[i];
    }
    return status;
}

colibri_status col_attention(struct colibri *engine, uint32_t layer, uint32_t n)
{
    const struct col_attention *a = &engine->image.layer[layer].attention;
    const bool latent = a->absorb.format != 0u;
    struct col_buffers *b = &engine->buffers;
    colibri_status status = project(engine, a, n);
    for (uint32_t t = 0; t < n && status == COLIBRI_OK; t++) {
        status = remember(engine, layer, t);
    }
    for (uint32_t t = 0; t < n; t++) {
        const float *query = b->query + (uint64_t)t * b->query_stride;
        float *out = b->attention + (uint64_t)t * b->attended_stride;
        for (uint32_t h = 0; h < a->heads && status == COLIBRI_OK; h++, query += a->query_dim, out += a->output_dim) {
            if (engine->compute.poll != NULL && engine->compute.poll(engine->compute.user)) {
                return COLIBRI_E_CANCELLED;
            }
            status = (latent ? attend_latent : attend)(engine, layer, h, engine->position + t, query, out);
        }
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    struct col_activation input = {.x = b->attention, .stride = b->attended_stride, .cols = a->heads * a->output_dim,
                                   .n = n, .q = b->q, .scale = b->scale};
    status = col_linear_apply(&engine->compute, &a->output, engine->image.resident, &input, b->delta, b->hidden_stride);
    for (uint32_t t = 0; t < n && status == COLIBRI_OK; t++) {
        engine->compute.kernels->axpy_f32(1.0f, b->delta + (uint64_t)t * b->hidden_stride,
                                          b->x + (uint64_t)t * b->hidden_stride, engine->image.model->hidden);
    }
    return status;
}
