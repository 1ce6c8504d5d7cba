/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_kernels.c: how fast the kernel sets of this machine are, all of them side by side in one run.
 *
 *     bench_kernels [--ms N] [--footprint MB] [--format q8|q4|f16|f32] [--kernels NAME] [--shape ROWSxCOLS]
 *
 * Prints one JSON object. `products` has an entry for each set, format, shape and number of tokens: multiply-adds per
 * second, and bytes of weights per second, counted once for all tokens (n = 1 is decoding, bound by memory once the
 * weights leave the caches; n = 8 is a prompt, bound by arithmetic). `vectors` has elements per second of the other
 * functions. `memory_read_gb_per_s` is a plain loop over the same amount of memory: what n = 1 can reach at best.
 *
 * --ms is the time for one entry (default 40). --footprint makes every product go through that many megabytes of
 * different matrices in turn, so that small ones come from memory too, as a model's do (default 0: one matrix).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "colibri.h"
#include "kernels/kernels.h"
#include "numeric.h"

static const char *const formats[] = {"q8", "q4", "f16", "f32"};
enum { Q8, Q4, F16, F32, FORMATS };

struct options {
    double seconds;
    size_t footprint;
    const char *format, *kernels;
    uint32_t rows, cols;
};

struct product {
    int format;
    uint32_t rows, cols, n, copies;
    size_t bytes; /* of one matrix */
    uint8_t *weights;
    float *x, *xs, *y;
    int8_t *xq;
};

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) {
        fprintf(stderr, "bench_kernels: %zu bytes of memory are not to be had; try a smaller --footprint\n", bytes);
        exit(1);
    }
    return p;
}

static uint32_t random_state = 1;

static uint32_t next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static float small_float(void)
{
    return (float)(int32_t)next() * 0x1p-31f;
}

static size_t matrix_bytes(int format, uint32_t rows, uint32_t cols)
{
    size_t cells = (size_t)rows * cols;
    switch (format) {
    case Q8: return cells / (COL_TILE_ROWS * COL_BLOCK) * sizeof(struct col_tile_q8);
    case Q4: return cells / (COL_TILE_ROWS * COL_BLOCK) * sizeof(struct col_tile_q4);
    case F16: return cells * sizeof(uint16_t);
    default: return cells * sizeof(float);
    }
}

/* Random weights, all finite, none denormal: these would slow some processors down and occur in no model. */
static void fill_weights(struct product *p)
{
    size_t total = p->bytes * p->copies;
    for (size_t i = 0; i < total; i += 4) {
        uint32_t word = next();
        if (p->format == F32) {
            word = col_float_bits(small_float());
        } else if (p->format == F16) {
            word = (word & 0x83ff83ffu) | 0x30003000u; /* +-0.125 .. 0.25 */
        }
        memcpy(p->weights + i, &word, sizeof word);
    }
    size_t tile = p->format == Q8 ? sizeof(struct col_tile_q8) : sizeof(struct col_tile_q4);
    for (size_t i = 0; p->format <= Q4 && i < total; i += tile) {
        for (unsigned r = 0; r < COL_TILE_ROWS; r++) {
            uint16_t scale = (uint16_t)(0x2000u | (next() & 0x3ffu));
            memcpy(p->weights + i + r * sizeof scale, &scale, sizeof scale);
        }
    }
}

static void run_product(const struct col_kernels *k, const struct product *p, uint32_t copy)
{
    const void *w = p->weights + p->bytes * copy;
    uint32_t tiles = p->rows / COL_TILE_ROWS, blocks = p->cols / COL_BLOCK;
    switch (p->format) {
    case Q8: k->matmul_q8(w, tiles, blocks, p->xq, p->xs, p->n, p->y, p->rows); break;
    case Q4: k->matmul_q4(w, tiles, blocks, p->xq, p->xs, p->n, p->y, p->rows); break;
    case F16: k->matmul_f16(w, tiles, p->cols, p->x, p->cols, p->n, p->y, p->rows); break;
    default: k->matmul_f32(w, tiles, p->cols, p->x, p->cols, p->n, p->y, p->rows); break;
    }
}

