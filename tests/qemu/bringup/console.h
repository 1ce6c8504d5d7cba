/* SPDX-License-Identifier: Apache-2.0
 *
 * console.h: lines of text over the board's console, for the bring-up program.
 */
#ifndef BRINGUP_CONSOLE_H
#define BRINGUP_CONSOLE_H

#include "hal.h"

void print(const char *text);
void print_hex(const char *name, uint64_t value); /* " name=0x..." */
void print_signed(const char *name, int64_t value); /* " name=..." */

/* Reads up to a line feed, which is dropped; what does not fit is dropped too. NUL-terminated. */
void read_line(char *line, size_t capacity);

/* The word at *cursor as a number, decimal or 0x...; moves the cursor behind it. 0 when there is none. */
uint64_t next_number(const char **cursor);

#endif
