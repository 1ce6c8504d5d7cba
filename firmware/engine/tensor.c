/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.c: the tile formats, seen from outside of the kernels. See tensor.h. */
#include "tensor.h"

#include "numeric.h"

/* Multiply-adds between two calls of the poll hook: short enough to keep up with a UART whose FIFO holds 16 bytes. */
#define POLL_MULTIPLY_ADDS 65536u

uint64_t col_tensor_bytes(uint32_t format, uint32_t rows, uint32_t cols)
{
    const uint64_t groups = (rows + (uint64_t)COL_TILE_ROWS - 1u) / COL_TILE_ROWS;
    const uint64_t blocks = (cols + (uint64_t)COL_BLOCK - 1u) / COL_BLOCK;
    switch (format) {
    case COL_F32_VECTOR: return rows == 1u ? cols * (uint64_t)sizeof(float) : 0u;
    case COL_F32: return groups * cols * COL_TILE_ROWS * sizeof(float);
    case COL_F16: return groups * cols * COL_TILE_ROWS * sizeof(uint16_t);
    case COL_Q8: return groups * blocks * sizeof(struct col_tile_q8);
    case COL_Q4: return groups * blocks * sizeof(struct col_tile_q4);
    default: return 0u;
    }
}

/* Both integer tiles are the scales of their rows and behind them the integers. */
_Static_assert(offsetof(struct col_tile_q8, scale) == 0 && offsetof(struct col_tile_q4, scale) == 0, "scales first");

static size_t tile_bytes(uint32_t format)
{
    return format == COL_Q8 ? sizeof(struct col_tile_q8) : sizeof(struct col_tile_q4);
}

static bool halves_finite(const uint16_t *half, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if ((half[i] & 0x7c00u) == 0x7c00u) {
            return false;
        }
    }
    return true;
}

static bool floats_finite(const float *x, uint64_t count)
{
    const uint32_t chunk = 1u << 20;
    for (; count > chunk; count -= chunk, x += chunk) {
        if (!col_all_finite(x, chunk)) {
            return false;
        }
    }
    return col_all_finite(x, (uint32_t)count);
}

bool col_tensor_finite(const struct col_tensor *tensor, const uint8_t *data)
{
    switch (tensor->format) {
    case COL_F32_VECTOR:
    case COL_F32: return floats_finite((const float *)(const void *)data, tensor->bytes / sizeof(float));
    case COL_F16: return halves_finite((const uint16_t *)(const void *)data, tensor->bytes / sizeof(uint16_t));
    case COL_Q8:
    case COL_Q4: {
        const size_t tile = tile_bytes(tensor->format);
        for (uint64_t at = 0; at < tensor->bytes; at += tile) {
            if (!halves_finite((const uint16_t *)(const void *)(data + at), COL_TILE_ROWS)) {
                return false;
            }
        }
        return true;
    }
    default: return false;
    }
}

void col_tensor_row(const struct col_tensor *tensor, const uint8_t *data, uint32_t row, float *out)
{
    const uint32_t cols = tensor->cols;
    const uint32_t lane = row % COL_TILE_ROWS;
    const uint64_t group = row / COL_TILE_ROWS;
    const uint64_t blocks = (cols + COL_BLOCK - 1u) / COL_BLOCK;
    switch (tensor->format) {
    case COL_F32: {
        const float *w = (const float *)(const void *)data + group * cols * COL_TILE_ROWS + lane;
        for (uint32_t c = 0; c < cols; c++) {
            out[c] = w[(uint64_t)c * COL_TILE_ROWS];
        }
        break;
    }
    case COL_F16: {
        const uint16_t *w = (const uint16_t *)(const void *)data + group * cols * COL_TILE_ROWS + lane;
        for (uint32_t c = 0; c < cols; c++) {
            out[c] = col_half_to_float(w[(uint64_t)c * COL_TILE_ROWS]);
        }
        break;
    }
    case COL_Q8:
    case COL_Q4: {
        const uint8_t *tile = data + group * blocks * tile_bytes(tensor->format);
        for (uint32_t c = 0; c < cols; c++) {
            const struct col_tile_q8 *q8 = (const void *)tile;
            const struct col_tile_q4 *q4 = (const void *)tile;
            const uint32_t k = c % COL_BLOCK;
            int32_t value = 0;
            if (tensor->format == COL_Q8) {
                value = q8->q[k / 4u][4u * lane + k % 4u];
            } else {
                const uint32_t pair = q4->q[k / 8u][4u * lane + k % 4u];
                value = (int32_t)(pair >> (k & 4u) & 15u) - 8; /* columns 4 to 7 are the high nibbles */
            }
            out[c] = (float)value * col_half_to_float(q8->scale[lane]);
            tile += k == COL_BLOCK - 1u ? tile_bytes(tensor->format) : 0u;
        }
        break;
    }
    default: break; /* the image's check lets no other matrix format through */
    }
}

