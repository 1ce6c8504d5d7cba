/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_emmc.h: SD card on the EMMC controller of the BCM2835 family, an Arasan SDHCI (BCM2835 ARM Peripherals,
 * chapter 5; SD Host Controller Simplified Specification 3.00).
 */
#ifndef COLIBRI_HAL_BCM2835_EMMC_H
#define COLIBRI_HAL_BCM2835_EMMC_H

#include "parts.h"

struct bcm2835_emmc_config {
    uint64_t base;
    struct hal_clock_source clock_source; /* the controller's base clock */
};
struct bcm2835_emmc_state {
    uint64_t blocks;
    uint32_t base_hz;
    bool high_capacity;
    bool slow; /* the card is being identified */
    uint64_t next; /* of the read under way: the block that the next command begins with */
    uint32_t left;    /* blocks that are still to be asked for */
    uint32_t waiting; /* blocks of the command under way that have not come yet */
    uint32_t *to;     /* where the next one goes */
    uint64_t deadline; /* of the next one */
};
extern const struct hal_block_api bcm2835_emmc_api;

#endif
