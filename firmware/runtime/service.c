/* SPDX-License-Identifier: Apache-2.0
 *
 * service.c: dispatch, and the requests that do not run the model, see service.h. */
#include "service.h"

#include "../engine/detail.h"
#include "fault.h"
#include "generation.h"
#include "setup.h"
#include "update_requests.h"
#include "trust.h"

/* A poll from inside the engine does nothing more often than this: reading a clock is cheaper than a UART register or
 * a system call, and a quarter of a millisecond is far inside what a 16-byte FIFO buffers at 115,200 baud. */
#define POLLS_PER_SECOND 4000u
#define IDLE_MS 50u
#define OUTSTANDING_MS 1u
#define REBOOT_FLUSH_MS 1000u

static uint64_t now(void)
{
    return hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state);
}

/* ------------------------------------------------------------------------------------------------------- answers */

void service_result(struct service *service, const struct request *request, const void *data, size_t bytes)
{
    link_begin(&service->link, request->epoch, (uint16_t)(MESSAGE_RESULT + request->type), request->number);
    link_put(&service->link, data, bytes);
    link_end(&service->link);
}

void service_error(struct service *service, const struct request *request, colibri_status status,
                   const struct colibri_detail *detail)
{
    uint8_t data[320]; /* 20 bytes of numbers, where, and a sentence of at most 255 bytes */
    struct writer writer;
    writer_begin(&writer, data, sizeof data);
    write_u32(&writer, (uint32_t)status);
    write_u64(&writer, detail == NULL ? 0 : detail->got);
    write_u64(&writer, detail == NULL ? 0 : detail->wanted);
    write_str(&writer, detail == NULL ? "" : detail->where);
    write_str(&writer, colibri_status_text(status));
    link_begin(&service->link, request->epoch, MESSAGE_ERROR, request->number);
    link_put(&service->link, writer.data, writer.bytes);
    link_end(&service->link);
}

void service_malformed(struct service *service, const struct request *request, const char *where)
{
    struct colibri_detail detail;
    col_detail_set(&detail, where, request->body.bytes, request->body.at);
    service_error(service, request, COLIBRI_E_REQUEST, &detail);
}

/* ------------------------------------------------------------------------------------------------- HELLO and INFO */

static void write_hello(const struct service *service, struct writer *writer)
{
    static const uint8_t no_id[16] = {0};
    write_u8(writer, LINK_VERSION);
    write_u8(writer, LINK_VERSION);
    write_u16(writer, FRAME_PAYLOAD);
    write_u32(writer, LINK_MAX_MESSAGE);
    write_u8(writer, service->state);
    write_u8(writer, service->running.type != 0);
    write_u16(writer, 0);
    write_u32(writer, (uint32_t)service->status);
    write_u64(writer, service->loaded);
    write_u64(writer, service->total);
    write_bytes(writer, service->model.engine == NULL ? no_id : service->model.info.image_id, sizeof no_id);
    write_str(writer, hal_board.name);
    write_str(writer, FIRMWARE_VERSION);
}

static size_t hello(void *user, uint8_t *data, size_t capacity)
{
    struct writer writer;
    writer_begin(&writer, data, capacity);
    write_hello(user, &writer);
    return writer.bytes;
}

static void answer_hello(struct service *service, struct request *request)
{
    uint8_t data[256];
    service_result(service, request, data, hello(service, data, sizeof data));
}

static void write_store(const struct service *service, struct writer *writer)
{
    const struct model *model = &service->model;
    const struct update *update = &service->update;
    const uint32_t running = update_running_slot(update);
    write_u8(writer, model->mode);
    write_u8(writer, trust_has_key());
    write_u8(writer, (uint8_t)running);
    write_u8(writer, running != 0 && running == update_trial_slot(update));
    write_u32(writer, model->cache_slots);
    write_u64(writer, model->slot_bytes);
    write_u64(writer, update_sequence(update));
    write_u64(writer, update_counter(update));
}

