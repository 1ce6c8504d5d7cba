/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c: see device.h. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../firmware/engine/sha256.h"
#include "../../firmware/runtime/loader.h"
#include "sign.h"

#define DATA_BYTES 2048u /* of one DATA: less than a page, to be cut more often */
#define LEFTOVER 0xa5
#define BOARD "powercut"

static void *aligned(uint64_t bytes)
{
    void *memory = aligned_alloc(COL_PAGE, (size_t)(bytes + COL_PAGE - 1u) / COL_PAGE * COL_PAGE);
    if (memory == NULL) {
        fputs("powercut: out of memory\n", stderr);
        exit(2);
    }
    return memory;
}

struct image_file image_file_read(const char *path)
{
    struct image_file file = {0};
    FILE *stream = fopen(path, "rb");
    if (stream == NULL || fseek(stream, 0, SEEK_END) != 0) {
        perror(path);
        exit(2);
    }
    const long end = ftell(stream);
    rewind(stream);
    file.bytes = end < 0 ? 0 : (uint64_t)end;
    file.data = aligned(file.bytes);
    struct colibri_detail detail = {0};
    if (fread(file.data, 1, (size_t)file.bytes, stream) != file.bytes ||
        col_image_open(file.data, file.bytes, &file.image, &detail) != COLIBRI_OK) {
        fprintf(stderr, "powercut: %s is no image (%s)\n", path, detail.where);
        exit(2);
    }
    fclose(stream);
    sign_image(&file, 1);
    return file;
}

struct device device_new(struct disk *disk, bool front_only, uint64_t memory_bytes)
{
    return (struct device){.disk = disk,
                           .front_only = front_only,
                           .image = aligned(memory_bytes),
                           .arena = aligned(memory_bytes),
                           .memory_bytes = memory_bytes};
}

void device_free(struct device *device)
{
    free(device->image);
    free(device->arena);
}

/* ------------------------------------------------------------------------------------------------------------ boot */

static colibri_status read_expert(void *user, uint32_t read, const struct colibri_read *what)
{
    struct device *device = user;
    (void)read;
    const uint64_t block = boot_extent(&device->boot).first + what->offset / HAL_BLOCK;
    if (device->medium.read(device->medium.user, block, (uint32_t)(what->bytes / HAL_BLOCK), what->to) != HAL_OK) {
        return COLIBRI_E_STORAGE;
    }
    device->read_crc = colibri_crc32(0, what->to, (size_t)what->bytes);
    return COLIBRI_OK;
}

static colibri_status check_expert(void *user, uint32_t read, uint32_t *crc32)
{
    (void)read;
    *crc32 = ((const struct device *)user)->read_crc;
    return COLIBRI_OK;
}

struct colibri_config device_config(struct device *device, bool front_only)
{
    struct colibri_config config = {.context = 16, .kernels = "scalar"}; /* no choice, which would take most of a boot */
    if (front_only) {
        config.storage = (struct colibri_storage){.user = device, .depth = 1, .start = read_expert, .check = check_expert};
        config.cache_slots = 1;
    }
    return config;
}

/* As setup.c does. Experts that are read while the engine computes are not compared with their digests. */
static colibri_status check_trust(const struct device *device, uint64_t bytes)
{
    const colibri_status status =
        trust_check_image(device->image, bytes, BOARD, device->boot.state.counter, NULL, NULL, NULL);
    return status == COLIBRI_OK ? trust_check_experts(device->image, bytes, BOARD, NULL, NULL, NULL) : status;
}

static colibri_status start_slot(struct device *device)
{
    struct loader loader = {.medium = &device->medium,
                            .where = boot_extent(&device->boot),
                            .memory = device->image,
                            .memory_bytes = device->memory_bytes};
    struct loader_image image;
    colibri_status status = loader_open(&loader, &image, NULL);
    if (status != COLIBRI_OK) {
        return status;
    }
    const bool front = device->front_only && image.front_bytes < image.image_bytes;
    const uint64_t bytes = front ? image.front_bytes : image.image_bytes;
    if (bytes > device->memory_bytes) {
        return COLIBRI_E_MODEL_TOO_LARGE;
    }
    status = loader_read(&loader, COL_PAGE, bytes, NULL);
    if (status != COLIBRI_OK) {
        return status;
    }
    const struct colibri_config config = device_config(device, front);
    struct colibri_plan plan;
    status = colibri_plan(device->image, bytes, &config, &plan, NULL);
    if (status == COLIBRI_OK && plan.arena_bytes > device->memory_bytes) {
        status = COLIBRI_E_ARENA_SIZE;
    }
    if (status == COLIBRI_OK) {
        status = check_trust(device, bytes);
    }
    if (status == COLIBRI_OK) {
        status = colibri_init(&device->engine, device->image, bytes, &config, device->arena, plan.arena_bytes, NULL);
    }
    if (status == COLIBRI_OK && device->boot.on_trial) {
        status = boot_check(device->engine);
    }
    const struct update_setup setup = {.medium = &device->medium,
                                       .boot = &device->boot,
                                       .board = BOARD,
                                       .engine = device->engine,
                                       .image = device->engine == NULL ? NULL : device->image,
                                       .image_bytes = bytes};
    update_init(&device->update, &setup);
    return status;
}

