/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.c: runs engine functions on data from a file, so that a test can compare them with its own computation.
 *
 *     driver SET INPUT OUTPUT     SET is a kernel set, INPUT a sequence of records, OUTPUT the results in that order
 *     driver --list               the names of the sets that this processor can run, one a line
 *     driver --selftest           SET, status, cases, failures and the first failure of each set, one a line
 *     driver --choose             the sets chosen with this machine's clock, a clock that stands still, and no clock
 *     driver --misuse             what the self-test answers to arguments that it must refuse, and to no name
 *
 * A record is: operation, eight numbers, one float (uint32_t and binary32), then its arrays. Each array is copied into
 * an allocation of exactly its size, so that AddressSanitizer sees the first byte too far.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "colibri.h"
#include "kernels/kernels.h"
#include "numeric.h"
#include "sha256.h"

enum operation {
    QUANTIZE, MATMUL_Q8, MATMUL_Q4, MATMUL_F16, MATMUL_F32, DOT_F32, DOT_F16, AXPY_F32, AXPY_F16, EXP_SUM, SWIGLU,
    NARROW_F16, HALF_TO_FLOAT, FLOAT_TO_HALF, EXP, SQRT, ROUND_EVEN, ALL_FINITE, SHA256, CRC32
};

struct record {
    uint32_t operation;
    uint32_t number[8];
    float factor;
};

static FILE *in, *out;

static void fail(const char *what)
{
    fprintf(stderr, "driver: %s\n", what);
    exit(1);
}

static void *allocate(size_t bytes)
{
    /* 16 is what the contract asks of weights, and what malloc gives */
    void *p = malloc(bytes > 0 ? bytes : 1);
    if (p == NULL) {
        fail("out of memory");
    }
    return p;
}

static void *take(size_t bytes)
{
    void *p = allocate(bytes);
    if (fread(p, 1, bytes, in) != bytes) {
        fail("the input ends inside a record");
    }
    return p;
}

static void give(const void *p, size_t bytes)
{
    if (fwrite(p, 1, bytes, out) != bytes) {
        fail("cannot write the output");
    }
}

/* The outputs of a product, filled with a pattern that a kernel must replace where it has to write, and only there. */
static float *outputs(uint32_t n, uint32_t stride)
{
    size_t bytes = (size_t)n * stride * sizeof(float);
    float *y = allocate(bytes);
    memset(y, 0x5a, bytes);
    return y;
}

static void run_product(const struct col_kernels *k, const struct record *r)
{
    uint32_t tiles = r->number[0], length = r->number[1], n = r->number[2];
    uint32_t x_stride = r->number[3], y_stride = r->number[4];
    size_t cells = (size_t)tiles * length;
    float *y = outputs(n, y_stride);
    void *w, *x, *xs = NULL;
    if (r->operation == MATMUL_Q8 || r->operation == MATMUL_Q4) {
        w = take(cells * (r->operation == MATMUL_Q8 ? sizeof(struct col_tile_q8) : sizeof(struct col_tile_q4)));
        x = take((size_t)n * length * COL_BLOCK);
        xs = take((size_t)n * length * sizeof(float));
        if (r->operation == MATMUL_Q8) {
            k->matmul_q8(w, tiles, length, x, xs, n, y, y_stride);
        } else {
            k->matmul_q4(w, tiles, length, x, xs, n, y, y_stride);
        }
    } else {
        w = take(cells * COL_TILE_ROWS * (r->operation == MATMUL_F16 ? sizeof(uint16_t) : sizeof(float)));
        x = take((size_t)n * x_stride * sizeof(float));
        if (r->operation == MATMUL_F16) {
            k->matmul_f16(w, tiles, length, x, x_stride, n, y, y_stride);
        } else {
            k->matmul_f32(w, tiles, length, x, x_stride, n, y, y_stride);
        }
    }
    give(y, (size_t)n * y_stride * sizeof(float));
    free(y);
    free(w);
    free(x);
    free(xs);
}

