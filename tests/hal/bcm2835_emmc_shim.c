/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_emmc_shim.c: the driver of the EMMC controller over registers that the test plays. */
#include "clock.h"

static uint32_t (*on_read)(uint32_t number);
static void (*on_write)(uint32_t number, uint32_t value);

static uint32_t played_read(uint64_t address)
{
    return on_read((uint32_t)address);
}

static void played_write(uint64_t address, uint32_t value)
{
    on_write((uint32_t)address, value);
}

#define hal_read32 played_read
#define hal_write32 played_write
#include "bcm2835_emmc.c"

static uint32_t source_hz(const void *source, void *source_state)
{
    (void)source;
    (void)source_state;
    return 250000000;
}

static const struct hal_clock_source_api source = {.hz = source_hz};
static const struct bcm2835_emmc_config config = {.base = 0, .clock_source = {.api = &source}};
static struct bcm2835_emmc_state state;

int card_init(uint32_t (*read)(uint32_t number), void (*write_)(uint32_t number, uint32_t value))
{
    on_read = read;
    on_write = write_;
    return bcm2835_emmc_api.init(&config, &state);
}

uint64_t card_blocks(void)
{
    return bcm2835_emmc_api.block_count(&config, &state);
}

int card_read(uint64_t block, uint32_t count, uint32_t *data)
{
    const struct hal_block device = {.api = &bcm2835_emmc_api, .config = &config, .state = &state};
    return hal_block_read(&device, block, count, data);
}

int card_write(uint64_t block, uint32_t count, const uint32_t *data)
{
    return bcm2835_emmc_api.write(&config, &state, block, count, data);
}
