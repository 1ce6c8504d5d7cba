/* SPDX-License-Identifier: Apache-2.0
 *
 * sifive_test.c: one register; values as in the device tree binding "sifive,test1" and QEMU's hw/misc/sifive_test.c.
 */
#include "sifive_test.h"

#include "parts.h"

#define FAIL 0x3333u /* | exit code << 16 */
#define PASS 0x5555u
#define RESET 0x7777u

static void reset(const void *config)
{
    const struct sifive_test_config *finisher = config;
    hal_delay(HAL_DRAIN_US);
    hal_write32(finisher->base, RESET);
    arch_halt();
}

static void off(const void *config, uint32_t exit_code)
{
    const struct sifive_test_config *finisher = config;
    hal_delay(HAL_DRAIN_US);
    hal_write32(finisher->base, exit_code == 0 ? PASS : FAIL | exit_code << 16);
    arch_halt();
}

const struct hal_power_api sifive_test_api = {.reset = reset, .off = off};
