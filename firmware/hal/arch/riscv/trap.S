/* SPDX-License-Identifier: Apache-2.0
 *
 * trap.S: every trap becomes a struct hal_fault (hal.h) on the fault stack. Nothing returns from here.
 */

/* struct hal_fault: kind 0, register_count 4, pc 8, sp 16, cause 24, address 32, status 40, registers 48 */
#define FAULT_BYTES 320 /* 48 + 8 * 34, a multiple of 16 */
#define HAL_FAULT_TRAP 1
#define HAL_FAULT_WATCHDOG 2

    .section .text.trap, "ax"
    .global hal_trap
    .balign 4                       /* mtvec, direct mode */
hal_trap:
    csrrw   sp, mscratch, sp        /* the fault stack; mscratch: the program's sp */
    beqz    sp, nested
    addi    sp, sp, -FAULT_BYTES
    sd      x1, 48(sp)
    sd      x3, 64(sp)
    .irp    n, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    sd      x\n, 8 * (\n - 1) + 48(sp)
    .endr
    csrrw   t0, mscratch, zero
    sd      t0, 56(sp)              /* x2 */
    sd      t0, 16(sp)              /* sp */
    sd      zero, 296(sp)
    sd      zero, 304(sp)
    sd      zero, 312(sp)
    csrr    t0, mepc
    sd      t0, 8(sp)
    csrr    t1, mcause
    sd      t1, 24(sp)
    csrr    t0, mtval
    sd      t0, 32(sp)
    csrr    t0, mstatus
    sd      t0, 40(sp)
    li      t0, HAL_FAULT_TRAP
    bgez    t1, 1f                  /* the top bit: an interrupt, and the watchdog's timer is the only one enabled */
    li      t0, HAL_FAULT_WATCHDOG
1:  sw      t0, 0(sp)
    li      t0, 31
    sw      t0, 4(sp)
    mv      a0, sp
    .option push
    .option norelax
    la      gp, __global_pointer$   /* the program may have lost it */
    .option pop
    call    hal_on_fault            /* does not return */
nested:
    la      sp, hal_fault_stack_top
    call    hal_fault_nested
