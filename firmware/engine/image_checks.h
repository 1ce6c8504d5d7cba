/* SPDX-License-Identifier: Apache-2.0
 *
 * image_checks.h: small tools of the image's checks, private to image_*.c. */
#ifndef COLIBRI_IMAGE_CHECKS_H
#define COLIBRI_IMAGE_CHECKS_H

#include "detail.h"
#include "image_view.h"

/* Returns from the calling function when a check has failed. */
#define COL_REQUIRE(call)                                                                                              \
    do {                                                                                                               \
        const colibri_status status_ = (call);                                                                         \
        if (status_ != COLIBRI_OK) {                                                                                   \
            return status_;                                                                                            \
        }                                                                                                              \
    } while (0)

static inline bool col_all_zero(const uint32_t *word, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (word[i] != 0u) {
            return false;
        }
    }
    return true;
}

/* The field holds exactly `text`, NUL-padded; NULL: any text with at least one NUL. */
bool col_name_ok(const char *field, size_t bytes, const char *text);

/* col_model and the tables that it sizes; fills image->model, cosines and sines. */
COLIBRI_MUST_CHECK colibri_status col_check_model(struct col_image *image, struct colibri_detail *detail);

/* One layer's description; widens image->widest. */
COLIBRI_MUST_CHECK colibri_status col_check_layer(struct col_image *image, const struct col_layer *layer,
                                                  struct colibri_detail *detail);

/* Chooses the copy of the update table that counts and checks it; fills image->update and the fields beside it. */
COLIBRI_MUST_CHECK colibri_status col_check_updates(struct col_image *image, struct colibri_detail *detail);

#endif
