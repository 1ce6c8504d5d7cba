/* SPDX-License-Identifier: Apache-2.0
 *
 * start.c: from start-up code to the runtime, on every architecture.
 */
#include "parts.h"

_Noreturn void hal_start(void)
{
    int result = -1;
    if (hal_board_init() == HAL_OK) {
        result = runtime_main();
    }
    /* The runtime does not return. If it did, the board must not look alive. */
    hal_board.power.api->off(hal_board.power.config, (uint32_t)(result & 0x7f));
    arch_halt();
}
