/* SPDX-License-Identifier: Apache-2.0
 *
 * sifive_gpio_reset.c: sections are those of the FU540-C000 manual.
 */
#include "sifive_gpio_reset.h"

#include "parts.h"

#define OUTPUT_EN 0x08u  /* 17.2 */
#define OUTPUT_VAL 0x0cu /* 17.2 */

static void reset(const void *config)
{
    const struct sifive_gpio_reset_config *gpio = config;
    hal_delay(HAL_DRAIN_US);
    const uint32_t bit = 1u << gpio->pin;
    hal_write32(gpio->base + OUTPUT_VAL, hal_read32(gpio->base + OUTPUT_VAL) | bit);
    hal_write32(gpio->base + OUTPUT_EN, hal_read32(gpio->base + OUTPUT_EN) | bit);
    hal_write32(gpio->base + OUTPUT_VAL, hal_read32(gpio->base + OUTPUT_VAL) & ~bit); /* the edge counts */
    arch_halt();
}

static void off(const void *config, uint32_t exit_code)
{
    (void)config;
    (void)exit_code;
    arch_halt(); /* the board cannot switch itself off */
}

const struct hal_power_api sifive_gpio_reset_api = {.reset = reset, .off = off};
