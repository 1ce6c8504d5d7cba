/* SPDX-License-Identifier: Apache-2.0
 *
 * arch.h of this machine: what drivers under test ask of an architecture. */
#ifndef COLIBRI_HAL_ARCH_H
#define COLIBRI_HAL_ARCH_H

static inline void arch_barrier(void)
{
    __asm__ volatile("" ::: "memory");
}

#endif
