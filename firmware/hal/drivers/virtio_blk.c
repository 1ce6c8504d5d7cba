/* SPDX-License-Identifier: Apache-2.0
 *
 * virtio_blk.c: one request at a time, by DMA, its end polled; legacy (version 1) and modern (version 2) devices.
 * Sections are those of the Virtual I/O Device specification 1.1.
 */
#include "virtio_blk.h"

/* 4.2.2 and, for legacy devices, 4.2.4 */
#define MAGIC_VALUE 0x000u
#define VERSION 0x004u
#define DEVICE_ID 0x008u
#define DRIVER_FEATURES 0x020u
#define DRIVER_FEATURES_SEL 0x024u
#define LEGACY_PAGE_SIZE 0x028u
#define QUEUE_SEL 0x030u
#define QUEUE_NUM_MAX 0x034u
#define QUEUE_NUM 0x038u
#define LEGACY_QUEUE_ALIGN 0x03cu
#define LEGACY_QUEUE_PFN 0x040u
#define QUEUE_READY 0x044u
#define QUEUE_NOTIFY 0x050u
#define INTERRUPT_STATUS 0x060u
#define INTERRUPT_ACK 0x064u
#define STATUS 0x070u
#define QUEUE_DESC 0x080u
#define QUEUE_DRIVER 0x090u
#define QUEUE_DEVICE 0x0a0u
#define CONFIG_CAPACITY 0x100u

#define MAGIC 0x74726976u /* "virt" */
#define BLOCK_DEVICE 2u
#define STATUS_ACKNOWLEDGE 1u
#define STATUS_DRIVER 2u
#define STATUS_DRIVER_OK 4u
#define STATUS_FEATURES_OK 8u
#define FEATURES_HIGH_VERSION_1 1u /* bit 32 */
#define DESCRIPTOR_NEXT 1u
#define DESCRIPTOR_DEVICE_WRITES 2u
#define REQUEST_IN 0u
#define REQUEST_OUT 1u
#define PAGE 4096u
#define MAX_COUNT 8192u /* blocks per request: 4 MB keeps the time-out meaningful */
#define TIMEOUT_MS 5000u

static void write_address(uint64_t at, const volatile void *pointer)
{
    const uint64_t address = (uintptr_t)pointer;
    hal_write32(at, (uint32_t)address);
    hal_write32(at + 4u, (uint32_t)(address >> 32));
}

static uint64_t find_slot(const struct virtio_blk_config *virtio)
{
    for (uint32_t i = 0; i < virtio->slots; i++) {
        const uint64_t slot = virtio->base + (uint64_t)i * virtio->stride;
        if (hal_read32(slot + MAGIC_VALUE) == MAGIC && hal_read32(slot + DEVICE_ID) == BLOCK_DEVICE) {
            return slot;
        }
    }
    return 0;
}

/* 3.1.1 with 4.2.3.2 (modern) or 4.2.4 (legacy). */
static hal_status set_up(struct virtio_blk_state *disk)
{
    const uint64_t slot = disk->slot;
    const bool legacy = hal_read32(slot + VERSION) == 1;
    hal_write32(slot + STATUS, 0);
    hal_write32(slot + STATUS, STATUS_ACKNOWLEDGE);
    hal_write32(slot + STATUS, STATUS_ACKNOWLEDGE | STATUS_DRIVER);
    uint32_t status = STATUS_ACKNOWLEDGE | STATUS_DRIVER;
    hal_write32(slot + DRIVER_FEATURES_SEL, 0);
    hal_write32(slot + DRIVER_FEATURES, 0);
    if (legacy) {
        hal_write32(slot + LEGACY_PAGE_SIZE, PAGE);
    } else {
        hal_write32(slot + DRIVER_FEATURES_SEL, 1);
        hal_write32(slot + DRIVER_FEATURES, FEATURES_HIGH_VERSION_1);
        status |= STATUS_FEATURES_OK;
        hal_write32(slot + STATUS, status);
        if ((hal_read32(slot + STATUS) & STATUS_FEATURES_OK) == 0) {
            return HAL_E_IO;
        }
    }
    hal_write32(slot + QUEUE_SEL, 0);
    if (hal_read32(slot + QUEUE_NUM_MAX) < VIRTIO_BLK_QUEUE) {
        return HAL_E_IO;
    }
    hal_write32(slot + QUEUE_NUM, VIRTIO_BLK_QUEUE);
    disk->available.flags = 1; /* no interrupts, please */
    disk->available.index = 0;
    disk->used.index = 0;
    arch_barrier();
    if (legacy) {
        hal_write32(slot + LEGACY_QUEUE_ALIGN, PAGE);
        hal_write32(slot + LEGACY_QUEUE_PFN, (uint32_t)((uintptr_t)disk->descriptors / PAGE));
    } else {
        write_address(slot + QUEUE_DESC, disk->descriptors);
        write_address(slot + QUEUE_DRIVER, &disk->available);
        write_address(slot + QUEUE_DEVICE, &disk->used);
        hal_write32(slot + QUEUE_READY, 1);
    }
    hal_write32(slot + STATUS, status | STATUS_DRIVER_OK);
    disk->blocks = (uint64_t)hal_read32(slot + CONFIG_CAPACITY + 4u) << 32 | hal_read32(slot + CONFIG_CAPACITY);
    return HAL_OK;
}

