/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_pm.c: the block is not in the public peripherals manual; registers are those that Linux uses
 * (drivers/watchdog/bcm2835_wdt.c).
 */
#include "bcm2835_pm.h"

#include "parts.h"

#define RSTC 0x1cu
#define RSTS 0x20u
#define WDOG 0x24u

#define PASSWORD 0x5a000000u
#define RSTC_CONFIGURATION 0x30u
#define RSTC_FULL_RESET 0x20u
#define RSTS_HALT 0x555u /* "partition 63": the boot ROM stops instead of booting */
#define WDOG_TICKS 10u   /* of 1/65536 s */

static void reset(const void *config)
{
    const struct bcm2835_pm_config *pm = config;
    hal_delay(HAL_DRAIN_US);
    hal_write32(pm->base + WDOG, PASSWORD | WDOG_TICKS);
    const uint32_t control = hal_read32(pm->base + RSTC) & ~RSTC_CONFIGURATION & 0xffffffu;
    hal_write32(pm->base + RSTC, PASSWORD | control | RSTC_FULL_RESET);
    arch_halt();
}

static void off(const void *config, uint32_t exit_code)
{
    const struct bcm2835_pm_config *pm = config;
    (void)exit_code; /* there is nobody to hand it to */
    hal_write32(pm->base + RSTS, PASSWORD | (hal_read32(pm->base + RSTS) & 0xffffffu) | RSTS_HALT);
    reset(config);
}

const struct hal_power_api bcm2835_pm_api = {.reset = reset, .off = off};
