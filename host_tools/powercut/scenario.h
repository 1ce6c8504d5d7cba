/* SPDX-License-Identifier: Apache-2.0
 *
 * scenario.h: a device's life in steps, each of which changes what is on the disk. */
#ifndef POWERCUT_SCENARIO_H
#define POWERCUT_SCENARIO_H

#include "device.h"

enum action_kind {
    ACTION_END,
    ACTION_BOOT,
    ACTION_EXPERT,   /* layer, expert: gets the new image's blob */
    ACTION_EXPERT_AHEAD, /* likewise; with a key, signed with a counter above the image's */
    ACTION_MODEL,    /* the new image is sent and put on trial */
    ACTION_CONFIRM,
    ACTION_WITHDRAW, /* the host asks for the old model */
    ACTION_SPOIL     /* the medium loses a byte of the trial's image; not a write of the device, so not cut */
};

struct action {
    enum action_kind kind;
    uint32_t layer;
    uint32_t expert;
};

#define SCENARIO_ACTIONS 12u

struct scenario {
    const char *name;
    bool volume;     /* two slots; else the disk is the image */
    bool front_only;
    bool lost;       /* something else has written over both boot states and slot A: the old image is in slot B */
    struct action action[SCENARIO_ACTIONS];
};

extern const struct scenario scenarios[];
extern const uint32_t scenario_count;

#define TRIES 2u

struct images {
    struct image_file old, new;
};

/* Blocks of a disk for both images, and its contents as a card is written: the old image in slot A, unless `lost`. */
uint64_t scenario_blocks(const struct images *images);
void scenario_prepare(const struct scenario *scenario, const struct images *images, struct disk *disk);

/* COLIBRI_OK, or what the device said. */
colibri_status scenario_act(const struct action *action, const struct images *images, struct device *device);

#endif
