/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c: matrix product with bias. */
#include "engine.h"

colibri_status col_linear_apply(const struct col_compute *compute, const struct col_linear *linear, const uint8_t *base,
                                struct col_activation *a, float *y, uint32_t y_stride)
{
    const colibri_status status =
        col_matmul(compute, &linear->weight, base + linear->weight.offset, a, y, y_stride);
    if (status != COLIBRI_OK || linear->bias.format == 0u) {
        return status;
    }
    const float *bias = (const float *)(const void *)(base + linear->bias.offset);
    for (uint32_t t = 0; t < a->n; t++) {
        compute->kernels->axpy_f32(1.0f, bias, y + (uint64_t)t * y_stride, linear->bias.cols);
    }
    return COLIBRI_OK;
}
