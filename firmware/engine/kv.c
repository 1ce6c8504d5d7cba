/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.c: see kv.h. */
#include "kv.h"

#include "colibri.h"
#include "numeric.h"
#include "tensor.h"

uint32_t col_kv_row_bytes(uint32_t format, uint32_t dim)
{
    switch (format) {
    case COLIBRI_KV_F16: return dim * (uint32_t)sizeof(uint16_t);
    case COLIBRI_KV_Q8: return col_round_up(dim, COL_BLOCK) / COL_BLOCK * (uint32_t)(sizeof(float) + COL_BLOCK);
    default: return dim * (uint32_t)sizeof(float);
    }
}

static uint8_t *row_at(const struct col_kv_rows *rows, uint32_t t)
{
    return rows->row + (uint64_t)t * col_kv_row_bytes(rows->format, rows->dim);
}

bool col_kv_put(const struct col_kernels *kernels, const struct col_kv_rows *rows, uint32_t t, const float *x)
{
    void *row = row_at(rows, t);
    switch (rows->format) {
    case COLIBRI_KV_F16: {
        uint16_t *out = row;
        kernels->narrow_f16(x, out, rows->dim);
        for (uint32_t i = 0; i < rows->dim; i++) {
            if ((out[i] & 0x7c00u) == 0x7c00u) {
                return false;
            }
        }
        return true;
    }
    case COLIBRI_KV_Q8: {
        const uint32_t blocks = col_round_up(rows->dim, COL_BLOCK) / COL_BLOCK;
        for (uint32_t i = 0; i < blocks * COL_BLOCK; i++) {
            rows->scratch[i] = i < rows->dim ? x[i] : 0.0f;
        }
        float *scale = row;
        return kernels->quantize(rows->scratch, blocks, (int8_t *)(scale + blocks), scale);
    }
    default: {
        float *out = row;
        for (uint32_t i = 0; i < rows->dim; i++) {
            out[i] = x[i];
        }
        return true;
    }
    }
}

/* Row `t` as floats: in place, or widened into the scratch. */
static const float *row_floats(const struct col_kv_rows *rows, uint32_t t)
{
    const float *scale = (const float *)(const void *)row_at(rows, t);
    if (rows->format == COLIBRI_KV_F32) {
        return scale;
    }
    const int8_t *q = (const int8_t *)(scale + col_round_up(rows->dim, COL_BLOCK) / COL_BLOCK);
    for (uint32_t i = 0; i < rows->dim; i++) {
        rows->scratch[i] = (float)q[i] * scale[i / COL_BLOCK];
    }
    return rows->scratch;
}

float col_kv_dot(const struct col_kernels *kernels, const struct col_kv_rows *rows, uint32_t t, const float *x)
{
    if (rows->format == COLIBRI_KV_F16) {
        return kernels->dot_f16(x, (const uint16_t *)(const void *)row_at(rows, t), rows->dim);
    }
    return kernels->dot_f32(x, row_floats(rows, t), rows->dim);
}

void col_kv_axpy(const struct col_kernels *kernels, const struct col_kv_rows *rows, uint32_t t, uint32_t first,
                 uint32_t n, float p, float *y)
{
    if (rows->format == COLIBRI_KV_F16) {
        kernels->axpy_f16(p, (const uint16_t *)(const void *)row_at(rows, t) + first, y, n);
    } else {
        kernels->axpy_f32(p, row_floats(rows, t) + first, y, n);
    }
}