static void answer_info(struct service *service, struct request *request)
{
    const struct model *model = &service->model;
    const struct colibri_info *info = &model->info;
    uint8_t data[1024];
    struct writer writer;
    writer_begin(&writer, data, sizeof data);
    write_hello(service, &writer);
    write_u64(&writer, service->detail.got);
    write_u64(&writer, service->detail.wanted);
    write_str(&writer, service->detail.where);
    write_str(&writer, hal_board.architecture);
    write_str(&writer, info->model);
    write_str(&writer, info->architecture);
    write_str(&writer, info->quantisation);
    write_str(&writer, info->kernels);
    const uint32_t sizes[8] = {info->vocab,     info->hidden,  info->layers,         info->max_experts,
                               info->max_top_k, info->context, info->max_text_bytes, info->kv_format};
    write_bytes(&writer, sizes, sizeof sizes);
    const uint64_t bytes[4] = {hal_board.memory_bytes, model->image_bytes, model->arena_bytes,
                               service->link.ticks_per_second};
    write_bytes(&writer, bytes, sizeof bytes);
    write_u32(&writer, hal_board.link_baud);
    write_u16(&writer, COLIBRI_API_MAJOR);
    write_u16(&writer, COLIBRI_API_MINOR);
    write_store(service, &writer);
    service_result(service, request, writer.data, writer.bytes);
}

/* ---------------------------------------------------------------------------------------------------------- STATS */

static void answer_stats(struct service *service, struct request *request)
{
    uint8_t flags = read_u8(&request->body);
    if (!reader_done(&request->body) || (flags & ~STATS_FLAGS) != 0) {
        service_malformed(service, request, "flags");
        return;
    }
    if ((flags & STATS_CLEAR) != 0 && service->running.type != 0) {
        service_error(service, request, COLIBRI_E_BUSY, NULL);
        return;
    }
    struct colibri_stats stats = {0};
    colibri_get_stats(service->model.engine, &stats);
    uint8_t data[384];
    struct writer writer;
    writer_begin(&writer, data, sizeof data);
    const uint64_t totals[8] = {stats.arena_bytes,   stats.arena_peak_bytes, stats.tokens,
                                stats.head_ticks,    stats.sampler_ticks,    stats.tokenizer_ticks,
                                stats.ticks_per_second, now() - service->started};
    write_bytes(&writer, totals, sizeof totals);
    write_u8(&writer, service_canary_intact(service->model.canary));
    write_u8(&writer, 0);
    write_u16(&writer, 0);
    const struct link_counters *counters = &service->link.counters;
    const uint32_t frames[5] = {counters->received, counters->damaged, counters->repeated, counters->sent,
                                counters->resent};
    write_bytes(&writer, frames, sizeof frames);
    write_str(&writer, service->model.info.kernels);
    write_u32(&writer, stats.layers);
    write_u32(&writer, stats.max_experts);
    link_begin(&service->link, request->epoch, MESSAGE_RESULT + MESSAGE_STATS, request->number);
    link_put(&service->link, writer.data, writer.bytes);
    link_put(&service->link, stats.layer, stats.layers * sizeof *stats.layer);
    link_put(&service->link, stats.expert, (size_t)stats.layers * stats.max_experts * sizeof *stats.expert);
    link_end(&service->link);
    if ((flags & STATS_CLEAR) != 0) {
        colibri_clear_stats(service->model.engine);
    }
}

/* ------------------------------------------------------------------------------------------- the device's own care */

