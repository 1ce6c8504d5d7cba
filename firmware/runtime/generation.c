/* SPDX-License-Identifier: Apache-2.0
 *
 * generation.c: GENERATE, LOGITS and TOKENIZE: bodies to engine calls, engine callbacks to events. Nothing is copied
 * that can be sent from where it lies: rows of logits go from the engine's arena into frames. */
#include "generation.h"

#include "../engine/detail.h"

#define ROUTE_HEAD 12u /* u32 layer, position, count */

/* ------------------------------------------------------------------------------------------------------- events */

static void send_routes(struct service *service)
{
    if (service->route.bytes != 0) {
        const struct running *running = &service->running;
        link_begin(&service->link, running->epoch, MESSAGE_ROUTE, running->request);
        link_put(&service->link, service->route.data, service->route.bytes);
        link_end(&service->link);
    }
    writer_begin(&service->route, service->route_bytes, sizeof service->route_bytes);
}

void generation_on_route(void *user, uint32_t layer, uint32_t position, uint32_t count, const uint32_t *expert,
                         const float *weight)
{
    struct service *service = user;
    if (!service->running.trace_routing) {
        return;
    }
    size_t list = (size_t)count * 4u;
    size_t bytes = ROUTE_HEAD + 2u * list;
    if (bytes > sizeof service->route_bytes - service->route.bytes) {
        send_routes(service);
    }
    if (bytes > sizeof service->route_bytes) { /* more chosen experts than a frame holds: a message of its own */
        const uint32_t head[3] = {layer, position, count};
        link_begin(&service->link, service->running.epoch, MESSAGE_ROUTE, service->running.request);
        link_put(&service->link, head, sizeof head);
        link_put(&service->link, expert, list);
        link_put(&service->link, weight, list);
        link_end(&service->link);
        return;
    }
    write_u32(&service->route, layer);
    write_u32(&service->route, position);
    write_u32(&service->route, count);
    write_bytes(&service->route, expert, list);
    write_bytes(&service->route, weight, list);
}

static void send_logits(struct service *service, uint32_t position, const float *logits)
{
    const struct running *running = &service->running;
    link_begin(&service->link, running->epoch, MESSAGE_LOGIT_ROW, running->request);
    link_put(&service->link, &position, sizeof position);
    link_put(&service->link, logits, (size_t)service->model.info.vocab * sizeof *logits);
    link_end(&service->link);
}

static bool on_token(void *user, const struct colibri_token *token)
{
    struct service *service = user;
    const struct running *running = &service->running;
    send_routes(service);
    if (running->trace_logits) {
        send_logits(service, token->position - 1u, token->logits);
    }
    const uint32_t head[3] = {token->id, token->index, token->position};
    const uint16_t text_bytes = (uint16_t)token->text_bytes;
    link_begin(&service->link, running->epoch, MESSAGE_TOKEN, running->request);
    link_put(&service->link, head, sizeof head);
    link_put(&service->link, &text_bytes, sizeof text_bytes);
    link_put(&service->link, token->text, text_bytes);
    link_end(&service->link);
    return !service_poll(service);
}

/* ------------------------------------------------------------------------------------------------------- prompts */

/* Adds the ids of a text to the prompt. */
static colibri_status append_text(struct service *service, const uint8_t *text, size_t bytes, bool template,
                                  size_t *count, struct colibri_detail *detail)
{
    struct model *model = &service->model;
    uint32_t *ids = model->ids + *count;
    size_t room = model->ids_capacity - *count;
    size_t added = 0;
    /* An empty text may come as NULL from the cursor. */
    const char *characters = text == NULL ? "" : (const char *)text;
    colibri_status status = template      ? colibri_prompt(model->engine, characters, bytes, ids, room, &added)
                            : *count == 0 ? colibri_tokenize(model->engine, characters, bytes, ids, room, &added)
                                          : colibri_tokenize_next(model->engine, characters, bytes, ids, room, &added);
    if (status == COLIBRI_E_BUFFER_SIZE) {
        return col_fail(COLIBRI_E_CONTEXT_FULL, detail, "prompt", *count + added, model->ids_capacity);
    }
    if (status == COLIBRI_E_TEXT_SIZE) {
        return col_fail(status, detail, "prompt", bytes, model->info.max_text_bytes);
    }
    if (status == COLIBRI_OK) {
        *count += added;
    }
    return status;
}

/* Adds `number` ids that lie in a message to the prompt. */
static colibri_status append_ids(struct service *service, const uint8_t *data, uint32_t number, size_t *count,
                                 struct colibri_detail *detail)
{
    struct model *model = &service->model;
    if (number > model->ids_capacity - *count) {
        return col_fail(COLIBRI_E_CONTEXT_FULL, detail, "prompt", *count + number, model->ids_capacity);
    }
    for (uint32_t i = 0; i < number; i++) {
        uint32_t id = load_u32(data + 4u * (size_t)i);
        if (id >= model->info.vocab) {
            return col_fail(COLIBRI_E_TOKEN_RANGE, detail, "prompt", id, model->info.vocab);
        }
        model->ids[(*count)++] = id;
    }
    return COLIBRI_OK;
}

