/* SPDX-License-Identifier: Apache-2.0
 *
 * update.c: what updates of experts and of models have in common, see update.h. */
#include "update.h"

#include "../engine/detail.h"
#include "bytes.h"

#define PAGE_BLOCKS (COL_PAGE / HAL_BLOCK)

colibri_status update_read(struct update *update, uint64_t block, uint32_t blocks, void *data,
                           struct colibri_detail *detail)
{
    const struct medium *medium = update->setup.medium;
    hal_status status = medium->read(medium->user, block, blocks, data);
    return status == HAL_OK ? COLIBRI_OK : col_fail(COLIBRI_E_STORAGE, detail, medium_failure(status), block, 0);
}

colibri_status update_write(struct update *update, uint64_t block, uint32_t blocks, const void *data,
                            struct colibri_detail *detail)
{
    const struct medium *medium = update->setup.medium;
    hal_status status = medium->write(medium->user, block, blocks, data);
    return status == HAL_OK ? COLIBRI_OK : col_fail(COLIBRI_E_STORAGE, detail, medium_failure(status), block, 0);
}

void update_init(struct update *update, const struct update_setup *setup)
{
    /* Not a struct assignment: the two pages need no clearing. */
    update->setup = *setup;
    update->image.base = NULL;
    update->list = (struct update_list){0};
    update->broken = false;
    update->kind = 0;
    update->job.kind = UPDATE_NO_JOB;
    if (setup->image == NULL || setup->engine == NULL) {
        return;
    }
    /* The engine has opened it before and found nothing wrong. */
    if (col_image_open(setup->image, setup->image_bytes, &update->image, NULL) != COLIBRI_OK) {
        update->image.base = NULL;
        return;
    }
    if (update->image.expert_count != 0) {
        update_list_init(&update->list, &update->image);
    }
}

/* -------------------------------------------------------------------------------------------------- what there is */

bool update_writable(const struct update *update)
{
    const struct update_setup *setup = &update->setup;
    return setup->medium != NULL && setup->medium->writable && setup->boot != NULL;
}

static bool has_slots(const struct update *update)
{
    return update->setup.boot != NULL && update->setup.boot->volume.slots == COL_SLOTS;
}

