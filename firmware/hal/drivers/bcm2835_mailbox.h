/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_mailbox.h: asks the VideoCore firmware of a Raspberry Pi for the rate of a clock.
 */
#ifndef COLIBRI_HAL_BCM2835_MAILBOX_H
#define COLIBRI_HAL_BCM2835_MAILBOX_H

#include "parts.h"

struct bcm2835_mailbox_config {
    uint64_t base;
    uint32_t clock_id;    /* 1: EMMC */
    uint32_t fallback_hz; /* when the firmware does not answer */
};
struct bcm2835_mailbox_state {
    /* The firmware reads and writes memory behind the caches' back: nothing else may share these lines. */
    _Alignas(64) uint32_t message[32];
};
extern const struct hal_clock_source_api bcm2835_mailbox_api;

#endif
