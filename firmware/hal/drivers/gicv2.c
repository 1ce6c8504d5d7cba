/* SPDX-License-Identifier: Apache-2.0
 *
 * gicv2.c: sections are those of IHI 0048B.
 */
#include "gicv2.h"

#define GICD_CTLR 0x000u       /* 4.3.1 */
#define GICD_ISENABLER 0x100u  /* 4.3.5 */
#define GICD_ICENABLER 0x180u  /* 4.3.6 */
#define GICD_IPRIORITYR 0x400u /* 4.3.11, one byte per interrupt */
#define GICC_CTLR 0x000u       /* 4.4.1 */
#define GICC_PMR 0x004u        /* 4.4.2 */

static void enable(const void *config)
{
    const struct gicv2_config *gic = config;
    const uint32_t word = gic->interrupt / 32u * 4u;
    hal_write8(gic->distributor_base + GICD_IPRIORITYR + gic->interrupt, 0x80);
    hal_write32(gic->distributor_base + GICD_ISENABLER + word, 1u << gic->interrupt % 32u);
    hal_write32(gic->distributor_base + GICD_CTLR, 1);
    hal_write32(gic->cpu_base + GICC_PMR, 0xf0);
    hal_write32(gic->cpu_base + GICC_CTLR, 1);
    arch_barrier();
}

static void disable(const void *config)
{
    const struct gicv2_config *gic = config;
    hal_write32(gic->distributor_base + GICD_ICENABLER + gic->interrupt / 32u * 4u, 1u << gic->interrupt % 32u);
    hal_write32(gic->cpu_base + GICC_CTLR, 0);
    arch_barrier();
}

const struct hal_interrupts_api gicv2_api = {.enable = enable, .disable = disable};
