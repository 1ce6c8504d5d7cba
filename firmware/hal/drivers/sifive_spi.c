/* SPDX-License-Identifier: Apache-2.0
 *
 * sifive_spi.c: SPI controller of SiFive's SoCs, polled through its FIFOs. Sections are those of the FU540-C000 manual.
 */
#include "sifive_spi.h"

#define SCKDIV 0x00u  /* 19.4: clock = input / (2 * (div + 1)) */
#define SCKMODE 0x04u /* 19.5 */
#define CSID 0x10u    /* 19.6 */
#define CSDEF 0x14u   /* 19.7 */
#define CSMODE 0x18u  /* 19.8 */
#define FMT 0x40u     /* 19.10 */
#define TXDATA 0x48u  /* 19.11 */
#define RXDATA 0x4cu  /* 19.12 */
#define FCTRL 0x60u   /* 19.15 */
#define IE 0x70u      /* 19.14 */

#define CSMODE_AUTO 0u
#define CSMODE_HOLD 2u
#define CSMODE_OFF 3u
#define FMT_8_BITS (8u << 16)
#define FIFO_FLAG (1u << 31) /* TXDATA: full, RXDATA: empty */
#define FIFO_DEPTH 8u

static hal_status init(const void *config, void *state)
{
    const struct sifive_spi_config *spi = config;
    (void)state;
    hal_write32(spi->base + FCTRL, 0); /* not the memory-mapped flash mode */
    hal_write32(spi->base + IE, 0);
    hal_write32(spi->base + SCKMODE, 0);
    hal_write32(spi->base + CSDEF, 0xffffffffu); /* lines idle high */
    hal_write32(spi->base + CSID, spi->chip_select);
    hal_write32(spi->base + CSMODE, CSMODE_OFF);
    hal_write32(spi->base + FMT, FMT_8_BITS); /* single line, most significant bit first, receive */
    while ((hal_read32(spi->base + RXDATA) & FIFO_FLAG) == 0) {
        /* left over by the boot ROM */
    }
    return HAL_OK;
}

static void set_clock(const void *config, void *state, uint32_t hz)
{
    const struct sifive_spi_config *spi = config;
    (void)state;
    hal_write32(spi->base + SCKDIV, (spi->clock_hz + 2u * hz - 1u) / (2u * hz) - 1u);
}

static void select(const void *config, void *state, bool selected)
{
    const struct sifive_spi_config *spi = config;
    (void)state;
    hal_write32(spi->base + CSMODE, selected ? CSMODE_HOLD : CSMODE_OFF);
}

static void transfer(const void *config, void *state, const uint8_t *tx, uint8_t *rx, size_t bytes)
{
    const struct sifive_spi_config *spi = config;
    (void)state;
    size_t sent = 0;
    size_t received = 0;
    while (received < bytes) {
        /* Never more under way than the receive FIFO holds. */
        while (sent < bytes && sent - received < FIFO_DEPTH && (hal_read32(spi->base + TXDATA) & FIFO_FLAG) == 0) {
            hal_write32(spi->base + TXDATA, tx != NULL ? tx[sent] : 0xffu);
            sent++;
        }
        const uint32_t value = hal_read32(spi->base + RXDATA);
        if ((value & FIFO_FLAG) == 0) {
            if (rx != NULL) {
                rx[received] = (uint8_t)value;
            }
            received++;
        }
    }
}

const struct hal_spi_api sifive_spi_api = {
    .init = init, .set_clock = set_clock, .select = select, .transfer = transfer};
