/* SPDX-License-Identifier: Apache-2.0
 *
 * host_board.h: the parts of the `host` board: the same runtime as on a board, as a process of this machine. */
#ifndef COLIBRI_HOST_BOARD_H
#define COLIBRI_HOST_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "../../firmware/hal/hal.h"

enum host_channel_kind { HOST_STDIO, HOST_PTY, HOST_UNIX, HOST_TCP, HOST_FD };

struct host_options {
    const char *image;       /* file, mapped in place; NULL with `block` */
    const char *block;       /* file that is the block device; NULL: there is none */
    enum host_channel_kind channel;
    const char *address;     /* HOST_UNIX: a path; HOST_TCP: HOST:PORT, port 0: any; HOST_FD: a number */
    uint64_t memory_bytes;   /* for the arena (and the image from `block`) */
    uint32_t fail_reads;     /* enum host_read_fault, 0: none */
    char **arguments;        /* of the process, for a reset */
};

/* die.c: prints to stderr, then ends the process with status 2. */
__attribute__((noreturn, format(printf, 1, 2))) void host_die(const char *format, ...);

/* console.c */
extern const struct hal_console_api host_console_api;
void host_console_open(const struct host_options *options);
void host_console_flush(void);
/* Puts the open descriptors into the environment, so that a reset keeps the line. */
void host_console_hand_over(void);

/* block.c */
extern const struct hal_block_api host_block_api;
extern const struct hal_block_api host_block_read_only_api;
/* What a read that is to fail does; the order is that of the option's values. */
enum host_read_fault { HOST_READ_WELL, HOST_READ_ERROR, HOST_READ_SHORT, HOST_READ_CORRUPT };
struct host_block_config {
    const char *path;
};
#define HOST_BLOCK_DEPTH 8u
struct host_block_state {
    uint64_t blocks;
    uint64_t asked; /* nanoseconds: when somebody last looked for the end of a read */
    uint32_t asks;  /* looks one right after the other */
};

/* faults.c */
extern const struct hal_watchdog_api host_watchdog_api;
void host_faults_install(void);
/* Reads of the block device fail as --fail-reads says from now on. */
void host_faults_of_reads(enum host_read_fault kind);
/* Whether the next read is to fail, and how. */
enum host_read_fault host_fault_of_read(void);

#endif
