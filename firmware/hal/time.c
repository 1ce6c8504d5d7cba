/* SPDX-License-Identifier: Apache-2.0
 *
 * time.c: time-outs for drivers, on the board's clock.
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
