/* SPDX-License-Identifier: Apache-2.0
 *
 * sd_card.c: the size of an SD card (SD Physical Layer Simplified Specification 6.00, 5.3).
 */
#include "common/sd_card.h"

/* Bits high .. low of the register, at most 32 of them. */
static uint32_t field(const uint32_t csd[4], uint32_t high, uint32_t low)
{
    const uint32_t word = 3u - low / 32u;
    uint64_t value = csd[word];
    if (word > 0) {
        value |= (uint64_t)csd[word - 1u] << 32;
    }
    return (uint32_t)(value >> low % 32u & ((1ull << (high - low + 1u)) - 1u));
}

uint64_t sd_card_blocks(const uint32_t csd[4])
{
    switch (field(csd, 127, 126)) {
    case 0: { /* 5.3.2: (C_SIZE + 1) * 2^(C_SIZE_MULT + 2) blocks of 2^READ_BL_LEN bytes */
        const uint32_t read_bl_len = field(csd, 83, 80);
        if (read_bl_len < 9 || read_bl_len > 11) {
            return 0;
        }
        return (field(csd, 73, 62) + 1ull) << (field(csd, 49, 47) + 2u) << (read_bl_len - 9u);
    }
    case 1: /* 5.3.3: (C_SIZE + 1) * 512 KB */
        return (field(csd, 69, 48) + 1ull) * 1024u;
    default:
        return 0;
    }
}
