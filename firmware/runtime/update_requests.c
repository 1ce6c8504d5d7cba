/* SPDX-License-Identifier: Apache-2.0
 *
 * update_requests.c: bodies of the update requests to calls of update.h, and back. Requests that begin a job are
 * answered when it is done; service->waiting remembers whose answer that is. */
#include "update_requests.h"

#include "bytes.h"

#define DIRECTORY_ENTRIES 128u /* in one answer */

/* ------------------------------------------------------------------------------------------------- what there is */

void update_answer_status(struct service *service, struct request *request)
{
    struct update *update = &service->update;
    const struct boot *boot = update->setup.boot;
    const bool volume = boot != NULL && boot->volume.slots == COL_SLOTS;
    uint32_t slot = 0;
    struct colibri_detail unused;
    const bool next = update_next_slot(update, &slot, &unused) == COLIBRI_OK;
    uint8_t data[256];
    struct writer writer;
    writer_begin(&writer, data, sizeof data);
    write_u8(&writer, update_is_working(update) ? UPDATE_WORKING : update->kind != 0 ? UPDATE_OPEN : UPDATE_IDLE);
    write_u8(&writer, (uint8_t)update->kind);
    write_u8(&writer, boot == NULL ? 0 : (uint8_t)boot->volume.slots);
    write_u8(&writer, update_writable(update));
    write_u8(&writer, (uint8_t)update_running_slot(update));
    write_u8(&writer, volume ? (uint8_t)(boot_active(boot) + 1u) : 0);
    write_u8(&writer, (uint8_t)update_trial_slot(update));
    write_u8(&writer, 0);
    write_u32(&writer, volume ? boot->state.tries_left : 0);
    write_u32(&writer, volume ? boot->state.tries : 0);
    write_u32(&writer, volume ? boot->state.last_result : COL_BOOT_NONE);
    write_u32(&writer, volume ? (uint32_t)boot->state.last_status : 0);
    write_u32(&writer, update->list.count);
    write_u32(&writer, update->list.capacity);
    write_u32(&writer, update->list.free_places);
    write_u32(&writer, update->kind == UPDATE_EXPERT ? update->expert.layer : 0);
    write_u32(&writer, update->kind == UPDATE_EXPERT ? update->expert.expert : 0);
    write_u32(&writer, 0);
    write_u64(&writer, update_sequence(update));
    write_u64(&writer, update_counter(update));
    write_u64(&writer, update->kind != 0 ? update->target_bytes : 0);
    write_u64(&writer, update_is_working(update) ? update->job.done : 0);
    write_u64(&writer, update_is_working(update) ? update->job.total : 0);
    write_u64(&writer, next ? boot->volume.slot[slot].count * HAL_BLOCK : 0);
    for (uint32_t i = 0; i < COL_SLOTS; i++) {
        uint8_t id[16];
        update_slot_id(update, i, id);
        write_bytes(&writer, id, sizeof id);
    }
    service_result(service, request, writer.data, writer.bytes);
}

void update_answer_directory(struct service *service, struct request *request)
{
    const struct update *update = &service->update;
    const uint32_t first = read_u32(&request->body);
    if (!reader_done(&request->body)) {
        service_malformed(service, request, "first entry");
        return;
    }
    const uint32_t count = update_expert_count(update);
    const uint32_t left = first < count ? count - first : 0;
    const uint32_t here = left < DIRECTORY_ENTRIES ? left : DIRECTORY_ENTRIES;
    const uint32_t head[2] = {count, here};
    link_begin(&service->link, request->epoch, MESSAGE_RESULT + MESSAGE_DIRECTORY, request->number);
    link_put(&service->link, head, sizeof head);
    for (uint32_t i = 0; i < here; i++) {
        const struct col_expert *packed;
        struct col_place place;
        update_effective(update, first + i, &packed, &place);
        const uint32_t words[4] = {packed->layer, packed->expert, place.generation, place.crc32};
        const uint64_t longs[2] = {place.offset, packed->bytes};
        link_put(&service->link, words, sizeof words);
        link_put(&service->link, longs, sizeof longs);
        link_put(&service->link, place.digest, sizeof packed->digest);
    }
    link_end(&service->link);
}

/* ----------------------------------------------------------------------------------------------- the open update */

static colibri_status begin_expert(struct service *service, struct request *request, uint32_t tries,
                                   struct update_begun *begun, struct colibri_detail *detail, bool *wrong)
{
    struct col_update expert = {0};
    const uint8_t *body = read_bytes(&request->body, sizeof expert);
    *wrong = !reader_done(&request->body) || tries != 0;
    if (*wrong) {
        return COLIBRI_OK;
    }
    bytes_copy(&expert, body, sizeof expert);
    return update_begin_expert(&service->update, &expert, service->running.type != 0, begun, detail);
}

static colibri_status begin_model(struct service *service, struct request *request, uint32_t tries,
                                  struct update_begun *begun, struct colibri_detail *detail, bool *wrong)
{
    struct col_signature signature = {0};
    const uint8_t *page = read_bytes(&request->body, COL_PAGE);
    const uint8_t *body = read_bytes(&request->body, sizeof signature);
    *wrong = !reader_done(&request->body) || tries > COL_BOOT_MAX_TRIES;
    if (*wrong) {
        return COLIBRI_OK;
    }
    bytes_copy(&signature, body, sizeof signature);
    return update_begin_model(&service->update, page, &signature, tries, begun, detail);
}

