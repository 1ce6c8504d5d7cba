/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: powercut: cuts a device's power at each half sector that it writes, see docs/field-update.md.
 *
 *     powercut OLD.colibri NEW.colibri [EVERY [SAMPLE [reordered]]]
 *
 * A scenario runs once to its end, and all its writes are recorded, those of its boots too. Then the disk is brought
 * back to each moment in between: before each sector's write, with half of the sector new and the other half old or
 * garbage, and without the sector but with those that follow it in the same write. From each such disk a device boots
 * several times. What its model computes at each of these boots must be what it would have computed had the step that was
 * cut not begun, or had it ended; nothing in between, and the same at all of these boots. After that it must take an
 * update of an expert and of the model. These last two are tried at each moment around the writes that switch, and at
 * each EVERYth (16, 1: all) of those that only carry data.
 *
 * Then each of those writes fails, once stores something else, and once is not to be read back; and each read of a start
 * fails, and each boot state is lost (faults.c).
 *
 * Of all these, SAMPLE (1: all) takes each SAMPLEth sector only, counted back from the last of a step, which switches.
 *
 * Prints a line for each scenario and the number of cuts in all. Status 1: a cut left something else. With `reordered` the
 * last two writes of each step reach the disk first, as on a medium whose cache changes the order: that must go wrong, and
 * shows that this program would notice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SHOWN 10u          /* failures of a scenario that are printed */

/* For the image, and for the arena with all experts in memory or with slots for some. */
static uint64_t memory_needed(const struct image_file *file)
{
    struct colibri_config config = device_config(NULL, false);
    struct colibri_plan plan;
    if (colibri_plan(file->data, file->bytes, &config, &plan, NULL) != COLIBRI_OK) {
        return 0;
    }
    const uint64_t slots = file->image.model->layers * (file->image.place_bytes + 2u * COL_PAGE);
    const uint64_t arena = plan.arena_bytes + slots;
    return arena > file->bytes ? arena : file->bytes;
}

/* The hash of an image as packed. */
static void image_hash(const struct campaign *campaign, const struct image_file *file, uint8_t hash[HASH_BYTES])
{
    struct disk disk = disk_new(file->bytes / HAL_BLOCK);
    memcpy(disk.data, file->data, (size_t)file->bytes);
    struct device device = device_new(&disk, false, campaign->memory_bytes);
    if (!device_boot(&device)) {
        fputs("powercut: an image does not start\n", stderr);
        exit(2);
    }
    device_hash(&device, hash);
    device_free(&device);
    disk_free(&disk);
}

/* All cuts of the writes that one step made. *disk is as before the step, and as behind it afterwards. */
static void cut_step(struct campaign *campaign, const struct scenario *scenario, uint32_t number, struct disk *disk,
                     const struct disk_write *log, size_t count, const struct future *before, const struct future *after)
{
    static const char *const cut_names[DISK_CUTS] = {"before it", "half of it old", "half of it garbage",
                                                     "behind what follows it"};
    struct disk trial = disk_new(disk->blocks);
    for (size_t i = 0; i < count; i++) {
        const bool sampled = (count - 1u - i) % campaign->sample == 0;
        for (enum disk_cut cut = DISK_CUT_BEFORE; sampled && cut < DISK_CUTS; cut++) {
            if (cut == DISK_CUT_ORDER && log[i].behind == 0) {
                continue;
            }
            disk_copy(&trial, disk);
            disk_apply_cut(&trial, &log[i], cut);
            const struct future future = look_ahead(campaign, scenario, &trial);
            campaign->cuts++;
            bool ok = same_future(&future, before) || same_future(&future, after);
            if (ok && (count - i <= SWITCHING || i % campaign->every == 0)) {
                campaign->updates++;
                ok = takes_updates(campaign, scenario, &trial);
            }
            if (!ok) {
                campaign->failures++;
                if (++campaign->shown > SHOWN) {
                    continue;
                }
                printf("  step %u, write %zu of %zu (block %llu), %s: wrong\n", number, i + 1, count,
                       (unsigned long long)log[i].block, cut_names[cut]);
            }
        }
        disk_apply(disk, &log[i]);
    }
    disk_free(&trial);
}

/* The last two writes come first. */
static void reorder(struct disk_write *log, size_t count)
{
    if (count > 2) {
        const struct disk_write last[2] = {log[count - 2], log[count - 1]};
        memmove(log + 2, log, (count - 2) * sizeof *log);
        memcpy(log, last, sizeof last);
        for (size_t i = 0; i < count; i++) {
            log[i].behind = 0; /* what follows in the log may be of another write now */
        }
    }
}

