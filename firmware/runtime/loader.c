/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.c: from a medium to memory, see loader.h. It looks at an image's first page only. */
#include "loader.h"

#include "../engine/image_checks.h"
#include "messages.h"

/* 64 KB per command gets most of an SD card's speed. While somebody talks: 4 KB, about a millisecond on a slow card,
 * because a UART's 16 bytes fill within 1.4 ms at 115,200 baud. */
#define CHUNK_BLOCKS 128u
#define SHORT_CHUNK_BLOCKS 8u
#define PAGE_BLOCKS (COL_PAGE / HAL_BLOCK)

static colibri_status read_blocks(const struct loader *loader, uint64_t block, uint32_t count,
                                  struct colibri_detail *detail)
{
    const struct medium *medium = loader->medium;
    const uint64_t at = loader->where.first + block;
    const hal_status status = medium_read(medium, at, count, loader->memory + block * HAL_BLOCK);
    return status == HAL_OK ? COLIBRI_OK : col_fail(COLIBRI_E_STORAGE, detail, medium_failure(status), at, 0);
}

/* The page's own checksum: a damaged size must not steer the reads. */
static colibri_status check_header(const uint8_t *page, struct colibri_detail *detail)
{
    if (!col_check_magic(page, COL_IMAGE_MAGIC, "header", detail)) {
        return COLIBRI_E_IMAGE_MAGIC;
    }
    const uint32_t crc = col_header_crc32(page);
    const uint32_t stated = load_u32(page + offsetof(struct col_header, header_crc32));
    return crc == stated ? COLIBRI_OK : col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, "header", crc, stated);
}

/* The experts come last; an image that breaks this rule is refused by the engine. */
static void find_front(const uint8_t *page, struct loader_image *image)
{
    const struct col_header *header = (const void *)page;
    const struct col_section *section = (const void *)(page + sizeof *header);
    image->front_bytes = image->image_bytes;
    image->updates_offset = image->image_bytes;
    for (uint32_t i = 0; i < header->section_count && i < COL_MAX_SECTIONS; i++) {
        const uint64_t offset = section[i].offset;
        if (offset < COL_PAGE || offset > image->image_bytes || offset % COL_PAGE != 0) {
            continue;
        }
        if (section[i].kind == COL_SECTION_EXPERTS) {
            image->front_bytes = offset;
        } else if (section[i].kind == COL_SECTION_UPDATES) {
            image->updates_offset = offset;
        }
    }
    if (image->updates_offset > image->front_bytes) {
        image->updates_offset = image->front_bytes;
    }
}

colibri_status loader_open(struct loader *loader, struct loader_image *image, struct colibri_detail *detail)
{
    loader->loaded = 0;
    loader->total = 0;
    if (loader->memory_bytes < COL_PAGE) {
        return col_fail(COLIBRI_E_MODEL_TOO_LARGE, detail, "memory", COL_PAGE, loader->memory_bytes);
    }
    if (loader->where.count < PAGE_BLOCKS) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "model partition", loader->where.count * HAL_BLOCK, COL_PAGE);
    }
    colibri_status status = read_blocks(loader, 0, PAGE_BLOCKS, detail);
    if (status == COLIBRI_OK) {
        status = check_header(loader->memory, detail);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    const struct col_header *header = (const void *)loader->memory;
    *image = (struct loader_image){.image_bytes = header->image_bytes};
    if (image->image_bytes < COL_PAGE || image->image_bytes % COL_PAGE != 0) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "header", image->image_bytes, COL_PAGE);
    }
    if (image->image_bytes / HAL_BLOCK > loader->where.count) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "model partition", loader->where.count * HAL_BLOCK,
                        image->image_bytes);
    }
    find_front(loader->memory, image);
    loader->loaded = COL_PAGE;
    return COLIBRI_OK;
}

colibri_status loader_read(struct loader *loader, uint64_t from, uint64_t to, struct colibri_detail *detail)
{
    uint64_t block = from / HAL_BLOCK;
    bool talking = false;
    while (block < to / HAL_BLOCK) {
        loader->loaded = block * HAL_BLOCK;
        if (loader->between != NULL) {
            talking = loader->between(loader->user);
        }
        uint32_t count = talking ? SHORT_CHUNK_BLOCKS : CHUNK_BLOCKS;
        if (count > to / HAL_BLOCK - block) {
            count = (uint32_t)(to / HAL_BLOCK - block);
        }
        const colibri_status status = read_blocks(loader, block, count, detail);
        if (status != COLIBRI_OK) {
            return status;
        }
        block += count;
    }
    loader->loaded = to;
    return COLIBRI_OK;
}