static uint64_t higher(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t update_counter(const struct update *update)
{
    if (!trust_has_key()) {
        return 0;
    }
    const struct update_setup *setup = &update->setup;
    const uint64_t stored = setup->boot == NULL ? 0 : setup->boot->state.counter;
    return higher(higher(stored, setup->counter), higher(update_own_counter(update), update->list.counter));
}

uint64_t update_own_counter(const struct update *update)
{
    if (!trust_has_key()) {
        return 0;
    }
    return update->image.base != NULL ? update->image.signature->counter : update->setup.own_counter;
}

uint32_t update_running_slot(const struct update *update)
{
    return has_slots(update) ? update->setup.boot->running + 1u : 0;
}

uint32_t update_trial_slot(const struct update *update)
{
    return has_slots(update) ? update->setup.boot->state.trial : 0;
}

uint64_t update_sequence(const struct update *update)
{
    return update->list.sequence;
}

colibri_status update_next_slot(const struct update *update, uint32_t *slot, struct colibri_detail *detail)
{
    const struct boot *boot = update->setup.boot;
    *slot = 0;
    if (!has_slots(update)) {
        return col_fail(COLIBRI_E_UPDATE_PLACE, detail, "slot", boot == NULL ? 0 : boot->volume.slots, COL_SLOTS);
    }
    if (boot->state.trial != 0) {
        return col_fail(COLIBRI_E_UPDATE_STATE, detail, "trial", boot->state.trial, 0);
    }
    *slot = 1u - boot_active(boot);
    return *slot != boot->running ? COLIBRI_OK : col_fail(COLIBRI_E_UPDATE_STATE, detail, "running", *slot + 1u, 0);
}

void update_slot_id(struct update *update, uint32_t slot, uint8_t id[16])
{
    const struct boot *boot = update->setup.boot;
    struct col_image image;
    bool there = boot != NULL && slot < boot->volume.slots &&
                 update_read(update, boot->volume.slot[slot].first, PAGE_BLOCKS, update->buffer, NULL) == COLIBRI_OK &&
                 col_image_open_page(update->buffer, &image, NULL) == COLIBRI_OK;
    for (size_t i = 0; i < 16; i++) {
        id[i] = there ? image.header->image_id[i] : 0;
    }
}

uint32_t update_expert_count(const struct update *update)
{
    return update->image.base == NULL ? 0 : update->image.expert_count;
}

void update_effective(const struct update *update, uint32_t index, const struct col_expert **packed,
                      struct col_place *place)
{
    const struct col_image *image = &update->image;
    const struct col_expert *expert = &image->expert[index];
    const struct col_update *entry = update_list_find(&update->list, expert->layer, expert->expert);
    const uint64_t experts = image->section[COL_SECTION_EXPERTS]->offset;
    *packed = expert;
    *place = entry == NULL
                 ? (struct col_place){.offset = experts + expert->offset, .crc32 = expert->crc32, .digest = expert->digest}
                 : (struct col_place){.offset = experts + entry->offset, .crc32 = entry->crc32,
                                      .generation = entry->generation, .digest = entry->digest};
}

/* ----------------------------------------------------------------------------------------------------- the target */

static colibri_status check_idle(const struct update *update, struct colibri_detail *detail)
{
    return update_is_working(update)
               ? col_fail(COLIBRI_E_BUSY, detail, "update", update->job.done, update->job.total)
               : COLIBRI_OK;
}

colibri_status update_may_begin(const struct update *update, struct colibri_detail *detail)
{
    if (!update_writable(update)) {
        return col_fail(COLIBRI_E_READ_ONLY, detail, "storage", 0, 0);
    }
    return check_idle(update, detail);
}

static colibri_status check_open(const struct update *update, struct colibri_detail *detail)
{
    const colibri_status status = check_idle(update, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    return update->kind != 0 ? COLIBRI_OK : col_fail(COLIBRI_E_UPDATE_STATE, detail, "update", 0, 1);
}

/* Whole sectors between `first` and `limit`. */
static colibri_status check_range(uint64_t offset, uint64_t bytes, uint64_t first, uint64_t limit,
                                  struct colibri_detail *detail)
{
    if (offset % HAL_BLOCK != 0 || bytes % HAL_BLOCK != 0 || bytes == 0) {
        return col_fail(COLIBRI_E_UPDATE_STATE, detail, "offset", offset, bytes);
    }
    if (offset < first || offset > limit || bytes > limit - offset) {
        return col_fail(COLIBRI_E_UPDATE_STATE, detail, "offset", offset, limit);
    }
    return COLIBRI_OK;
}

/* Where the host may write: not into an image's first page, which makes it one. */
static colibri_status check_target(const struct update *update, uint64_t offset, uint64_t bytes,
                                   struct colibri_detail *detail)
{
    return check_range(offset, bytes, update->kind == UPDATE_MODEL ? COL_PAGE : 0, update->target_bytes, detail);
}

/* The running image's file on the medium. */
static colibri_status check_running(const struct update *update, uint64_t offset, uint64_t bytes,
                                    struct colibri_detail *detail)
{
    if (update->image.base == NULL || update->setup.boot == NULL) {
        return col_fail(COLIBRI_E_NO_MODEL, detail, "running", 0, 1);
    }
    return check_range(offset, bytes, 0, update->image.header->image_bytes, detail);
}

colibri_status update_data(struct update *update, uint64_t offset, const uint8_t *data, uint64_t bytes,
                           struct colibri_detail *detail)
{
    colibri_status status = check_open(update, detail);
    if (status == COLIBRI_OK) {
        status = check_target(update, offset, bytes, detail);
    }
    for (uint64_t done = 0; done < bytes && status == COLIBRI_OK;) {
        /* By way of the buffer, because a driver needs an alignment that a message does not have. */
        const uint64_t left = bytes - done;
        const uint32_t piece = left < COL_PAGE ? (uint32_t)left : COL_PAGE;
        bytes_copy(update->buffer, data + done, piece);
        status = update_write(update, update->first + (offset + done) / HAL_BLOCK, piece / HAL_BLOCK, update->buffer,
                              detail);
        done += piece;
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ jobs */

bool update_is_working(const struct update *update)
{
    return update->job.kind != UPDATE_NO_JOB;
}

void update_stop(struct update *update)
{
    update->job.kind = UPDATE_NO_JOB;
}

colibri_status update_copy(struct update *update, uint64_t from, uint64_t to, uint64_t bytes,
                           struct colibri_detail *detail)
{
    colibri_status status = check_open(update, detail);
    if (status == COLIBRI_OK) {
        status = check_target(update, to, bytes, detail);
    }
    if (status == COLIBRI_OK) {
        status = check_running(update, from, bytes, detail);
    }
    if (status == COLIBRI_OK) {
        update->job = (struct update_job){.kind = UPDATE_JOB_COPY, .total = bytes};
        update->job.from = boot_extent(update->setup.boot).first + from / HAL_BLOCK;
        update->job.to = update->first + to / HAL_BLOCK;
    }
    return status;
}

colibri_status update_crc(struct update *update, enum update_where where, uint64_t offset, uint64_t bytes,
                          struct colibri_detail *detail)
{
    uint64_t first;
    colibri_status status;
    if (where == UPDATE_RUNNING_IMAGE) {
        status = check_idle(update, detail);
        if (status == COLIBRI_OK) {
            status = check_running(update, offset, bytes, detail);
        }
        first = status == COLIBRI_OK ? boot_extent(update->setup.boot).first : 0;
    } else {
        status = check_open(update, detail);
        if (status == COLIBRI_OK) {
            status = check_range(offset, bytes, 0, update->target_bytes, detail);
        }
        first = update->first;
    }
    if (status == COLIBRI_OK) {
        update->job = (struct update_job){.kind = UPDATE_JOB_CRC, .total = bytes, .from = first + offset / HAL_BLOCK};
    }
    return status;
}

static colibri_status step_stretch(struct update *update, uint64_t *result, struct colibri_detail *detail)
{
    struct update_job *job = &update->job;
    const uint64_t left = job->total - job->done;
    const uint32_t blocks = left < COL_PAGE ? (uint32_t)left / HAL_BLOCK : PAGE_BLOCKS;
    const uint64_t at = job->done / HAL_BLOCK;
    colibri_status status = update_read(update, job->from + at, blocks, update->buffer, detail);
    if (status == COLIBRI_OK && job->kind == UPDATE_JOB_COPY) {
        status = update_write(update, job->to + at, blocks, update->buffer, detail);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    job->crc = colibri_crc32(job->crc, update->buffer, blocks * HAL_BLOCK);
    job->done += blocks * HAL_BLOCK;
    *result = job->crc;
    return job->done == job->total ? COLIBRI_OK : (colibri_status)COLIBRI_PENDING;
}

colibri_status update_commit(struct update *update, struct colibri_detail *detail)
{
    colibri_status status = check_open(update, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (update->kind == UPDATE_EXPERT) {
        update_commit_expert(update);
    } else {
        update_commit_model(update);
    }
    return COLIBRI_OK;
}

colibri_status update_step(struct update *update, uint64_t *result, struct colibri_detail *detail)
{
    colibri_status status;
    switch (update->job.kind) {
    case UPDATE_JOB_COPY:
    case UPDATE_JOB_CRC:
        status = step_stretch(update, result, detail);
        break;
    case UPDATE_JOB_EXPERT:
        status = update_step_expert(update, result, detail);
        break;
    case UPDATE_JOB_MODEL:
        status = update_step_model(update, result, detail);
        break;
    case UPDATE_NO_JOB:
    default:
        status = col_fail(COLIBRI_E_UPDATE_STATE, detail, "update", 0, 1);
        break;
    }
    if (status != (colibri_status)COLIBRI_PENDING) {
        const bool committed = update->job.kind == UPDATE_JOB_EXPERT || update->job.kind == UPDATE_JOB_MODEL;
        update->kind = status == COLIBRI_OK && committed ? 0 : update->kind;
        update->job.kind = UPDATE_NO_JOB;
    }
    return status;
}

/* ----------------------------------------------------------------------------------------------- the end of a trial */

colibri_status update_confirm(struct update *update, struct colibri_detail *detail)
{
    struct boot *boot = update->setup.boot;
    const colibri_status status = check_idle(update, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (update_trial_slot(update) == 0) {
        return col_fail(COLIBRI_E_UPDATE_STATE, detail, "trial", 0, 1);
    }
    if (update_running_slot(update) != boot->state.trial || update->setup.engine == NULL) {
        return col_fail(COLIBRI_E_UPDATE_STATE, detail, "running", update_running_slot(update), boot->state.trial);
    }
    return boot_confirm(boot, update_own_counter(update), detail);
}

colibri_status update_rollback(struct update *update, struct update_undone *undone, struct colibri_detail *detail)
{
    struct boot *boot = update->setup.boot;
    *undone = (struct update_undone){.update = update->kind != 0};
    update->kind = 0;
    update_stop(update);
    colibri_status status = COLIBRI_OK;
    if (has_slots(update) && (boot->state.trial != 0 || boot->doubtful)) {
        status = boot_withdraw(boot, detail);
        undone->trial = status == COLIBRI_OK;
    }
    undone->restart = has_slots(update) && boot->running != boot_active(boot);
    return status;
}
