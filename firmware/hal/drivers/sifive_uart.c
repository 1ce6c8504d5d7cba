/* SPDX-License-Identifier: Apache-2.0
 *
 * sifive_uart.c: UART of SiFive's SoCs, polled. Sections are those of the FU540-C000 manual.
 */
#include "sifive_uart.h"

#include "parts.h"

#define TXDATA 0x00u /* 13.4 */
#define RXDATA 0x04u /* 13.5 */
#define TXCTRL 0x08u /* 13.6 */
#define RXCTRL 0x0cu /* 13.7 */
#define IE 0x10u     /* 13.8 */
#define IP 0x14u     /* 13.8 */
#define DIV 0x18u    /* 13.9: baud = clock / (div + 1) */

#define TXDATA_FULL (1u << 31)
#define RXDATA_EMPTY (1u << 31)
#define ENABLE 1u
#define IP_RXWM 2u /* more than rxcnt = 0 bytes are there */
#define FIFO_BYTES 8u

static hal_status init(const void *config, void *state)
{
    const struct sifive_uart_config *uart = config;
    (void)state;
    hal_write32(uart->base + IE, 0);
    hal_write32(uart->base + DIV, (uart->clock_hz + uart->baud / 2u) / uart->baud - 1u);
    hal_write32(uart->base + TXCTRL, ENABLE);
    hal_write32(uart->base + RXCTRL, ENABLE);
    return HAL_OK;
}

static size_t read(const void *config, void *state, uint8_t *data, size_t capacity)
{
    const struct sifive_uart_config *uart = config;
    (void)state;
    size_t count = 0;
    while (count < capacity) {
        const uint32_t value = hal_read32(uart->base + RXDATA); /* takes the byte and its flag together */
        if ((value & RXDATA_EMPTY) != 0) {
            break;
        }
        data[count++] = (uint8_t)value;
    }
    return count;
}

static void write(const void *config, void *state, const uint8_t *data, size_t bytes)
{
    const struct sifive_uart_config *uart = config;
    (void)state;
    for (size_t i = 0; i < bytes; i++) {
        while ((hal_read32(uart->base + TXDATA) & TXDATA_FULL) != 0) {
        }
        hal_write32(uart->base + TXDATA, data[i]);
    }
}

static bool has_input(const void *config)
{
    const struct sifive_uart_config *uart = config;
    return (hal_read32(uart->base + IP) & IP_RXWM) != 0;
}

static void wait(const void *config, void *state, uint32_t milliseconds)
{
    const struct sifive_uart_config *uart = config;
    (void)state;
    hal_wait_console(has_input, config, milliseconds, FIFO_BYTES, uart->baud);
}

const struct hal_console_api sifive_uart_api = {.init = init, .read = read, .write = write, .wait = wait};
