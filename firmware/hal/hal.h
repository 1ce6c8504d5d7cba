/* SPDX-License-Identifier: Apache-2.0
 *
 * hal.h: what a board owes the runtime. The runtime knows boards only through this header.
 *
 * A driver (hal/drivers/) is three things: a const configuration struct (addresses, clocks: from the board's TOML
 * file), a mutable state struct, and a const table of functions. The build makes from the TOML file one C file that
 * defines `hal_board` with the board's devices; a board on known parts is therefore data only. A device that a board
 * does not have has a NULL api.
 *
 * Everything here runs on one core, polled, without interrupts but for the watchdog's. Drivers never name the engine;
 * they report failure as a negative hal_status, and the runtime maps it.
 */
#ifndef COLIBRI_HAL_H
#define COLIBRI_HAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HAL_MUST_CHECK __attribute__((warn_unused_result))

typedef enum hal_status {
    HAL_PENDING = 1, /* not a failure: what was started goes on */
    HAL_OK = 0,
    HAL_E_ABSENT = -1,  /* the board has no such device, or no medium is inserted */
    HAL_E_TIMEOUT = -2, /* the device did not answer */
    HAL_E_IO = -3,      /* the device reported an error, or its data failed a check */
    HAL_E_RANGE = -4    /* beyond the device's end */
} hal_status;

/* ---- console: the bytes of the link. Never blocks on input. */
struct hal_console_api {
    hal_status (*init)(const void *config, void *state);
    size_t (*read)(const void *config, void *state, uint8_t *data, size_t capacity); /* what is there, may be 0 */
    void (*write)(const void *config, void *state, const uint8_t *data, size_t bytes); /* blocks until accepted */
    /* Returns when input is there or after about that time, so that an idle board need not spin. NULL: don't wait. */
    void (*wait)(const void *config, void *state, uint32_t milliseconds);
};
struct hal_console {
    const struct hal_console_api *api;
    const void *config;
    void *state;
};

/* ---- clock: monotonic, from reset or later. */
struct hal_clock_api {
    hal_status (*init)(const void *config, void *state);
    uint64_t (*ticks)(const void *config, const void *state);
    uint64_t (*ticks_per_second)(const void *config, const void *state);
};
struct hal_clock {
    const struct hal_clock_api *api;
    const void *config;
    void *state;
};

/* ---- block device: blocks of HAL_BLOCK bytes. `data` needs an alignment of 4.
 *
 * A read is started and then moved on in steps, so that the caller computes meanwhile: by DMA a step only looks whether
 * it has ended, otherwise it moves what is ready, about a block at most. `depth` reads may be under way at once, each
 * known by its number, 0 to depth - 1. */
#define HAL_BLOCK 512u
struct hal_block_api {
    hal_status (*init)(const void *config, void *state); /* HAL_E_ABSENT: no device or no medium */
    uint64_t (*block_count)(const void *config, const void *state);
    uint32_t depth;
    /* HAL_OK: the read is under way, and `data` is the device's until a step returns anything but HAL_PENDING. A
     * failure of any kind has begun nothing. */
    hal_status (*start)(const void *config, void *state, uint32_t transfer, uint64_t block, uint32_t count, void *data);
    hal_status (*step)(const void *config, void *state, uint32_t transfer);
    /* CRC-32 of what a read that has ended well has delivered, where the device's own threads compute it beside the
     * reading. NULL: the caller computes it. */
    uint32_t (*crc32)(const void *config, const void *state, uint32_t transfer);
    /* Returns when the blocks are written. No read may be under way. NULL: the medium cannot be written. */
    hal_status (*write)(const void *config, void *state, uint64_t block, uint32_t count, const void *data);
};
struct hal_block {
    const struct hal_block_api *api;
    const void *config;
    void *state;
};

/* Reads and waits. No other read may be under way. */
HAL_MUST_CHECK static inline hal_status hal_block_read(const struct hal_block *device, uint64_t block, uint32_t count,
                                                       void *data)
{
    hal_status status = device->api->start(device->config, device->state, 0, block, count, data);
    if (status == HAL_OK) {
        do {
            status = device->api->step(device->config, device->state, 0);
        } while (status == HAL_PENDING);
    }
    return status;
}

/* ---- reset and power. Neither function returns. */
struct hal_power_api {
    void (*reset)(const void *config);
    void (*off)(const void *config, uint32_t exit_code); /* a board that can't switch itself off waits for ever */
};
struct hal_power {
    const struct hal_power_api *api;
    const void *config;
};

/* ---- watchdog: when not kicked for `milliseconds`, hal_on_fault gets HAL_FAULT_WATCHDOG with the interrupted
 * program's registers. It is a timer interrupt, so that it can report before it resets. */
struct hal_watchdog_api {
    hal_status (*start)(const void *config, void *state, uint32_t milliseconds);
    void (*kick)(const void *config, void *state);
    void (*stop)(const void *config, void *state);
    /* Halts the core for about that long, with the watchdog's timer as alarm clock; the watchdog's own time runs on.
     * For drivers that wait. NULL: the core can't be halted. */
    void (*nap)(const void *config, void *state, uint32_t microseconds);
};
struct hal_watchdog {
    const struct hal_watchdog_api *api;
    const void *config;
    void *state;
};

/* ---- the board */
struct hal_board {
    const char *name;         /* as in boards/NAME.toml */
    const char *architecture; /* "aarch64", "riscv64", "x86_64" ... */
    struct hal_console console;
    struct hal_clock clock;
    struct hal_block block;
    struct hal_power power;
    struct hal_watchdog watchdog;
    uint32_t link_baud;       /* of the console, 0 where the word has no meaning */
    /* Memory for model and arena: everything the linker script left free, aligned to a page. */
    uint8_t *memory;
    uint64_t memory_bytes;
    /* A model that can be used where it lies (memory-mapped flash, an mmapped file); NULL: load it from `block`. */
    const uint8_t *mapped_model;
    uint64_t mapped_model_bytes;
};
extern struct hal_board hal_board; /* filled by hal_board_init */

/* Brings up console, clock and power (in this order; all boards have these) and fills hal_board. Called once, by the
 * start-up code. The runtime itself calls block.init, so that a missing card can be reported over the link. */
HAL_MUST_CHECK hal_status hal_board_init(void);

/* ---- faults: what start-up code and trap handlers tell the runtime */
enum hal_fault_kind {
    HAL_FAULT_TRAP = 1,    /* the processor trapped */
    HAL_FAULT_WATCHDOG = 2 /* no kick in time */
};

#define HAL_FAULT_REGISTERS 34u
struct hal_fault {
    uint32_t kind;           /* enum hal_fault_kind */
    uint32_t register_count; /* of `registers`: aarch64 x0..x30; riscv x1..x31 */
    uint64_t pc;
    uint64_t sp;
    uint64_t cause;          /* ESR_ELx, mcause, or a signal number */
    uint64_t address;        /* FAR_ELx, mtval, or the faulting address */
    uint64_t status;         /* SPSR_ELx, mstatus */
    uint64_t registers[HAL_FAULT_REGISTERS];
};

/* Defined by the runtime; called by trap handlers on a stack that is known to be good; does not return. */
void hal_on_fault(const struct hal_fault *fault);

/* Provokes a fault on purpose, for tests of the reporting path: 1 = illegal instruction, 2 = a load from an address
 * that is not mapped (a board without protection may use an illegal access of another kind). Returns if it can't. */
void hal_provoke_fault(uint32_t kind);

/* Defined by the runtime; the start-up code calls it after hal_board_init. Does not return on a board. */
int runtime_main(void);

#endif
