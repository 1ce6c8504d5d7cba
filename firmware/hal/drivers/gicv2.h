/* SPDX-License-Identifier: Apache-2.0
 *
 * gicv2.h: Arm Generic Interrupt Controller, architecture version 2 (IHI 0048B), for one interrupt.
 */
#ifndef COLIBRI_HAL_GICV2_H
#define COLIBRI_HAL_GICV2_H

#include "parts.h"

struct gicv2_config {
    uint64_t distributor_base;
    uint64_t cpu_base;
    uint32_t interrupt; /* number; 30 is the EL1 physical timer */
};
extern const struct hal_interrupts_api gicv2_api;

#endif
