/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_pm.h: power management block of the BCM2835 family: restart, and halt by restarting into no partition.
 */
#ifndef COLIBRI_HAL_BCM2835_PM_H
#define COLIBRI_HAL_BCM2835_PM_H

#include "hal.h"

struct bcm2835_pm_config {
    uint64_t base;
};
extern const struct hal_power_api bcm2835_pm_api;

#endif
