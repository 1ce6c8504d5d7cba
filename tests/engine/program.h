/* SPDX-License-Identifier: Apache-2.0
 *
 * program.h: what test programs around the whole engine share. Images and arenas lie in blocks of their exact size, so that a
 * sanitizer sees any access beyond them. */
#ifndef COLIBRI_TEST_PROGRAM_H
#define COLIBRI_TEST_PROGRAM_H

#include "colibri.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT 21u
#define ANSWER 10u

static inline void die(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static inline void *block(size_t bytes)
{
    const size_t whole = (bytes + COLIBRI_ARENA_ALIGN - 1u) / COLIBRI_ARENA_ALIGN * COLIBRI_ARENA_ALIGN;
    void *memory = aligned_alloc(COLIBRI_ARENA_ALIGN, whole);
    if (memory == NULL) {
        die("out of memory");
    }
    memset(memory, 0xa5, whole); /* whatever is read before it is written is garbage */
    return memory;
}

static inline void *read_file(const char *path, size_t *bytes)
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

/* A short greedy answer to a prompt that follows from the image's vocabulary alone. */
static inline colibri_status answer(struct colibri *engine, bool (*on_token)(void *, const struct colibri_token *),
                                    struct colibri_result *result)
{
    struct colibri_info info;
    colibri_get_info(engine, &info);
    uint32_t ids[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++) {
        ids[i] = (i * 2654435761u >> 7) % info.vocab;
    }
    const struct colibri_request request = {.prompt = ids, .prompt_count = PROMPT, .max_tokens = ANSWER,
                                            .ignore_eos = true, .on_token = on_token};
    return colibri_generate(engine, &request, result);
}

#endif
