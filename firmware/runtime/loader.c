/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.c: from the block device to memory, see loader.h. The only file of the runtime that looks into an image, and
 * there only at its first 128 bytes. */
#include "loader.h"

#include "../engine/detail.h"
#include "../engine/image.h"
#include "messages.h"

/* 64 KB per command gets most of an SD card's speed. While somebody talks: 4 KB, about a millisecond on a slow card,
 * because a UART's 16 bytes fill within 1.4 ms at 115,200 baud. */
#define CHUNK_BLOCKS 128u
#define SHORT_CHUNK_BLOCKS 8u
#define PAGE_BLOCKS (COL_PAGE / HAL_BLOCK)

/* Master boot record: four entries of 16 bytes at 446, the mark 55 aa at 510. */
#define MBR_ENTRIES 446u
#define MBR_ENTRY_BYTES 16u
#define MBR_TYPE 4u
#define MBR_FIRST 8u
#define MBR_COUNT 12u
#define MBR_MARK 510u

struct extent {
    uint64_t first; /* block */
    uint64_t count; /* blocks */
};

static const char *what_failed(hal_status status)
{
    switch (status) {
    case HAL_E_ABSENT:
        return "no card or disk";
    case HAL_E_TIMEOUT:
        return "storage: no answer";
    case HAL_E_RANGE:
        return "storage: beyond its end";
    case HAL_E_IO:
    case HAL_OK:
    case HAL_PENDING:
        break;
    }
    return "storage: device error";
}

static colibri_status read_blocks(const struct loader *loader, uint64_t block, uint32_t count, uint8_t *data,
                                  struct colibri_detail *detail)
{
    hal_status status = hal_block_read(loader->block, block, count, data);
    return status == HAL_OK ? COLIBRI_OK : col_fail(COLIBRI_E_STORAGE, detail, what_failed(status), block, 0);
}

static bool has_magic(const uint8_t *page)
{
    for (size_t i = 0; i < 8; i++) {
        if (page[i] != (uint8_t)COL_IMAGE_MAGIC[i]) {
            return false;
        }
    }
    return true;
}

/* Sets *extent to the image's place, with its header page at loader->memory. */
static colibri_status find(const struct loader *loader, uint64_t device_blocks, struct extent *extent,
                           struct colibri_detail *detail)
{
    uint8_t *page = loader->memory;
    if (device_blocks < PAGE_BLOCKS) {
        return col_fail(COLIBRI_E_STORAGE_EMPTY, detail, "storage", device_blocks * HAL_BLOCK, COL_PAGE);
    }
    colibri_status status = read_blocks(loader, 0, PAGE_BLOCKS, page, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (has_magic(page)) {
        *extent = (struct extent){.first = 0, .count = device_blocks};
        return COLIBRI_OK;
    }
    if (page[MBR_MARK] != 0x55 || page[MBR_MARK + 1] != 0xaa) {
        return col_fail(COLIBRI_E_STORAGE_EMPTY, detail, "partition table", load_u16(page + MBR_MARK), 0xaa55);
    }
    uint8_t entries[4 * MBR_ENTRY_BYTES];
    for (size_t i = 0; i < sizeof entries; i++) {
        entries[i] = page[MBR_ENTRIES + i];
    }
    uint64_t of_type = 0;
    for (size_t i = 0; i < 4; i++) {
        const uint8_t *entry = entries + i * MBR_ENTRY_BYTES;
        struct extent candidate = {.first = load_u32(entry + MBR_FIRST), .count = load_u32(entry + MBR_COUNT)};
        if (entry[MBR_TYPE] != LOADER_PARTITION_TYPE || candidate.count < PAGE_BLOCKS ||
            candidate.first > device_blocks || candidate.count > device_blocks - candidate.first) {
            continue;
        }
        of_type++;
        status = read_blocks(loader, candidate.first, PAGE_BLOCKS, page, detail);
        if (status != COLIBRI_OK) {
            return status;
        }
        if (has_magic(page)) {
            *extent = candidate;
            return COLIBRI_OK;
        }
    }
    return col_fail(COLIBRI_E_STORAGE_EMPTY, detail, "model partition", of_type, 1);
}

/* The size that the header page states, after its own checksum: a damaged size must not steer the reads. */
static colibri_status check_header(uint8_t *page, uint64_t *image_bytes, struct colibri_detail *detail)
{
    const size_t crc_at = offsetof(struct col_header, header_crc32);
    const size_t size_at = offsetof(struct col_header, image_bytes);
    const uint8_t zeros[4] = {0};
    uint32_t crc = colibri_crc32(0, page, crc_at);
    crc = colibri_crc32(crc, zeros, sizeof zeros);
    crc = colibri_crc32(crc, page + crc_at + 4, COL_PAGE - crc_at - 4);
    uint32_t stated = load_u32(page + crc_at);
    if (crc != stated) {
        return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, "header", crc, stated);
    }
    *image_bytes = (uint64_t)load_u32(page + size_at) | (uint64_t)load_u32(page + size_at + 4) << 32;
    if (*image_bytes < COL_PAGE || *image_bytes % COL_PAGE != 0) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "header", *image_bytes, COL_PAGE);
    }
    return COLIBRI_OK;
}

colibri_status loader_load(struct loader *loader, struct colibri_detail *detail)
{
    const struct hal_block *device = loader->block;
    loader->loaded = 0;
    loader->total = 0;
    if (device->api == NULL) {
        return col_fail(COLIBRI_E_STORAGE, detail, what_failed(HAL_E_ABSENT), 0, 0);
    }
    hal_status ready = device->api->init(device->config, device->state);
    if (ready != HAL_OK) {
        return col_fail(COLIBRI_E_STORAGE, detail, what_failed(ready), 0, 0);
    }
    if (loader->memory_bytes < COL_PAGE) {
        return col_fail(COLIBRI_E_MODEL_TOO_LARGE, detail, "memory", COL_PAGE, loader->memory_bytes);
    }

    struct extent extent;
    uint64_t image_bytes = 0;
    colibri_status status = find(loader, device->api->block_count(device->config, device->state), &extent, detail);
    if (status == COLIBRI_OK) {
        status = check_header(loader->memory, &image_bytes, detail);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    if (image_bytes / HAL_BLOCK > extent.count) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "model partition", extent.count * HAL_BLOCK, image_bytes);
    }
    if (image_bytes > loader->memory_bytes) {
        return col_fail(COLIBRI_E_MODEL_TOO_LARGE, detail, "image", image_bytes, loader->memory_bytes);
    }

    loader->total = image_bytes;
    uint64_t blocks = image_bytes / HAL_BLOCK;
    uint64_t block = PAGE_BLOCKS;
    bool talking = false;
    while (block < blocks) {
        loader->loaded = block * HAL_BLOCK;
        if (loader->between != NULL) {
            talking = loader->between(loader->user);
        }
        uint32_t count = talking ? SHORT_CHUNK_BLOCKS : CHUNK_BLOCKS;
        if (count > blocks - block) {
            count = (uint32_t)(blocks - block);
        }
        status = read_blocks(loader, extent.first + block, count, loader->memory + block * HAL_BLOCK, detail);
        if (status != COLIBRI_OK) {
            return status;
        }
        block += count;
    }
    loader->loaded = image_bytes;
    return COLIBRI_OK;
}
