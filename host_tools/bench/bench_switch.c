/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_switch.c: what the engine spends between two experts' products, and on replacing an expert, in memory.
 *
 *     bench_switch IMAGE [--rounds N]
 *
 * `switch`: one expert is done, the place of the next one is found, its input row is gathered, and the first byte of
 * its weights has come from memory. Experts are taken at random from all layers, so that in a large image neither place
 * nor weights lie in a cache. `swap`: from the call of colibri_replace_expert until the engine uses the other place, as
 * the next token would. Each is timed by itself, the clock's own time included; --rounds (default 20000) of them.
 * Prints one JSON object, in microseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "colibri.h"
#include "engine.h"

struct bench {
    struct colibri *engine;
    uint32_t random;
    uint32_t generation;
    uint64_t sum; /* of all bytes touched, so that they are */
};

static void die(const char *why)
{
    fprintf(stderr, "bench_switch: %s\n", why);
    exit(1);
}

static void require(colibri_status status)
{
    if (status != COLIBRI_OK) {
        die(colibri_status_text(status));
    }
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void *block(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095u) / 4096u * 4096u);
    if (memory == NULL) {
        die("out of memory");
    }
    return memory;
}

static void *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        die("the image cannot be read");
    }
    *bytes = (size_t)ftell(file);
    void *memory = block(*bytes);
    rewind(file);
    if (fread(memory, 1, *bytes, file) != *bytes) {
        die("the image cannot be read");
    }
    fclose(file);
    return memory;
}

static uint32_t below(struct bench *b, uint32_t limit)
{
    b->random = b->random * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)b->random * limit) >> 32);
}

/* A random expert of the model. */
static void choose(struct bench *b, uint32_t *layer, uint32_t *expert)
{
    const struct col_image *image = &b->engine->image;
    do {
        *layer = below(b, image->model->layers);
    } while (image->layer[*layer].router.experts == 0u);
    *expert = below(b, image->layer[*layer].router.experts);
}

static double time_switch(struct bench *b)
{
    struct colibri *e = b->engine;
    uint32_t layer = 0;
    uint32_t expert = 0;
    choose(b, &layer, &expert);
    e->dispatch.context[0].expert = expert;
    const uint32_t hidden = e->image.model->hidden;
    const uint8_t *blob = NULL;
    const double start = now_us();
    require(col_store_done(e));
    require(col_store_expert(e, layer, e->dispatch.context[0].expert, &blob));
    memcpy(e->buffers.gathered, e->buffers.norm, hidden * sizeof(float));
    b->sum += *(const volatile uint8_t *)blob;
    return now_us() - start;
}

static double time_swap(struct bench *b)
{
    struct colibri *e = b->engine;
    uint32_t layer = 0;
    uint32_t expert = 0;
    choose(b, &layer, &expert);
    const struct col_place old = *col_place_of(e, layer, expert);
    const uint32_t other = below(b, e->image.layer[layer].router.experts);
    const struct col_place place = *col_place_of(e, layer, other);
    const struct colibri_replacement replacement = {.offset = place.offset, .crc32 = place.crc32,
                                                    .generation = old.generation + 1u, .digest = place.digest};
    const uint8_t *blob = NULL;
    const double start = now_us();
    require(colibri_replace_expert(e, layer, expert, &replacement));
    colibri_take_replacements(e); /* what the next token begins with */
    require(col_store_expert(e, layer, expert, &blob));
    b->sum += *(const volatile uint8_t *)blob;
    const double taken = now_us() - start;
    if (blob != e->image.base + place.offset) {
        die("the expert is not used at its new place");
    }
    return taken;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(struct bench *b, const char *name, double (*one)(struct bench *), double *taken, size_t rounds)
{
    for (size_t i = 0; i < rounds; i++) {
        taken[i] = one(b);
    }
    qsort(taken, rounds, sizeof *taken, ascending);
    printf("\"%s_us\": {\"median\": %.3f, \"p99\": %.3f, \"max\": %.3f}", name, taken[rounds / 2u],
           taken[rounds * 99u / 100u], taken[rounds - 1u]);
}

int main(int argc, char **argv)
{
    size_t rounds = 20000;
    if (argc == 4 && strcmp(argv[2], "--rounds") == 0) {
        rounds = strtoul(argv[3], NULL, 10);
    }
    if ((argc != 2 && argc != 4) || rounds == 0u) {
        die("IMAGE [--rounds N] is wanted");
    }
    size_t bytes = 0;
    void *image = read_file(argv[1], &bytes);
    const struct colibri_config config = {.skip_content_check = true};
    struct colibri_plan plan;
    require(colibri_plan(image, bytes, &config, &plan, NULL));
    if (plan.expert_bytes == 0u) {
        die("the model has no experts");
    }
    void *arena = block((size_t)plan.arena_bytes);
    struct bench b = {.random = 1};
    require(colibri_init(&b.engine, image, bytes, &config, arena, plan.arena_bytes, NULL));
    double *taken = block(rounds * sizeof *taken);
    printf("{\"experts\": %u, \"largest_bytes\": %llu, ", b.engine->image.expert_count,
           (unsigned long long)b.engine->image.place_bytes);
    report(&b, "switch", time_switch, taken, rounds);
    printf(", ");
    report(&b, "swap", time_swap, taken, rounds);
    printf("}\n");
    free(taken);
    free(arena);
    free(image);
    return 0;
}
