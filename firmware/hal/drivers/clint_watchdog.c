/* SPDX-License-Identifier: Apache-2.0
 *
 * clint_watchdog.c: when the machine timer's interrupt comes, nobody kicked in time; the trap handler turns it into a
 * fault with the interrupted program's registers.
 */
#include "clint_watchdog.h"

#define MTIMECMP 0x4000u /* FU540-C000 manual, 9.1: 8 bytes per hart */
#define MIE_MTIE 0x80u   /* privileged architecture 1.12, 3.1.9 */

static uint64_t now(void)
{
    return hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state);
}

static uint64_t ticks_per_second(void)
{
    return hal_board.clock.api->ticks_per_second(hal_board.clock.config, hal_board.clock.state);
}

static void set_alarm(const struct clint_watchdog_config *fixed, uint64_t tick)
{
    *(volatile uint64_t *)(uintptr_t)(fixed->base + MTIMECMP + 8u * fixed->hart) = tick;
}

static void enable_timer(bool enabled)
{
    if (enabled) {
        __asm__ volatile("csrs mie, %0" ::"r"((uint64_t)MIE_MTIE) : "memory");
    } else {
        __asm__ volatile("csrc mie, %0" ::"r"((uint64_t)MIE_MTIE) : "memory");
    }
}

static void kick(const void *config, void *state)
{
    struct clint_watchdog_state *watchdog = state;
    watchdog->deadline = now() + watchdog->period;
    set_alarm(config, watchdog->deadline);
}

static void stop(const void *config, void *state)
{
    struct clint_watchdog_state *watchdog = state;
    arch_disable_interrupts();
    watchdog->running = false;
    enable_timer(false);
    set_alarm(config, UINT64_MAX);
}

static hal_status start(const void *config, void *state, uint32_t milliseconds)
{
    struct clint_watchdog_state *watchdog = state;
    stop(config, state);
    watchdog->period = ticks_per_second() * milliseconds / 1000u;
    watchdog->running = true;
    kick(config, state);
    enable_timer(true);
    arch_enable_interrupts();
    return HAL_OK;
}

/* WFI ends with an interrupt that is enabled in mie also while mstatus.MIE masks it (privileged architecture 1.12,
 * 3.3.3): it is taken only if the watchdog's own time is over when the mask goes, at most a nap late. */
static void nap(const void *config, void *state, uint32_t microseconds)
{
    const struct clint_watchdog_state *watchdog = state;
    arch_disable_interrupts();
    set_alarm(config, now() + ticks_per_second() * microseconds / 1000000u);
    enable_timer(true);
    arch_wait_for_interrupt();
    if (watchdog->running) {
        set_alarm(config, watchdog->deadline);
        arch_enable_interrupts();
    } else {
        enable_timer(false);
        set_alarm(config, UINT64_MAX);
    }
}

const struct hal_watchdog_api clint_watchdog_api = {.start = start, .kick = kick, .stop = stop, .nap = nap};
