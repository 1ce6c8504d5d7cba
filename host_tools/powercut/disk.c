/* SPDX-License-Identifier: Apache-2.0
 *
 * disk.c: see disk.h. */
#include "disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GARBAGE 0x96u

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        fputs("powercut: out of memory\n", stderr);
        exit(2);
    }
    return memory;
}

struct disk disk_new(uint64_t blocks)
{
    return (struct disk){.data = allocate((size_t)blocks * HAL_BLOCK), .blocks = blocks};
}

void disk_free(struct disk *disk)
{
    free(disk->data);
    free(disk->log);
    *disk = (struct disk){0};
}

void disk_copy(struct disk *to, const struct disk *from)
{
    memcpy(to->data, from->data, (size_t)from->blocks * HAL_BLOCK);
}

static bool in_range(const struct disk *disk, uint64_t block, uint32_t count)
{
    return block <= disk->blocks && count <= disk->blocks - block;
}

static hal_status disk_read(void *user, uint64_t block, uint32_t count, void *data)
{
    struct disk *disk = user;
    if (!in_range(disk, block, count)) {
        return HAL_E_RANGE;
    }
    disk->reads++;
    const bool bad = disk->bad_read != 0 && --disk->bad_read == 0;
    if (bad || disk->read_fails) {
        return HAL_E_IO;
    }
    memcpy(data, disk->data + block * HAL_BLOCK, (size_t)count * HAL_BLOCK);
    return HAL_OK;
}

static void remember(struct disk *disk, uint64_t block, uint32_t behind, const uint8_t *data)
{
    if (disk->log_count == disk->log_capacity) {
        const size_t capacity = disk->log_capacity == 0 ? 1024 : disk->log_capacity * 2;
        struct disk_write *log = allocate(capacity * sizeof *log);
        if (disk->log_count != 0) {
            memcpy(log, disk->log, disk->log_count * sizeof *log);
        }
        free(disk->log);
        disk->log = log;
        disk->log_capacity = capacity;
    }
    struct disk_write *write = &disk->log[disk->log_count++];
    write->block = block;
    write->behind = behind;
    memcpy(write->data, data, HAL_BLOCK);
}

static hal_status disk_write(void *user, uint64_t block, uint32_t count, const void *data)
{
    struct disk *disk = user;
    if (!in_range(disk, block, count)) {
        return HAL_E_RANGE;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *sector = (const uint8_t *)data + (size_t)i * HAL_BLOCK;
        if (disk->recording) {
            remember(disk, block + i, count - 1u - i, sector);
        }
        const bool wrong = disk->fault_in != 0 && --disk->fault_in == 0;
        if (wrong && disk->fault == DISK_FAULT_FAILS) {
            return HAL_E_IO;
        }
        memcpy(disk->data + (block + i) * HAL_BLOCK, sector, HAL_BLOCK);
        disk->read_fails = disk->read_fails || (wrong && disk->fault == DISK_FAULT_UNREADABLE);
        if (wrong && disk->fault == DISK_FAULT_LIES) {
            disk->data[(block + i) * HAL_BLOCK + 77] ^= 0x10;
        }
    }
    return HAL_OK;
}

struct medium disk_medium(struct disk *disk)
{
    return (struct medium){
        .user = disk, .blocks = disk->blocks, .writable = true, .read = disk_read, .write = disk_write};
}

void disk_apply(struct disk *disk, const struct disk_write *write)
{
    memcpy(disk->data + write->block * HAL_BLOCK, write->data, HAL_BLOCK);
}

void disk_apply_cut(struct disk *disk, const struct disk_write *write, enum disk_cut cut)
{
    uint8_t *sector = disk->data + write->block * HAL_BLOCK;
    if (cut == DISK_CUT_ORDER) {
        for (uint32_t i = 1; i <= write->behind; i++) {
            disk_apply(disk, write + i);
        }
    } else if (cut != DISK_CUT_BEFORE) {
        memcpy(sector, write->data, HAL_BLOCK / 2);
    }
    if (cut == DISK_CUT_GARBAGE) {
        memset(sector + HAL_BLOCK / 2, GARBAGE, HAL_BLOCK / 2);
    }
}
