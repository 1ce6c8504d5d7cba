/* SPDX-License-Identifier: Apache-2.0
 *
 * checks.h: what the bring-up program can do. Each prints its measurements on the current line.
 */
#ifndef BRINGUP_CHECKS_H
#define BRINGUP_CHECKS_H

void check_start(void);        /* before anything else */
void check_clock(void);        /* frequency, two readings about 10 ms apart, steps backwards seen on the way */
void check_memory(void);       /* pattern over the whole of hal_board.memory */
void check_copies(void);       /* memcpy, memmove, memset, memcmp at all alignments; number of mistakes */
void check_floats(void);       /* control register, rounding, denormals, square root */
void check_disk(void);         /* init and size */
void check_read(const char *arguments);  /* BLOCK COUNT OFFSET: CRC-32 of what is read to memory + OFFSET */
void check_write(const char *arguments); /* BLOCK COUNT SEED: writes a pattern that the test can compute */
void check_kick(void);         /* a watchdog that is kicked for three of its periods, then stopped */
void check_starve(void);       /* a watchdog that is not kicked: ends in hal_on_fault */
void check_wait(void);         /* waiting for input that does not come, then for input that does */
void check_sleep(void);        /* a watchdog that is not kicked while the console waits: ends in hal_on_fault */
void check_overflow(void);     /* recursion without end: ends in hal_on_fault */
void check_double_fault(void); /* a fault whose report faults too */
void check_after_fault(void);  /* called at the end of hal_on_fault */

#endif
