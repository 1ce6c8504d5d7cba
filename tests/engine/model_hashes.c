/* SPDX-License-Identifier: Apache-2.0
 *
 * model_hashes.c: runs images on any processor and under any sanitizer, and prints the hashes of their logits.
 *
 *     model_hashes KV KERNELS IMAGE...      KV: a number of enum colibri_kv_format; KERNELS: a set's name, or "best"
 *
 * Each image gives one line: its status, the hash over the logits of a short greedy answer to a prompt that follows from
 * the image's vocabulary alone, and the tokens. Image and arena lie in blocks of their exact size, so that a sanitizer
 * sees any access beyond them.
 */
#include "colibri.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT 21u
#define ANSWER 10u

static void die(const char *why)
{
    fprintf(stderr, "model_hashes: %s\n", why);
    exit(1);
}

static void *block(size_t bytes)
{
    const size_t whole = (bytes + COLIBRI_ARENA_ALIGN - 1u) / COLIBRI_ARENA_ALIGN * COLIBRI_ARENA_ALIGN;
    void *memory = aligned_alloc(COLIBRI_ARENA_ALIGN, whole);
    if (memory == NULL) {
        die("out of memory");
    }
    memset(memory, 0xa5, whole); /* whatever is read before it is written is garbage */
    return memory;
}

static void *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        die(path);
    }
    const long size = ftell(file);
    if (size < 0 || fseek(file, 0, SEEK_SET) != 0) {
        die(path);
    }
    *bytes = (size_t)size;
    void *memory = block(*bytes);
    if (fread(memory, 1, *bytes, file) != *bytes) {
        die(path);
    }
    fclose(file);
    return memory;
}

static bool print_token(void *user, const struct colibri_token *token)
{
    (void)user;
    printf(" %" PRIu32, token->id);
    return true;
}

/* A batch of 5 splits the prompt unevenly. */
static colibri_status answer(struct colibri *engine, uint8_t hash[32])
{
    struct colibri_info info;
    colibri_get_info(engine, &info);
    uint32_t ids[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++) {
        ids[i] = (i * 2654435761u >> 7) % info.vocab;
    }
    struct colibri_request request = {.prompt = ids, .prompt_count = PROMPT, .max_tokens = ANSWER, .ignore_eos = true,
                                      .on_token = print_token};
    struct colibri_result result;
    const colibri_status status = colibri_generate(engine, &request, &result);
    memcpy(hash, result.logits_sha256, 32);
    return status;
}

static void run(const char *path, uint32_t kv, const char *kernels)
{
    size_t bytes = 0;
    void *image = read_file(path, &bytes);
    const struct colibri_config config = {.batch = 5, .context = PROMPT + ANSWER, .kv_format = kv, .kernels = kernels};
    struct colibri_plan plan;
    colibri_status status = colibri_plan(image, bytes, &config, &plan, NULL);
    if (status != COLIBRI_OK) {
        die(colibri_status_text(status));
    }
    void *arena = block((size_t)plan.arena_bytes);
    struct colibri *engine = NULL;
    uint8_t hash[32];
    status = colibri_init(&engine, image, bytes, &config, arena, plan.arena_bytes, NULL);
    if (status == COLIBRI_OK) {
        status = answer(engine, hash);
    }
    if (status != COLIBRI_OK) {
        die(colibri_status_text(status));
    }
    printf(" ");
    for (size_t i = 0; i < sizeof hash; i++) {
        printf("%02x", hash[i]);
    }
    printf("\n");
    free(arena);
    free(image);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        die("KV KERNELS IMAGE... are missing");
    }
    for (int i = 3; i < argc; i++) {
        run(argv[i], (uint32_t)strtoul(argv[1], NULL, 10), strcmp(argv[2], "best") == 0 ? NULL : argv[2]);
    }
    return 0;
}
