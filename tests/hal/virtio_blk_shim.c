/* SPDX-License-Identifier: Apache-2.0
 *
 * virtio_blk_shim.c: the driver of virtio disks over registers that the test plays. */
#include "clock.h"

static uint32_t (*on_read)(uint64_t number);
static void (*on_write)(uint64_t number, uint32_t value);

static uint32_t played_read(uint64_t address)
{
    return on_read(address);
}

static void played_write(uint64_t address, uint32_t value)
{
    on_write(address, value);
}

#define hal_read32 played_read
#define hal_write32 played_write
#include "virtio_blk.c"

static const struct virtio_blk_config config = {.base = 0x10000, .stride = 0x200, .slots = 8};
static struct virtio_blk_state disk_state;

int disk_init(uint32_t (*read)(uint64_t number), void (*write_)(uint64_t number, uint32_t value))
{
    on_read = read;
    on_write = write_;
    return virtio_blk_api.init(&config, &disk_state);
}

uint64_t disk_blocks(void)
{
    return virtio_blk_api.block_count(&config, &disk_state);
}

int disk_read(uint64_t block, uint32_t count, uint8_t *data)
{
    const struct hal_block device = {.api = &virtio_blk_api, .config = &config, .state = &disk_state};
    return hal_block_read(&device, block, count, data);
}

int disk_write(uint64_t block, uint32_t count, const uint8_t *data)
{
    return virtio_blk_api.write(&config, &disk_state, block, count, data);
}
