/* SPDX-License-Identifier: Apache-2.0
 *
 * image_checks.h: small tools of the checks of images: private to image_*.c, but for those of the first page. */
#ifndef COLIBRI_IMAGE_CHECKS_H
#define COLIBRI_IMAGE_CHECKS_H

#include "compare.h"
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

/* The field holds a text, NUL-padded, with at least one NUL. */
bool col_name_ok(const char *field, size_t bytes);

/* The first eight bytes of a structure are `magic`. Otherwise `failure`, and in *detail the first byte that differs. */
COLIBRI_MUST_CHECK bool col_check_magic(const uint8_t found[8], const char *magic, const char *where,
                                        struct colibri_detail *detail);

/* What header_crc32 must be on an image's first page. */
uint32_t col_header_crc32(const uint8_t *page);

/* col_model and the tables that it sizes; fills image->model, cosines and sines. */
COLIBRI_MUST_CHECK colibri_status col_check_model(struct col_image *image, struct colibri_detail *detail);

/* One layer's description; widens image->widest. */
COLIBRI_MUST_CHECK colibri_status col_check_layer(struct col_image *image, const struct col_layer *layer,
                                                  struct colibri_detail *detail);

/* Chooses the copy of the update table that counts and checks it; fills image->update and the fields beside it. */
COLIBRI_MUST_CHECK colibri_status col_check_updates(struct col_image *image, struct colibri_detail *detail);

#endif