static void answer_selftest(struct service *service, struct request *request)
{
    struct colibri_selftest_report report = {0};
    if (service->scratch == NULL) {
        struct colibri_detail detail = {.where = "memory", .got = hal_board.memory_bytes,
                                        .wanted = COLIBRI_SELFTEST_BYTES};
        service_error(service, request, COLIBRI_E_BUFFER_SIZE, &detail);
        return;
    }
    service_begin(service, request);
    colibri_status status = colibri_selftest(NULL, service->scratch, COLIBRI_SELFTEST_BYTES, &report);
    service_end(service);
    if (status != COLIBRI_OK && status != COLIBRI_E_KERNELS_WRONG) {
        service_error(service, request, status, NULL);
        return;
    }
    uint8_t data[64];
    struct writer writer;
    writer_begin(&writer, data, sizeof data);
    write_u32(&writer, (uint32_t)status);
    write_u32(&writer, report.cases);
    write_u32(&writer, report.failures);
    write_u32(&writer, report.failed_size);
    write_str(&writer, report.kernels);
    write_str(&writer, report.failed);
    service_result(service, request, writer.data, writer.bytes);
}

static void answer_cancel(struct service *service, struct request *request)
{
    uint32_t number = read_u32(&request->body);
    if (!reader_done(&request->body)) {
        service_malformed(service, request, "request number");
        return;
    }
    struct running *running = &service->running;
    uint8_t was_running = running->type != 0 && running->request == number && running->epoch == request->epoch;
    if (was_running) {
        running->cancel = true;
    }
    service_result(service, request, &was_running, 1);
}

static void answer_reboot(struct service *service, struct request *request)
{
    service_result(service, request, NULL, 0);
    link_flush(&service->link, REBOOT_FLUSH_MS);
    hal_board.power.api->reset(hal_board.power.config);
}

static void answer_provoke(struct service *service, struct request *request)
{
    uint32_t kind = read_u32(&request->body);
    if (!reader_done(&request->body) || kind < PROVOKE_ILLEGAL || kind > PROVOKE_HANG) {
        service_malformed(service, request, "kind");
        return;
    }
    fault_name_request(request->number);
    if (kind != PROVOKE_HANG) {
        hal_provoke_fault(kind);
    } else if (hal_board.watchdog.api != NULL) {
        const struct hal_watchdog *watchdog = &hal_board.watchdog;
        if (watchdog->api->start(watchdog->config, watchdog->state, 1000) == HAL_OK) {
            for (volatile bool hang = true; hang;) {
            }
        }
    }
    fault_name_request(service->running.request);
    service_result(service, request, NULL, 0);
}

/* ------------------------------------------------------------------------------------------------------- dispatch */

struct entry {
    void (*answer)(struct service *service, struct request *request);
    bool at_once;     /* answered while another request runs or the model is being loaded */
    bool beside;      /* answered while another request runs */
    bool needs_model;
    bool no_body;
};

static const struct entry entries[] = {
    [MESSAGE_HELLO] = {.answer = answer_hello, .at_once = true, .no_body = true},
    [MESSAGE_INFO] = {.answer = answer_info, .at_once = true, .no_body = true},
    [MESSAGE_GENERATE] = {.answer = generation_generate, .needs_model = true},
    [MESSAGE_CANCEL] = {.answer = answer_cancel, .at_once = true},
    [MESSAGE_STATS] = {.answer = answer_stats, .beside = true, .needs_model = true},
    [MESSAGE_SELFTEST] = {.answer = answer_selftest, .no_body = true},
    [MESSAGE_LOGITS] = {.answer = generation_logits, .needs_model = true},
    [MESSAGE_TOKENIZE] = {.answer = generation_tokenize, .needs_model = true},
    [MESSAGE_REBOOT] = {.answer = answer_reboot, .at_once = true, .no_body = true},
    [MESSAGE_PROVOKE] = {.answer = answer_provoke, .at_once = true},
    [MESSAGE_UPDATE_STATUS] = {.answer = update_answer_status, .beside = true, .no_body = true},
    [MESSAGE_UPDATE_BEGIN] = {.answer = update_answer_begin, .beside = true},
    [MESSAGE_UPDATE_DATA] = {.answer = update_answer_data, .beside = true},
    [MESSAGE_UPDATE_COMMIT] = {.answer = update_answer_commit, .beside = true, .no_body = true},
    [MESSAGE_UPDATE_CONFIRM] = {.answer = update_answer_confirm, .beside = true, .no_body = true},
    [MESSAGE_UPDATE_ROLLBACK] = {.answer = update_answer_rollback, .beside = true, .no_body = true},
    [MESSAGE_DIRECTORY] = {.answer = update_answer_directory, .beside = true, .needs_model = true},
    [MESSAGE_UPDATE_COPY] = {.answer = update_answer_copy, .beside = true},
    [MESSAGE_UPDATE_CRC] = {.answer = update_answer_crc, .beside = true},
    [MESSAGE_CONFIGURE] = {.answer = setup_configure},
};