void update_answer_begin(struct service *service, struct request *request)
{
    struct update_begun begun = {0};
    struct colibri_detail detail = {0};
    const uint32_t kind = read_u32(&request->body);
    const uint32_t tries = read_u32(&request->body);
    colibri_status status = COLIBRI_OK;
    bool wrong = true;
    if (kind == UPDATE_EXPERT) {
        status = begin_expert(service, request, tries, &begun, &detail, &wrong);
    } else if (kind == UPDATE_MODEL) {
        status = begin_model(service, request, tries, &begun, &detail, &wrong);
    }
    if (wrong) {
        service_malformed(service, request, "update");
        return;
    }
    if (status != COLIBRI_OK) {
        service_error(service, request, status, &detail);
        return;
    }
    uint8_t data[24] = {0};
    struct writer writer;
    writer_begin(&writer, data, sizeof data);
    write_u64(&writer, begun.target_bytes);
    write_u64(&writer, begun.offset);
    write_u8(&writer, begun.resumed);
    service_result(service, request, data, sizeof data);
}

void update_answer_data(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    const uint64_t offset = read_u64(&request->body);
    const size_t bytes = request->body.bytes - request->body.at;
    const uint8_t *data = read_bytes(&request->body, bytes);
    if (!reader_done(&request->body) || bytes == 0 || bytes % HAL_BLOCK != 0 || bytes > UPDATE_DATA_BYTES) {
        service_malformed(service, request, "data");
        return;
    }
    colibri_status status = update_data(&service->update, offset, data, bytes, &detail);
    if (status != COLIBRI_OK) {
        service_error(service, request, status, &detail);
        return;
    }
    service_result(service, request, NULL, 0);
}

void update_answer_confirm(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    colibri_status status = update_confirm(&service->update, &detail);
    if (status != COLIBRI_OK) {
        service_error(service, request, status, &detail);
        return;
    }
    uint8_t data[16] = {(uint8_t)update_running_slot(&service->update)};
    const uint64_t counter = update_counter(&service->update);
    store_u32(data + 8, (uint32_t)counter);
    store_u32(data + 12, (uint32_t)(counter >> 32));
    service_result(service, request, data, sizeof data);
}

/* ------------------------------------------------------------------------------------------------------------ jobs */

static void end_job(struct service *service, colibri_status status, uint64_t result, const struct colibri_detail *detail)
{
    struct request request = service->waiting;
    service->waiting = (struct request){0};
    uint8_t data[8];
    store_u32(data, (uint32_t)result);
    store_u32(data + 4, (uint32_t)(result >> 32));
    if (status != COLIBRI_OK) {
        service_error(service, &request, status, detail);
    } else {
        service_result(service, &request, data, request.type == MESSAGE_UPDATE_COMMIT ? 8 : 4);
    }
}

void update_requests_poll(struct service *service)
{
    struct update *update = &service->update;
    if (!update_is_working(update)) {
        return;
    }
    if (service->waiting.epoch != service->link.epoch && update->job.kind < UPDATE_JOB_EXPERT) {
        update_stop(update); /* nobody waits for it */
        service->waiting = (struct request){0};
        return;
    }
    struct colibri_detail detail = {0};
    uint64_t result = 0;
    colibri_status status = update_step(update, &result, &detail);
    if (status != (colibri_status)COLIBRI_PENDING) {
        end_job(service, status, result, &detail);
    }
}

/* The job that `status` tells has begun, or why not. */
static void wait_for_job(struct service *service, struct request *request, colibri_status status,
                         const struct colibri_detail *detail)
{
    if (status != COLIBRI_OK) {
        service_error(service, request, status, detail);
        return;
    }
    service->waiting = *request;
}

void update_answer_commit(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    wait_for_job(service, request, update_commit(&service->update, &detail), &detail);
}

void update_answer_copy(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    const uint64_t from = read_u64(&request->body);
    const uint64_t to = read_u64(&request->body);
    const uint64_t bytes = read_u64(&request->body);
    if (!reader_done(&request->body)) {
        service_malformed(service, request, "copy");
        return;
    }
    wait_for_job(service, request, update_copy(&service->update, from, to, bytes, &detail), &detail);
}

void update_answer_crc(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    const uint32_t where = read_u32(&request->body);
    const uint32_t reserved = read_u32(&request->body);
    const uint64_t offset = read_u64(&request->body);
    const uint64_t bytes = read_u64(&request->body);
    (void)reserved;
    if (!reader_done(&request->body) || where > UPDATE_RUNNING_IMAGE) {
        service_malformed(service, request, "where");
        return;
    }
    wait_for_job(service, request, update_crc(&service->update, (enum update_where)where, offset, bytes, &detail),
                 &detail);
}

void update_answer_rollback(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    struct update_undone undone;
    const bool working = update_is_working(&service->update);
    colibri_status status = update_rollback(&service->update, &undone, &detail);
    if (working) {
        end_job(service, COLIBRI_E_CANCELLED, 0, NULL);
    }
    if (status != COLIBRI_OK) {
        service_error(service, request, status, &detail);
        return;
    }
    const uint8_t data[8] = {undone.update, undone.trial, undone.restart};
    service_result(service, request, data, sizeof data);
}