static void run(struct campaign *campaign, const struct scenario *scenario)
{
    const uint64_t blocks = scenario_blocks(&campaign->images);
    struct disk live = disk_new(blocks), behind = disk_new(blocks), scratch = disk_new(blocks);
    scenario_prepare(scenario, &campaign->images, &live);
    disk_copy(&behind, &live);
    struct device device = device_new(&live, scenario->front_only, campaign->memory_bytes);
    const uint64_t cuts = campaign->cuts, failures = campaign->failures;
    size_t writes = 0;
    campaign->shown = 0;
    disk_copy(&scratch, &live);
    struct future before = look_ahead(campaign, scenario, &scratch);
    for (uint32_t i = 0; i < SCENARIO_ACTIONS && scenario->action[i].kind != ACTION_END; i++) {
        live.recording = true;
        live.log_count = 0;
        const colibri_status status = scenario_act(&scenario->action[i], &campaign->images, &device);
        live.recording = false;
        disk_copy(&scratch, &live);
        const struct future after = look_ahead(campaign, scenario, &scratch);
        if (status != COLIBRI_OK || !computes(&after)) {
            campaign->failures++;
            printf("  step %u of '%s' without a cut: %s\n", i + 1, scenario->name, colibri_status_text(status));
            break;
        }
        writes += live.log_count;
        if (campaign->reordered) {
            reorder(live.log, live.log_count);
        }
        cut_step(campaign, scenario, i + 1, &behind, live.log, live.log_count, &before, &after);
        disk_copy(&behind, &live); /* and what was spoilt */
        before = after;
    }
    printf("%s: %zu sectors written, %llu cuts, %llu wrong\n", scenario->name, writes,
           (unsigned long long)(campaign->cuts - cuts), (unsigned long long)(campaign->failures - failures));
    device_free(&device);
    disk_free(&live);
    disk_free(&behind);
    disk_free(&scratch);
}

int main(int argc, char **argv)
{
    const uint32_t every = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 16;
    const uint32_t sample = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 1;
    if (argc < 3 || argc > 6 || every == 0 || sample == 0 || (argc == 6 && strcmp(argv[5], "reordered") != 0)) {
        fputs("usage: powercut OLD.colibri NEW.colibri [EVERY [SAMPLE [reordered]]]\n", stderr);
        return 2;
    }
    struct campaign campaign = {.images = {image_file_read(argv[1]), image_file_read(argv[2])},
                                .every = every,
                                .sample = sample,
                                .reordered = argc == 6};
    const struct images *images = &campaign.images;
    if (images->old.image.model->layers < 2 || images->old.image.layer[0].router.experts < 4 ||
        images->old.image.expert_count != images->new.image.expert_count || images->old.image.spare_count == 0) {
        fputs("powercut: needs two images of one shape with 2 layers, 4 experts and a spare place\n", stderr);
        return 2;
    }
    campaign.memory_bytes = memory_needed(&images->old);
    if (memory_needed(&images->new) > campaign.memory_bytes) {
        campaign.memory_bytes = memory_needed(&images->new);
    }
    uint8_t old_hash[HASH_BYTES];
    image_hash(&campaign, &images->old, old_hash);
    image_hash(&campaign, &images->new, campaign.new_hash);
    if (memcmp(old_hash, campaign.new_hash, sizeof old_hash) == 0) {
        fputs("powercut: both images compute the same\n", stderr);
        return 2;
    }
    for (uint32_t i = 0; i < scenario_count; i++) {
        run(&campaign, &scenarios[i]);
        if (!campaign.reordered) {
            run_faults(&campaign, &scenarios[i]);
        }
    }
    printf("%llu writes failed or were not what was written\n", (unsigned long long)campaign.faults);
    printf("%llu reads of starts failed, %llu boot states were lost\n", (unsigned long long)campaign.bad_reads,
           (unsigned long long)campaign.lost_states);
    printf("%llu cuts tried, updates after %llu of them, %llu wrong\n", (unsigned long long)campaign.cuts,
           (unsigned long long)campaign.updates, (unsigned long long)campaign.failures);
    free(campaign.images.old.data);
    free(campaign.images.new.data);
    return campaign.failures == 0 ? 0 : 1;
}
