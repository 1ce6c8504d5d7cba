/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.c: the ends of the fault path that are C.
 */
#include "parts.h"

void hal_fault_nested(void);

/* The fault handler itself faulted, or returned: only a restart is left. */
void hal_fault_nested(void)
{
    hal_board.power.api->reset(hal_board.power.config);
    arch_halt();
}

void hal_provoke_fault(uint32_t kind)
{
    if (kind == 1) {
        arch_illegal_instruction();
    } else if (kind == 2) {
        (void)*(volatile uint8_t *)hal_stack_guard; /* not mapped, or closed by the PMP */
    }
}