static void answer(struct service *service, struct request *request, uint64_t whole_bytes)
{
    const struct entry *entry = request->type < sizeof entries / sizeof *entries ? &entries[request->type] : NULL;
    if (whole_bytes > LINK_MAX_MESSAGE) {
        struct colibri_detail detail = {.where = "message", .got = whole_bytes, .wanted = LINK_MAX_MESSAGE};
        service_error(service, request, COLIBRI_E_REQUEST, &detail);
    } else if (entry == NULL || entry->answer == NULL) {
        service_error(service, request, COLIBRI_E_REQUEST_UNKNOWN, NULL);
    } else if (!entry->at_once && service->state == DEVICE_LOADING) {
        struct colibri_detail detail = {.where = "image", .got = service->loaded, .wanted = service->total};
        service_error(service, request, COLIBRI_E_LOADING, &detail);
    } else if (!entry->at_once && !entry->beside && service->running.type != 0) {
        service_error(service, request, COLIBRI_E_BUSY, NULL);
    } else if (entry->needs_model && service->state != DEVICE_READY) {
        service_error(service, request, service->status, &service->detail);
    } else if (entry->no_body && request->body.bytes != 0) {
        service_malformed(service, request, "length");
    } else {
        entry->answer(service, request);
    }
}

static void dispatch(struct service *service)
{
    const uint8_t *message;
    uint64_t whole_bytes;
    if (!link_take(&service->link, &message, &whole_bytes)) {
        return;
    }
    service->holding = true;
    if (whole_bytes >= MESSAGE_HEADER) {
        size_t there = whole_bytes < LINK_MAX_MESSAGE ? (size_t)whole_bytes : LINK_MAX_MESSAGE;
        struct request request = {.type = load_u16(message),
                                  .number = load_u32(message + 4),
                                  .epoch = service->link.epoch};
        reader_begin(&request.body, message + MESSAGE_HEADER, there - MESSAGE_HEADER);
        if (request.type < MESSAGE_TOKEN && request.number != 0) {
            answer(service, &request, whole_bytes);
        }
    }
    service_release(service);
}

void service_release(struct service *service)
{
    if (service->holding) {
        service->holding = false;
        link_release(&service->link);
    }
}

void service_watch(struct service *service)
{
    const struct hal_watchdog *watchdog = &hal_board.watchdog;
    service->watched = watchdog->api != NULL;
    if (service->watched &&
        watchdog->api->start(watchdog->config, watchdog->state, SERVICE_WATCHDOG_MS) != HAL_OK) {
        log_begin(&service->log, LOG_WARNING);
        log_text(&service->log, "the watchdog does not start");
        log_end(&service->log);
    }
}

void service_unwatch(struct service *service)
{
    const struct hal_watchdog *watchdog = &hal_board.watchdog;
    service->watched = false;
    if (watchdog->api != NULL) {
        watchdog->api->stop(watchdog->config, watchdog->state);
    }
}

void service_begin(struct service *service, const struct request *request)
{
    service->running = (struct running){.type = request->type, .request = request->number, .epoch = request->epoch};
    service->link.busy = true;
    fault_name_request(request->number);
    service_watch(service);
}

