/* SPDX-License-Identifier: Apache-2.0
 *
 * generic_timer.h: the Arm generic timer as the board's clock (DDI 0487, chapter D11).
 */
#ifndef COLIBRI_HAL_GENERIC_TIMER_H
#define COLIBRI_HAL_GENERIC_TIMER_H

#include "hal.h"

struct generic_timer_config {
    uint32_t frequency_hz; /* 0: what CNTFRQ_EL0 says */
};
extern const struct hal_clock_api generic_timer_api;

#endif
