/* SPDX-License-Identifier: Apache-2.0
 *
 * generic_timer_watchdog.c: when the timer's interrupt comes, nobody kicked in time; the vector table turns it into a
 * fault with the interrupted program's registers. Registers: DDI 0487, D17.10.16 and D17.10.17.
 */
#include "generic_timer_watchdog.h"

#define CTL_ENABLE 1u

static void kick(const void *config, void *state)
{
    const struct generic_timer_watchdog_state *watchdog = state;
    (void)config;
    const uint64_t now = hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state);
    __asm__ volatile("msr cntp_cval_el0, %0\n\tisb" ::"r"(now + watchdog->period) : "memory");
}

static void stop(const void *config, void *state)
{
    const struct generic_timer_watchdog_config *watchdog = config;
    (void)state;
    arch_disable_interrupts();
    __asm__ volatile("msr cntp_ctl_el0, xzr\n\tisb" ::: "memory");
    watchdog->interrupts.api->disable(watchdog->interrupts.config);
}

static hal_status start(const void *config, void *state, uint32_t milliseconds)
{
    const struct generic_timer_watchdog_config *fixed = config;
    struct generic_timer_watchdog_state *watchdog = state;
    stop(config, state);
    watchdog->period =
        hal_board.clock.api->ticks_per_second(hal_board.clock.config, hal_board.clock.state) * milliseconds / 1000u;
    kick(config, state);
    __asm__ volatile("msr cntp_ctl_el0, %0\n\tisb" ::"r"((uint64_t)CTL_ENABLE) : "memory");
    fixed->interrupts.api->enable(fixed->interrupts.config);
    arch_enable_interrupts();
    return HAL_OK;
}

const struct hal_watchdog_api generic_timer_watchdog_api = {.start = start, .kick = kick, .stop = stop};
