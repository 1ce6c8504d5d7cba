/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c: runs a fuzz target on files, without libFuzzer: for regression corpora, for compilers that have none, and
 * to look at one crash in a debugger. Link it with one of the targets in the directory above.
 *
 *     replay FILE | DIRECTORY ...      each file, and each file of each directory, in the order of their names
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "../fuzz.h"

/* Targets with a mutator of their own name this; nothing mutates here. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity)
{
    (void)data;
    (void)capacity;
    return size;
}

static unsigned long runs;

static void run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(2);
    }
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(bytes > 0 ? bytes : 1);
    if (data == NULL || fread(data, 1, bytes, file) != bytes) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(2);
    }
    fclose(file);
    fprintf(stderr, "%s\n", path); /* the last line before a crash names the input */
    (void)LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    runs++;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct dirent **entries = NULL;
        int count = scandir(argv[i], &entries, NULL, alphasort);
        if (count < 0) {
            run_file(argv[i]);
            continue;
        }
        for (int e = 0; e < count; e++) {
            char path[4096];
            if (entries[e]->d_name[0] != '.' &&
                snprintf(path, sizeof path, "%s/%s", argv[i], entries[e]->d_name) < (int)sizeof path) {
                run_file(path);
            }
            free(entries[e]);
        }
        free(entries);
    }
    printf("%lu inputs\n", runs);
    return runs > 0 ? 0 : 2;
}
