/* SPDX-License-Identifier: Apache-2.0
 *
 * board.h: what main.c asks of board.c before hal_board_init. */
#ifndef COLIBRI_HOST_BOARD_BOARD_H
#define COLIBRI_HOST_BOARD_BOARD_H

#include "host_board.h"

void host_board_prepare(const struct host_options *options);

#endif
