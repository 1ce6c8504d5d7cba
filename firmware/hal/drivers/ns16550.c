/* SPDX-License-Identifier: Apache-2.0
 *
 * ns16550.c: 16550 UART, polled. Sections are those of the PC16550D data sheet.
 */
#include "ns16550.h"

#include "parts.h"

#define DATA 0u /* 8.0 RBR, THR; with LCR.DLAB: divisor, low */
#define IER 1u  /* 8.6; with LCR.DLAB: divisor, high */
#define FCR 2u  /* 8.4 FIFO control */
#define LCR 3u  /* 8.1 line control */
#define MCR 4u  /* 8.7 modem control */
#define LSR 5u  /* 8.3 line status */

/* The receiver's trigger level, 14 bytes, is for interrupts, which are off. But QEMU's model takes that many at a time
 * from the host: with 1, the line carried a byte for each time that a waiting core looks. */
#define FCR_ENABLE_AND_CLEAR 0xc7u
#define LCR_8N1 0x03u
#define LCR_DLAB 0x80u
#define MCR_DTR_RTS 0x03u
#define LSR_DATA_READY 0x01u
#define LSR_THR_EMPTY 0x20u
#define FIFO_BYTES 16u

static uint64_t at(const struct ns16550_config *uart, uint32_t number)
{
    return uart->base + ((uint64_t)number << uart->register_shift);
}

static hal_status init(const void *config, void *state)
{
    const struct ns16550_config *uart = config;
    (void)state;
    const uint32_t divisor = (uart->clock_hz + 8u * uart->baud) / (16u * uart->baud);
    hal_write8(at(uart, IER), 0);
    hal_write8(at(uart, LCR), LCR_DLAB);
    hal_write8(at(uart, DATA), (uint8_t)divisor);
    hal_write8(at(uart, IER), (uint8_t)(divisor >> 8));
    hal_write8(at(uart, LCR), LCR_8N1);
    hal_write8(at(uart, FCR), FCR_ENABLE_AND_CLEAR);
    hal_write8(at(uart, MCR), MCR_DTR_RTS);
    return HAL_OK;
}

static size_t read(const void *config, void *state, uint8_t *data, size_t capacity)
{
    const struct ns16550_config *uart = config;
    (void)state;
    size_t count = 0;
    while (count < capacity && (hal_read8(at(uart, LSR)) & LSR_DATA_READY) != 0) {
        data[count++] = hal_read8(at(uart, DATA));
    }
    return count;
}

static void write(const void *config, void *state, const uint8_t *data, size_t bytes)
{
    const struct ns16550_config *uart = config;
    (void)state;
    for (size_t i = 0; i < bytes; i++) {
        while ((hal_read8(at(uart, LSR)) & LSR_THR_EMPTY) == 0) {
        }
        hal_write8(at(uart, DATA), data[i]);
    }
}

static bool has_input(const void *config)
{
    const struct ns16550_config *uart = config;
    return (hal_read8(at(uart, LSR)) & LSR_DATA_READY) != 0;
}

static void wait(const void *config, void *state, uint32_t milliseconds)
{
    const struct ns16550_config *uart = config;
    (void)state;
    hal_wait_console(has_input, config, milliseconds, FIFO_BYTES, uart->baud);
}

const struct hal_console_api ns16550_api = {.init = init, .read = read, .write = write, .wait = wait};