/* Calls per second in the best of three parts of the time. */
#define RATE(seconds, call)                                \
    __extension__({                                        \
        double best_ = 0;                                  \
        uint32_t turn = 0;                                 \
        for (int part_ = 0; part_ < 3; part_++) {          \
            double start_ = now(), spent_;                 \
            uint32_t calls_ = 0, chunk_ = 1;               \
            do {                                           \
                for (uint32_t i_ = 0; i_ < chunk_; i_++) { \
                    call;                                  \
                    turn++;                                \
                }                                          \
                calls_ += chunk_;                          \
                chunk_ = chunk_ < 1024 ? chunk_ * 2 : chunk_; \
                spent_ = now() - start_;                   \
            } while (spent_ < (seconds) / 3);              \
            double rate_ = calls_ / spent_;                \
            best_ = rate_ > best_ ? rate_ : best_;         \
        }                                                  \
        best_;                                             \
    })

static bool wanted(const char *option, const char *name)
{
    return option == NULL || strcmp(option, name) == 0;
}

static void bench_product(const struct options *o, struct product *p, bool *first)
{
    p->bytes = matrix_bytes(p->format, p->rows, p->cols);
    p->copies = (uint32_t)(o->footprint / p->bytes + 1);
    p->weights = allocate(p->bytes * p->copies);
    p->x = allocate((size_t)p->n * p->cols * sizeof(float));
    p->xs = allocate((size_t)p->n * p->cols / COL_BLOCK * sizeof(float));
    p->xq = allocate((size_t)p->n * p->cols);
    p->y = allocate((size_t)p->n * p->rows * sizeof(float));
    fill_weights(p);
    for (size_t i = 0; i < (size_t)p->n * p->cols; i++) {
        p->x[i] = small_float();
    }
    (void)!col_kernels_scalar.quantize(p->x, p->n * p->cols / COL_BLOCK, p->xq, p->xs);
    const char *name;
    for (uint32_t i = 0; (name = colibri_kernels_name(i)) != NULL; i++) {
        if (!wanted(o->kernels, name)) {
            continue;
        }
        const struct col_kernels *k = col_kernels_find(name);
        double rate = RATE(o->seconds, run_product(k, p, turn % p->copies));
        printf("%s\n    {\"kernels\": \"%s\", \"format\": \"%s\", \"rows\": %u, \"cols\": %u, \"n\": %u, "
               "\"mmac_per_s\": %.0f, \"gb_per_s\": %.3f}",
               *first ? "" : ",", name, formats[p->format], p->rows, p->cols, p->n,
               rate * p->rows * p->cols * p->n * 1e-6, rate * (double)p->bytes * 1e-9);
        *first = false;
    }
    free(p->weights);
    free(p->x);
    free(p->xs);
    free(p->xq);
    free(p->y);
}

static void bench_vectors(const struct options *o, uint32_t n, bool *first)
{
    float *a = allocate(n * sizeof(float)), *b = allocate(n * sizeof(float)), *y = allocate(n * sizeof(float));
    uint16_t *h = allocate(n * sizeof(uint16_t));
    int8_t *q = allocate(n);
    volatile float sink = 0;
    const char *name;
    for (uint32_t i = 0; i < n; i++) {
        a[i] = small_float();
        b[i] = small_float();
        h[i] = col_float_to_half(small_float());
        y[i] = 0;
    }
    for (uint32_t i = 0; (name = colibri_kernels_name(i)) != NULL; i++) {
        if (!wanted(o->kernels, name)) {
            continue;
        }
        const struct col_kernels *k = col_kernels_find(name);
        struct {
            const char *name;
            double rate;
        } result[] = {
            {"quantize", RATE(o->seconds, (void)!k->quantize(a, n / COL_BLOCK, q, y))},
            {"dot_f32", RATE(o->seconds, sink = k->dot_f32(a, b, n))},
            {"dot_f16", RATE(o->seconds, sink = k->dot_f16(a, h, n))},
            {"axpy_f32", RATE(o->seconds, k->axpy_f32(1e-6f, a, y, n))},
            {"axpy_f16", RATE(o->seconds, k->axpy_f16(1e-6f, h, y, n))},
            {"exp_sum", RATE(o->seconds, sink = k->exp_sum(y, n, 0.5f))},
            {"swiglu", RATE(o->seconds, k->swiglu(a, b, y, n))},
            {"narrow_f16", RATE(o->seconds, k->narrow_f16(a, h, n))},
        };
        (void)sink;
        for (size_t f = 0; f < sizeof result / sizeof result[0]; f++) {
            printf("%s\n    {\"kernels\": \"%s\", \"function\": \"%s\", \"n\": %u, \"melements_per_s\": %.0f}",
                   *first ? "" : ",", name, result[f].name, n, result[f].rate * n * 1e-6);
            *first = false;
        }
    }
    free(a);
    free(b);
    free(y);
    free(h);
    free(q);
}

