/* SPDX-License-Identifier: Apache-2.0
 *
 * clint.h: RISC-V core-local interruptor as the board's clock (FU540-C000 manual, chapter 9).
 */
#ifndef COLIBRI_HAL_CLINT_H
#define COLIBRI_HAL_CLINT_H

#include "hal.h"

struct clint_config {
    uint64_t base;
    uint32_t frequency_hz; /* of mtime */
};
extern const struct hal_clock_api clint_api;

#endif
