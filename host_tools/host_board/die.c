/* SPDX-License-Identifier: Apache-2.0
 *
 * die.c: how the program ends when it cannot start. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "host_board.h"

void host_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("colibri-host: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}