static void run_vector(const struct col_kernels *k, const struct record *r)
{
    uint32_t n = r->number[0];
    bool half = r->operation == DOT_F16 || r->operation == AXPY_F16;
    float *a = take(n * sizeof(float));
    float *b = take(n * (half ? sizeof(uint16_t) : sizeof(float)));
    uint16_t *h = allocate(n * sizeof(uint16_t));
    float sum = 0;
    size_t bytes = n * sizeof(float);
    switch (r->operation) {
    case DOT_F32: sum = k->dot_f32(a, b, n); break;
    case DOT_F16: sum = k->dot_f16(a, (const uint16_t *)(const void *)b, n); break;
    case AXPY_F32: k->axpy_f32(r->factor, b, a, n); break;
    case AXPY_F16: k->axpy_f16(r->factor, (const uint16_t *)(const void *)b, a, n); break;
    case EXP_SUM: sum = k->exp_sum(a, n, r->factor); break;
    case SWIGLU: k->swiglu(a, b, a, n); break;
    default: k->narrow_f16(a, h, n); break;
    }
    give(&sum, sizeof sum);
    if (r->operation == NARROW_F16) {
        give(h, n * sizeof(uint16_t));
    } else {
        give(a, bytes);
    }
    free(a);
    free(b);
    free(h);
}

static void run_quantize(const struct col_kernels *k, const struct record *r)
{
    uint32_t blocks = r->number[0];
    float *x = take((size_t)blocks * COL_BLOCK * sizeof(float));
    int8_t *q = allocate((size_t)blocks * COL_BLOCK);
    float *scale = allocate(blocks * sizeof(float));
    memset(q, 0x5a, (size_t)blocks * COL_BLOCK);
    memset(scale, 0x5a, blocks * sizeof(float));
    uint32_t finite = k->quantize(x, blocks, q, scale);
    give(&finite, sizeof finite);
    if (finite) { /* else both are unspecified */
        give(q, (size_t)blocks * COL_BLOCK);
        give(scale, blocks * sizeof(float));
    }
    free(x);
    free(q);
    free(scale);
}

static void run_numeric(const struct record *r)
{
    uint32_t n = r->number[0];
    if (r->operation == ALL_FINITE) {
        float *x = take(n * sizeof(float));
        uint32_t finite = col_all_finite(x, n);
        give(&finite, sizeof finite);
        free(x);
        return;
    }
    uint8_t *x = take(n * (r->operation == HALF_TO_FLOAT ? sizeof(uint16_t) : sizeof(float)));
    for (uint32_t i = 0; i < n; i++) {
        float value = 0, result = 0;
        uint16_t half = 0;
        if (r->operation == HALF_TO_FLOAT) {
            memcpy(&half, x + i * sizeof half, sizeof half);
        } else {
            memcpy(&value, x + i * sizeof value, sizeof value);
        }
        if (r->operation == ROUND_EVEN) {
            int32_t integer = col_round_even(value);
            give(&integer, sizeof integer);
        } else if (r->operation == FLOAT_TO_HALF) {
            half = col_float_to_half(value);
            give(&half, sizeof half);
        } else {
            result = r->operation == HALF_TO_FLOAT ? col_half_to_float(half)
                     : r->operation == EXP         ? col_exp(value)
                                                   : col_sqrt(value);
            give(&result, sizeof result);
        }
    }
    free(x);
}

/* Feeds `n` bytes in pieces of `step`. */
static void run_bytes(const struct record *r)
{
    uint32_t n = r->number[0], step = r->number[1], crc = r->number[2];
    struct col_sha256 hash;
    col_sha256_init(&hash);
    uint8_t *x = take(n);
    for (uint32_t i = 0; i < n; i += step) {
        uint32_t piece = n - i < step ? n - i : step;
        col_sha256_update(&hash, x + i, piece);
        crc = colibri_crc32(crc, x + i, piece);
    }
    uint8_t digest[32];
    col_sha256_final(&hash, digest);
    if (r->operation == SHA256) {
        give(digest, sizeof digest);
    } else {
        give(&crc, sizeof crc);
    }
    free(x);
}

