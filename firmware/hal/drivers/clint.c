/* SPDX-License-Identifier: Apache-2.0
 *
 * clint.c: mtime of the RISC-V core-local interruptor.
 */
#include "clint.h"

#define MTIME 0xbff8u /* FU540-C000 manual, 9.1 */

static hal_status init(const void *config, void *state)
{
    (void)config;
    (void)state;
    return HAL_OK;
}

static uint64_t ticks(const void *config, const void *state)
{
    const struct clint_config *clint = config;
    (void)state;
    return *(volatile uint64_t *)(uintptr_t)(clint->base + MTIME);
}

static uint64_t ticks_per_second(const void *config, const void *state)
{
    const struct clint_config *clint = config;
    (void)state;
    return clint->frequency_hz;
}

const struct hal_clock_api clint_api = {.init = init, .ticks = ticks, .ticks_per_second = ticks_per_second};
