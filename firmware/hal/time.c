/* SPDX-License-Identifier: Apache-2.0
 *
 * time.c: time-outs and waiting for drivers, on the board's clock.
 */
#include "parts.h"

static uint64_t now(void)
{
    return hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state);
}

static uint64_t frequency(void)
{
    return hal_board.clock.api->ticks_per_second(hal_board.clock.config, hal_board.clock.state);
}

uint64_t hal_deadline(uint32_t milliseconds)
{
    return now() + frequency() * milliseconds / 1000u + 1u;
}

bool hal_expired(uint64_t deadline)
{
    return now() >= deadline;
}

void hal_delay(uint32_t microseconds)
{
    const uint64_t end = now() + frequency() * microseconds / 1000000u + 1u;
    while (!hal_expired(end)) {
    }
}

void hal_wait_console(bool (*ready)(const void *config), const void *config, uint32_t milliseconds, uint32_t fifo_bytes,
                      uint32_t baud)
{
    const struct hal_watchdog *watchdog = &hal_board.watchdog;
    const uint32_t bits = fifo_bytes / 2u * 10u; /* start, eight data, stop */
    const uint64_t deadline = hal_deadline(milliseconds);
    while (!ready(config) && !hal_expired(deadline)) {
        if (watchdog->api != NULL && watchdog->api->nap != NULL) {
            watchdog->api->nap(watchdog->config, watchdog->state, bits * 1000000u / baud);
        }
    }
}
