/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h: what all targets have: the names that libFuzzer calls them by, and the check that ends a run. */
#ifndef COLIBRI_FUZZ_H
#define COLIBRI_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity);

static inline void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

#endif
