/* SPDX-License-Identifier: Apache-2.0
 *
 * vectors.S: every exception becomes a struct hal_fault (hal.h) on the fault stack. Nothing returns from here.
 * Vector offsets: Arm Architecture Reference Manual (DDI 0487), D1.10.2.
 */

/* struct hal_fault: kind 0, register_count 4, pc 8, sp 16, cause 24, address 32, status 40, registers 48 */
#define FAULT_BYTES 320 /* 48 + 8 * 34, a multiple of 16 */
#define HAL_FAULT_TRAP 1
#define HAL_FAULT_WATCHDOG 2

    .macro  vector kind
    .balign 0x80
    sub     sp, sp, #FAULT_BYTES
    stp     x0, x1, [sp, #48]
    mov     w0, #\kind
    b       save
    .endm

    /* An exception inside the fault handler: its stack may be the cause. */
    .macro  nested
    .balign 0x80
    ldr     x0, =hal_fault_stack_top
    mov     sp, x0
    b       hal_fault_nested
    .endm

    .section .text.vectors, "ax"
    .global hal_vectors
    .balign 0x800
hal_vectors:
    vector  HAL_FAULT_TRAP          /* from the program (SP_EL0): synchronous */
    vector  HAL_FAULT_WATCHDOG      /* IRQ: the watchdog's timer is the only one enabled */
    vector  HAL_FAULT_TRAP          /* FIQ */
    vector  HAL_FAULT_TRAP          /* SError */
    nested                          /* from the fault handler (SP_EL1) */
    nested
    nested
    nested
    .rept   8                       /* from EL0, which is not used */
    vector  HAL_FAULT_TRAP
    .endr

save:
    stp     x2, x3, [sp, #64]
    stp     x4, x5, [sp, #80]
    stp     x6, x7, [sp, #96]
    stp     x8, x9, [sp, #112]
    stp     x10, x11, [sp, #128]
    stp     x12, x13, [sp, #144]
    stp     x14, x15, [sp, #160]
    stp     x16, x17, [sp, #176]
    stp     x18, x19, [sp, #192]
    stp     x20, x21, [sp, #208]
    stp     x22, x23, [sp, #224]
    stp     x24, x25, [sp, #240]
    stp     x26, x27, [sp, #256]
    stp     x28, x29, [sp, #272]
    stp     x30, xzr, [sp, #288]
    stp     xzr, xzr, [sp, #304]
    mov     w1, #31
    stp     w0, w1, [sp]
    mrs     x0, elr_el1
    mrs     x1, sp_el0
    stp     x0, x1, [sp, #8]
    mrs     x0, esr_el1
    mrs     x1, far_el1
    stp     x0, x1, [sp, #24]
    mrs     x0, spsr_el1
    str     x0, [sp, #40]
    mov     x0, sp
    mov     x29, xzr
    mov     x30, xzr
    bl      hal_on_fault
    b       hal_fault_nested        /* hal_on_fault does not return */
