/* SPDX-License-Identifier: Apache-2.0
 *
 * spi_sd.h: SD card on an SPI bus (SD Physical Layer Simplified Specification 6.00, chapter 7).
 */
#ifndef COLIBRI_HAL_SPI_SD_H
#define COLIBRI_HAL_SPI_SD_H

#include "parts.h"

struct spi_sd_config {
    struct hal_spi bus;
    uint32_t transfer_hz; /* at most 25 MHz in this mode */
};
struct spi_sd_state {
    uint64_t blocks;
    bool high_capacity;
    uint32_t left; /* blocks of the read under way */
    uint8_t *to;   /* where the next one goes */
    uint64_t deadline; /* of the next one */
};
extern const struct hal_block_api spi_sd_api;

#endif