/* Bytes per second of a loop that only reads. */
static double memory_read(const struct options *o)
{
    size_t bytes = o->footprint > 0 ? o->footprint : (size_t)64 << 20, count = bytes / sizeof(uint64_t);
    uint64_t *p = allocate(bytes);
    memset(p, 1, bytes);
    volatile uint64_t sink = 0;
    double rate = RATE(o->seconds, {
        uint64_t sum[4] = {0};
        for (size_t i = 0; i + 4 <= count; i += 4) {
            sum[0] += p[i];
            sum[1] += p[i + 1];
            sum[2] += p[i + 2];
            sum[3] += p[i + 3];
        }
        sink = sum[0] + sum[1] + sum[2] + sum[3];
    });
    (void)sink;
    free(p);
    return rate * (double)bytes;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_kernels [--ms N] [--footprint MB] [--format q8|q4|f16|f32] [--kernels NAME] "
                    "[--shape ROWSxCOLS]\n(rows a multiple of 8, columns of 32)\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct options o = {.seconds = 0.04};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value == NULL) {
            return usage();
        } else if (strcmp(argv[i], "--ms") == 0) {
            o.seconds = atof(value) * 1e-3;
        } else if (strcmp(argv[i], "--footprint") == 0) {
            o.footprint = (size_t)strtoul(value, NULL, 10) << 20;
        } else if (strcmp(argv[i], "--format") == 0) {
            o.format = value;
        } else if (strcmp(argv[i], "--kernels") == 0) {
            o.kernels = value;
        } else if (strcmp(argv[i], "--shape") != 0 || sscanf(value, "%ux%u", &o.rows, &o.cols) != 2 ||
                   o.rows == 0 || o.cols == 0 || o.rows % COL_TILE_ROWS != 0 || o.cols % COL_BLOCK != 0) {
            return usage();
        }
    }
    static const uint32_t shapes[][2] = {{128, 128}, {256, 128}, {1024, 1024}, {4096, 4096}};
    printf("{\n  \"memory_read_gb_per_s\": %.3f,\n  \"footprint_mb\": %zu,\n  \"products\": [", memory_read(&o) * 1e-9,
           o.footprint >> 20);
    bool first = true;
    for (int format = 0; format < FORMATS; format++) {
        for (size_t s = 0; wanted(o.format, formats[format]) && s < (o.rows > 0 ? 1 : 4); s++) {
            for (uint32_t n = 1; n <= 8; n += 7) {
                struct product p = {.format = format, .rows = shapes[s][0], .cols = shapes[s][1], .n = n};
                if (o.rows > 0) {
                    p.rows = o.rows;
                    p.cols = o.cols;
                }
                bench_product(&o, &p, &first);
            }
        }
    }
    printf("\n  ],\n  \"vectors\": [");
    first = true;
    if (o.format == NULL && o.rows == 0) {
        bench_vectors(&o, 128, &first);
        bench_vectors(&o, 4096, &first);
    }
    printf("\n  ]\n}\n");
    return 0;
}
