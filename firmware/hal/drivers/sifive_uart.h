/* SPDX-License-Identifier: Apache-2.0
 *
 * sifive_uart.h: UART of SiFive's SoCs (FU540-C000 manual, chapter 13).
 */
#ifndef COLIBRI_HAL_SIFIVE_UART_H
#define COLIBRI_HAL_SIFIVE_UART_H

#include "hal.h"

struct sifive_uart_config {
    uint64_t base;
    uint32_t clock_hz; /* tlclk */
    uint32_t baud;
};
extern const struct hal_console_api sifive_uart_api;

#endif
