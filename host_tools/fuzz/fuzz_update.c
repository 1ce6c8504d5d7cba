/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_update.c: libFuzzer target for what a stranger can send to a board without a key: experts and models that lie, with
 * right checksums, in any order of requests and restarts. The board is the power-cut simulator's; what it takes, it starts
 * and computes. The environment's FUZZ_OLD and FUZZ_NEW name two images as the simulator takes them.
 *
 * Besides the sanitizers it checks what field updates promise: whatever was sent, the board starts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../firmware/engine/image_checks.h"
#include "../powercut/scenario.h"
#include "fuzz.h"

#define MEMORY_BYTES 400000u /* of image and of arena: twice what the images need */
#define STEPS 100000u        /* of any job, to its end */
#define ACTS 40u             /* of a script */

static const uint8_t *script;
static size_t left;

static struct images images;
static struct disk volume_disk, image_disk, disk;
static uint8_t *forged; /* an image, or a blob */
static uint64_t forged_bytes;

/* What is open, as a host that sends it to its end would know. */
static uint64_t target_from, target_bytes;

/* ------------------------------------------------------------------------------------------------------ the script */

static uint8_t take(void)
{
    if (left == 0) {
        return 0;
    }
    left--;
    return *script++;
}

static uint32_t take_word(void)
{
    uint32_t word = 0;
    for (size_t i = 0; i < sizeof word; i++) {
        word = word << 8 | take();
    }
    return word;
}

/* Numbers as offsets, lengths and counts may be, and may not. */
static uint64_t take_number(void)
{
    switch (take() % 8u) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX - take();
    case 2:
        return (uint64_t)take() * HAL_BLOCK;
    case 3:
        return (uint64_t)take() * COL_PAGE;
    case 4:
        return take();
    case 5:
        return (uint64_t)take_word() << take() % 33u;
    case 6:
        return (1ull << 63) + (uint64_t)take() * HAL_BLOCK;
    default:
        return take_word() % (1u << 18) * (uint64_t)HAL_BLOCK;
    }
}

static const struct image_file *take_image(void)
{
    return take() % 2u == 0 ? &images.old : &images.new;
}

/* ------------------------------------------------------------------------------------------------------------ lies */

static void forge(const uint8_t *data, uint64_t bytes)
{
    forged_bytes = bytes;
    memcpy(forged, data, (size_t)bytes);
}

/* Writes a number somewhere into what was forged: into the first page, mostly its directory, or anywhere. */
static void lie(void)
{
    static const uint32_t limits[] = {256, sizeof(struct col_header) + COL_MAX_SECTIONS * sizeof(struct col_section),
                                      COL_PAGE, UINT32_MAX};
    const uint32_t limit = limits[take() % 4u];
    const uint64_t places = (limit < forged_bytes ? limit : forged_bytes) / 4u - 1u;
    const uint64_t value = take_number();
    memcpy(forged + take_word() % places * 4u, &value, take() % 2u == 0 ? 4u : 8u);
}

/* Makes the checksums right again of what lies inside. */
static void seal(void)
{
    struct col_header *header = (void *)forged;
    struct col_section *section = (void *)(forged + sizeof *header);
    for (uint32_t i = 0; i < header->section_count && i < COL_MAX_SECTIONS; i++) {
        const bool inside = section[i].offset <= forged_bytes && section[i].bytes <= forged_bytes - section[i].offset;
        if (section[i].kind < COL_SECTION_SIGNATURE && inside) {
            section[i].crc32 = colibri_crc32(0, forged + section[i].offset, (size_t)section[i].bytes);
        }
    }
    header->header_crc32 = col_header_crc32(forged);
}

/* -------------------------------------------------------------------------------------------------------- requests */

static void work(struct update *update)
{
    uint64_t result;
    for (uint32_t steps = take() % 4u == 0 ? take() : STEPS; steps > 0 && update_is_working(update); steps--) {
        colibri_status ignored = update_step(update, &result, NULL);
        (void)ignored;
    }
}

static void send(struct update *update)
{
    for (uint64_t at = target_from; at < target_bytes; at += COL_PAGE) {
        const uint64_t rest = target_bytes - at;
        colibri_status ignored = update_data(update, at, forged + at, rest < COL_PAGE ? rest : COL_PAGE, NULL);
        (void)ignored;
    }
}