static hal_status init(const void *config, void *state)
{
    struct virtio_blk_state *disk = state;
    disk->blocks = 0;
    disk->slot = find_slot(config);
    return disk->slot == 0 ? HAL_E_ABSENT : set_up(disk);
}

static uint64_t block_count(const void *config, const void *state)
{
    const struct virtio_blk_state *disk = state;
    (void)config;
    return disk->blocks;
}

/* Asks for the transfer's next blocks. */
static void request(struct virtio_blk_state *disk)
{
    const uint32_t type = disk->transfer.type;
    const uint32_t count = disk->transfer.count < MAX_COUNT ? disk->transfer.count : MAX_COUNT;
    disk->header.type = type;
    disk->header.reserved = 0;
    disk->header.sector = disk->transfer.block;
    disk->status = 0xff;
    const uint16_t data_flags = type == REQUEST_IN ? DESCRIPTOR_NEXT | DESCRIPTOR_DEVICE_WRITES : DESCRIPTOR_NEXT;
    disk->descriptors[0] =
        (struct virtio_blk_descriptor){(uintptr_t)&disk->header, sizeof disk->header, DESCRIPTOR_NEXT, 1};
    disk->descriptors[1] =
        (struct virtio_blk_descriptor){(uintptr_t)disk->transfer.data, count * HAL_BLOCK, data_flags, 2};
    disk->descriptors[2] = (struct virtio_blk_descriptor){(uintptr_t)&disk->status, 1, DESCRIPTOR_DEVICE_WRITES, 0};
    disk->transfer.block += count;
    disk->transfer.count -= count;
    disk->transfer.data += (size_t)count * HAL_BLOCK;
    const uint16_t index = disk->available.index;
    disk->available.ring[index % VIRTIO_BLK_QUEUE] = 0;
    arch_barrier();
    disk->available.index = (uint16_t)(index + 1u);
    arch_barrier();
    disk->transfer.deadline = hal_deadline(TIMEOUT_MS);
    hal_write32(disk->slot + QUEUE_NOTIFY, 0);
}

static hal_status begin(struct virtio_blk_state *disk, uint32_t type, uint64_t block, uint32_t count,
                        const uint8_t *data)
{
    if (block > disk->blocks || count > disk->blocks - block) {
        return HAL_E_RANGE;
    }
    disk->transfer.type = type;
    disk->transfer.block = block;
    disk->transfer.count = count;
    disk->transfer.data = data;
    if (count > 0) {
        request(disk);
    }
    return HAL_OK;
}

static hal_status look(struct virtio_blk_state *disk)
{
    if (disk->used.index != disk->available.index) {
        /* Steps may be far apart: a device that has ended meanwhile is not late. */
        if (!hal_expired(disk->transfer.deadline) || disk->used.index == disk->available.index) {
            return HAL_PENDING;
        }
        hal_write32(disk->slot + STATUS, 0); /* the device must not write to the data any more */
        disk->blocks = 0;
        return HAL_E_TIMEOUT;
    }
    arch_barrier();
    hal_write32(disk->slot + INTERRUPT_ACK, hal_read32(disk->slot + INTERRUPT_STATUS));
    if (disk->status != 0) {
        return HAL_E_IO;
    }
    if (disk->transfer.count == 0) {
        return HAL_OK;
    }
    request(disk);
    return HAL_PENDING;
}

static hal_status start(const void *config, void *state, uint32_t transfer, uint64_t block, uint32_t count, void *data)
{
    struct virtio_blk_state *disk = state;
    (void)config;
    (void)transfer;
    disk->status = 0; /* of a read of no blocks */
    return begin(disk, REQUEST_IN, block, count, data);
}

static hal_status step(const void *config, void *state, uint32_t transfer)
{
    (void)config;
    (void)transfer;
    return look(state);
}

static hal_status write(const void *config, void *state, uint64_t block, uint32_t count, const void *data)
{
    (void)config;
    hal_status status = begin(state, REQUEST_OUT, block, count, data);
    if (status != HAL_OK || count == 0) {
        return status;
    }
    while ((status = look(state)) == HAL_PENDING) {
    }
    return status;
}

const struct hal_block_api virtio_blk_api = {
    .init = init, .block_count = block_count, .depth = 1, .start = start, .step = step, .write = write};
