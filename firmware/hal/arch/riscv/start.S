/* SPDX-License-Identifier: Apache-2.0
 *
 * start.S: from reset, or from whatever loaded us, to hal_start, in machine mode. CSRs and fields: The RISC-V
 * Instruction Set Manual, Volume II (privileged architecture 1.12), chapter 3.
 *
 * mscratch holds the top of the fault stack while the program runs, and 0 while a fault is handled.
 */
    .section .boot, "ax"
    .global _start
_start:
    csrw    mie, zero
    csrci   mstatus, 8              /* MIE */
    csrr    t0, mhartid
    lui     t1, %hi(hal_boot_hart)
    addi    t1, t1, %lo(hal_boot_hart)
    bne     t0, t1, park

    .option push
    .option norelax
    la      gp, __global_pointer$
    .option pop
    la      sp, hal_stack_top
    la      t0, hal_fault_stack_top
    csrw    mscratch, t0
    la      t0, hal_trap
    csrw    mtvec, t0
    csrw    satp, zero

    li      t0, 0x6000
    csrc    mstatus, t0
    li      t0, 0x2000              /* FS: initial */
    csrs    mstatus, t0
    csrw    fcsr, zero              /* round to nearest even */

    /* The page below the stack: a locked PMP entry (3.7.1) without permissions binds machine mode too. NAPOT, 4 KB.
     * A hart without PMP ignores it or traps here; the trap is skipped by the temporary vector. */
    la      t0, 1f
    csrw    mtvec, t0
    la      t0, hal_stack_guard
    srli    t0, t0, 2
    ori     t0, t0, 0x1ff
    csrw    pmpaddr0, t0
    li      t0, 0x98                /* L, A = NAPOT */
    csrw    pmpcfg0, t0
    .balign 4
1:  la      t0, hal_trap
    csrw    mtvec, t0

    la      t0, hal_bss_start       /* both are multiples of 16 */
    la      t1, hal_bss_end
2:  bgeu    t0, t1, 3f
    sd      zero, 0(t0)
    sd      zero, 8(t0)
    addi    t0, t0, 16
    j       2b
3:  li      ra, 0
    li      s0, 0
    tail    hal_start

park:
    wfi
    j       park
