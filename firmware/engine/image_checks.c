/* SPDX-License-Identifier: Apache-2.0
 *
 * image_checks.c: see image_checks.h. */
#include "image_checks.h"

#define HEADER_CRC_OFFSET ((uint32_t)offsetof(struct col_header, header_crc32))

bool col_name_ok(const char *field, size_t bytes)
{
    size_t length = 0;
    while (length < bytes && field[length] != '\0') {
        length++;
    }
    if (length == bytes) {
        return false;
    }
    for (size_t i = length; i < bytes; i++) {
        if (field[i] != '\0') {
            return false;
        }
    }
    return true;
}

bool col_check_magic(const uint8_t found[8], const char *magic, const char *where, struct colibri_detail *detail)
{
    for (size_t i = 0; i < 8u; i++) {
        if (found[i] != (uint8_t)magic[i]) {
            col_detail_set(detail, where, found[i], (uint8_t)magic[i]);
            return false;
        }
    }
    return true;
}

uint32_t col_header_crc32(const uint8_t *page)
{
    const uint32_t zero = 0;
    uint32_t crc = colibri_crc32(0, page, HEADER_CRC_OFFSET);
    crc = colibri_crc32(crc, &zero, sizeof zero);
    return colibri_crc32(crc, page + HEADER_CRC_OFFSET + 4u, COL_PAGE - HEADER_CRC_OFFSET - 4u);
}
