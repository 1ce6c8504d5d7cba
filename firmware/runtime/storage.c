/* SPDX-License-Identifier: Apache-2.0
 *
 * storage.c: the queue before the block device, see storage.h.
 *
 * A read is cut into pieces, and each transfer of the device (a lane) takes the next piece of the oldest read that has
 * none moving. The next piece is started before the last one's CRC is computed, so that a device with DMA works
 * meanwhile. Where the device computes CRCs itself, and moves several reads at once, a piece is a whole read. */
#include "storage.h"

#include "../engine/detail.h"

/* 64 KB per command gets most of an SD card's speed, and takes some 20 ms of it. */
#define PIECE_BLOCKS 128u

colibri_status storage_open(struct storage *storage, const struct hal_block *device, struct colibri_detail *detail)
{
    *storage = (struct storage){.device = device};
    const hal_status status = device->api == NULL ? HAL_E_ABSENT : device->api->init(device->config, device->state);
    if (status != HAL_OK) {
        return col_fail(COLIBRI_E_STORAGE, detail, medium_failure(status), 0, 0);
    }
    const uint32_t lanes = device->api->depth;
    storage->lane_count = lanes < STORAGE_MAX_READS ? lanes : STORAGE_MAX_READS;
    storage->depth = storage->lane_count < STORAGE_READS ? STORAGE_READS : storage->lane_count;
    storage->blocks = device->api->block_count(device->config, device->state);
    storage->ready = true;
    return COLIBRI_OK;
}

void storage_set_image(struct storage *storage, uint64_t first, uint64_t bytes)
{
    storage->image_first = first;
    storage->image_bytes = bytes;
}

/* ------------------------------------------------------------------------------------------------ reads of experts */

static void note_failure(struct storage *storage, hal_status status, uint64_t block)
{
    storage->failures++;
    storage->last_failure = status;
    storage->last_failure_block = block;
    storage->stale = storage->stale || status != HAL_E_RANGE;
}

static bool is_moving(const struct storage *storage)
{
    for (uint32_t i = 0; i < storage->lane_count; i++) {
        if (storage->lanes[i].read != NULL) {
            return true;
        }
    }
    return false;
}

/* After an error a card may need to be identified again. */
static hal_status renew(struct storage *storage)
{
    const struct hal_block *device = storage->device;
    if (!storage->stale) {
        return HAL_OK;
    }
    const hal_status status = device->api->init(device->config, device->state);
    storage->stale = status != HAL_OK;
    return status;
}

/* The oldest read that waits for a lane. */
static struct storage_read *next_read(struct storage *storage)
{
    struct storage_read *oldest = NULL;
    for (uint32_t i = 0; i < storage->depth; i++) {
        struct storage_read *read = &storage->reads[i];
        if (read->status == COLIBRI_PENDING && !read->moving && read->left > 0 &&
            (oldest == NULL || read->order < oldest->order)) {
            oldest = read;
        }
    }
    return oldest;
}

static void fail_read(struct storage *storage, struct storage_read *read, hal_status status, uint64_t block)
{
    note_failure(storage, status, block);
    read->moving = false;
    read->left = 0;
    read->status = COLIBRI_E_STORAGE;
}

static void start_piece(struct storage *storage, uint32_t lane_number)
{
    const struct hal_block *device = storage->device;
    struct storage_lane *lane = &storage->lanes[lane_number];
    struct storage_read *read = next_read(storage);
    if (read == NULL || (storage->stale && is_moving(storage))) {
        return;
    }
    const uint32_t limit = device->api->crc32 != NULL ? UINT32_MAX / HAL_BLOCK : PIECE_BLOCKS;
    *lane = (struct storage_lane){.piece = read->to, .block = read->block};
    lane->count = read->left < limit ? (uint32_t)read->left : limit;
    lane->whole = device->api->crc32 != NULL && !read->begun && lane->count == read->left;
    hal_status status = renew(storage);
    if (status == HAL_OK) {
        status = device->api->start(device->config, device->state, lane_number, read->block, lane->count, read->to);
    }
    if (status != HAL_OK) {
        fail_read(storage, read, status, read->block);
        return;
    }
    lane->read = read;
    read->begun = true;
    read->moving = true;
    read->block += lane->count;
    read->left -= lane->count;
    read->to += (uint64_t)lane->count * HAL_BLOCK;
}

/* All of the read is there. */
static bool is_trusted(struct storage_read *read)
{
    uint8_t digest[TRUST_DIGEST_BYTES];
    if (read->wanted == NULL) {
        return true;
    }
    trust_digest_end(&read->digest, digest);
    return trust_same_digest(digest, read->wanted, sizeof digest);
}

