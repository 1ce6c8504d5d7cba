/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h: the end of a run. hal_on_fault (hal.h) is defined in fault.c and needs nothing of the rest of the runtime,
 * which may be broken: it speaks raw frames over hal_board.console. */
#ifndef COLIBRI_FAULT_H
#define COLIBRI_FAULT_H

#include <stdint.h>

/* The request that a fault is to name; 0 for none. */
void fault_name_request(uint32_t request);

#endif
