/* SPDX-License-Identifier: Apache-2.0
 *
 * sifive_gpio_reset.h: a board that restarts when one of its SiFive GPIO pins is driven low (HiFive Unleashed: pin 10).
 */
#ifndef COLIBRI_HAL_SIFIVE_GPIO_RESET_H
#define COLIBRI_HAL_SIFIVE_GPIO_RESET_H

#include "hal.h"

struct sifive_gpio_reset_config {
    uint64_t base;
    uint32_t pin;
};
extern const struct hal_power_api sifive_gpio_reset_api;

#endif
