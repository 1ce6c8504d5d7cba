/* SPDX-License-Identifier: Apache-2.0
 *
 * board.c: brings up the devices that every board has. The devices themselves are defined in the C file that the
 * build makes from the board's TOML file.
 */
#include "parts.h"

hal_status hal_board_init(void)
{
    if (hal_board_pins.api != NULL) {
        hal_board_pins.api->init(hal_board_pins.config);
    }
    hal_status status = hal_board.console.api->init(hal_board.console.config, hal_board.console.state);
    if (status != HAL_OK) {
        return status;
    }
    status = hal_board.clock.api->init(hal_board.clock.config, hal_board.clock.state);
    if (status != HAL_OK) {
        return status;
    }
    hal_board.memory = hal_memory_start;
    hal_board.memory_bytes = (uint64_t)(hal_ram_end - hal_memory_start);
    return HAL_OK;
}
