/* SPDX-License-Identifier: Apache-2.0
 *
 * psci.h: Arm Power State Coordination Interface (DEN 0022).
 */
#ifndef COLIBRI_HAL_PSCI_H
#define COLIBRI_HAL_PSCI_H

#include "hal.h"

struct psci_config {
    bool use_smc; /* false: hvc */
};
extern const struct hal_power_api psci_api;

#endif
