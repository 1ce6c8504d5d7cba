/* SPDX-License-Identifier: Apache-2.0
 *
 * storage_sim.c: storage.c over a device in memory that moves a block with each step, counts what a driver would not
 * bear, and fails where it is told. */
#include <string.h>

#include "../../firmware/runtime/storage.h"

#define LANES 8u

struct lane {
    bool busy;
    uint64_t block;
    uint32_t left;
    uint8_t *to;
    uint32_t crc;
};

static uint8_t *disk;
static uint64_t blocks;
static uint64_t failing;
static struct lane lanes[LANES];
static struct storage storage;
static struct colibri_storage engine;
static uint32_t violations;
static uint32_t inits;
static uint32_t steps;

static bool busy(void)
{
    for (uint32_t i = 0; i < LANES; i++) {
        if (lanes[i].busy) {
            return true;
        }
    }
    return false;
}

static hal_status init(const void *config, void *state)
{
    (void)config;
    (void)state;
    inits++;
    violations += busy();
    return HAL_OK;
}

static uint64_t block_count(const void *config, const void *state)
{
    (void)config;
    (void)state;
    return blocks;
}

static hal_status start(const void *config, void *state, uint32_t transfer, uint64_t block, uint32_t count, void *data)
{
    (void)config;
    (void)state;
    if (block > blocks || count > blocks - block) {
        return HAL_E_RANGE;
    }
    violations += lanes[transfer].busy;
    lanes[transfer] = (struct lane){.busy = true, .block = block, .left = count, .to = data};
    return HAL_OK;
}

static hal_status step(const void *config, void *state, uint32_t transfer)
{
    (void)config;
    (void)state;
    struct lane *lane = &lanes[transfer];
    violations += !lane->busy;
    steps++;
    if (lane->left == 0 || lane->block == failing) {
        lane->busy = false;
        return lane->left == 0 ? HAL_OK : HAL_E_IO;
    }
    memcpy(lane->to, disk + lane->block * HAL_BLOCK, HAL_BLOCK);
    lane->crc = colibri_crc32(lane->crc, lane->to, HAL_BLOCK);
    lane->to += HAL_BLOCK;
    lane->block++;
    lane->left--;
    return HAL_PENDING;
}

static uint32_t lane_crc(const void *config, const void *state, uint32_t transfer)
{
    (void)config;
    (void)state;
    return lanes[transfer].crc;
}

static hal_status write(const void *config, void *state, uint64_t block, uint32_t count, const void *data)
{
    (void)config;
    (void)state;
    violations += busy();
    memcpy(disk + block * HAL_BLOCK, data, (size_t)count * HAL_BLOCK);
    return HAL_OK;
}

static struct hal_block_api api = {
    .init = init, .block_count = block_count, .start = start, .step = step, .write = write};
static const struct hal_block device = {.api = &api};

/* `own_crc`: the device computes CRCs. Returns the number of reads that may be under way. */
uint32_t sim_open(uint8_t *data, uint64_t count, uint32_t depth, bool own_crc, uint64_t fails)
{
    disk = data;
    blocks = count;
    failing = fails;
    api.depth = depth;
    api.crc32 = own_crc ? lane_crc : NULL;
    memset(lanes, 0, sizeof lanes);
    violations = 0;
    inits = 0;
    steps = 0;
    if (storage_open(&storage, &device, NULL) != COLIBRI_OK) {
        return 0;
    }
    storage_set_image(&storage, 8, (count - 8) * HAL_BLOCK);
    engine = storage_for_engine(&storage);
    return engine.depth;
}

int sim_start(uint32_t read, uint64_t offset, uint64_t bytes, uint8_t *to)
{
    const struct colibri_read what = {.offset = offset, .bytes = bytes, .to = to};
    return engine.start(engine.user, read, &what);
}

int sim_check(uint32_t read, uint32_t *crc32)
{
    return engine.check(engine.user, read, crc32);
}

int sim_read(uint64_t block, uint32_t count, uint8_t *to)
{
    const struct medium medium = storage_medium(&storage);
    return medium.read(medium.user, block, count, to);
}

int sim_write(uint64_t block, uint32_t count, const uint8_t *from)
{
    const struct medium medium = storage_medium(&storage);
    return medium.write(medium.user, block, count, from);
}

uint32_t sim_violations(void)
{
    return violations;
}

uint32_t sim_inits(void)
{
    return inits;
}

uint32_t sim_steps(void)
{
    return steps;
}