static colibri_status read_segment(struct service *service, struct reader *body, bool template, size_t *count,
                                   struct colibri_detail *detail)
{
    uint8_t kind = read_u8(body);
    uint32_t number = read_u32(body);
    if (kind == SEGMENT_TEXT) {
        const uint8_t *text = read_bytes(body, number);
        return body->failed ? col_fail(COLIBRI_E_REQUEST, detail, "segment", number, body->bytes)
                            : append_text(service, text, number, template, count, detail);
    }
    if (kind == SEGMENT_IDS && !template && number <= LINK_MAX_MESSAGE / 4u) {
        const uint8_t *ids = read_bytes(body, 4u * (size_t)number);
        if (!body->failed) {
            return append_ids(service, ids, number, count, detail);
        }
    }
    return col_fail(COLIBRI_E_REQUEST, detail, "segment", kind, SEGMENT_IDS);
}

/* -------------------------------------------------------------------------------------------------------- GENERATE */

struct generation {
    struct colibri_request call;
    char stop[COLIBRI_MAX_STOPS][COLIBRI_MAX_STOP_BYTES];
    uint16_t flags;
};

static colibri_status read_stops(struct reader *body, uint16_t stops, struct generation *generation,
                                 struct colibri_detail *detail)
{
    if (stops > COLIBRI_MAX_STOPS) {
        return col_fail(COLIBRI_E_REQUEST, detail, "stop strings", stops, COLIBRI_MAX_STOPS);
    }
    for (uint16_t i = 0; i < stops; i++) {
        size_t bytes;
        const uint8_t *text = read_str(body, &bytes);
        if (text == NULL || bytes == 0 || bytes > COLIBRI_MAX_STOP_BYTES) {
            return col_fail(COLIBRI_E_REQUEST, detail, "stop string", bytes, COLIBRI_MAX_STOP_BYTES);
        }
        for (size_t j = 0; j < bytes; j++) { /* the message gives way to CANCEL while this one runs */
            generation->stop[i][j] = (char)text[j];
        }
        generation->call.stop[i] = generation->stop[i];
        generation->call.stop_bytes[i] = (uint32_t)bytes;
    }
    generation->call.stop_count = stops;
    return COLIBRI_OK;
}

static colibri_status read_generate(struct service *service, struct reader *body, struct generation *generation,
                                    struct colibri_detail *detail)
{
    generation->flags = read_u16(body);
    uint16_t segments = read_u16(body);
    uint16_t stops = read_u16(body);
    generation->call.slide_keep = read_u16(body);
    generation->call.max_tokens = read_u32(body);
    generation->call.sampling.top_k = read_u32(body);
    generation->call.sampling.temperature = read_f32(body);
    generation->call.sampling.top_p = read_f32(body);
    generation->call.sampling.repetition_penalty = read_f32(body);
    generation->call.sampling.seed = read_u64(body);
    bool template = (generation->flags & GENERATE_TEMPLATE) != 0;
    if (body->failed || (generation->flags & ~GENERATE_FLAGS) != 0) {
        return col_fail(COLIBRI_E_REQUEST, detail, "flags or sampling", generation->flags, GENERATE_FLAGS);
    }
    if (segments == 0 || (template && segments != 1)) {
        return col_fail(COLIBRI_E_REQUEST, detail, "segments", segments, 1);
    }
    colibri_status status = read_stops(body, stops, generation, detail);
    for (uint16_t i = 0; i < segments && status == COLIBRI_OK; i++) {
        status = read_segment(service, body, template, &generation->call.prompt_count, detail);
    }
    if (status == COLIBRI_OK && !reader_done(body)) {
        return col_fail(COLIBRI_E_REQUEST, detail, "length", body->bytes, body->at);
    }
    generation->call.prompt = service->model.ids;
    generation->call.ignore_eos = (generation->flags & GENERATE_IGNORE_EOS) != 0;
    generation->call.slide = (generation->flags & GENERATE_SLIDE) != 0;
    return status;
}

static void send_generated(struct service *service, const struct request *request,
                           const struct colibri_result *result, size_t prompt_count)
{
    uint8_t data[80];
    struct writer writer;
    writer_begin(&writer, data, sizeof data);
    write_u32(&writer, (uint32_t)result->finish);
    write_u32(&writer, result->prompt_tokens);
    write_u32(&writer, result->generated_tokens);
    write_bytes(&writer, result->logits_sha256, sizeof result->logits_sha256);
    write_u64(&writer, result->prefill_ticks);
    write_u64(&writer, result->decode_ticks);
    write_u64(&writer, service->link.ticks_per_second);
    write_u32(&writer, (uint32_t)prompt_count);
    link_begin(&service->link, request->epoch, MESSAGE_RESULT + MESSAGE_GENERATE, request->number);
    link_put(&service->link, writer.data, writer.bytes);
    link_put(&service->link, service->model.ids, prompt_count * sizeof *service->model.ids);
    link_end(&service->link);
}

