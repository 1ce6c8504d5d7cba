/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_gpio.h: pin multiplexer of the BCM2835 family (BCM2835 ARM Peripherals, chapter 6).
 */
#ifndef COLIBRI_HAL_BCM2835_GPIO_H
#define COLIBRI_HAL_BCM2835_GPIO_H

#include "parts.h"

struct bcm2835_gpio_pins {
    uint32_t first;    /* pins first .. last */
    uint32_t last;
    uint32_t function; /* as in GPFSEL (6.1): 0 input, 1 output, 4 ALT0, 5 ALT1, 6 ALT2, 7 ALT3, 3 ALT4, 2 ALT5 */
    uint32_t pull;     /* as in GPPUD: 0 off, 1 down, 2 up */
};
struct bcm2835_gpio_config {
    uint64_t base;
    const struct bcm2835_gpio_pins *pins;
    uint32_t pins_count;
};
extern const struct hal_pins_api bcm2835_gpio_api;

#endif
