/* SPDX-License-Identifier: Apache-2.0
 *
 * arch.h (RISC-V): the few instructions that C has no word for.
 */
#ifndef COLIBRI_HAL_ARCH_H
#define COLIBRI_HAL_ARCH_H

/* Orders all accesses before it, to memory and to devices, before all after it. */
static inline void arch_barrier(void)
{
    __asm__ volatile("fence iorw, iorw" ::: "memory");
}

static inline void arch_enable_interrupts(void)
{
    __asm__ volatile("csrsi mstatus, 8" ::: "memory"); /* MIE */
}

static inline void arch_disable_interrupts(void)
{
    __asm__ volatile("csrci mstatus, 8" ::: "memory");
}

/* Stops this hart for good, without burning power or a host thread. */
_Noreturn static inline void arch_halt(void)
{
    for (;;) {
        __asm__ volatile("csrw mie, zero\n\tcsrci mstatus, 8\n\twfi" ::: "memory");
    }
}

/* Halts until an enabled interrupt is pending, masked or not. */
static inline void arch_wait_for_interrupt(void)
{
    __asm__ volatile("wfi" ::: "memory");
}

static inline void arch_illegal_instruction(void)
{
    __asm__ volatile("unimp");
}

#endif
