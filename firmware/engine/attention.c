/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.c: grouped-query attention with rotary embedding and a KV cache.
 *
 * Rotary embedding after Su et al. (2021) in the half-split form of the published checkpoints: dimension i of the first
 * half of the rotating part turns together with dimension i of the second half. Its angles come from the image's table;
 * there is no sine on the device. */
#include "engine.h"
#include "numeric.h"

/* Turns `heads` heads in place, for one token. */
static void rotate(float *x, uint32_t heads, uint32_t head_dim, uint32_t half, const float *cosine, const float *sine)
{
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            const float a = x[i];
            const float b = x[half + i];
            x[i] = a * cosine[i] - b * sine[i];
            x[half + i] = b * cosine[i] + a * sine[i];
        }
    }
}

/* Puts one token's keys or values, [kv_heads][head_dim], to its position in the cache. False when binary16 can't hold
 * one of them. */
static bool cache_put(const struct colibri *engine, const struct col_layer *l, void *cache, uint32_t position,
                      const float *x)
{
    for (uint32_t h = 0; h < l->kv_heads; h++, x += l->head_dim) {
        const uint64_t place = ((uint64_t)h * engine->context + position) * l->head_dim;
        if (engine->kv_format == COLIBRI_KV_F16) {
            uint16_t *out = (uint16_t *)cache + place;
            engine->compute.kernels->narrow_f16(x, out, l->head_dim);
            for (uint32_t i = 0; i < l->head_dim; i++) {
                if ((out[i] & 0x7c00u) == 0x7c00u) {
                    return false;
                }
            }
        } else {
            float *out = (float *)cache + place;
            for (uint32_t i = 0; i < l->head_dim; i++) {
                out[i] = x[i];
            }
        }
    }
    return true;
}

/* One head of one token: out = sum over positions of softmax(scale * q . key) * value. */
static colibri_status attend(const struct colibri *engine, const struct col_layer *l, const struct col_kv *kv,
                             uint32_t kv_head, uint32_t positions, const float *q, float *out)
{
    const struct col_kernels *k = engine->compute.kernels;
    const bool half = engine->kv_format == COLIBRI_KV_F16;
    const uint64_t first = (uint64_t)kv_head * engine->context * l->head_dim;
    float *scores = engine->buffers.scores;
    float max = 0.0f;
    for (uint32_t t = 0; t < positions; t++) {
        const uint64_t place = first + (uint64_t)t * l->head_dim;
        const float dot = half ? k->dot_f16(q, (const uint16_t *)kv->key + place, l->head_dim)
                               : k->dot_f32(q, (const float *)kv->key + place, l->head_dim);
        scores[t] = dot * l->attention_scale;
        max = t == 0u || scores[t] > max ? scores[t] : max;
    }
    if (!col_all_finite(scores, positions)) {
        return COLIBRI_E_NUMERIC;
    }
    const float factor = 1.0f / k->exp_sum(scores, positions, max);
    for (uint32_t i = 0; i < l->head_dim; i++) {
        out[i] = 0.0f;
    }
    for (uint32_t t = 0; t < positions; t++) {
        const uint64_t place = first + (uint64_t)t * l->head_dim;
        const float p = scores[t] * factor;
        if (half) {
            k->axpy_f16(p, (const uint16_t *)kv->value + place, out, l->head_dim);
        } else {
            k->axpy_f32(p, (const float *)kv->value + place, out, l->head_dim);
        }
    }
    return COLIBRI_OK;
}

static colibri_status project(struct colibri *engine, const struct col_layer *l, uint32_t n)
{
    struct col_buffers *b = &engine->buffers;
    const uint8_t *resident = engine->image.resident;
    colibri_status status = col_rms_norm(engine, &l->attention_norm, l->norm_eps, b->x, b->hidden_stride, n, b->norm);
    if (status != COLIBRI_OK) {
        return status;
    }
    struct col_activation input = {.x = b->norm, .stride = b->hidden_stride, .cols = engine->image.model->hidden,
                                   .n = n, .q = b->q, .scale = b->scale};
    status = col_matmul(&engine->compute, &l->query, resident + l->query.offset, &input, b->query, b->query_stride);
    if (status == COLIBRI_OK) {
        status = col_matmul(&engine->compute, &l->key, resident + l->key.offset, &input, b->key, b->kv_stride);
    }
    if (status == COLIBRI_OK) {
        status = col_matmul(&engine->compute, &l->value, resident + l->value.offset, &input, b->value, b->kv_stride);
    }
    return status;
}

colibri_status col_attention(struct colibri *engine, uint32_t layer, uint32_t n)
{
    const struct col_layer *l = &engine->image.layer[layer];
    const struct col_kv *kv = &engine->kv[layer];
    struct col_buffers *b = &engine->buffers;
    const uint32_t half = engine->image.model->rotary_dim / 2u;
    const uint32_t group = l->heads / l->kv_heads;

    colibri_status status = project(engine, l, n);
    if (status != COLIBRI_OK) {
        return status;
    }
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t position = engine->position + t;
        const float *cosine = engine->image.cosines + (uint64_t)position * half;
        const float *sine = engine->image.sines + (uint64_t)position * half;
        float *key = b->key + (uint64_t)t * b->kv_stride;
        rotate(b->query + (uint64_t)t * b->query_stride, l->heads, l->head_dim, half, cosine, sine);
        rotate(key, l->kv_heads, l->head_dim, half, cosine, sine);
        if (!cache_put(engine, l, kv->key, position, key) ||
            !cache_put(engine, l, kv->value, position, b->value + (uint64_t)t * b->kv_stride)) {
            return COLIBRI_E_NUMERIC;
        }
    }
    for (uint32_t t = 0; t < n; t++) {
        const float *query = b->query + (uint64_t)t * b->query_stride;
        float *out = b->attention + (uint64_t)t * b->query_stride;
        for (uint32_t h = 0; h < l->heads; h++) {
            if (engine->compute.poll != NULL && engine->compute.poll(engine->compute.user)) {
                return COLIBRI_E_CANCELLED;
            }
            status = attend(engine, l, kv, h / group, engine->position + t + 1u, query + (uint64_t)h * l->head_dim,
                            out + (uint64_t)h * l->head_dim);
            if (status != COLIBRI_OK) {
                return status;
            }
        }
    }
    struct col_activation input = {.x = b->attention, .stride = b->query_stride, .cols = l->heads * l->head_dim,
                                   .n = n, .q = b->q, .scale = b->scale};
    status = col_matmul(&engine->compute, &l->output, engine->image.resident + l->output.offset, &input, b->delta,
                        b->hidden_stride);
    if (status != COLIBRI_OK) {
        return status;
    }
    for (uint32_t t = 0; t < n; t++) {
        engine->compute.kernels->axpy_f32(1.0f, b->delta + (uint64_t)t * b->hidden_stride,
                                          b->x + (uint64_t)t * b->hidden_stride, engine->image.model->hidden);
    }
    return COLIBRI_OK;
}