static void check_canary(struct service *service)
{
    if (!service_canary_intact(service->model.canary)) {
        log_begin(&service->log, LOG_ERROR);
        log_text(&service->log, "the bytes behind the arena have been overwritten");
        log_end(&service->log);
    }
}

/* Layer and expert of a read that failed; other statuses have a detail of their own, or none. */
static void add_fault(const struct service *service, colibri_status status, struct colibri_detail *detail)
{
    if (detail->where[0] == '\0' && (status == COLIBRI_E_STORAGE || status == COLIBRI_E_EXPERT_CHECKSUM ||
                                     status == COLIBRI_E_SIGNATURE)) {
        colibri_get_fault(service->model.engine, detail);
    }
}

void generation_generate(struct service *service, struct request *request)
{
    struct generation generation = {0};
    struct colibri_detail detail = {0};
    struct colibri_result result = {0};
    service_begin(service, request);
    colibri_status status = read_generate(service, &request->body, &generation, &detail);
    service_release(service);
    if (status == COLIBRI_OK) {
        generation.call.on_token = on_token;
        generation.call.user = service;
        service->running.trace_logits = (generation.flags & GENERATE_TRACE_LOGITS) != 0;
        service->running.trace_routing = (generation.flags & GENERATE_TRACE_ROUTING) != 0;
        writer_begin(&service->route, service->route_bytes, sizeof service->route_bytes);
        status = colibri_generate(service->model.engine, &generation.call, &result);
        add_fault(service, status, &detail);
        send_routes(service);
        check_canary(service);
    }
    service_end(service);
    if (status == COLIBRI_OK) {
        send_generated(service, request, &result, generation.call.prompt_count);
    } else {
        service_error(service, request, status, &detail);
    }
}

/* ---------------------------------------------------------------------------------------------------------- LOGITS */

static colibri_status run_logits(struct service *service, size_t count, uint32_t last)
{
    struct model *model = &service->model;
    const float *logits = NULL;
    size_t first = count - last + 1u; /* tokens up to the first row that is asked for */
    colibri_reset(model->engine);
    colibri_expect(model->engine, (uint32_t)count);
    colibri_status status = colibri_prefill(model->engine, model->ids, first, &logits);
    for (size_t i = first; status == COLIBRI_OK; i++) {
        send_routes(service);
        send_logits(service, (uint32_t)(i - 1u), logits);
        if (service_poll(service)) {
            return COLIBRI_E_CANCELLED;
        }
        if (i == count) {
            break;
        }
        status = colibri_forward(model->engine, model->ids[i], &logits);
    }
    return status;
}

void generation_logits(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    colibri_status status = COLIBRI_OK;
    size_t count = 0;
    service_begin(service, request);
    uint32_t last = read_u32(&request->body);
    uint32_t number = read_u32(&request->body);
    const uint8_t *ids = number <= LINK_MAX_MESSAGE / 4u ? read_bytes(&request->body, 4u * (size_t)number) : NULL;
    if (ids == NULL || !reader_done(&request->body) || last == 0 || last > number) {
        status = col_fail(COLIBRI_E_REQUEST, &detail, "last, count or ids", last, number);
    } else {
        status = append_ids(service, ids, number, &count, &detail);
    }
    service_release(service);
    if (status == COLIBRI_OK) {
        service->running.trace_routing = true;
        writer_begin(&service->route, service->route_bytes, sizeof service->route_bytes);
        status = run_logits(service, count, last);
        add_fault(service, status, &detail);
        check_canary(service);
    }
    service_end(service);
    if (status == COLIBRI_OK) {
        const uint32_t shape[2] = {last, service->model.info.vocab};
        service_result(service, request, shape, sizeof shape);
    } else {
        service_error(service, request, status, &detail);
    }
}

/* -------------------------------------------------------------------------------------------------------- TOKENIZE */

void generation_tokenize(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    colibri_status status = COLIBRI_OK;
    size_t count = 0;
    service_begin(service, request);
    uint8_t flags = read_u8(&request->body);
    size_t bytes = request->body.bytes - request->body.at;
    const uint8_t *text = read_bytes(&request->body, bytes);
    if (request->body.failed || (flags & ~TOKENIZE_FLAGS) != 0) {
        status = col_fail(COLIBRI_E_REQUEST, &detail, "flags", flags, TOKENIZE_FLAGS);
    } else {
        status = append_text(service, text, bytes, (flags & TOKENIZE_TEMPLATE) != 0, &count, &detail);
    }
    service_release(service);
    service_end(service);
    if (status != COLIBRI_OK) {
        service_error(service, request, status, &detail);
        return;
    }
    const uint32_t number = (uint32_t)count;
    link_begin(&service->link, request->epoch, MESSAGE_RESULT + MESSAGE_TOKENIZE, request->number);
    link_put(&service->link, &number, sizeof number);
    link_put(&service->link, service->model.ids, count * sizeof *service->model.ids);
    link_end(&service->link);
}
