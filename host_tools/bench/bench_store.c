/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_store.c: how much of a file's bandwidth the expert store gets while it misses, side by side in one run.
 *
 *     bench_store IMAGE [--slots N] [--rounds N] [--batch N] [--tokens N] [--prefetch]
 *
 * In turns, so that a disk that others use as well treats all alike: reads a stretch of the experts in their order, and
 * computes random tokens with N experts of each layer in memory (default 2: most experts are missed). The plain readers
 * share no code with the store: threads that read 1 MB after the other past the page cache and look at nothing, one
 * thread (`sequential`, what `dd iflag=direct` does) or eight (`deep`, what the file gives at best).
 *
 * Prints one JSON object. `prefill` is --batch tokens at once, `decode` --tokens tokens one by one, with: bytes read,
 * seconds in all, `reading` seconds with a read under way, `stall` seconds in which the engine could only wait; and
 * `missing_mb_per_s`, bytes over reading time, with its shares of the plain readers' bandwidth before and after it. The
 * figures are the rounds' medians.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../firmware/runtime/loader.h"
#include "../../firmware/runtime/storage.h"
#include "../host_board/host_board.h"
#include "image.h"

#define ALIGN 4096u
#define LARGE_PAGE (2u << 20)
#define PLAIN_BYTES (64u << 20)
#define PLAIN_PIECE (1u << 20)
#define PLAIN_DEPTH 8u
#define MAX_ROUNDS 101u
#define MAX_BATCH 256u

struct options {
    const char *image;
    uint32_t slots, rounds, batch, tokens;
    bool prefetch;
};

/* Bytes per second of the plain readers. */
struct rates {
    double sequential, deep;
};

struct measure {
    double bytes, seconds, reading, stall;
    struct rates plain; /* before and after it */
};

/* A stretch of the file that plain readers share. */
struct plain {
    int file;
    off_t at;
    uint8_t *memory;
    atomic_uint taken; /* bytes */
    atomic_bool failed;
};

/* What the engine asks of the storage passes through here, to see when reads are under way. */
struct watched {
    struct colibri_storage inner;
    bool reading;
    uint64_t since, read_ns;
    uint64_t bytes;
};

static struct host_block_config device_config;
static struct host_block_state device_state;
static const struct hal_block device = {&host_block_read_only_api, &device_config, &device_state};
static struct storage storage;
static struct watched watched;

enum host_read_fault host_fault_of_read(void)
{
    return HOST_READ_WELL;
}

