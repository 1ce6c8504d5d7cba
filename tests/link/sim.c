/* SPDX-License-Identifier: Apache-2.0
 *
 * sim.c: the device's runtime as a library in virtual time. The board's console is two buffers and its clock a
 * counter; whenever the device waits, or has computed for a while, the test's `step` is called: it takes what the
 * device wrote, moves the clock, and gives what the device is to read. A whole chaos run of minutes takes
 * milliseconds and is the same each time. */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "../../firmware/hal/hal.h"
#include "../../firmware/runtime/runtime.h"

#define MICROSECONDS 1000000u
#define BUFFER 65536u
#define COMPUTE_US 200u /* between two steps while the device does not wait */

/* Returns the number of bytes put into rx, SIM_STOP or SIM_CRASH. *time is moved on by at least 1 and is not to
 * pass `until` by much. *quiet is set to when the step has something to do next, if the device writes nothing. */
typedef int (*sim_step)(uint64_t *time, uint64_t until, uint64_t *quiet, const uint8_t *tx, uint32_t tx_bytes, uint8_t *rx,
                        uint32_t rx_capacity);
enum { SIM_STOP = -1, SIM_CRASH = -2 };
enum { SIM_STOPPED = 1, SIM_RESET = 2, SIM_CRASHED = 3 };

struct hal_board hal_board;

static sim_step step;
static jmp_buf leave;
static uint64_t time_now;
static uint64_t last_step;
static uint64_t quiet;
static uint8_t tx[BUFFER], rx[BUFFER];
static uint32_t tx_bytes, rx_at, rx_bytes;
static uint8_t memory[262144] __attribute__((aligned(4096)));
static const uint8_t *storage; /* NULL: the image is mapped */
static uint64_t storage_blocks;
static uint64_t failing_block; /* UINT64_MAX: none */
static uint64_t block_at; /* of the read under way */
static uint32_t block_left;
static uint8_t *block_data;
static uint32_t block_us;
static uint8_t image[4096] __attribute__((aligned(64))) = "C";

static void run_step(uint64_t until)
{
    if (tx_bytes == 0 && until < quiet) {
        time_now = until > time_now ? until : time_now;
        last_step = time_now;
        return;
    }
    int got = step(&time_now, until, &quiet, tx, tx_bytes, rx, BUFFER);
    tx_bytes = 0;
    rx_at = 0;
    rx_bytes = 0;
    last_step = time_now;
    if (got == SIM_STOP) {
        longjmp(leave, SIM_STOPPED);
    }
    if (got == SIM_CRASH) {
        longjmp(leave, SIM_CRASHED);
    }
    rx_bytes = (uint32_t)got;
}

static size_t console_read(const void *config, void *state, uint8_t *data, size_t capacity)
{
    (void)config;
    (void)state;
    if (rx_at == rx_bytes && time_now - last_step >= COMPUTE_US) {
        run_step(time_now + 1);
    }
    size_t bytes = rx_bytes - rx_at < capacity ? rx_bytes - rx_at : capacity;
    memcpy(data, rx + rx_at, bytes);
    rx_at += (uint32_t)bytes;
    return bytes;
}

static void console_write(const void *config, void *state, const uint8_t *data, size_t bytes)
{
    (void)config;
    (void)state;
    for (size_t i = 0; i < bytes && tx_bytes < BUFFER; i++) {
        tx[tx_bytes++] = data[i];
    }
    if (hal_board.link_baud != 0) {
        time_now += bytes * 10u * MICROSECONDS / hal_board.link_baud; /* as a UART blocks */
    }
}

static void console_wait(const void *config, void *state, uint32_t milliseconds)
{
    (void)config;
    (void)state;
    if (rx_at == rx_bytes) {
        run_step(time_now + milliseconds * 1000ull);
    }
}

static const struct hal_console_api console_api = {.read = console_read, .write = console_write, .wait = console_wait};

static uint64_t clock_ticks(const void *config, const void *state)
{
    (void)config;
    (void)state;
    time_now += 5; /* looking at the clock stands for all other work */
    return time_now;
}

static uint64_t clock_rate(const void *config, const void *state)
{
    (void)config;
    (void)state;
    return MICROSECONDS;
}

static const struct hal_clock_api clock_api = {.ticks = clock_ticks, .ticks_per_second = clock_rate};

static void power_reset(const void *config)
{
    (void)config;
    longjmp(leave, SIM_RESET);
}

static const struct hal_power_api power_api = {.reset = power_reset};

void hal_provoke_fault(uint32_t kind)
{
    (void)kind;
}

static hal_status block_init(const void *config, void *state)
{
    (void)config;
    (void)state;
    return storage_blocks == 0 ? HAL_E_ABSENT : HAL_OK;
}

static uint64_t block_count(const void *config, const void *state)
{
    (void)config;
    (void)state;
    return storage_blocks;
}

static hal_status block_start(const void *config, void *state, uint32_t transfer, uint64_t block, uint32_t count,
                              void *data)
{
    (void)config;
    (void)state;
    (void)transfer;
    if (block + count > storage_blocks) {
        return HAL_E_RANGE;
    }
    block_at = block;
    block_left = count;
    block_data = data;
    return HAL_OK;
}

/* A block a step. */
static hal_status block_step(const void *config, void *state, uint32_t transfer)
{
    (void)config;
    (void)state;
    (void)transfer;
    if (block_left == 0) {
        return HAL_OK;
    }
    time_now += block_us;
    if (block_at == failing_block) {
        return HAL_E_TIMEOUT;
    }
    memcpy(block_data, storage + block_at * HAL_BLOCK, HAL_BLOCK);
    block_data += HAL_BLOCK;
    block_at++;
    block_left--;
    return block_left == 0 ? HAL_OK : HAL_PENDING;
}

static const struct hal_block_api block_api = {
    .init = block_init, .block_count = block_count, .depth = 1, .start = block_start, .step = block_step};

/* Gives the device a card instead of a mapped image; each block takes `us`, `failing` is one that cannot be read. */
void sim_set_storage(const uint8_t *data, uint64_t bytes, uint32_t us, uint64_t failing)
{
    storage = data;
    storage_blocks = bytes / HAL_BLOCK;
    block_us = us;
    failing_block = failing;
}

/* Runs the device from reset until `step` says stop or crash, or the device resets itself. */
int sim_run(sim_step callback, uint64_t *time, uint32_t baud)
{
    step = callback;
    time_now = *time;
    last_step = time_now;
    quiet = 0;
    tx_bytes = 0;
    rx_at = 0;
    rx_bytes = 0;
    hal_board = (struct hal_board){.name = "sim",
                                   .architecture = "virtual",
                                   .console = {.api = &console_api},
                                   .clock = {.api = &clock_api},
                                   .power = {.api = &power_api},
                                   .link_baud = baud,
                                   .memory = memory,
                                   .memory_bytes = sizeof memory,
                                   .mapped_model = image,
                                   .mapped_model_bytes = sizeof image};
    if (storage != NULL) {
        hal_board.mapped_model = NULL;
        hal_board.block.api = &block_api;
    }
    int reason = setjmp(leave);
    if (reason == 0) {
        runtime_main();
    }
    *time = time_now;
    return reason;
}
