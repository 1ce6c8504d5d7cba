/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.c: RMSNorm (Zhang and Sennrich, 2019): x / sqrt(mean(x^2) + eps) * weight. */
#include "engine.h"
#include "numeric.h"

colibri_status col_rms_norm(const struct colibri *engine, const struct col_tensor *weight, float eps, const float *x,
                            uint32_t stride, uint32_t n, float *y)
{
    const float *w = (const float *)(const void *)(engine->image.resident + weight->offset);
    const uint32_t width = weight->cols;
    for (uint32_t t = 0; t < n; t++, x += stride, y += stride) {
        const float mean = engine->compute.kernels->dot_f32(x, x, width) / (float)width;
        if (!col_is_finite(mean)) {
            return COLIBRI_E_NUMERIC; /* 1 / sqrt(infinity) would hide it */
        }
        const float factor = 1.0f / col_sqrt(mean + eps);
        for (uint32_t i = 0; i < width; i++) {
            y[i] = (x[i] * factor) * w[i];
        }
    }
    return COLIBRI_OK;
}
