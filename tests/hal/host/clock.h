/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h: the clock of drivers under test. Each look at it takes a millisecond, so that all waiting ends. */
#ifndef COLIBRI_TEST_CLOCK_H
#define COLIBRI_TEST_CLOCK_H

#include "parts.h"

static uint64_t clock_now;

static uint64_t clock_ticks(const void *config, const void *state)
{
    (void)config;
    (void)state;
    return clock_now++;
}

static uint64_t clock_rate(const void *config, const void *state)
{
    (void)config;
    (void)state;
    return 1000;
}

static const struct hal_clock_api clock_api = {.ticks = clock_ticks, .ticks_per_second = clock_rate};
struct hal_board hal_board = {.clock = {.api = &clock_api}};

#endif