bool device_boot(struct device *device)
{
    memset(device->image, LEFTOVER, (size_t)device->memory_bytes);
    memset(device->arena, LEFTOVER, (size_t)device->memory_bytes);
    memset(&device->update, LEFTOVER, sizeof device->update);
    memset(&device->boot, LEFTOVER, sizeof device->boot);
    update_init(&device->update, &(struct update_setup){0}); /* as service_init does */
    device->medium = disk_medium(device->disk);
    device->engine = NULL;
    colibri_status status = boot_open(&device->boot, &device->medium, device->image, NULL);
    if (status == COLIBRI_OK) {
        do {
            device->engine = NULL;
            boot_next(&device->boot);
            status = start_slot(device);
        } while (status != COLIBRI_OK && boot_failed(&device->boot, status));
    }
    if (status != COLIBRI_OK) {
        device->engine = NULL;
    }
    return status == COLIBRI_OK;
}

void device_hash(struct device *device, uint8_t hash[HASH_BYTES])
{
    static const uint32_t ids[] = {1, 5, 2, 7, 3};
    memset(hash, 0, HASH_BYTES);
    if (device->engine == NULL) {
        return;
    }
    struct colibri_info info;
    colibri_get_info(device->engine, &info);
    struct col_sha256 sha;
    col_sha256_init(&sha);
    colibri_reset(device->engine);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const float *logits;
        if (colibri_forward(device->engine, ids[i], &logits) != COLIBRI_OK) {
            return;
        }
        col_sha256_update(&sha, logits, info.vocab * sizeof *logits);
    }
    col_sha256_final(&sha, hash);
}

/* --------------------------------------------------------------------------------------------------------- updates */

static colibri_status send(struct device *device, const uint8_t *data, uint64_t from, uint64_t bytes)
{
    for (uint64_t at = from; at < bytes; at += DATA_BYTES) {
        const uint64_t left = bytes - at;
        colibri_status status =
            update_data(&device->update, at, data + at, left < DATA_BYTES ? left : DATA_BYTES, NULL);
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    return COLIBRI_OK;
}

static colibri_status commit(struct device *device)
{
    colibri_status status = update_commit(&device->update, NULL);
    while (status == COLIBRI_OK && update_is_working(&device->update)) {
        uint64_t result;
        status = update_step(&device->update, &result, NULL);
        if (status == (colibri_status)COLIBRI_PENDING) {
            status = COLIBRI_OK;
        }
    }
    return status;
}

colibri_status device_update_expert(struct device *device, const struct image_file *donor, uint32_t layer,
                                    uint32_t expert, uint64_t ahead)
{
    const struct col_image *image = &device->update.image;
    const struct col_expert *from = &donor->image.expert[donor->image.layer[layer].first_expert + expert];
    const struct col_expert *packed;
    struct col_place place;
    if (image->base == NULL) {
        return COLIBRI_E_NO_MODEL;
    }
    update_effective(&device->update, image->layer[layer].first_expert + expert, &packed, &place);
    struct col_update update = {.bytes = from->bytes, .layer = layer, .expert = expert,
                                .generation = place.generation + 1u, .crc32 = from->crc32};
    memcpy(update.digest, from->digest, sizeof update.digest);
    memcpy(update.image_id, image->header->image_id, sizeof update.image_id);
    sign_update(&update, update_counter(&device->update) + ahead);
    struct update_begun begun;
    colibri_status status = update_begin_expert(&device->update, &update, false, &begun, NULL);
    if (status == COLIBRI_OK) {
        status = send(device, donor->image.blobs + from->offset, 0, from->bytes);
    }
    return status == COLIBRI_OK ? commit(device) : status;
}

colibri_status device_update_model(struct device *device, const struct image_file *model, uint32_t tries)
{
    struct update_begun begun;
    sign_image(model, update_counter(&device->update));
    colibri_status status =
        update_begin_model(&device->update, model->data, model->image.signature, tries, &begun, NULL);
    if (status == COLIBRI_OK) {
        status = send(device, model->data, COL_PAGE, model->bytes);
    }
    return status == COLIBRI_OK ? commit(device) : status;
}
