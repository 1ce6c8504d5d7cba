/* SPDX-License-Identifier: Apache-2.0
 *
 * clint_watchdog.c: when the machine timer's interrupt comes, nobody kicked in time; the trap handler turns it into a
 * fault with the interrupted program's registers.
 */
#include "clint_watchdog.h"

#define MTIMECMP 0x4000u /* FU540-C000 manual, 9.1: 8 bytes per hart */
#define MIE_MTIE 0x80u   /* privileged architecture 1.12, 3.1.9 */

static void set_compare(const struct clint_watchdog_config *watchdog, uint64_t value)
{
    *(volatile uint64_t *)(uintptr_t)(watchdog->base + MTIMECMP + 8u * watchdog->hart) = value;
}

static void kick(const void *config, void *state)
{
    const struct clint_watchdog_state *watchdog = state;
    set_compare(config, hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state) + watchdog->period);
}

static void stop(const void *config, void *state)
{
    (void)state;
    arch_disable_interrupts();
    __asm__ volatile("csrc mie, %0" ::"r"((uint64_t)MIE_MTIE) : "memory");
    set_compare(config, UINT64_MAX);
}

static hal_status start(const void *config, void *state, uint32_t milliseconds)
{
    struct clint_watchdog_state *watchdog = state;
    stop(config, state);
    watchdog->period =
        hal_board.clock.api->ticks_per_second(hal_board.clock.config, hal_board.clock.state) * milliseconds / 1000u;
    kick(config, state);
    __asm__ volatile("csrs mie, %0" ::"r"((uint64_t)MIE_MTIE) : "memory");
    arch_enable_interrupts();
    return HAL_OK;
}

const struct hal_watchdog_api clint_watchdog_api = {.start = start, .kick = kick, .stop = stop};