static void begin_expert(struct update *update)
{
    const struct image_file *file = take_image();
    const uint32_t layer = take() % 2u, expert = take() % 4u;
    if (update->image.base == NULL) {
        return;
    }
    const struct col_expert *from = &file->image.expert[file->image.layer[layer].first_expert + expert];
    forge(file->image.blobs + from->offset, from->bytes);
    for (uint32_t lies = take() % 4u; lies > 0; lies--) {
        lie();
    }
    struct col_update record = {.bytes = from->bytes, .layer = layer, .expert = expert, .generation = 1u + take() % 8u,
                                .crc32 = colibri_crc32(0, forged, (size_t)from->bytes)};
    struct trust_digest digest;
    trust_digest_begin(&digest, sizeof record.digest);
    trust_digest_add(&digest, forged, (size_t)from->bytes);
    trust_digest_end(&digest, record.digest);
    memcpy(record.image_id, update->image.header->image_id, sizeof record.image_id);
    if (take() % 8u == 0) {
        const uint32_t value = (uint32_t)take_number();
        memcpy((uint8_t *)&record + take() % 64u * 4u, &value, sizeof value);
    }
    struct update_begun begun;
    if (update_begin_expert(update, &record, false, &begun, NULL) == COLIBRI_OK) {
        target_from = 0;
        target_bytes = begun.target_bytes;
    }
}

static void begin_model(struct update *update)
{
    const struct image_file *file = take_image();
    const uint64_t at = file->image.section[COL_SECTION_SIGNATURE]->offset;
    forge(file->data, file->bytes);
    for (uint32_t lies = take() % 4u; lies > 0; lies--) {
        lie();
    }
    seal();
    struct col_signature signature;
    memcpy(&signature, forged + at, sizeof signature);
    struct update_begun begun;
    if (update_begin_model(update, forged, &signature, take() % 4u, &begun, NULL) == COLIBRI_OK) {
        target_from = COL_PAGE;
        target_bytes = begun.target_bytes < forged_bytes ? begun.target_bytes : forged_bytes;
    }
}

static void act(struct device *device)
{
    struct update *update = &device->update;
    colibri_status ignored = COLIBRI_OK;
    uint8_t hash[HASH_BYTES];
    struct update_undone undone;
    uint64_t a, b, c;
    switch (take() % 12u) {
    case 0:
        begin_expert(update);
        break;
    case 1:
        begin_model(update);
        break;
    case 2:
    case 3:
        send(update);
        break;
    case 4:
        a = take_number();
        ignored = update_data(update, a, forged, take() % 8u * HAL_BLOCK, NULL);
        break;
    case 5:
    case 6:
        ignored = update_commit(update, NULL);
        work(update);
        break;
    case 7:
        a = take_number(), b = take_number(), c = take_number();
        ignored = take() % 2u == 0 ? update_copy(update, a, b, c, NULL)
                                   : update_crc(update, (enum update_where)(take() % 2u), a, b, NULL);
        work(update);
        break;
    case 8:
        ignored = update_confirm(update, NULL);
        break;
    case 9:
        ignored = update_rollback(update, &undone, NULL);
        break;
    case 10:
        require(device_boot(device));
        target_bytes = 0;
        break;
    default:
        device_hash(device, hash);
        break;
    }
    (void)ignored;
}

static void load(void)
{
    const char *old = getenv("FUZZ_OLD"), *new = getenv("FUZZ_NEW");
    if (old == NULL || new == NULL) {
        fputs("fuzz_update: FUZZ_OLD and FUZZ_NEW name no images\n", stderr);
        exit(2);
    }
    images = (struct images){.old = image_file_read(old), .new = image_file_read(new)};
    const uint64_t blocks = scenario_blocks(&images);
    volume_disk = disk_new(blocks), image_disk = disk_new(blocks), disk = disk_new(blocks);
    scenario_prepare(&(struct scenario){.volume = true}, &images, &volume_disk);
    scenario_prepare(&(struct scenario){.volume = false}, &images, &image_disk);
    forged = aligned_alloc(COL_PAGE, MEMORY_BYTES / COL_PAGE * COL_PAGE);
    require(forged != NULL && images.old.bytes <= MEMORY_BYTES / 2u && images.new.bytes <= MEMORY_BYTES / 2u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (forged == NULL) {
        load();
    }
    script = data;
    left = size;
    const uint8_t kind = take();
    target_bytes = 0;
    disk_copy(&disk, (kind & 1u) != 0 ? &image_disk : &volume_disk);
    struct device device = device_new(&disk, (kind & 2u) != 0, MEMORY_BYTES);
    require(device_boot(&device));
    for (uint32_t i = 0; i < ACTS && left > 0; i++) {
        act(&device);
    }
    require(device_boot(&device));
    device_free(&device);
    return 0;
}
