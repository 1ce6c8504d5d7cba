/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.h: sizes of tensors in the image, products with them, and rows of them. */
#ifndef COLIBRI_TENSOR_H
#define COLIBRI_TENSOR_H

#include "colibri.h"
#include "image.h"
#include "kernels/kernels.h"

/* x rounded up to a multiple of the power of two m. */
static inline uint32_t col_round_up(uint32_t x, uint32_t m)
{
    return (x + (m - 1u)) & ~(m - 1u);
}

static inline uint32_t col_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Exact bytes of a [rows][cols] tensor in `format`; 0 for a format that does not exist. Dimensions are at most
 * COL_MAX_VOCAB and COL_MAX_WIDTH, so the product fits. */
uint64_t col_tensor_bytes(uint32_t format, uint32_t rows, uint32_t cols);

/* False when a scale or a float of the tensor at `data` is NaN or infinite. */
bool col_tensor_finite(const struct col_tensor *tensor, const uint8_t *data);

/* Row `row` as `cols` floats: the embedding of a token. */
void col_tensor_row(const struct col_tensor *tensor, const uint8_t *data, uint32_t row, float *out);

/* Inputs of products: `n` rows of `cols` floats, `stride` apart, that several matrices may share. They are quantised
 * when the first quantised matrix meets them. Columns from `cols` to the next multiple of 32 must be writable: they
 * are set to zero. */
struct col_activation {
    float *x;
    uint32_t stride; /* floats; a multiple of COL_BLOCK */
    uint32_t cols;
    uint32_t n;
    bool quantised;
    int8_t *q;       /* room for [n][stride] */
    float *scale;    /* room for [n][stride / 32] */
};

struct col_compute {
    const struct col_kernels *kernels;
    bool (*poll)(void *user); /* may be NULL */
    void *user;
};

/* y[token][row] = W x for all tokens of `a`; y_stride >= rows rounded up to 8. COLIBRI_E_NUMERIC when an input is not
 * finite, COLIBRI_E_CANCELLED when the poll says so. */
COLIBRI_MUST_CHECK colibri_status col_matmul(const struct col_compute *compute, const struct col_tensor *tensor,
                                             const uint8_t *data, struct col_activation *a, float *y,
                                             uint32_t y_stride);

#endif
