/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.h: comparing bytes, for want of a C library. Not for secrets: the time tells where they differ. */
#ifndef COLIBRI_COMPARE_H
#define COLIBRI_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool col_same_bytes(const void *a, const void *b, size_t bytes);

bool col_all_zero(const uint32_t *word, size_t count);

#endif
