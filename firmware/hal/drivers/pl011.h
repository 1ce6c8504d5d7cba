/* SPDX-License-Identifier: Apache-2.0
 *
 * pl011.h: Arm PrimeCell UART (PL011), Technical Reference Manual DDI 0183G.
 */
#ifndef COLIBRI_HAL_PL011_H
#define COLIBRI_HAL_PL011_H

#include "hal.h"

struct pl011_config {
    uint64_t base;
    uint32_t clock_hz; /* UARTCLK */
    uint32_t baud;
};
extern const struct hal_console_api pl011_api;

#endif
