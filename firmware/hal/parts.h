/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.h: what drivers and start-up code offer each other. The runtime does not include it.
 *
 * The interfaces below are like those of hal.h (const configuration, mutable state, const table of functions), for
 * devices that only other drivers use: an SPI bus under an SD card, an interrupt controller under a watchdog. In a
 * board's TOML file such a device is a table inside the device that uses it.
 */
#ifndef COLIBRI_HAL_PARTS_H
#define COLIBRI_HAL_PARTS_H

#include "arch.h" /* of the architecture: arch_barrier, arch_halt, ... */
#include "hal.h"

/* ---- registers */
static inline uint32_t hal_read32(uint64_t address)
{
    return *(volatile uint32_t *)(uintptr_t)address;
}

static inline void hal_write32(uint64_t address, uint32_t value)
{
    *(volatile uint32_t *)(uintptr_t)address = value;
}

static inline uint8_t hal_read8(uint64_t address)
{
    return *(volatile uint8_t *)(uintptr_t)address;
}

static inline void hal_write8(uint64_t address, uint8_t value)
{
    *(volatile uint8_t *)(uintptr_t)address = value;
}

/* ---- time, from hal_board.clock */
uint64_t hal_deadline(uint32_t milliseconds);  /* the tick at which that much time will have passed */
bool hal_expired(uint64_t deadline);
void hal_delay(uint32_t microseconds);

/* For a console's `wait`: halts the core in naps until `ready` says so or that much time has passed. A nap is as long
 * as the line takes to fill half of a FIFO of `fifo_bytes`. */
void hal_wait_console(bool (*ready)(const void *config), const void *config, uint32_t milliseconds, uint32_t fifo_bytes,
                      uint32_t baud);

/* Before a reset: what the console has accepted must leave its FIFO (at most 32 bytes, 2.8 ms at 115,200 baud). */
#define HAL_DRAIN_US 5000u

/* ---- SPI bus: full duplex, 8 bits, mode 0 */
struct hal_spi_api {
    hal_status (*init)(const void *config, void *state);
    void (*set_clock)(const void *config, void *state, uint32_t hz); /* the fastest that is not faster */
    void (*select)(const void *config, void *state, bool selected);
    /* Sends `bytes` of tx (NULL: 0xff) while receiving into rx (NULL: dropped). */
    void (*transfer)(const void *config, void *state, const uint8_t *tx, uint8_t *rx, size_t bytes);
};
struct hal_spi {
    const struct hal_spi_api *api;
    const void *config;
    void *state;
};

/* ---- interrupt controller: routes one interrupt, the watchdog timer's, to this core */
struct hal_interrupts_api {
    void (*enable)(const void *config);
    void (*disable)(const void *config);
};
struct hal_interrupts {
    const struct hal_interrupts_api *api;
    const void *config;
    void *state;
};

/* ---- a clock whose rate another processor decides */
struct hal_clock_source_api {
    uint32_t (*hz)(const void *config, void *state); /* 0: it could not be asked */
};
struct hal_clock_source {
    const struct hal_clock_source_api *api;
    const void *config;
    void *state;
};

/* ---- pin multiplexer: gives the pins to the board's devices, before any of them is brought up */
struct hal_pins_api {
    void (*init)(const void *config);
};
struct hal_pins {
    const struct hal_pins_api *api;
    const void *config;
    void *state;
};
extern const struct hal_pins hal_board_pins; /* api NULL: nothing to do */

/* ---- start-up */

/* A range of addresses with devices, to be mapped uncached. */
struct hal_region {
    uint64_t base;
    uint64_t bytes;
};
extern const struct hal_region hal_device_regions[];
extern const uint32_t hal_device_region_count;

/* Enters the program: C code, stack, memory attributes and floating point are as they will stay. Does not return. */
_Noreturn void hal_start(void);

/* Marks from the linker script (made from the board's TOML file). Sections start at page boundaries. */
extern uint8_t hal_image_start[], hal_text_end[], hal_rodata_end[], hal_bss_start[], hal_bss_end[], hal_stack_guard[],
    hal_stack_bottom[], hal_stack_top[], hal_fault_stack_top[], hal_memory_start[], hal_ram_end[];

#endif
