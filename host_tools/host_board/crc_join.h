/* SPDX-License-Identifier: Apache-2.0
 *
 * crc_join.h: the CRC-32 of a whole from those of its pieces, which come in any order. */
#ifndef COLIBRI_HOST_BOARD_CRC_JOIN_H
#define COLIBRI_HOST_BOARD_CRC_JOIN_H

#include <stddef.h>
#include <stdint.h>

struct crc_join {
    size_t bytes; /* of the whole */
    uint32_t crc; /* of the whole once all pieces have been added */
};

void crc_join_begin(struct crc_join *join, size_t bytes);
/* `crc` is colibri_crc32 of `bytes` bytes that lie `from` bytes into the whole. */
void crc_join_add(struct crc_join *join, size_t from, size_t bytes, uint32_t crc);

#endif
