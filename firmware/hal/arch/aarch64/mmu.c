/* SPDX-License-Identifier: Apache-2.0
 *
 * mmu.c: identity map with caches on. RAM is Normal write-back memory, devices are nGnRnE; code is read-only, data is
 * not executable; the page below the stack and everything the board file does not name is unmapped, so that a stray
 * pointer or a stack that grows too far traps. 4 KB granule, 39-bit addresses: level 1 (1 GB), 2 (2 MB), 3 (4 KB).
 *
 * Runs with the MMU off, where all memory is Device memory: compiled with -mstrict-align.
 * Formats: Arm Architecture Reference Manual (DDI 0487), D8.3 (descriptors), D17.2 (MAIR, TCR, SCTLR).
 */
#include "parts.h"

#define PAGE 0x1000u
#define ADDRESS_BITS 39u

/* MAIR_EL1 indices */
#define ATTRIBUTE_DEVICE (0ull << 2) /* 0x00: Device-nGnRnE */
#define ATTRIBUTE_NORMAL (1ull << 2) /* 0xff: write-back, read and write allocate, inner and outer */
#define MAIR 0xff00ull

#define DESCRIPTOR_BLOCK 1ull
#define DESCRIPTOR_TABLE 3ull
#define DESCRIPTOR_PAGE 3ull
#define READ_ONLY (1ull << 7)        /* AP[2] */
#define INNER_SHAREABLE (3ull << 8)
#define ACCESSED (1ull << 10)
#define NEVER_EXECUTE (3ull << 53)   /* PXN and UXN */
#define ADDRESS_MASK 0x0000fffffffff000ull

#define DEVICE (ATTRIBUTE_DEVICE | ACCESSED | NEVER_EXECUTE)
#define DATA (ATTRIBUTE_NORMAL | INNER_SHAREABLE | ACCESSED | NEVER_EXECUTE)
#define CONSTANTS (DATA | READ_ONLY)
#define CODE (ATTRIBUTE_NORMAL | INNER_SHAREABLE | ACCESSED | READ_ONLY)

/* Their number follows from the board's regions; the build counts them. */
extern uint64_t hal_mmu_tables[][512];
extern const uint32_t hal_mmu_table_count;

void hal_mmu_init(void);

static uint64_t *new_table(uint32_t *used)
{
    if (*used == hal_mmu_table_count) {
        arch_halt(); /* the build's count is wrong: nothing can be reported yet */
    }
    return hal_mmu_tables[(*used)++];
}

static uint64_t *table_below(uint64_t *entry, uint32_t *used)
{
    if (*entry == 0) {
        *entry = (uint64_t)(uintptr_t)new_table(used) | DESCRIPTOR_TABLE;
    }
    return (uint64_t *)(uintptr_t)(*entry & ADDRESS_MASK);
}

/* Maps [base, end), both multiples of a page, with the largest pieces that fit. No address is mapped twice. */
static void map(uint64_t base, uint64_t end, uint64_t attributes, uint32_t *used)
{
    while (base < end) {
        uint64_t *table = hal_mmu_tables[0];
        uint32_t shift = 30;
        for (;;) {
            uint64_t *entry = &table[(base >> shift) & 511u];
            const uint64_t size = 1ull << shift;
            if (shift == 12 || (base % size == 0 && end - base >= size)) {
                *entry = base | attributes | (shift == 12 ? DESCRIPTOR_PAGE : DESCRIPTOR_BLOCK);
                base += size;
                break;
            }
            table = table_below(entry, used);
            shift -= 9;
        }
    }
}

void hal_mmu_init(void)
{
    uint32_t used = 1; /* the first is the level 1 table */
    for (uint32_t i = 0; i < hal_device_region_count; i++) {
        const struct hal_region *region = &hal_device_regions[i];
        map(region->base, region->base + region->bytes, DEVICE, &used);
    }
    map((uintptr_t)hal_image_start, (uintptr_t)hal_text_end, CODE, &used);
    map((uintptr_t)hal_text_end, (uintptr_t)hal_rodata_end, CONSTANTS, &used);
    map((uintptr_t)hal_rodata_end, (uintptr_t)hal_stack_guard, DATA, &used);
    map((uintptr_t)hal_stack_bottom, (uintptr_t)hal_ram_end, DATA, &used);

    uint64_t physical;
    __asm__ volatile("mrs %0, id_aa64mmfr0_el1" : "=r"(physical));
    physical &= 7u;              /* PARange; larger encodings than 48 bits need other descriptors */
    physical = physical > 5 ? 5 : physical;
    const uint64_t tcr = (64u - ADDRESS_BITS)   /* T0SZ */
                         | 1u << 8 | 1u << 10   /* table walks are write-back cacheable ... */
                         | 3u << 12             /* ... and inner shareable */
                         | 1u << 23             /* EPD1: no upper half */
                         | physical << 32;      /* IPS */
    __asm__ volatile(
        "dsb sy\n\t"
        "msr mair_el1, %0\n\t"
        "msr tcr_el1, %1\n\t"
        "msr ttbr0_el1, %2\n\t"
        "isb\n\t"
        "tlbi vmalle1\n\t"
        "ic iallu\n\t"
        "dsb sy\n\t"
        "isb\n\t"
        "mrs x9, sctlr_el1\n\t"
        "orr x9, x9, #0x1000\n\t" /* I: instruction cache */
        "orr x9, x9, #0x4\n\t"    /* C: data cache */
        "orr x9, x9, #0x1\n\t"    /* M: MMU */
        "msr sctlr_el1, x9\n\t"
        "isb" ::"r"(MAIR),
        "r"(tcr), "r"((uint64_t)(uintptr_t)hal_mmu_tables)
        : "x9", "memory");
}
