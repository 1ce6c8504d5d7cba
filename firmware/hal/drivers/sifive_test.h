/* SPDX-License-Identifier: Apache-2.0
 *
 * sifive_test.h: the "test finisher" of simulated and emulated RISC-V machines: ends or restarts the machine.
 */
#ifndef COLIBRI_HAL_SIFIVE_TEST_H
#define COLIBRI_HAL_SIFIVE_TEST_H

#include "hal.h"

struct sifive_test_config {
    uint64_t base;
};
extern const struct hal_power_api sifive_test_api;

#endif
