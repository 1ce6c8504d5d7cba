/* SPDX-License-Identifier: Apache-2.0
 *
 * update_model.c: replaces the whole model, see update.h.
 *
 * The new image goes to the slot that does not start. Its first page, without which it is no image, is held back here
 * and written when all else has been read back and found right. Then one sector of the boot state puts it on trial. */
#include "update.h"

#include "../engine/detail.h"
#include "bytes.h"

#define PAGE_BLOCKS (COL_PAGE / HAL_BLOCK)
#define SECTOR_EXPERTS (HAL_BLOCK / (uint32_t)sizeof(struct col_expert))

/* From here on the slot has no image: what was in it is not to be taken for one while it changes. */
static colibri_status empty_slot(struct update *update, uint64_t first, struct colibri_detail *detail)
{
    const colibri_status status = boot_settle(update->setup.boot, update_own_counter(update), detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    for (uint32_t i = 0; i < COL_PAGE; i++) {
        update->buffer[i] = 0;
    }
    return update_write(update, first, PAGE_BLOCKS, update->buffer, detail);
}

colibri_status update_begin_model(struct update *update, const uint8_t *page, const struct col_signature *signature,
                                  uint32_t tries, struct update_begun *begun, struct colibri_detail *detail)
{
    colibri_status status = update_may_begin(update, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    *begun = (struct update_begun){.resumed = update->kind == UPDATE_MODEL &&
                                              col_same_bytes(update->page, page, COL_PAGE) &&
                                              col_same_bytes(&update->signature, signature, sizeof *signature)};
    /* The page is kept where it can be looked into; whatever was open is over, should this be refused or not. */
    update->kind = 0;
    bytes_copy(update->page, page, COL_PAGE);
    update->signature = *signature;
    update->tries = tries == 0 ? COL_BOOT_TRIES : tries;
    status = col_image_open_page(update->page, &update->model, detail);
    if (status == COLIBRI_OK) {
        status = trust_check_signature(&update->signature, update->setup.board, update_counter(update), detail);
    }
    if (status == COLIBRI_OK) {
        status = update_next_slot(update, &update->slot, detail);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    const struct extent slot = update->setup.boot->volume.slot[update->slot];
    begun->target_bytes = update->model.header->image_bytes;
    if (begun->target_bytes > slot.count * HAL_BLOCK) {
        return col_fail(COLIBRI_E_UPDATE_PLACE, detail, "slot", begun->target_bytes, slot.count * HAL_BLOCK);
    }
    status = empty_slot(update, slot.first, detail);
    if (status == COLIBRI_OK) {
        update->kind = UPDATE_MODEL;
        update->first = slot.first;
        update->target_bytes = begun->target_bytes;
    }
    return status;
}

void update_commit_model(struct update *update)
{
    update->job = (struct update_job){.kind = UPDATE_JOB_MODEL, .done = COL_PAGE, .total = update->target_bytes};
    trust_digest_begin(&update->job.image_digest, sizeof update->signature.digest);
    trust_digest_add(&update->job.image_digest, update->page, COL_PAGE);
}

/* A page of the updates section. Its copies begin with a head each. No signature covers them, so they must be as they were
 * packed: one of them whole, none lists an expert, and none has counted so far that the count would soon begin anew. */
static colibri_status check_list(struct update *update, const struct col_section *section, uint64_t at,
                                 struct colibri_detail *detail)
{
    const struct col_update_head *head = (const void *)update->buffer;
    const uint64_t copy_bytes = section->bytes / 2u;
    if (section->bytes % (2u * COL_PAGE) != 0) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, section->name, section->bytes, 2u * COL_PAGE);
    }
    if (at % copy_bytes != 0 || !col_same_bytes(head->magic, COL_UPDATES_MAGIC, sizeof head->magic)) {
        return COLIBRI_OK;
    }
    if (head->count != 0 || head->sequence != 1u ||
        !col_updates_whole(head, sizeof *head, update->model.header->image_id)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, section->name, head->count, 0);
    }
    update->job.packed = true;
    return COLIBRI_OK;
}

/* The page in the buffer lies `at` bytes into a section that is not the experts. */
static colibri_status check_section_page(struct update *update, const struct col_section *section, uint64_t at,
                                         struct colibri_detail *detail)
{
    struct update_job *job = &update->job;
    const uint64_t left = section->bytes - at;
    const uint32_t bytes = left < COL_PAGE ? (uint32_t)left : COL_PAGE;
    if (!bytes_zero(update->buffer + bytes, COL_PAGE - bytes)) {
        return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, section->name, section->offset + at, 0);
    }
    if (section->kind == COL_SECTION_SIGNATURE) {
        return at == 0 && col_same_bytes(update->buffer, &update->signature, sizeof update->signature)
                   ? COLIBRI_OK
                   : col_fail(COLIBRI_E_SIGNATURE, detail, "signature", at, 0);
    }
    if (section->kind == COL_SECTION_UPDATES) {
        return check_list(update, section, at, detail);
    }
    job->crc = colibri_crc32(at == 0 ? 0 : job->crc, update->buffer, bytes);
    return bytes < left || job->crc == section->crc32
               ? COLIBRI_OK
               : col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, section->name, job->crc, section->crc32);
}

static const struct col_section *directory(const struct update *update)
{
    return (const void *)(update->page + sizeof(struct col_header));
}

