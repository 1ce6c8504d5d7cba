/* SPDX-License-Identifier: Apache-2.0
 *
 * start.S: from reset, or from whatever loaded us, to hal_start. Entered at EL3, EL2 or EL1 with the MMU off; ends at
 * EL1 with the MMU and caches on.
 *
 * The program runs at EL1 with SP_EL0 ("EL1t"), exceptions with SP_EL1: a trap therefore has a good stack whatever
 * happened to the program's. Register names and fields: Arm Architecture Reference Manual (DDI 0487), chapter D17.
 */

/* Linked first; the raw kernel image of a Raspberry Pi is entered at its first byte. */
    .section .boot, "ax"
    .global _start
_start:
    msr     daifset, #15
    mrs     x0, mpidr_el1
    tst     x0, #0xff               /* Aff0: the core's number within its cluster */
    b.ne    hal_park

    mrs     x0, CurrentEL
    lsr     x0, x0, #2
    cmp     x0, #3
    b.eq    from_el3
    cmp     x0, #2
    b.eq    from_el2
    b       at_el1

from_el3:
    mov     x0, #0x531              /* SCR_EL3: RW (EL2 is AArch64), HCE, RES1, NS */
    msr     scr_el3, x0
    msr     cptr_el3, xzr           /* no traps of floating point */
    mrs     x0, midr_el1
    ubfx    x0, x0, #4, #12
    mov     x1, #0xd03              /* Cortex-A53: caches need CPUECTLR_EL1.SMPEN (Cortex-A53 TRM, 4.3.67) */
    cmp     x0, x1
    b.ne    1f
    mrs     x0, s3_1_c15_c2_1
    orr     x0, x0, #0x40
    msr     s3_1_c15_c2_1, x0
1:  mov     x0, #0x3c9              /* SPSR: EL2h, all masked */
    adr     x1, from_el2
    mrs     x2, id_aa64pfr0_el1
    tst     x2, #0xf00              /* is there an EL2? */
    b.ne    2f
    mov     x0, #0x3c5              /* SPSR: EL1h, all masked */
    adr     x1, at_el1
2:  msr     spsr_el3, x0
    msr     elr_el3, x1
    eret

from_el2:
    mov     x0, #0x80000000         /* HCR_EL2.RW: EL1 is AArch64 */
    msr     hcr_el2, x0
    mov     x0, #0x33ff             /* CPTR_EL2: RES1 bits, no traps of floating point */
    msr     cptr_el2, x0
    msr     hstr_el2, xzr
    mrs     x0, cnthctl_el2
    orr     x0, x0, #3              /* EL1 may use the physical counter and timer */
    msr     cnthctl_el2, x0
    msr     cntvoff_el2, xzr
    mrs     x0, midr_el1
    msr     vpidr_el2, x0
    mrs     x0, mpidr_el1
    msr     vmpidr_el2, x0
    ldr     x0, =0x30d00800         /* SCTLR_EL1: RES1 bits; MMU and caches off */
    msr     sctlr_el1, x0
    mov     x0, #0x3c5              /* SPSR: EL1h, all masked */
    msr     spsr_el2, x0
    adr     x0, at_el1
    msr     elr_el2, x0
    eret

at_el1:
    ldr     x0, =0x30d00800
    msr     sctlr_el1, x0
    mov     x0, #0x300000           /* CPACR_EL1.FPEN: floating point and vectors */
    msr     cpacr_el1, x0
    isb
    msr     fpcr, xzr               /* round to nearest even, denormals kept, no traps */

    msr     spsel, #1
    ldr     x0, =hal_fault_stack_top
    mov     sp, x0
    msr     spsel, #0
    ldr     x0, =hal_stack_top
    mov     sp, x0
    ldr     x0, =hal_vectors
    msr     vbar_el1, x0
    isb

    ldr     x0, =hal_bss_start      /* both are multiples of 16 */
    ldr     x1, =hal_bss_end
2:  cmp     x0, x1
    b.hs    3f
    stp     xzr, xzr, [x0], #16
    b       2b

    /* Release cores that wait in a spin table (Linux arm64 boot protocol), so that they park in WFI: an emulated core
     * in the loader's WFE loop burns a host thread. hal_spin_table is 0 on boards without one. */
3:  ldr     x0, =hal_spin_table
    cbz     x0, 4f
    adr     x1, hal_park
    stp     x1, x1, [x0, #8]
    str     x1, [x0, #24]
    dsb     sy
    sev

4:  bl      hal_mmu_init
    mov     x29, xzr
    mov     x30, xzr
    b       hal_start

hal_park:
    msr     daifset, #15
    wfi
    b       hal_park