static uint64_t now(void *user)
{
    (void)user;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static _Noreturn void fail(const char *what, const struct colibri_detail *detail)
{
    fprintf(stderr, "bench_store: %s (%s: %llu, %llu)\n", what, detail->where, (unsigned long long)detail->got,
            (unsigned long long)detail->wanted);
    exit(1);
}

static void check(colibri_status status, const struct colibri_detail *detail)
{
    if (status != COLIBRI_OK) {
        fail(colibri_status_text(status), detail);
    }
}

static void *allocate(uint64_t bytes)
{
    const size_t whole = (size_t)(bytes + LARGE_PAGE - 1u) / LARGE_PAGE * LARGE_PAGE;
    void *memory = aligned_alloc(LARGE_PAGE, whole);
    const struct colibri_detail detail = {.where = "memory", .wanted = bytes};
    if (memory == NULL) {
        fail("out of memory", &detail);
    }
    (void)madvise(memory, whole, MADV_HUGEPAGE); /* as the host board's memory */
    return memory;
}

/* Counts the time with a read under way. */
static void note(void)
{
    bool reading = false;
    for (uint32_t i = 0; i < storage.depth; i++) {
        reading = reading || (int)storage.reads[i].status == COLIBRI_PENDING;
    }
    if (reading && !watched.reading) {
        watched.since = now(NULL);
    } else if (!reading && watched.reading) {
        watched.read_ns += now(NULL) - watched.since;
    }
    watched.reading = reading;
}

static colibri_status start(void *user, uint32_t read, const struct colibri_read *what)
{
    (void)user;
    const colibri_status status = watched.inner.start(watched.inner.user, read, what);
    watched.bytes += status == COLIBRI_OK ? what->bytes : 0;
    note();
    return status;
}

static colibri_status look(void *user, uint32_t read, uint32_t *crc32)
{
    (void)user;
    const colibri_status status = watched.inner.check(watched.inner.user, read, crc32);
    note();
    return status;
}

static bool poll(void *user)
{
    (void)user;
    note();
    return false;
}

static void *read_pieces(void *user)
{
    struct plain *plain = user;
    uint32_t at;
    while ((at = atomic_fetch_add(&plain->taken, PLAIN_PIECE)) < PLAIN_BYTES) {
        if (pread(plain->file, plain->memory + at, PLAIN_PIECE, plain->at + (off_t)at) != (ssize_t)PLAIN_PIECE) {
            atomic_store(&plain->failed, true);
        }
    }
    return NULL;
}

/* Bytes per second. */
static double read_plainly(struct plain *plain, uint32_t depth)
{
    pthread_t threads[PLAIN_DEPTH];
    atomic_store(&plain->taken, 0);
    const uint64_t before = now(NULL);
    uint32_t started = 0;
    while (started < depth && pthread_create(&threads[started], NULL, read_pieces, plain) == 0) {
        started++;
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    const double seconds = (double)(now(NULL) - before) * 1e-9;
    if (started < depth || atomic_load(&plain->failed)) {
        const struct colibri_detail detail = {.where = "plain reader", .got = started, .wanted = depth};
        fail("cannot read", &detail);
    }
    return PLAIN_BYTES / seconds;
}

static struct rates read_rates(struct plain *plain)
{
    return (struct rates){read_plainly(plain, 1), read_plainly(plain, PLAIN_DEPTH)};
}

static struct rates mean(struct rates a, struct rates b)
{
    return (struct rates){(a.sequential + b.sequential) / 2, (a.deep + b.deep) / 2};
}

static uint64_t stall_ticks(const struct colibri *engine)
{
    struct colibri_stats stats;
    colibri_get_stats(engine, &stats);
    uint64_t ticks = 0;
    for (uint32_t i = 0; i < stats.layers; i++) {
        ticks += stats.layer[i].stall_ticks;
    }
    return ticks;
}

/* Computes `count` tokens, `together` at a time. */
static struct measure compute(struct colibri *engine, uint32_t count, uint32_t together, uint32_t vocab)
{
    static uint32_t seed = 1;
    uint32_t ids[MAX_BATCH];
    const float *logits;
    const struct colibri_detail detail = {.where = "token"};
    colibri_reset(engine);
    colibri_clear_stats(engine);
    watched.read_ns = 0;
    watched.bytes = 0;
    const uint64_t before = now(NULL);
    for (uint32_t i = 0; i < count; i += together) {
        for (uint32_t j = 0; j < together; j++) {
            seed = seed * 1664525u + 1013904223u;
            ids[j] = (seed >> 8) % vocab;
        }
        check(colibri_prefill(engine, ids, together, &logits), &detail);
    }
    const double seconds = (double)(now(NULL) - before) * 1e-9;
    return (struct measure){.bytes = (double)watched.bytes,
                            .seconds = seconds,
                            .reading = (double)watched.read_ns * 1e-9,
                            .stall = (double)stall_ticks(engine) * 1e-9};
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2u];
}

static void report(const char *name, const struct measure *rounds, uint32_t count)
{
    double values[9][MAX_ROUNDS];
    for (uint32_t i = 0; i < count; i++) {
        const struct measure *m = &rounds[i];
        const double missing = m->reading > 0 ? m->bytes / m->reading : 0;
        const double all[9] = {m->bytes,
                               m->seconds,
                               m->reading,
                               m->stall,
                               missing * 1e-6,
                               m->plain.sequential * 1e-6,
                               m->plain.deep * 1e-6,
                               missing / m->plain.sequential,
                               missing / m->plain.deep};
        for (uint32_t k = 0; k < 9; k++) {
            values[k][i] = all[k];
        }
    }
    printf("\"%s\": {\"bytes\": %.0f, \"seconds\": %.6f, \"reading\": %.6f, \"stall\": %.6f, "
           "\"missing_mb_per_s\": %.1f, \"sequential_mb_per_s\": %.1f, \"deep_mb_per_s\": %.1f, "
           "\"share_of_sequential\": %.3f, \"share_of_deep\": %.3f}",
           name, median(values[0], count), median(values[1], count), median(values[2], count),
           median(values[3], count), median(values[4], count), median(values[5], count), median(values[6], count),
           median(values[7], count), median(values[8], count));
}

static uint32_t number(const char *option, const char *text, uint32_t limit)
{
    char *end;
    const unsigned long value = text == NULL ? 0 : strtoul(text, &end, 10);
    if (text == NULL || *end != '\0' || value == 0 || value > limit) {
        fprintf(stderr, "bench_store: %s takes a number from 1 to %u\n", option, limit);
        exit(2);
    }
    return (uint32_t)value;
}

static struct options read_options(char **arguments)
{
    struct options options = {.slots = 2, .rounds = 9, .batch = 64, .tokens = 16};
    for (char **word = arguments + 1; *word != NULL; word++) {
        if (strcmp(*word, "--slots") == 0) {
            options.slots = number("--slots", *++word, UINT32_MAX);
        } else if (strcmp(*word, "--rounds") == 0) {
            options.rounds = number("--rounds", *++word, MAX_ROUNDS);
        } else if (strcmp(*word, "--batch") == 0) {
            options.batch = number("--batch", *++word, MAX_BATCH);
        } else if (strcmp(*word, "--tokens") == 0) {
            options.tokens = number("--tokens", *++word, 1u << 16);
        } else if (strcmp(*word, "--prefetch") == 0) {
            options.prefetch = true;
        } else if (options.image == NULL && (*word)[0] != '-') {
            options.image = *word;
        } else {
            options.image = NULL;
            break;
        }
    }
    if (options.image == NULL) {
        fputs("usage: bench_store IMAGE [--slots N] [--rounds N] [--batch N] [--tokens N] [--prefetch]\n", stderr);
        exit(2);
    }
    return options;
}

/* The image's front, in memory. */
static uint8_t *load(struct loader_image *image)
{
    struct colibri_detail detail = {0};
    const struct medium medium = storage_medium(&storage);
    uint8_t page[ALIGN] __attribute__((aligned(ALIGN)));
    struct loader loader = {
        .medium = &medium, .where = {.count = storage.blocks}, .memory = page, .memory_bytes = sizeof page};
    check(loader_open(&loader, image, &detail), &detail);
    loader.memory = allocate(image->front_bytes);
    loader.memory_bytes = image->front_bytes;
    check(loader_read(&loader, 0, image->front_bytes, &detail), &detail);
    return loader.memory;
}

int main(int argc, char **argv)
{
    (void)argc;
    static struct measure prefill[MAX_ROUNDS], decode[MAX_ROUNDS];
    const struct options options = read_options(argv);
    struct colibri_detail detail = {0};
    struct loader_image image;
    device_config.path = options.image;
    check(storage_open(&storage, &device, &detail), &detail);
    uint8_t *front = load(&image);
    storage_set_image(&storage, 0, image.image_bytes);
    if (image.image_bytes - image.front_bytes < PLAIN_BYTES) {
        detail = (struct colibri_detail){.where = "experts", .got = image.image_bytes - image.front_bytes};
        fail("the image is too small for this to mean anything", &detail);
    }

    watched.inner = storage_for_engine(&storage);
    const struct colibri_config config = {
        .batch = options.batch,
        .skip_content_check = true,
        .hooks = {.poll = poll, .now = now, .ticks_per_second = 1000000000u},
        .storage = {.depth = watched.inner.depth, .start = start, .check = look},
        .cache_slots = options.slots,
        .prefetch = options.prefetch};
    struct colibri_plan plan;
    struct colibri *engine;
    check(colibri_plan(front, image.front_bytes, &config, &plan, &detail), &detail);
    check(colibri_init(&engine, front, image.front_bytes, &config, allocate(plan.arena_bytes), plan.arena_bytes,
                       &detail),
          &detail);
    struct colibri_info info;
    colibri_get_info(engine, &info);

    struct plain plain = {.file = open(options.image, O_RDONLY | O_DIRECT), .memory = allocate(PLAIN_BYTES)};
    if (plain.file < 0) {
        detail = (struct colibri_detail){.where = "O_DIRECT"};
        fail("the image's file system cannot be read past the page cache: copy the image to a disk", &detail);
    }
    const uint64_t stretches = (image.image_bytes - image.front_bytes) / PLAIN_BYTES;
    const uint32_t tokens = options.tokens < plan.context ? options.tokens : plan.context;
    for (uint32_t i = 0; i < options.rounds; i++) {
        plain.at = (off_t)(image.front_bytes + i % stretches * PLAIN_BYTES);
        const struct rates before = read_rates(&plain);
        prefill[i] = compute(engine, plan.batch, plan.batch, info.vocab);
        const struct rates between = read_rates(&plain);
        decode[i] = compute(engine, tokens, 1, info.vocab);
        prefill[i].plain = mean(before, between);
        decode[i].plain = mean(between, read_rates(&plain));
    }
    printf("{\"slots\": %u, \"batch\": %u, \"tokens\": %u, ", plan.cache_slots, plan.batch, tokens);
    report("prefill", prefill, options.rounds);
    printf(", ");
    report("decode", decode, options.rounds);
    printf("}\n");
    return 0;
}
