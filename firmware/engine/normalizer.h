/* SPDX-License-Identifier: Apache-2.0
 *
 * normalizer.h: Unicode normalisation (UAX #15) with the tables of the image, which say what form it is.
 */
#ifndef COL_NORMALIZER_H
#define COL_NORMALIZER_H

#include "colibri.h"
#include "image.h"

#include <stddef.h>
#include <stdint.h>

struct col_normalizer {
    const struct col_decomposition *decompositions; /* [decomposition_count] */
    const struct col_composition *compositions;     /* [composition_count] */
    const uint32_t *orders;                         /* [order_count] */
    const uint32_t *points;
    uint32_t decomposition_count; /* 0: texts stay as they are */
    uint32_t composition_count;   /* 0: nothing is composed */
    uint32_t order_count;
};

/* What the tables must be for col_normalize; `point_count` entries of `points` are there. Fails with the name of the
 * table as COLIBRI_E_IMAGE_TOKENIZER. */
COLIBRI_MUST_CHECK colibri_status col_normalizer_check(const struct col_normalizer *normalizer, uint32_t point_count,
                                                       struct colibri_detail *detail);

/* Writes the normal form of `text` to `out`, which has room for `capacity` bytes; COLIBRI_E_TEXT_SIZE when it is
 * longer. Bytes that are no valid UTF-8 stay as they are. Takes O(n) steps for n bytes, whatever the text. */
COLIBRI_MUST_CHECK colibri_status col_normalize(const struct col_normalizer *normalizer, const uint8_t *text,
                                                size_t bytes, uint8_t *out, size_t capacity, size_t *length);

#endif
