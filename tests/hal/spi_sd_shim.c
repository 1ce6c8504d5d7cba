/* SPDX-License-Identifier: Apache-2.0
 *
 * spi_sd_shim.c: the driver of cards on SPI over a bus that the test plays. */
#include "clock.h"
#include "spi_sd.h"

static void (*on_transfer)(const uint8_t *tx, uint8_t *rx, size_t bytes);
static void (*on_select)(bool selected);

static hal_status bus_init(const void *config, void *state)
{
    (void)config;
    (void)state;
    return HAL_OK;
}

static void bus_clock(const void *config, void *state, uint32_t hz)
{
    (void)config;
    (void)state;
    (void)hz;
}

static void bus_select(const void *config, void *state, bool selected)
{
    (void)config;
    (void)state;
    on_select(selected);
}

static void bus_transfer(const void *config, void *state, const uint8_t *tx, uint8_t *rx, size_t bytes)
{
    (void)config;
    (void)state;
    on_transfer(tx, rx, bytes);
}

static const struct hal_spi_api bus = {
    .init = bus_init, .set_clock = bus_clock, .select = bus_select, .transfer = bus_transfer};
static const struct spi_sd_config config = {.bus = {.api = &bus}, .transfer_hz = 20000000};
static struct spi_sd_state state;

int card_init(void (*transfer)(const uint8_t *tx, uint8_t *rx, size_t bytes), void (*select)(bool selected))
{
    on_transfer = transfer;
    on_select = select;
    return spi_sd_api.init(&config, &state);
}

uint64_t card_blocks(void)
{
    return spi_sd_api.block_count(&config, &state);
}

int card_read(uint64_t block, uint32_t count, uint8_t *data)
{
    const struct hal_block device = {.api = &spi_sd_api, .config = &config, .state = &state};
    return hal_block_read(&device, block, count, data);
}

int card_write(uint64_t block, uint32_t count, const uint8_t *data)
{
    return spi_sd_api.write(&config, &state, block, count, data);
}