/* The next page before the experts. */
static colibri_status check_front(struct update *update, struct colibri_detail *detail)
{
    struct update_job *job = &update->job;
    const struct col_image *model = &update->model;
    const struct col_section *section = &directory(update)[job->section];
    colibri_status status =
        update_read(update, update->first + job->done / HAL_BLOCK, PAGE_BLOCKS, update->buffer, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (job->done < model->section[COL_SECTION_SIGNATURE]->offset) {
        trust_digest_add(&job->image_digest, update->buffer, COL_PAGE);
    }
    if (job->done < section->offset) {
        status = bytes_zero(update->buffer, COL_PAGE)
                     ? COLIBRI_OK
                     : col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, section->name, job->done, section->offset);
    } else {
        status = check_section_page(update, section, job->done - section->offset, detail);
    }
    job->done += COL_PAGE;
    if (job->done >= section->offset + section->bytes) {
        job->section++;
    }
    return status;
}

/* All pages before the experts are right for themselves: is that what was signed? */
static colibri_status check_front_end(struct update *update, struct colibri_detail *detail)
{
    const struct col_signature *signature = &update->signature;
    uint8_t digest[sizeof signature->digest];
    trust_digest_end(&update->job.image_digest, digest);
    if (signature->algorithm != COL_SIGNATURE_NONE && !trust_same_digest(digest, signature->digest, sizeof digest)) {
        return col_fail(COLIBRI_E_SIGNATURE, detail, "digest", digest[0], signature->digest[0]);
    }
    if (update->model.section[COL_SECTION_UPDATES] != NULL && !update->job.packed) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "updates", 0, 1);
    }
    return COLIBRI_OK;
}

/* Reads the directory's entry of the next expert. */
static colibri_status next_expert(struct update *update, struct colibri_detail *detail)
{
    struct update_job *job = &update->job;
    const struct col_section *entries = update->model.section[COL_SECTION_EXPERT_DIR];
    const struct col_section *experts = update->model.section[COL_SECTION_EXPERTS];
    const uint64_t last = job->entry.offset + job->entry.bytes; /* 0 before the first one */
    const uint64_t block = entries->offset / HAL_BLOCK + job->expert / SECTOR_EXPERTS;
    colibri_status status = update_read(update, update->first + block, 1, update->buffer, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    job->entry = ((const struct col_expert *)(const void *)update->buffer)[job->expert % SECTOR_EXPERTS];
    if (job->entry.offset != last || job->entry.bytes % COL_PAGE != 0 || job->entry.bytes == 0 ||
        last > experts->bytes || job->entry.bytes > experts->bytes - last) {
        return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, entries->name, job->entry.offset, last);
    }
    job->expert_done = 0;
    job->crc = 0;
    trust_digest_begin(&job->digest, sizeof job->entry.digest);
    job->done = experts->offset + job->entry.offset;
    return COLIBRI_OK;
}

/* One page of an expert. */
static colibri_status check_expert(struct update *update, struct colibri_detail *detail)
{
    struct update_job *job = &update->job;
    colibri_status status =
        update_read(update, update->first + job->done / HAL_BLOCK, PAGE_BLOCKS, update->buffer, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    job->crc = colibri_crc32(job->crc, update->buffer, COL_PAGE);
    trust_digest_add(&job->digest, update->buffer, COL_PAGE);
    job->done += COL_PAGE;
    job->expert_done += COL_PAGE;
    if (job->expert_done < job->entry.bytes) {
        return COLIBRI_OK;
    }
    uint8_t digest[sizeof job->entry.digest];
    trust_digest_end(&job->digest, digest);
    job->expert++;
    if (job->crc != job->entry.crc32 || !trust_same_digest(digest, job->entry.digest, sizeof digest)) {
        return col_fail(COLIBRI_E_EXPERT_CHECKSUM, detail, "expert", job->entry.expert, job->entry.layer);
    }
    return COLIBRI_OK;
}

/* Everything is right: the page that makes it an image, then the sector that puts it on trial. */
static colibri_status put_on_trial(struct update *update, uint64_t *result, struct colibri_detail *detail)
{
    colibri_status status = update_write(update, update->first, PAGE_BLOCKS, update->page, detail);
    if (status == COLIBRI_OK) {
        status = update_read(update, update->first, PAGE_BLOCKS, update->buffer, detail);
    }
    if (status == COLIBRI_OK && !col_same_bytes(update->buffer, update->page, COL_PAGE)) {
        status = col_fail(COLIBRI_E_STORAGE, detail, "first page", 1, 0);
    }
    if (status == COLIBRI_OK) {
        status = boot_try(update->setup.boot, update->slot, update->tries, detail);
    }
    *result = update->setup.boot->state.sequence;
    return status;
}

colibri_status update_step_model(struct update *update, uint64_t *result, struct colibri_detail *detail)
{
    struct update_job *job = &update->job;
    const struct col_image *model = &update->model;
    const struct col_section *entries = model->section[COL_SECTION_EXPERT_DIR];
    const uint64_t front = entries == NULL ? job->total : model->section[COL_SECTION_EXPERTS]->offset;
    const uint64_t experts = entries == NULL ? 0 : entries->bytes / sizeof(struct col_expert);
    colibri_status status;
    if (job->done < front) {
        status = check_front(update, detail);
        if (status == COLIBRI_OK && job->done == front) {
            status = check_front_end(update, detail);
        }
    } else if (job->expert == experts) {
        return put_on_trial(update, result, detail);
    } else if (job->expert_done == job->entry.bytes) {
        status = next_expert(update, detail);
    } else {
        status = check_expert(update, detail);
    }
    return status == COLIBRI_OK ? (colibri_status)COLIBRI_PENDING : status;
}
