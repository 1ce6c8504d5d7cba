/* SPDX-License-Identifier: Apache-2.0
 *
 * arch.h (AArch64): the few instructions that C has no word for.
 */
#ifndef COLIBRI_HAL_ARCH_H
#define COLIBRI_HAL_ARCH_H

/* Orders all accesses before it, to memory and to devices, before all after it. */
static inline void arch_barrier(void)
{
    __asm__ volatile("dsb sy" ::: "memory");
}

static inline void arch_enable_interrupts(void)
{
    __asm__ volatile("msr daifclr, #2" ::: "memory");
}

static inline void arch_disable_interrupts(void)
{
    __asm__ volatile("msr daifset, #2" ::: "memory");
}

/* Stops this core for good, without burning power or a host thread. */
_Noreturn static inline void arch_halt(void)
{
    for (;;) {
        __asm__ volatile("msr daifset, #15\n\twfi" ::: "memory");
    }
}

/* Halts until an enabled interrupt is pending, masked or not. */
static inline void arch_wait_for_interrupt(void)
{
    __asm__ volatile("dsb sy\n\twfi" ::: "memory");
}

static inline void arch_illegal_instruction(void)
{
    __asm__ volatile(".inst 0");
}

#endif