void service_end(struct service *service)
{
    service->running = (struct running){0};
    service->link.busy = false;
    fault_name_request(0);
    service_unwatch(service);
}

bool service_poll(struct service *service)
{
    link_pump(&service->link);
    struct running *running = &service->running;
    if (running->type != 0 && running->epoch != service->link.epoch) {
        running->cancel = true; /* its host is gone; what the next one asks waits until this has ended */
    } else {
        dispatch(service);
    }
    update_requests_poll(service);
    return running->cancel;
}

void service_step(struct service *service)
{
    bool outstanding = service->link.base != service->link.next;
    if (update_is_working(&service->update)) {
        link_pump(&service->link);
    } else {
        link_wait(&service->link, outstanding ? OUTSTANDING_MS : IDLE_MS);
    }
    dispatch(service);
    update_requests_poll(service);
    log_send(&service->log, &service->link);
}

/* ---------------------------------------------------------------------------------------------------------- hooks */

static bool engine_poll(void *user)
{
    struct service *service = user;
    uint64_t time = now();
    if (time - service->polled >= service->poll_gap) {
        service->polled = time;
        (void)service_poll(service);
    }
    /* CONFIGURE goes on: a model on trial that it starts would seem to have failed. */
    return service->running.cancel && service->state == DEVICE_READY;
}

static uint64_t engine_now(void *user)
{
    (void)user;
    return now();
}

struct colibri_hooks service_hooks(struct service *service)
{
    return (struct colibri_hooks){.user = service,
                                  .poll = engine_poll,
                                  .now = engine_now,
                                  .ticks_per_second = service->link.ticks_per_second,
                                  .route = generation_on_route};
}

/* ---------------------------------------------------------------------------------------------------------- start */

static void kick(void *user)
{
    const struct service *service = user;
    const struct hal_watchdog *watchdog = &hal_board.watchdog;
    if (service->watched) {
        watchdog->api->kick(watchdog->config, watchdog->state);
    }
}

void service_init(struct service *service)
{
    const struct link_config config = {.console = &hal_board.console,
                                       .clock = &hal_board.clock,
                                       .baud = hal_board.link_baud,
                                       .user = service,
                                       .hello = hello,
                                       .alive = kick};
    log_init(&service->log);
    service->state = DEVICE_LOADING;
    service->status = COLIBRI_OK;
    service->detail = (struct colibri_detail){0};
    service->loaded = 0;
    service->total = 0;
    service->storage = (struct storage){0};
    service->medium = (struct medium){0};
    service->boot = (struct boot){0};
    service->model = (struct model){0};
    service->scratch = NULL;
    update_init(&service->update, &(struct update_setup){0});
    service->waiting = (struct request){0};
    service->running = (struct running){0};
    service->watched = false;
    service->holding = false;
    writer_begin(&service->route, service->route_bytes, sizeof service->route_bytes);
    link_init(&service->link, &config);
    service->started = now();
    service->polled = service->started;
    service->poll_gap = service->link.ticks_per_second / POLLS_PER_SECOND;
}

void service_ready(struct service *service)
{
    service->state = DEVICE_READY;
    service->status = COLIBRI_OK;
    service->detail = (struct colibri_detail){0};
}

void service_no_model(struct service *service, colibri_status status, const struct colibri_detail *detail)
{
    service->state = DEVICE_NO_MODEL;
    service->status = status;
    service->detail = *detail;
}

static uint8_t canary_byte(size_t i)
{
    return (uint8_t)(0xc5u ^ 29u * i);
}

void service_paint_canary(uint8_t *canary)
{
    for (size_t i = 0; i < SERVICE_CANARY_BYTES; i++) {
        canary[i] = canary_byte(i);
    }
}

bool service_canary_intact(const uint8_t *canary)
{
    bool intact = true;
    for (size_t i = 0; i < SERVICE_CANARY_BYTES; i++) {
        intact = intact && canary[i] == canary_byte(i);
    }
    return intact;
}
