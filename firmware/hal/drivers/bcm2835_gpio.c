/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_gpio.c: sections are those of BCM2835 ARM Peripherals.
 */
#include "bcm2835_gpio.h"

#define GPFSEL 0x00u    /* 6.1: 3 bits per pin, 10 pins per register */
#define GPPUD 0x94u     /* 6.1: pull up or down ... */
#define GPPUDCLK 0x98u  /* ... taken over by the pins whose clock is raised; 32 pins per register */
#define SETUP_CYCLES 150u

/* "Wait 150 cycles" (6.1, GPPUDCLK): the loop's own instructions make it longer than that. The clock isn't up yet. */
static void wait_setup(void)
{
    for (volatile uint32_t i = 0; i < SETUP_CYCLES; i++) {
    }
}

static void set_pin(uint64_t base, uint32_t pin, uint32_t function, uint32_t pull)
{
    const uint64_t select = base + GPFSEL + 4u * (pin / 10u);
    const uint32_t shift = 3u * (pin % 10u);
    hal_write32(select, (hal_read32(select) & ~(7u << shift)) | function << shift);
    const uint64_t clock = base + GPPUDCLK + 4u * (pin / 32u);
    hal_write32(base + GPPUD, pull);
    wait_setup();
    hal_write32(clock, 1u << pin % 32u);
    wait_setup();
    hal_write32(base + GPPUD, 0);
    hal_write32(clock, 0);
}

static void init(const void *config)
{
    const struct bcm2835_gpio_config *gpio = config;
    for (uint32_t i = 0; i < gpio->pins_count; i++) {
        const struct bcm2835_gpio_pins *pins = &gpio->pins[i];
        for (uint32_t pin = pins->first; pin <= pins->last; pin++) {
            set_pin(gpio->base, pin, pins->function, pins->pull);
        }
    }
    arch_barrier();
}

const struct hal_pins_api bcm2835_gpio_api = {.init = init};
