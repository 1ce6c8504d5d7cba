/* SPDX-License-Identifier: Apache-2.0
 *
 * update_expert.c: replaces one expert of the running image, see update.h.
 *
 * The new blob goes to a place that no expert lies in. When it has been read back and found right, the list of replaced
 * experts is written to the copy that does not count, its head last: that one sector is the switch. The place that
 * becomes free is written no sooner than the engine has ended the token that it computes with it. */
#include "update.h"

#include "../engine/detail.h"
#include "bytes.h"

/* What the signature covers, and all that matters. */
static bool same_update(const struct col_update *a, const struct col_update *b)
{
    return col_same_bytes(&a->bytes, &b->bytes, sizeof *a - offsetof(struct col_update, bytes));
}

static colibri_status check_base(const struct update *update, const struct col_update *expert,
                                 struct colibri_detail *detail)
{
    const struct col_image *image = &update->image;
    if (expert->layer >= image->model->layers || image->expert_count == 0) {
        return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "layer", expert->layer, image->model->layers);
    }
    const struct col_expert *packed = update_list_packed(&update->list, expert->layer, expert->expert);
    if (packed == NULL) {
        return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert", expert->expert,
                        image->layer[expert->layer].router.experts);
    }
    if (expert->bytes != packed->bytes) {
        return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "bytes", expert->bytes, packed->bytes);
    }
    const struct col_update *old = update_list_find(&update->list, expert->layer, expert->expert);
    const uint64_t newest = old == NULL ? 0 : old->generation;
    if (expert->generation <= newest) {
        return col_fail(COLIBRI_E_COUNTER, detail, "generation", expert->generation, newest + 1u);
    }
    if (!col_update_ok(image, expert)) {
        /* An image whose list says such a thing does not start. */
        return col_fail(COLIBRI_E_REQUEST, detail, "board or reserved", 0, 0);
    }
    if (old == NULL && update->list.count >= update->list.capacity) {
        return col_fail(COLIBRI_E_UPDATE_PLACE, detail, "updates", update->list.count, update->list.capacity);
    }
    return COLIBRI_OK;
}

/* While another model waits on trial, which was taken with the counter of then: one that is raised here would not be heeded
 * when that one starts and is confirmed. It may wait where nobody knows it, because the boot state's write seemed to fail. */
static colibri_status check_trial(const struct update *update, const struct col_update *expert,
                                  struct colibri_detail *detail)
{
    const uint32_t trial = update_trial_slot(update);
    const uint64_t counter = update_counter(update);
    const bool waits = trial == 0 ? update->setup.boot->doubtful : trial != update_running_slot(update);
    return !trust_has_key() || !waits || expert->counter <= counter
               ? COLIBRI_OK
               : col_fail(COLIBRI_E_UPDATE_STATE, detail, "trial", expert->counter, counter);
}

/* Whether the engine still reads what was replaced last. */
static colibri_status check_engine(struct update *update, bool computing, struct colibri_detail *detail)
{
    if (!computing) {
        colibri_take_replacements(update->setup.engine);
    }
    const uint32_t pending = colibri_pending_replacements(update->setup.engine);
    if (pending != 0) {
        return col_fail(COLIBRI_E_BUSY, detail, "engine", pending, 0);
    }
    update_list_forget(&update->list);
    return COLIBRI_OK;
}

