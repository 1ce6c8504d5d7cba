/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2836_local.h: the Raspberry Pi 2 and 3's per-core interrupt routing (QA7 "ARM Quad A7 core", revision 3.4).
 */
#ifndef COLIBRI_HAL_BCM2836_LOCAL_H
#define COLIBRI_HAL_BCM2836_LOCAL_H

#include "parts.h"

struct bcm2836_local_config {
    uint64_t base;
    uint32_t core;
};
extern const struct hal_interrupts_api bcm2836_local_api;

#endif
