/* SPDX-License-Identifier: Apache-2.0
 *
 * clint_watchdog.h: a watchdog made of the machine timer interrupt of the RISC-V core-local interruptor.
 */
#ifndef COLIBRI_HAL_CLINT_WATCHDOG_H
#define COLIBRI_HAL_CLINT_WATCHDOG_H

#include "parts.h"

struct clint_watchdog_config {
    uint64_t base;
    uint32_t hart;
};
struct clint_watchdog_state {
    uint64_t period;   /* ticks */
    uint64_t deadline; /* tick */
    bool running;
};
extern const struct hal_watchdog_api clint_watchdog_api;

#endif
