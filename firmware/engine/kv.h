/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.h: the cache of keys and values: rows of numbers in one of three formats.
 *
 * Of each layer: [kv_heads][context] rows of head_dim numbers for the keys, and of value_dim for the values; latent
 * attention has no values of its own. A row in COLIBRI_KV_Q8 is binary32 scales, one for each block of 32, then the int8
 * numbers of whole blocks. */
#ifndef COLIBRI_KV_H
#define COLIBRI_KV_H

#include "kernels/kernels.h"

struct col_kv {
    uint8_t *key;
    uint8_t *value; /* NULL: the values are a part of the keys */
};

/* Rows of one head. */
struct col_kv_rows {
    uint8_t *row;
    uint32_t dim;    /* numbers in a row */
    uint32_t format; /* enum colibri_kv_format */
    float *scratch;  /* [dim, padded to 32]: COLIBRI_KV_Q8 only */
};

/* Bytes of a row of `dim` numbers; a multiple of 2. */
uint32_t col_kv_row_bytes(uint32_t format, uint32_t dim);

/* Stores x[dim] as row `t`. False when the format can't hold it. */
bool col_kv_put(const struct col_kernels *kernels, const struct col_kv_rows *rows, uint32_t t, const float *x);

/* Dot product of x[dim] and row `t`. */
float col_kv_dot(const struct col_kernels *kernels, const struct col_kv_rows *rows, uint32_t t, const float *x);

/* y[i] += p * row[first + i] for i < n. */
void col_kv_axpy(const struct col_kernels *kernels, const struct col_kv_rows *rows, uint32_t t, uint32_t first,
                 uint32_t n, float p, float *y);

#endif
