/* SPDX-License-Identifier: Apache-2.0
 *
 * ns16550.h: National Semiconductor 16550 UART and its many relatives (PC16550D data sheet).
 */
#ifndef COLIBRI_HAL_NS16550_H
#define COLIBRI_HAL_NS16550_H

#include "hal.h"

struct ns16550_config {
    uint64_t base;
    uint32_t clock_hz;
    uint32_t baud;
    uint32_t register_shift; /* registers lie 1 << register_shift bytes apart */
};
extern const struct hal_console_api ns16550_api;

#endif
