/* SPDX-License-Identifier: Apache-2.0
 *
 * faults.c: a medium that fails, lies, or can't be read, at one write. */
#include <stdio.h>
#include <string.h>

#include "check.h"

/* A device after the first `steps` steps of a scenario; `disk` is fresh. */
static void replay(const struct campaign *campaign, const struct scenario *scenario, uint32_t steps, struct disk *disk,
                   struct device *device)
{
    scenario_prepare(scenario, &campaign->images, disk);
    for (uint32_t i = 0; i < steps; i++) {
        colibri_status unfailing = scenario_act(&scenario->action[i], &campaign->images, device);
        (void)unfailing;
    }
}

/* A model whose COMMIT failed is gone for good when the host says so, even if the switch was on the disk. */
static bool takes_back(const struct campaign *campaign, const struct scenario *scenario, struct device *device,
                       struct disk *copy, const struct future *before)
{
    struct update_undone undone;
    if (update_rollback(&device->update, &undone, NULL) != COLIBRI_OK) {
        return false;
    }
    disk_copy(copy, device->disk);
    const struct future future = look_ahead(campaign, scenario, copy);
    return same_future(&future, before);
}

/* Until then it may start, and be confirmed with a counter that it was signed with before this one. */
static bool keeps_counter(const struct campaign *campaign, struct device *device)
{
    static const struct action ahead = {.kind = ACTION_EXPERT_AHEAD, .layer = 1, .expert = 1};
    return !trust_has_key() || !device->boot.doubtful ||
           scenario_act(&ahead, &campaign->images, device) == COLIBRI_E_UPDATE_STATE;
}

/* A step with a write that goes wrong, then the same step again. */
static bool survives(const struct campaign *campaign, const struct scenario *scenario, uint32_t step, size_t write,
                     enum disk_fault fault, const struct future *before, const struct future *after)
{
    const struct action *action = &scenario->action[step];
    struct disk disk = disk_new(scenario_blocks(&campaign->images)), copy = disk_new(disk.blocks);
    struct device device = device_new(&disk, scenario->front_only, campaign->memory_bytes);
    uint8_t old[HASH_BYTES], now[HASH_BYTES];
    replay(campaign, scenario, step, &disk, &device);
    device_hash(&device, old);
    disk.fault = fault;
    disk.fault_in = write;
    const colibri_status status = scenario_act(action, &campaign->images, &device);
    disk.fault_in = 0;
    disk.read_fails = false;
    device_hash(&device, now);
    disk_copy(&copy, &disk);
    struct future future = look_ahead(campaign, scenario, &copy);
    bool ok = same_future(&future, before) || same_future(&future, after);
    if (action->kind != ACTION_BOOT) {
        /* Said to be done, it is done; said to have failed, what runs is what ran. */
        ok = ok && (status == COLIBRI_OK ? same_future(&future, after) : memcmp(old, now, sizeof old) == 0);
    }
    ok = ok && takes_updates(campaign, scenario, &copy);
    if (ok && status != COLIBRI_OK && action->kind == ACTION_MODEL && fault == DISK_FAULT_UNREADABLE) {
        ok = keeps_counter(campaign, &device) && takes_back(campaign, scenario, &device, &copy, before);
    }
    if (ok && status != COLIBRI_OK && !device.update.broken && action->kind != ACTION_BOOT) {
        ok = scenario_act(action, &campaign->images, &device) == COLIBRI_OK;
        future = look_ahead(campaign, scenario, &disk);
        ok = ok && same_future(&future, after);
    }
    device_free(&device);
    disk_free(&disk);
    disk_free(&copy);
    return ok;
}

/* A start at which one read fails, for whatever reason, and no other one: a model runs all the same. A trial may be over,
 * when the read was the engine's. */
