/* SPDX-License-Identifier: Apache-2.0
 *
 * psci.c: sections are those of DEN 0022F.
 */
#include "psci.h"

#include "parts.h"

#define SYSTEM_OFF 0x84000008u   /* 5.9 */
#define SYSTEM_RESET 0x84000009u /* 5.11 */

static void call(const struct psci_config *psci, uint32_t function)
{
    hal_delay(HAL_DRAIN_US);
    register uint64_t x0 __asm__("x0") = function;
    if (psci->use_smc) {
        __asm__ volatile("smc #0" : "+r"(x0)::"x1", "x2", "x3", "memory");
    } else {
        __asm__ volatile("hvc #0" : "+r"(x0)::"x1", "x2", "x3", "memory");
    }
    arch_halt(); /* not implemented by the firmware above us */
}

static void reset(const void *config)
{
    call(config, SYSTEM_RESET);
}

static void off(const void *config, uint32_t exit_code)
{
    (void)exit_code; /* PSCI has none */
    call(config, SYSTEM_OFF);
}

const struct hal_power_api psci_api = {.reset = reset, .off = off};
