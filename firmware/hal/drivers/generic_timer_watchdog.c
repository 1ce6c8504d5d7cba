/* SPDX-License-Identifier: Apache-2.0
 *
 * generic_timer_watchdog.c: when the timer's interrupt comes, nobody kicked in time; the vector table turns it into a
 * fault with the interrupted program's registers. Registers: DDI 0487, D17.10.16 and D17.10.17.
 */
#include "generic_timer_watchdog.h"

#define CTL_ENABLE 1u

static uint64_t now(void)
{
    return hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state);
}

static uint64_t ticks_per_second(void)
{
    return hal_board.clock.api->ticks_per_second(hal_board.clock.config, hal_board.clock.state);
}

static void set_alarm(uint64_t tick)
{
    __asm__ volatile("msr cntp_cval_el0, %0\n\tisb" ::"r"(tick) : "memory");
}

static void set_control(uint64_t control)
{
    __asm__ volatile("msr cntp_ctl_el0, %0\n\tisb" ::"r"(control) : "memory");
}

static void kick(const void *config, void *state)
{
    struct generic_timer_watchdog_state *watchdog = state;
    (void)config;
    watchdog->deadline = now() + watchdog->period;
    set_alarm(watchdog->deadline);
}

static void stop(const void *config, void *state)
{
    const struct generic_timer_watchdog_config *fixed = config;
    struct generic_timer_watchdog_state *watchdog = state;
    arch_disable_interrupts();
    watchdog->running = false;
    set_control(0);
    fixed->interrupts.api->disable(fixed->interrupts.config);
}

static hal_status start(const void *config, void *state, uint32_t milliseconds)
{
    const struct generic_timer_watchdog_config *fixed = config;
    struct generic_timer_watchdog_state *watchdog = state;
    stop(config, state);
    watchdog->period = ticks_per_second() * milliseconds / 1000u;
    watchdog->running = true;
    kick(config, state);
    set_control(CTL_ENABLE);
    fixed->interrupts.api->enable(fixed->interrupts.config);
    arch_enable_interrupts();
    return HAL_OK;
}

/* WFI ends with the interrupt also while it is masked (DDI 0487, D1.7.2): it is taken only if the watchdog's own time
 * is over when the mask goes, at most a nap late. */
static void nap(const void *config, void *state, uint32_t microseconds)
{
    const struct generic_timer_watchdog_config *fixed = config;
    const struct generic_timer_watchdog_state *watchdog = state;
    arch_disable_interrupts();
    set_alarm(now() + ticks_per_second() * microseconds / 1000000u);
    if (!watchdog->running) {
        set_control(CTL_ENABLE);
        fixed->interrupts.api->enable(fixed->interrupts.config);
    }
    arch_wait_for_interrupt();
    if (watchdog->running) {
        set_alarm(watchdog->deadline);
        arch_enable_interrupts();
    } else {
        set_control(0);
        fixed->interrupts.api->disable(fixed->interrupts.config);
    }
}

const struct hal_watchdog_api generic_timer_watchdog_api = {.start = start, .kick = kick, .stop = stop, .nap = nap};