static bool bears_a_bad_read(const struct campaign *campaign, const struct scenario *scenario, uint32_t step, size_t read,
                             const struct future *before, const struct future *after)
{
    struct disk disk = disk_new(scenario_blocks(&campaign->images));
    struct device device = device_new(&disk, scenario->front_only, campaign->memory_bytes);
    replay(campaign, scenario, step, &disk, &device);
    disk.bad_read = read;
    const bool starts = device_boot(&device);
    disk.bad_read = 0;
    const struct future future = look_ahead(campaign, scenario, &disk);
    struct future without_trial;
    for (uint32_t i = 0; i < BOOTS; i++) {
        memcpy(without_trial.hash[i], before->hash[BOOTS - 1u], HASH_BYTES);
    }
    device_free(&device);
    disk_free(&disk);
    return starts &&
           (same_future(&future, before) || same_future(&future, after) || same_future(&future, &without_trial));
}

/* A sector with a boot state is lost when nothing is on trial: what starts is in the other one as well. */
static bool bears_a_lost_state(const struct campaign *campaign, const struct scenario *scenario,
                               const struct device *device, uint32_t state, struct disk *copy, const struct future *after)
{
    disk_copy(copy, device->disk);
    memset(copy->data + device->boot.volume.state_block[state] * HAL_BLOCK, 0, HAL_BLOCK);
    const struct future future = look_ahead(campaign, scenario, copy);
    return same_future(&future, after);
}

static void fail(struct campaign *campaign, uint32_t step, const char *what, size_t number, size_t count,
                 const char *how)
{
    campaign->failures++;
    printf("  step %u, %s %zu of %zu %s: wrong\n", step + 1, what, number, count, how);
}

void run_faults(struct campaign *campaign, const struct scenario *scenario)
{
    static const char *const names[DISK_FAULTS] = {"fails", "stores something else", "can't be read back"};
    struct disk disk = disk_new(scenario_blocks(&campaign->images)), copy = disk_new(disk.blocks);
    struct device device = device_new(&disk, scenario->front_only, campaign->memory_bytes);
    for (uint32_t step = 0; step < SCENARIO_ACTIONS && scenario->action[step].kind != ACTION_END; step++) {
        replay(campaign, scenario, step, &disk, &device);
        disk_copy(&copy, &disk);
        const struct future before = look_ahead(campaign, scenario, &copy);
        disk.recording = true;
        disk.log_count = 0;
        disk.reads = 0;
        colibri_status unfailing = scenario_act(&scenario->action[step], &campaign->images, &device);
        (void)unfailing;
        disk.recording = false;
        const size_t reads = scenario->action[step].kind == ACTION_BOOT ? disk.reads : 0;
        disk_copy(&copy, &disk);
        const struct future after = look_ahead(campaign, scenario, &copy);
        for (size_t write = 1; write <= disk.log_count; write++) {
            if ((disk.log_count - write >= SWITCHING && (write - 1) % campaign->every != 0) ||
                (disk.log_count - write) % campaign->sample != 0) {
                continue;
            }
            for (enum disk_fault fault = DISK_FAULT_FAILS; fault < DISK_FAULTS; fault++) {
                campaign->faults++;
                if (!survives(campaign, scenario, step, write, fault, &before, &after)) {
                    fail(campaign, step, "write", write, disk.log_count, names[fault]);
                }
            }
        }
        const bool settled = scenario->volume && device.boot.state.trial == 0;
        for (uint32_t state = 0; settled && state < 2; state++) {
            campaign->lost_states++;
            if (!bears_a_lost_state(campaign, scenario, &device, state, &copy, &after)) {
                fail(campaign, step, "boot state", state + 1, 2, "is lost");
            }
        }
        for (size_t read = 1; read <= reads; read++) {
            campaign->bad_reads++;
            if (!bears_a_bad_read(campaign, scenario, step, read, &before, &after)) {
                fail(campaign, step, "read", read, reads, "fails");
            }
        }
    }
    device_free(&device);
    disk_free(&disk);
    disk_free(&copy);
}
