/* SPDX-License-Identifier: Apache-2.0
 *
 * detail.c: how a failed check says where it failed. */
#include "detail.h"

void col_detail_set(struct colibri_detail *detail, const char *where, uint64_t got, uint64_t wanted)
{
    if (detail != NULL) {
        size_t i = 0;
        for (; where[i] != '\0' && i + 1 < sizeof detail->where; i++) {
            detail->where[i] = where[i];
        }
        for (; i < sizeof detail->where; i++) {
            detail->where[i] = '\0';
        }
        detail->got = got;
        detail->wanted = wanted;
    }
}
