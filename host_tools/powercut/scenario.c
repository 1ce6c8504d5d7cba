/* SPDX-License-Identifier: Apache-2.0
 *
 * scenario.c: see scenario.h. */
#include "scenario.h"

#include <string.h>

#define AHEAD 5u

const struct scenario scenarios[] = {
    {"experts, two slots", true, false, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_EXPERT, 0, 0}, {ACTION_EXPERT, 1, 2}, {ACTION_EXPERT, 0, 0}, {ACTION_BOOT, 0, 0},
      {ACTION_EXPERT, 1, 2}}},
    {"experts, two slots, read from the disk", true, true, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_EXPERT, 0, 0}, {ACTION_EXPERT, 1, 2}, {ACTION_BOOT, 0, 0}, {ACTION_EXPERT, 0, 1}}},
    {"experts, no volume", false, false, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_EXPERT, 1, 3}, {ACTION_BOOT, 0, 0}, {ACTION_EXPERT, 1, 3}, {ACTION_EXPERT, 1, 0}}},
    {"model, confirmed", true, false, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_MODEL, 0, 0}, {ACTION_BOOT, 0, 0}, {ACTION_CONFIRM, 0, 0}, {ACTION_BOOT, 0, 0},
      {ACTION_EXPERT, 0, 0}, {ACTION_BOOT, 0, 0}}},
    {"model with a newer expert, confirmed", true, false, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_MODEL, 0, 0}, {ACTION_BOOT, 0, 0}, {ACTION_EXPERT_AHEAD, 0, 0}, {ACTION_CONFIRM, 0, 0},
      {ACTION_BOOT, 0, 0}}},
    {"model over an image with replaced experts, confirmed", true, true, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_EXPERT, 0, 0}, {ACTION_MODEL, 0, 0}, {ACTION_BOOT, 0, 0}, {ACTION_CONFIRM, 0, 0},
      {ACTION_BOOT, 0, 0}}},
    {"model, withdrawn by the host", true, false, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_MODEL, 0, 0}, {ACTION_BOOT, 0, 0}, {ACTION_WITHDRAW, 0, 0}, {ACTION_BOOT, 0, 0}}},
    {"model, never confirmed", true, false, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_MODEL, 0, 0}, {ACTION_BOOT, 0, 0}, {ACTION_BOOT, 0, 0}, {ACTION_BOOT, 0, 0},
      {ACTION_BOOT, 0, 0}}},
    {"model, both boot states lost", true, false, true,
     {{ACTION_BOOT, 0, 0}, {ACTION_EXPERT, 0, 0}, {ACTION_MODEL, 0, 0}, {ACTION_BOOT, 0, 0}, {ACTION_CONFIRM, 0, 0},
      {ACTION_BOOT, 0, 0}}},
    {"model, spoilt on the medium", true, false, false,
     {{ACTION_BOOT, 0, 0}, {ACTION_MODEL, 0, 0}, {ACTION_SPOIL, 0, 0}, {ACTION_BOOT, 0, 0}, {ACTION_BOOT, 0, 0}}},
};
const uint32_t scenario_count = sizeof scenarios / sizeof *scenarios;

static uint64_t slot_bytes(const struct images *images)
{
    return images->old.bytes > images->new.bytes ? images->old.bytes : images->new.bytes;
}

/* A volume: its page, two pages of boot states, two slots. */
uint64_t scenario_blocks(const struct images *images)
{
    return (3u * COL_PAGE + COL_SLOTS * slot_bytes(images)) / HAL_BLOCK;
}

void scenario_prepare(const struct scenario *scenario, const struct images *images, struct disk *disk)
{
    memset(disk->data, 0, (size_t)disk->blocks * HAL_BLOCK);
    if (!scenario->volume) {
        memcpy(disk->data, images->old.data, (size_t)images->old.bytes);
        return;
    }
    struct col_volume *volume = (void *)disk->data;
    *volume = (struct col_volume){.version = COL_VOLUME_VERSION, .slots = COL_SLOTS, .state_offset = COL_PAGE};
    memcpy(volume->magic, COL_VOLUME_MAGIC, sizeof volume->magic);
    for (uint32_t i = 0; i < COL_SLOTS; i++) {
        volume->slot[i].offset = 3u * COL_PAGE + i * slot_bytes(images);
        volume->slot[i].bytes = slot_bytes(images);
    }
    volume->crc32 = colibri_crc32(0, volume, offsetof(struct col_volume, crc32));
    memcpy(disk->data + volume->slot[scenario->lost ? 1 : 0].offset, images->old.data, (size_t)images->old.bytes);
    if (scenario->lost) {
        return;
    }
    struct col_boot_state *state = (void *)(disk->data + COL_PAGE);
    *state = (struct col_boot_state){.sequence = 1};
    memcpy(state->magic, COL_BOOT_MAGIC, sizeof state->magic);
    state->crc32 = colibri_crc32(0, state, offsetof(struct col_boot_state, crc32));
}

/* One bit of the last resident weight of the image on trial: its structure stays right. */
static void spoil(const struct images *images, struct device *device)
{
    const struct col_section *resident = images->new.image.section[COL_SECTION_RESIDENT];
    const uint64_t slot = device->boot.volume.slot[device->boot.state.trial - 1u].first * HAL_BLOCK;
    device->disk->data[slot + resident->offset + resident->bytes - 1u] ^= 1u;
}

colibri_status scenario_act(const struct action *action, const struct images *images, struct device *device)
{
    struct update_undone undone;
    switch (action->kind) {
    case ACTION_BOOT:
        return device_boot(device) ? COLIBRI_OK : COLIBRI_E_NO_MODEL;
    case ACTION_EXPERT:
        return device_update_expert(device, &images->new, action->layer, action->expert, 0);
    case ACTION_EXPERT_AHEAD:
        return device_update_expert(device, &images->new, action->layer, action->expert, AHEAD);
    case ACTION_MODEL:
        return device_update_model(device, &images->new, TRIES);
    case ACTION_CONFIRM:
        return update_confirm(&device->update, NULL);
    case ACTION_WITHDRAW:
        return update_rollback(&device->update, &undone, NULL);
    case ACTION_SPOIL:
        spoil(images, device);
        return COLIBRI_OK;
    case ACTION_END:
    default:
        return COLIBRI_OK;
    }
}
