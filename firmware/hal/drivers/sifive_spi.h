/* SPDX-License-Identifier: Apache-2.0
 *
 * sifive_spi.h: SPI controller of SiFive's SoCs (FU540-C000 manual, chapter 19).
 */
#ifndef COLIBRI_HAL_SIFIVE_SPI_H
#define COLIBRI_HAL_SIFIVE_SPI_H

#include "parts.h"

struct sifive_spi_config {
    uint64_t base;
    uint32_t clock_hz;    /* tlclk */
    uint32_t chip_select; /* number of the line */
};
extern const struct hal_spi_api sifive_spi_api;

#endif