static void run(const struct col_kernels *k)
{
    struct record r;
    while (fread(&r, sizeof r, 1, in) == 1) {
        if (r.operation == QUANTIZE) {
            run_quantize(k, &r);
        } else if (r.operation <= MATMUL_F32) {
            run_product(k, &r);
        } else if (r.operation <= NARROW_F16) {
            run_vector(k, &r);
        } else if (r.operation <= ALL_FINITE) {
            run_numeric(&r);
        } else if (r.operation <= CRC32) {
            run_bytes(&r);
        } else {
            fail("unknown operation");
        }
    }
}

static uint64_t now(void *user)
{
    (void)user;
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t stopped(void *user)
{
    (void)user;
    return 42;
}

static void choose(void *scratch)
{
    printf("%s\n", col_kernels_choose(now, NULL, 1000000000u, scratch)->name);
    printf("%s\n", col_kernels_choose(stopped, NULL, 1000000000u, scratch)->name);
    printf("%s\n", col_kernels_choose(NULL, NULL, 0, scratch)->name);
}

static void misuse(uint8_t *scratch)
{
    struct colibri_selftest_report report;
    printf("%d\n", colibri_selftest("scalar", scratch, COLIBRI_SELFTEST_BYTES - 1, &report));
    printf("%d\n", colibri_selftest("scalar", scratch + 16, COLIBRI_SELFTEST_BYTES, &report));
    printf("%d\n", colibri_selftest("scalar", NULL, COLIBRI_SELFTEST_BYTES, &report));
    printf("%d\n", colibri_selftest("scalar", scratch, COLIBRI_SELFTEST_BYTES, NULL));
    printf("%d\n", colibri_selftest("scala", scratch, COLIBRI_SELFTEST_BYTES, &report));
    printf("%d\n", colibri_selftest("", scratch, COLIBRI_SELFTEST_BYTES, &report));
    printf("%d\n", colibri_selftest(NULL, scratch, COLIBRI_SELFTEST_BYTES, &report));
    printf("%s\n", report.kernels);
}

static void selftest(void *scratch)
{
    const char *name;
    for (uint32_t i = 0; (name = colibri_kernels_name(i)) != NULL; i++) {
        struct colibri_selftest_report report;
        colibri_status status = colibri_selftest(name, scratch, COLIBRI_SELFTEST_BYTES, &report);
        printf("%s %d %u %u %s\n", report.kernels, status, report.cases, report.failures, report.failed);
    }
}

static void list(void)
{
    const char *name;
    for (uint32_t i = 0; (name = colibri_kernels_name(i)) != NULL; i++) {
        printf("%s\n", name);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        void *scratch = aligned_alloc(COLIBRI_ARENA_ALIGN, COLIBRI_SELFTEST_BYTES);
        if (strcmp(argv[1], "--list") == 0) {
            list();
        } else if (strcmp(argv[1], "--selftest") == 0) {
            selftest(scratch);
        } else if (strcmp(argv[1], "--choose") == 0) {
            choose(scratch);
        } else if (strcmp(argv[1], "--misuse") == 0) {
            misuse(scratch);
        } else {
            fail("unknown option");
        }
        free(scratch);
        return 0;
    }
    const struct col_kernels *kernels = argc == 4 ? col_kernels_find(argv[1]) : NULL;
    if (kernels == NULL) {
        fail("usage: driver SET INPUT OUTPUT, with a SET that this processor can run");
    }
    in = fopen(argv[2], "rb");
    out = fopen(argv[3], "wb");
    if (in == NULL || out == NULL) {
        fail("cannot open input or output");
    }
    run(kernels);
    return fclose(in) == 0 && fclose(out) == 0 ? 0 : 1;
}