colibri_status update_begin_expert(struct update *update, const struct col_update *expert, bool computing,
                                   struct update_begun *begun, struct colibri_detail *detail)
{
    const struct col_image *image = &update->image;
    uint64_t place = 0;
    colibri_status status = update_may_begin(update, detail);
    if (status == COLIBRI_OK && image->base == NULL) {
        status = col_fail(COLIBRI_E_NO_MODEL, detail, "running", 0, 1);
    }
    if (status == COLIBRI_OK && update->broken) {
        status = col_fail(COLIBRI_E_STORAGE, detail, "updates: restart", 0, 0);
    }
    if (status == COLIBRI_OK) {
        status = trust_check_update(expert, image->header->image_id, update->setup.board, update_counter(update),
                                    detail);
    }
    if (status == COLIBRI_OK) {
        status = check_base(update, expert, detail);
    }
    if (status == COLIBRI_OK) {
        status = check_trial(update, expert, detail);
    }
    if (status == COLIBRI_OK) {
        status = check_engine(update, computing, detail);
    }
    if (status == COLIBRI_OK && !update_list_free_place(&update->list, expert->bytes, &place)) {
        status = col_fail(COLIBRI_E_UPDATE_PLACE, detail, "place", expert->bytes, 0);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    begun->resumed = update->kind == UPDATE_EXPERT && same_update(&update->expert, expert);
    update->kind = UPDATE_EXPERT;
    update->expert = *expert;
    update->expert.offset = place;
    update->target_bytes = expert->bytes;
    begun->target_bytes = expert->bytes;
    begun->offset = image->section[COL_SECTION_EXPERTS]->offset + place;
    update->first = boot_extent(update->setup.boot).first + begun->offset / HAL_BLOCK;
    return COLIBRI_OK;
}

void update_commit_expert(struct update *update)
{
    update->job = (struct update_job){.kind = UPDATE_JOB_EXPERT, .total = update->target_bytes};
    trust_digest_begin(&update->job.digest, sizeof update->expert.digest);
}

/* Reads a page of the target. Where the engine uses experts in memory, this is how the new one comes there. */
static colibri_status check_page(struct update *update, struct colibri_detail *detail)
{
    struct update_job *job = &update->job;
    const struct col_image *image = &update->image;
    uint8_t *blob = NULL;
    if (!image->front) {
        blob = update->setup.image + image->section[COL_SECTION_EXPERTS]->offset + update->expert.offset;
    }
    uint8_t *page = blob == NULL ? update->buffer : blob + job->done;
    colibri_status status =
        update_read(update, update->first + job->done / HAL_BLOCK, COL_PAGE / HAL_BLOCK, page, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    job->crc = colibri_crc32(job->crc, page, COL_PAGE);
    trust_digest_add(&job->digest, page, COL_PAGE);
    job->done += COL_PAGE;
    if (job->done < job->total) {
        return (colibri_status)COLIBRI_PENDING;
    }
    uint8_t digest[sizeof update->expert.digest];
    trust_digest_end(&job->digest, digest);
    if (job->crc != update->expert.crc32) {
        return col_fail(COLIBRI_E_EXPERT_CHECKSUM, detail, "crc32", job->crc, update->expert.crc32);
    }
    if (!trust_same_digest(digest, update->expert.digest, sizeof digest)) {
        return col_fail(COLIBRI_E_EXPERT_CHECKSUM, detail, "digest", digest[0], update->expert.digest[0]);
    }
    /* As at the start, which would fail; experts that are read on demand are looked at neither then nor now. */
    status = blob == NULL ? COLIBRI_OK : col_image_check_expert(image, update->expert.layer, blob, detail);
    job->listing = status == COLIBRI_OK;
    return job->listing ? (colibri_status)COLIBRI_PENDING : status;
}

colibri_status update_step_expert(struct update *update, uint64_t *result, struct colibri_detail *detail)
{
    struct update_job *job = &update->job;
    if (!job->listing) {
        return check_page(update, detail);
    }
    bool flipped = false;
    colibri_status status =
        update_list_step(&update->list, &job->list, &update->expert, update->setup.medium,
                         boot_extent(update->setup.boot).first, update->buffer, &flipped, detail);
    if (status != COLIBRI_OK) {
        if (flipped) {
            update->broken = true;
            update->kind = 0; /* its target may be in effect, and is not to be written any more */
        }
        return status;
    }
    const struct col_update *entry = update_list_add(&update->list, &update->expert);
    *result = update->list.sequence;
    const struct colibri_replacement replacement = {
        .offset = update->image.section[COL_SECTION_EXPERTS]->offset + entry->offset,
        .crc32 = entry->crc32,
        .generation = entry->generation,
        .digest = entry->digest,
    };
    return colibri_replace_expert(update->setup.engine, entry->layer, entry->expert, &replacement);
}
