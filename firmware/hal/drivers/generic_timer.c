/* SPDX-License-Identifier: Apache-2.0
 *
 * generic_timer.c: the physical counter of the Arm generic timer.
 */
#include "generic_timer.h"

static uint64_t ticks_per_second(const void *config, const void *state)
{
    const struct generic_timer_config *timer = config;
    (void)state;
    uint64_t frequency = timer->frequency_hz;
    if (frequency == 0) {
        __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(frequency)); /* D17.10.1; written by the boot firmware */
    }
    return frequency;
}

static hal_status init(const void *config, void *state)
{
    return ticks_per_second(config, state) != 0 ? HAL_OK : HAL_E_ABSENT;
}

static uint64_t ticks(const void *config, const void *state)
{
    (void)config;
    (void)state;
    uint64_t count;
    __asm__ volatile("isb\n\tmrs %0, cntpct_el0" : "=r"(count)::"memory"); /* D17.10.20; isb: not read early */
    return count;
}

const struct hal_clock_api generic_timer_api = {.init = init, .ticks = ticks, .ticks_per_second = ticks_per_second};
