/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2836_local.c: routes the non-secure EL1 physical timer to its core. Sections are those of QA7 revision 3.4.
 */
#include "bcm2836_local.h"

#define TIMER_CONTROL 0x40u     /* 4.6 core timers interrupt control, 4 bytes per core */
#define CNTPNSIRQ_ENABLE (1u << 1)

static void enable(const void *config)
{
    const struct bcm2836_local_config *local = config;
    hal_write32(local->base + TIMER_CONTROL + 4u * local->core, CNTPNSIRQ_ENABLE);
    arch_barrier();
}

static void disable(const void *config)
{
    const struct bcm2836_local_config *local = config;
    hal_write32(local->base + TIMER_CONTROL + 4u * local->core, 0);
    arch_barrier();
}

const struct hal_interrupts_api bcm2836_local_api = {.enable = enable, .disable = disable};
