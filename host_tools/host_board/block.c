/* SPDX-License-Identifier: Apache-2.0
 *
 * block.c: a file as the board's block device. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include "host_board.h"

static hal_status block_init(const void *config, void *state)
{
    const struct host_block_config *block = config;
    struct host_block_state *device = state;
    device->file = open(block->path, O_RDWR | O_CLOEXEC);
    if (device->file < 0) {
        device->file = open(block->path, O_RDONLY | O_CLOEXEC);
    }
    if (device->file < 0) {
        return HAL_E_ABSENT;
    }
    off_t bytes = lseek(device->file, 0, SEEK_END); /* also the size of a block device */
    if (bytes < 0) {
        return HAL_E_IO;
    }
    device->blocks = (uint64_t)bytes / HAL_BLOCK;
    return HAL_OK;
}

static uint64_t block_count(const void *config, const void *state)
{
    (void)config;
    return ((const struct host_block_state *)state)->blocks;
}

static bool in_range(const struct host_block_state *device, uint64_t block, uint32_t count)
{
    return block <= device->blocks && count <= device->blocks - block;
}

static hal_status block_read(const void *config, void *state, uint64_t block, uint32_t count, void *data)
{
    (void)config;
    const struct host_block_state *device = state;
    if (!in_range(device, block, count)) {
        return HAL_E_RANGE;
    }
    size_t bytes = (size_t)count * HAL_BLOCK;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(device->file, (uint8_t *)data + done, bytes - done, (off_t)(block * HAL_BLOCK + done));
        if (got <= 0) {
            return HAL_E_IO;
        }
        done += (size_t)got;
    }
    return HAL_OK;
}

static hal_status block_write(const void *config, void *state, uint64_t block, uint32_t count, const void *data)
{
    (void)config;
    const struct host_block_state *device = state;
    if (!in_range(device, block, count)) {
        return HAL_E_RANGE;
    }
    size_t bytes = (size_t)count * HAL_BLOCK;
    for (size_t done = 0; done < bytes;) {
        ssize_t got =
            pwrite(device->file, (const uint8_t *)data + done, bytes - done, (off_t)(block * HAL_BLOCK + done));
        if (got <= 0) {
            return HAL_E_IO;
        }
        done += (size_t)got;
    }
    return HAL_OK;
}

const struct hal_block_api host_block_api = {block_init, block_count, block_read, block_write};
