/* SPDX-License-Identifier: Apache-2.0
 *
 * generic_timer_watchdog.h: a watchdog made of the Arm generic timer's EL1 physical timer and its interrupt.
 */
#ifndef COLIBRI_HAL_GENERIC_TIMER_WATCHDOG_H
#define COLIBRI_HAL_GENERIC_TIMER_WATCHDOG_H

#include "parts.h"

struct generic_timer_watchdog_config {
    struct hal_interrupts interrupts; /* brings the timer's interrupt to this core */
};
struct generic_timer_watchdog_state {
    uint64_t period;   /* ticks */
    uint64_t deadline; /* tick */
    bool running;
};
extern const struct hal_watchdog_api generic_timer_watchdog_api;

#endif