static colibri_status quantise(const struct col_compute *compute, struct col_activation *a)
{
    const uint32_t blocks = (a->cols + COL_BLOCK - 1u) / COL_BLOCK;
    for (uint32_t t = 0; t < a->n; t++) {
        float *x = a->x + (uint64_t)t * a->stride;
        for (uint32_t c = a->cols; c < blocks * COL_BLOCK; c++) {
            x[c] = 0.0f;
        }
        if (!compute->kernels->quantize(x, blocks, a->q + (uint64_t)t * blocks * COL_BLOCK,
                                        a->scale + (uint64_t)t * blocks)) {
            return COLIBRI_E_NUMERIC;
        }
    }
    a->quantised = true;
    return COLIBRI_OK;
}

colibri_status col_matmul(const struct col_compute *compute, const struct col_tensor *tensor, const uint8_t *data,
                          struct col_activation *a, float *y, uint32_t y_stride)
{
    const struct col_kernels *k = compute->kernels;
    const uint32_t cols = tensor->cols;
    const uint32_t groups = (tensor->rows + COL_TILE_ROWS - 1u) / COL_TILE_ROWS;
    const uint32_t blocks = (cols + COL_BLOCK - 1u) / COL_BLOCK;
    if ((tensor->format == COL_Q8 || tensor->format == COL_Q4) && !a->quantised) {
        const colibri_status status = quantise(compute, a);
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    /* Rows and tokens are split so that the poll hook is called often; reductions never are, so no bit changes. */
    const uint64_t group_work = (uint64_t)COL_TILE_ROWS * cols;
    const uint64_t group_bytes = col_tensor_bytes(tensor->format, COL_TILE_ROWS, cols);
    const uint64_t fit = POLL_MULTIPLY_ADDS / group_work;
    const uint32_t tokens_step = fit == 0u ? 1u : (fit < a->n ? (uint32_t)fit : a->n);
    const uint64_t groups_fit = fit / tokens_step;
    const uint32_t groups_step = groups_fit == 0u ? 1u : (uint32_t)groups_fit;

    for (uint32_t g = 0; g < groups; g += groups_step) {
        const uint32_t g_count = groups - g < groups_step ? groups - g : groups_step;
        for (uint32_t t = 0; t < a->n; t += tokens_step) {
            const uint32_t n = a->n - t < tokens_step ? a->n - t : tokens_step;
            float *out = y + (uint64_t)t * y_stride + (uint64_t)g * COL_TILE_ROWS;
            const float *x = a->x + (uint64_t)t * a->stride;
            const int8_t *q = a->q + (uint64_t)t * blocks * COL_BLOCK;
            const float *scale = a->scale + (uint64_t)t * blocks;
            const void *w = data + g * group_bytes;
            if (compute->poll != NULL && compute->poll(compute->user)) {
                return COLIBRI_E_CANCELLED;
            }
            switch (tensor->format) {
            case COL_Q8:
                k->matmul_q8(w, g_count, blocks, q, scale, n, out, y_stride);
                break;
            case COL_Q4:
                k->matmul_q4(w, g_count, blocks, q, scale, n, out, y_stride);
                break;
            case COL_F16:
                k->matmul_f16(w, g_count, cols, x, a->stride, n, out, y_stride);
                break;
            case COL_F32:
                k->matmul_f32(w, g_count, cols, x, a->stride, n, out, y_stride);
                break;
            default: return COLIBRI_E_INTERNAL;
            }
        }
    }
    return COLIBRI_OK;
}