/* Gives the lane's piece to its read. `more`: the lane may take another one. */
static void end_piece(struct storage *storage, uint32_t lane_number, hal_status status, bool more)
{
    const struct hal_block *device = storage->device;
    struct storage_lane done = storage->lanes[lane_number];
    storage->lanes[lane_number].read = NULL;
    if (status != HAL_OK) {
        fail_read(storage, done.read, status, done.block);
        return;
    }
    const uint32_t device_crc = done.whole ? device->api->crc32(device->config, device->state, lane_number) : 0;
    done.read->moving = false;
    if (more) {
        start_piece(storage, lane_number);
    }
    done.read->crc =
        done.whole ? device_crc : colibri_crc32(done.read->crc, done.piece, (size_t)done.count * HAL_BLOCK);
    if (done.read->wanted != NULL) {
        trust_digest_add(&done.read->digest, done.piece, (size_t)done.count * HAL_BLOCK);
    }
    if (done.read->left == 0 && !done.read->moving && done.read->status == COLIBRI_PENDING) {
        done.read->status = is_trusted(done.read) ? COLIBRI_OK : COLIBRI_E_SIGNATURE;
    }
}

static void advance(struct storage *storage, bool more)
{
    const struct hal_block *device = storage->device;
    for (uint32_t i = 0; i < storage->lane_count; i++) {
        if (storage->lanes[i].read == NULL) {
            if (more) {
                start_piece(storage, i);
            }
            continue;
        }
        const hal_status status = device->api->step(device->config, device->state, i);
        if (status != HAL_PENDING) {
            end_piece(storage, i, status, more);
        }
    }
}

static colibri_status start_read(void *user, uint32_t number, const struct colibri_read *what)
{
    struct storage *storage = user;
    struct storage_read *read = &storage->reads[number];
    const uint64_t limit = storage->image_bytes;
    if (what->offset > limit || what->bytes > limit - what->offset || what->bytes == 0 ||
        (what->offset | what->bytes) % HAL_BLOCK != 0) {
        note_failure(storage, HAL_E_RANGE, storage->image_first + what->offset / HAL_BLOCK);
        return COLIBRI_E_STORAGE;
    }
    *read = (struct storage_read){.status = (colibri_status)COLIBRI_PENDING,
                                  .block = storage->image_first + what->offset / HAL_BLOCK,
                                  .left = what->bytes / HAL_BLOCK,
                                  .to = what->to,
                                  .order = storage->orders++};
    if (trust_has_key()) {
        static const uint8_t none[TRUST_DIGEST_BYTES]; /* the digest of nothing that could be read */
        read->wanted = what->digest == NULL ? none : what->digest;
        trust_digest_begin(&read->digest, TRUST_DIGEST_BYTES);
    }
    for (uint32_t i = 0; i < storage->lane_count; i++) {
        if (storage->lanes[i].read == NULL) {
            start_piece(storage, i);
        }
    }
    return COLIBRI_OK;
}

/* A step of the device for each read that is asked about. The engine asks about all of them between two looks at the
 * link: two blocks of a card that moves by steps, half a millisecond of a slow one, in which a UART's FIFO of 8 bytes
 * does not fill. */
static colibri_status check_read(void *user, uint32_t number, uint32_t *crc32)
{
    struct storage *storage = user;
    const struct storage_read *read = &storage->reads[number];
    if (read->status == COLIBRI_PENDING) {
        advance(storage, true);
    }
    *crc32 = read->crc;
    return read->status;
}

struct colibri_storage storage_for_engine(struct storage *storage)
{
    return (struct colibri_storage){
        .user = storage, .depth = storage->depth, .start = start_read, .check = check_read};
}

/* ----------------------------------------------------------------------------------------------------- in between */

/* Ends the pieces that are moving, and brings the device up where it needs it. */
static hal_status settle(struct storage *storage)
{
    if (!storage->ready) {
        return HAL_E_ABSENT;
    }
    while (is_moving(storage)) {
        advance(storage, false);
    }
    return renew(storage);
}

static hal_status read_medium(void *user, uint64_t block, uint32_t count, void *data)
{
    struct storage *storage = user;
    hal_status status = settle(storage);
    if (status == HAL_OK) {
        status = hal_block_read(storage->device, block, count, data);
    }
    if (status != HAL_OK) {
        note_failure(storage, status, block);
    }
    return status;
}

static hal_status write_medium(void *user, uint64_t block, uint32_t count, const void *data)
{
    struct storage *storage = user;
    const struct hal_block *device = storage->device;
    hal_status status = settle(storage);
    if (status == HAL_OK) {
        status = device->api->write(device->config, device->state, block, count, data);
    }
    if (status != HAL_OK) {
        note_failure(storage, status, block);
    }
    return status;
}

struct medium storage_medium(struct storage *storage)
{
    return (struct medium){.user = storage,
                           .blocks = storage->blocks,
                           .writable = storage->ready && storage->device->api->write != NULL,
                           .read = read_medium,
                           .write = write_medium};
}
