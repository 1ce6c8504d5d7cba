/* SPDX-License-Identifier: Apache-2.0
 *
 * volume.c: finds a volume, or an image without one, on a medium, see boot.h. */
#include "../engine/detail.h"
#include "boot.h"
#include "bytes.h"
#include "messages.h"

#define PAGE_BLOCKS (COL_PAGE / HAL_BLOCK)
#define READS 3u

/* Master boot record: four entries of 16 bytes at 446, the mark 55 aa at 510. */
#define MBR_ENTRIES 446u
#define MBR_ENTRY_BYTES 16u
#define MBR_TYPE 4u
#define MBR_FIRST 8u
#define MBR_COUNT 12u
#define MBR_MARK 510u

const char *medium_failure(hal_status status)
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
    default:
        return "storage: device error";
    }
}

hal_status medium_read(const struct medium *medium, uint64_t block, uint32_t count, void *data)
{
    hal_status status = HAL_OK;
    for (uint32_t i = 0; i < READS; i++) {
        status = medium->read(medium->user, block, count, data);
        if (status == HAL_OK) {
            break;
        }
    }
    return status;
}

static colibri_status read_page(const struct medium *medium, uint64_t block, uint8_t *page, struct colibri_detail *detail)
{
    hal_status status = medium_read(medium, block, PAGE_BLOCKS, page);
    return status == HAL_OK ? COLIBRI_OK : col_fail(COLIBRI_E_STORAGE, detail, medium_failure(status), block, 0);
}

static bool inside(uint64_t offset, uint64_t bytes, uint64_t limit)
{
    return offset % COL_PAGE == 0 && bytes % COL_PAGE == 0 && bytes != 0 && offset <= limit && bytes <= limit - offset;
}

static bool apart(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a + a_bytes <= b || b + b_bytes <= a;
}

/* The first sector of *where is a volume's; fills *volume when all of it fits. */
static colibri_status open_volume(const struct col_volume *head, struct extent where, struct volume *volume,
                                  struct colibri_detail *detail)
{
    const uint64_t limit = where.count * HAL_BLOCK;
    const struct col_volume_slot *slot = head->slot;
    uint32_t crc = colibri_crc32(0, head, offsetof(struct col_volume, crc32));
    if (crc != head->crc32) {
        return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, "volume", crc, head->crc32);
    }
    if (head->version != COL_VOLUME_VERSION) {
        return col_fail(COLIBRI_E_IMAGE_VERSION, detail, "volume", head->version, COL_VOLUME_VERSION);
    }
    if (head->slots != COL_SLOTS) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "volume", head->slots, COL_SLOTS);
    }
    const uint64_t state_bytes = 2u * COL_PAGE;
    if (!inside(slot[0].offset, slot[0].bytes, limit) || !inside(slot[1].offset, slot[1].bytes, limit) ||
        !inside(head->state_offset, state_bytes, limit)) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "volume", limit, slot[1].offset + slot[1].bytes);
    }
    if (!apart(slot[0].offset, slot[0].bytes, slot[1].offset, slot[1].bytes) ||
        !apart(slot[0].offset, slot[0].bytes, head->state_offset, state_bytes) ||
        !apart(slot[1].offset, slot[1].bytes, head->state_offset, state_bytes) || slot[0].offset == 0 ||
        slot[1].offset == 0 || head->state_offset == 0) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "volume", slot[0].offset, slot[1].offset);
    }
    volume->slots = COL_SLOTS;
    for (uint32_t i = 0; i < COL_SLOTS; i++) {
        volume->slot[i] = (struct extent){.first = where.first + slot[i].offset / HAL_BLOCK,
                                          .count = slot[i].bytes / HAL_BLOCK};
        volume->state_block[i] = where.first + (head->state_offset + i * COL_PAGE) / HAL_BLOCK;
    }
    return COLIBRI_OK;
}

/* Sets *found when a volume or an image begins with `page`, which was read from the start of *where. */
static colibri_status recognise(const uint8_t *page, struct extent where, struct volume *volume, bool *found,
                                struct colibri_detail *detail)
{
    *found = true;
    if (col_same_bytes(page, COL_VOLUME_MAGIC, sizeof COL_VOLUME_MAGIC - 1u)) {
        return open_volume((const void *)page, where, volume, detail);
    }
    if (col_same_bytes(page, COL_IMAGE_MAGIC, sizeof COL_IMAGE_MAGIC - 1u)) {
        volume->slots = 1;
        volume->slot[0] = where;
        return COLIBRI_OK;
    }
    *found = false;
    return COLIBRI_OK;
}

colibri_status volume_find(const struct medium *medium, uint8_t *page, struct volume *volume,
                           struct colibri_detail *detail)
{
    *volume = (struct volume){0};
    if (medium->blocks < PAGE_BLOCKS) {
        return col_fail(COLIBRI_E_STORAGE_EMPTY, detail, "storage", medium->blocks * HAL_BLOCK, COL_PAGE);
    }
    colibri_status status = read_page(medium, 0, page, detail);
    bool found = false;
    if (status == COLIBRI_OK) {
        status = recognise(page, (struct extent){.first = 0, .count = medium->blocks}, volume, &found, detail);
    }
    if (status != COLIBRI_OK || found) {
        return status;
    }
    if (page[MBR_MARK] != 0x55 || page[MBR_MARK + 1] != 0xaa) {
        return col_fail(COLIBRI_E_STORAGE_EMPTY, detail, "partition table", load_u16(page + MBR_MARK), 0xaa55);
    }
    uint8_t entries[4 * MBR_ENTRY_BYTES];
    bytes_copy(entries, page + MBR_ENTRIES, sizeof entries);
    uint64_t of_type = 0;
    for (size_t i = 0; i < 4; i++) {
        const uint8_t *entry = entries + i * MBR_ENTRY_BYTES;
        struct extent where = {.first = load_u32(entry + MBR_FIRST), .count = load_u32(entry + MBR_COUNT)};
        if (entry[MBR_TYPE] != VOLUME_PARTITION_TYPE || where.count < PAGE_BLOCKS || where.first > medium->blocks ||
            where.count > medium->blocks - where.first) {
            continue;
        }
        of_type++;
        status = read_page(medium, where.first, page, detail);
        if (status == COLIBRI_OK) {
            status = recognise(page, where, volume, &found, detail);
        }
        if (status != COLIBRI_OK || found) {
            return status;
        }
    }
    return col_fail(COLIBRI_E_STORAGE_EMPTY, detail, "model partition", of_type, 1);
}
