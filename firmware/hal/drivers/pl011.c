/* SPDX-License-Identifier: Apache-2.0
 *
 * pl011.c: Arm PrimeCell UART, polled. Sections are those of DDI 0183G.
 */
#include "pl011.h"

#include "parts.h"

#define DR 0x00u    /* 3.3.1 data; bits 8..11 are receive errors */
#define FR 0x18u    /* 3.3.3 flags */
#define IBRD 0x24u  /* 3.3.5 divisor, whole part */
#define FBRD 0x28u  /* 3.3.6 divisor, 64ths */
#define LCR_H 0x2cu /* 3.3.7 line control */
#define CR 0x30u    /* 3.3.8 control */
#define IMSC 0x38u  /* 3.3.10 interrupt mask */
#define ICR 0x44u   /* 3.3.13 interrupt clear */

#define FR_BUSY (1u << 3)
#define FR_RXFE (1u << 4)
#define FR_TXFF (1u << 5)
#define LCR_H_FEN (1u << 4)
#define LCR_H_8BIT (3u << 5)
#define CR_UARTEN (1u << 0)
#define CR_TXE (1u << 8)
#define CR_RXE (1u << 9)
#define FIFO_BYTES 16u /* 2.1: 32 from revision r1p5 on */

static hal_status init(const void *config, void *state)
{
    const struct pl011_config *uart = config;
    (void)state;
    while ((hal_read32(uart->base + FR) & FR_BUSY) != 0) {
        /* whoever ran before us is still sending */
    }
    hal_write32(uart->base + CR, 0);
    hal_write32(uart->base + LCR_H, 0); /* empties the FIFOs */
    hal_write32(uart->base + IMSC, 0);
    hal_write32(uart->base + ICR, 0x7ff);
    const uint32_t divisor = (uart->clock_hz * 4u + uart->baud / 2u) / uart->baud; /* clock / (16 * baud) in 64ths */
    hal_write32(uart->base + IBRD, divisor >> 6);
    hal_write32(uart->base + FBRD, divisor & 63u);
    hal_write32(uart->base + LCR_H, LCR_H_FEN | LCR_H_8BIT); /* also takes the divisor over */
    hal_write32(uart->base + CR, CR_UARTEN | CR_TXE | CR_RXE);
    return HAL_OK;
}

static size_t read(const void *config, void *state, uint8_t *data, size_t capacity)
{
    const struct pl011_config *uart = config;
    (void)state;
    size_t count = 0;
    while (count < capacity && (hal_read32(uart->base + FR) & FR_RXFE) == 0) {
        data[count++] = (uint8_t)hal_read32(uart->base + DR); /* the link's checksum finds damaged bytes */
    }
    return count;
}

static void write(const void *config, void *state, const uint8_t *data, size_t bytes)
{
    const struct pl011_config *uart = config;
    (void)state;
    for (size_t i = 0; i < bytes; i++) {
        while ((hal_read32(uart->base + FR) & FR_TXFF) != 0) {
        }
        hal_write32(uart->base + DR, data[i]);
    }
}

static bool has_input(const void *config)
{
    const struct pl011_config *uart = config;
    return (hal_read32(uart->base + FR) & FR_RXFE) == 0;
}

static void wait(const void *config, void *state, uint32_t milliseconds)
{
    const struct pl011_config *uart = config;
    (void)state;
    hal_wait_console(has_input, config, milliseconds, FIFO_BYTES, uart->baud);
}

const struct hal_console_api pl011_api = {.init = init, .read = read, .write = write, .wait = wait};
