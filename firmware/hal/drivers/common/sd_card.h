/* SPDX-License-Identifier: Apache-2.0
 *
 * sd_card.h: what both ways to an SD card share: command numbers and the card's size (SD Physical Layer Simplified
 * Specification 6.00).
 */
#ifndef COLIBRI_HAL_SD_CARD_H
#define COLIBRI_HAL_SD_CARD_H

#include <stdint.h>

enum sd_command { /* 4.7.4 */
    SD_GO_IDLE_STATE = 0,
    SD_ALL_SEND_CID = 2,
    SD_SEND_RELATIVE_ADDR = 3,
    SD_SELECT_CARD = 7,
    SD_SEND_IF_COND = 8,
    SD_SEND_CSD = 9,
    SD_STOP_TRANSMISSION = 12,
    SD_SET_BLOCKLEN = 16,
    SD_READ_SINGLE_BLOCK = 17,
    SD_READ_MULTIPLE_BLOCK = 18,
    SD_WRITE_BLOCK = 24,
    SD_WRITE_MULTIPLE_BLOCK = 25,
    SD_APP_CMD = 55,
    SD_READ_OCR = 58,
    SD_CRC_ON_OFF = 59,
    SD_APP_SET_BUS_WIDTH = 6, /* after SD_APP_CMD */
    SD_APP_SEND_OP_COND = 41  /* after SD_APP_CMD */
};

#define SD_CHECK_PATTERN 0x1aau          /* 4.3.13: 2.7 to 3.6 V, pattern 0xaa */
#define SD_OCR_POWERED_UP (1u << 31)     /* 5.1 */
#define SD_OCR_HIGH_CAPACITY (1u << 30)  /* 5.1: addresses are blocks, not bytes */
#define SD_OCR_VOLTAGES 0x00ff8000u
#define SD_INIT_TIMEOUT_MS 1000u         /* 4.2.3 */
#define SD_READ_TIMEOUT_MS 250u          /* 4.6.2.1: 100 ms, with room for slow cards */
#define SD_WRITE_TIMEOUT_MS 750u         /* 4.6.2.2: 250 ms for SDHC, 500 ms for SDXC */

/* Blocks of 512 bytes from the card-specific data register, 128 bits, most significant word first; 0 when it is of
 * an unknown version. */
uint64_t sd_card_blocks(const uint32_t csd[4]);

#endif
