/* SPDX-License-Identifier: Apache-2.0
 *
 * model_hashes.c: runs images on any processor and under any sanitizer, and prints the hashes of their logits.
 *
 *     model_hashes KV KERNELS IMAGE...      KV: a number of enum colibri_kv_format; KERNELS: a set's name, or "best"
 *
 * Each image gives one line: its status, the hash over the logits of a short greedy answer to a prompt that follows from
 * the image's vocabulary alone, and the tokens. */
#include "program.h"

#include <inttypes.h>

static bool print_token(void *user, const struct colibri_token *token)
{
    (void)user;
    printf(" %" PRIu32, token->id);
    return true;
}

static void run(const char *path, uint32_t kv, const char *kernels)
{
    size_t bytes = 0;
    void *image = read_file(path, &bytes);
    /* A batch of 5 splits the prompt unevenly. */
    const struct colibri_config config = {.batch = 5, .context = PROMPT + ANSWER, .kv_format = kv, .kernels = kernels};
    struct colibri_plan plan;
    colibri_status status = colibri_plan(image, bytes, &config, &plan, NULL);
    if (status != COLIBRI_OK) {
        die(colibri_status_text(status));
    }
    void *arena = block((size_t)plan.arena_bytes);
    struct colibri *engine = NULL;
    struct colibri_result result = {0};
    status = colibri_init(&engine, image, bytes, &config, arena, plan.arena_bytes, NULL);
    if (status == COLIBRI_OK) {
        status = answer(engine, print_token, &result);
    }
    if (status != COLIBRI_OK) {
        die(colibri_status_text(status));
    }
    printf(" ");
    for (size_t i = 0; i < sizeof result.logits_sha256; i++) {
        printf("%02x", result.logits_sha256[i]);
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
