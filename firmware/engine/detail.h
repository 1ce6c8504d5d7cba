/* SPDX-License-Identifier: Apache-2.0
 *
 * detail.h: how a failed check says where it failed. */
#ifndef COLIBRI_DETAIL_H
#define COLIBRI_DETAIL_H

#include "colibri.h"

/* Fills *detail, which may be NULL. */
void col_detail_set(struct colibri_detail *detail, const char *where, uint64_t got, uint64_t wanted);

/* Fills *detail (which may be NULL) and returns `status`, so that a check is one line. */
static inline colibri_status col_fail(colibri_status status, struct colibri_detail *detail, const char *where,
                                      uint64_t got, uint64_t wanted)
{
    col_detail_set(detail, where, got, wanted);
    return status;
}

#endif
