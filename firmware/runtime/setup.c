/* SPDX-License-Identifier: Apache-2.0
 *
 * setup.c: the memory's layout and the ways to use it, see setup.h. */
#include "setup.h"

#include "../engine/detail.h"
#include "../engine/image.h"
#include "../hal/hal.h"
#include "loader.h"
#include "runtime.h"
#include "trust.h"

struct layout {
    uint8_t *memory; /* what is left of the board's memory, aligned to a page */
    uint64_t bytes;
};

/* What is being set up. */
struct setup {
    struct service *service;
    const struct store_options *options;
    struct layout layout;
    struct loader loader;
    struct loader_image image;
    struct colibri_config config;
    struct colibri_plan plan; /* 1 KB that the stack need not carry */
};

/* The self-test's scratch lies at the end. */
static struct layout board_memory(struct service *service)
{
    struct layout layout = {.memory = hal_board.memory, .bytes = hal_board.memory_bytes};
    const uint64_t scratch = (uint64_t)COLIBRI_SELFTEST_BYTES;
    if (layout.bytes >= scratch + COLIBRI_ARENA_ALIGN) {
        layout.bytes = (layout.bytes - scratch) / COLIBRI_ARENA_ALIGN * COLIBRI_ARENA_ALIGN;
        service->scratch = layout.memory + layout.bytes;
    }
    return layout;
}

static bool between_reads(void *user)
{
    const struct setup *setup = user;
    struct service *service = setup->service;
    service->loaded = setup->loader.loaded;
    service->total = setup->loader.total;
    (void)service_poll(service);
    return link_is_active(&service->link);
}

/* --------------------------------------------------------------------------------------------- arena and engine */

/* Behind the arena: the canary, and the running request's prompt. */
static uint64_t bytes_behind(const struct setup *setup)
{
    return SERVICE_CANARY_BYTES + 4u + (uint64_t)setup->plan.context * sizeof(uint32_t); /* 4: alignment */
}

static colibri_status too_large(const struct setup *setup, uint64_t image_bytes, struct colibri_detail *detail)
{
    uint64_t needed = image_bytes + setup->plan.arena_bytes + bytes_behind(setup);
    needed = (needed + COLIBRI_ARENA_ALIGN - 1u) / COLIBRI_ARENA_ALIGN * COLIBRI_ARENA_ALIGN;
    if (setup->options->memory_limit != 0) {
        return col_fail(COLIBRI_E_MODEL_TOO_LARGE, detail, "memory", needed, setup->layout.bytes);
    }
    return col_fail(COLIBRI_E_MODEL_TOO_LARGE, detail, "memory", needed + COLIBRI_SELFTEST_BYTES,
                    hal_board.memory_bytes);
}

static bool fits(const struct setup *setup, uint64_t image_bytes)
{
    const uint64_t bytes = setup->layout.bytes;
    return image_bytes <= bytes && setup->plan.arena_bytes <= bytes - image_bytes &&
           bytes_behind(setup) <= bytes - image_bytes - setup->plan.arena_bytes;
}

static colibri_status make_plan(struct setup *setup, const uint8_t *image, uint64_t bytes,
                                struct colibri_detail *detail)
{
    return colibri_plan(image, bytes, &setup->config, &setup->plan, detail);
}

static void between_digests(void *user)
{
    (void)service_poll(user);
}

/* A board with a key runs only what is signed. The image's structure has been checked. */
static colibri_status check_trust(const struct setup *setup, const uint8_t *image, uint64_t bytes,
                                  struct colibri_detail *detail)
{
    struct service *service = setup->service;
    const colibri_status status = trust_check_image(image, bytes, hal_board.name, service->boot.state.counter,
                                                    between_digests, service, detail);
    return status != COLIBRI_OK
               ? status
               : trust_check_experts(image, bytes, hal_board.name, between_digests, service, detail);
}

/* Builds the engine over `bytes` of the image; its arena begins `before` bytes into the memory. */
static colibri_status build(struct setup *setup, uint32_t mode, const uint8_t *image, uint64_t bytes, uint64_t before,
                            struct colibri_detail *detail)
{
    struct model *model = &setup->service->model;
    uint8_t *arena = setup->layout.memory + before;
    struct colibri *engine;
    colibri_status status = check_trust(setup, image, bytes, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    status = colibri_init(&engine, image, bytes, &setup->config, arena, setup->plan.arena_bytes, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    model->mode = (uint8_t)mode;
    model->prefetch = setup->config.prefetch;
    model->cache_slots = setup->plan.cache_slots;
    model->slot_bytes = setup->plan.slot_bytes;
    model->image = image;
    model->loaded_bytes = bytes;
    model->arena_bytes = setup->plan.arena_bytes;
    model->canary = arena + setup->plan.arena_bytes;
    const uint64_t ids_at = (setup->plan.arena_bytes + SERVICE_CANARY_BYTES + 3u) / 4u * 4u;
    model->ids = (uint32_t *)(void *)(arena + ids_at);
    model->ids_capacity = setup->plan.context;
    service_paint_canary(model->canary);
    colibri_get_info(engine, &model->info);
    model->engine = engine; /* last: HELLO may be answered from inside colibri_init */
    return COLIBRI_OK;
}

/* ----------------------------------------------------------------------------------------------- the ways to it */

static colibri_status build_mapped(struct setup *setup, struct colibri_detail *detail)
{
    const uint8_t *image = hal_board.mapped_model;
    const uint64_t bytes = hal_board.mapped_model_bytes;
    struct service *service = setup->service;
    service->model.image_bytes = bytes;
    service->model.kept_bytes = 0; /* the arena takes it all */
    service->loaded = bytes;
    service->total = bytes;
    colibri_status status = make_plan(setup, image, bytes, detail);
    if (status == COLIBRI_OK && !fits(setup, 0)) {
        return too_large(setup, 0, detail);
    }
    return status == COLIBRI_OK ? build(setup, STORE_MAPPED, image, bytes, 0, detail) : status;
}

/* Reads the image from `from` on up to `to`. */
static colibri_status read_on(struct setup *setup, uint64_t from, uint64_t to, struct colibri_detail *detail)
{
    struct service *service = setup->service;
    struct loader *loader = &setup->loader;
    loader->total = to;
    const colibri_status status = loader_read(loader, from < to ? from : to, to, detail);
    service->loaded = loader->loaded;
    service->total = loader->total;
    return status;
}

/* What lies in memory from before need not be read again, but for the table of replaced experts: updates change it on
 * the medium only. */
static colibri_status read_front(struct setup *setup, struct colibri_detail *detail)
{
    struct model *model = &setup->service->model;
    const struct loader_image *image = &setup->image;
    const uint64_t kept = model->kept_bytes;
    uint64_t from = kept < image->updates_offset ? kept : image->updates_offset;
    from = from < COL_PAGE ? COL_PAGE : from;
    model->kept_bytes = 0; /* until all is well */
    const colibri_status status = read_on(setup, from, image->front_bytes, detail);
    if (status == COLIBRI_OK) {
        model->kept_bytes = kept > image->front_bytes ? kept : image->front_bytes;
    }
    return status;
}

static colibri_status read_rest(struct setup *setup, struct colibri_detail *detail)
{
    struct model *model = &setup->service->model;
    const uint64_t whole = setup->image.image_bytes;
    const uint64_t kept = model->kept_bytes;
    model->kept_bytes = 0;
    const colibri_status status = read_on(setup, kept, whole, detail);
    if (status == COLIBRI_OK) {
        model->kept_bytes = whole;
    }
    return status;
}

static colibri_status open_image(struct setup *setup, struct colibri_detail *detail)
{
    struct service *service = setup->service;
    struct model *model = &service->model;
    struct col_header before = {0};
    if (model->kept_bytes >= COL_PAGE) {
        before = *(const struct col_header *)(const void *)setup->layout.memory;
    }
    colibri_status status = loader_open(&setup->loader, &setup->image, detail);
    if (status != COLIBRI_OK) {
        model->kept_bytes = 0;
        return status;
    }
    const struct col_header *header = (const void *)setup->layout.memory;
    if (before.header_crc32 != header->header_crc32 || before.image_bytes != header->image_bytes) {
        model->kept_bytes = 0;
    }
    model->image_bytes = setup->image.image_bytes;
    storage_set_image(&service->storage, setup->loader.where.first, setup->image.image_bytes);
    return COLIBRI_OK;
}

/* With the front in memory: as many slots as are asked for, or as there is room for. */
static colibri_status build_block(struct setup *setup, struct colibri_detail *detail)
{
    const uint64_t front = setup->image.front_bytes;
    const uint8_t *image = setup->layout.memory;
    setup->config.storage = storage_for_engine(&setup->service->storage);
    setup->config.prefetch = setup->options->prefetch;
    setup->config.cache_slots = setup->options->cache_slots == 0 ? 1 : setup->options->cache_slots;
    colibri_status status = make_plan(setup, image, front, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (!fits(setup, front)) {
        return too_large(setup, front, detail);
    }
    if (setup->options->cache_slots == 0) {
        setup->config.cache_slots = 0;
        setup->config.arena_limit = setup->layout.bytes - front - bytes_behind(setup);
        status = make_plan(setup, image, front, detail);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    setup->service->model.kept_bytes = front; /* the arena takes what is behind */
    return build(setup, STORE_BLOCK, image, front, front, detail);
}

static colibri_status build_loaded(struct setup *setup, struct colibri_detail *detail)
{
    const uint8_t *image = setup->layout.memory;
    colibri_status status = open_image(setup, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    const uint64_t whole = setup->image.image_bytes;
    const uint64_t front = setup->image.front_bytes;
    const bool block = setup->options->mode == STORE_BLOCK && front < whole;
    const bool memory = setup->options->mode == STORE_MEMORY || front == whole;
    const uint64_t least = memory ? whole : front;
    if (least > setup->layout.bytes) {
        return col_fail(COLIBRI_E_MODEL_TOO_LARGE, detail, "image", least, setup->layout.bytes);
    }
    status = read_front(setup, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (!block && whole <= setup->layout.bytes) {
        status = make_plan(setup, image, whole, detail); /* looks at the front only */
        if (status != COLIBRI_OK) {
            return status;
        }
        if (fits(setup, whole)) {
            status = read_rest(setup, detail);
            return status == COLIBRI_OK ? build(setup, STORE_MEMORY, image, whole, whole, detail) : status;
        }
        if (memory) {
            return too_large(setup, whole, detail);
        }
    }
    return build_block(setup, detail);
}

/* Used where it is mapped, an image needs no medium. */
static bool is_mapped(const struct store_options *options)
{
    return hal_board.mapped_model != NULL && options->mode != STORE_BLOCK;
}

/* The image that was chosen, as *options say. */
static colibri_status set_up(struct service *service, const struct store_options *options, struct extent where,
                             struct colibri_detail *detail)
{
    static struct setup setup;
    const uint64_t kept = service->model.kept_bytes;
    service->model = (struct model){.kept_bytes = kept};
    setup = (struct setup){.service = service, .options = options, .layout = board_memory(service)};
    if (options->memory_limit != 0 && options->memory_limit < setup.layout.bytes) {
        setup.layout.bytes = options->memory_limit / COLIBRI_ARENA_ALIGN * COLIBRI_ARENA_ALIGN;
    }
    setup.config = (struct colibri_config){.context = runtime_options.context,
                                           .kernels = runtime_options.kernels,
                                           .hooks = service_hooks(service)};
    if (is_mapped(options)) {
        return build_mapped(&setup, detail);
    }
    setup.loader = (struct loader){.medium = &service->medium,
                                   .where = where,
                                   .memory = setup.layout.memory,
                                   .memory_bytes = setup.layout.bytes,
                                   .user = &setup,
                                   .between = between_reads};
    const colibri_status status = build_loaded(&setup, detail);
    if (status != COLIBRI_OK) {
        service->loaded = setup.loader.loaded;
        service->total = setup.loader.total;
    }
    return status;
}

/* ---------------------------------------------------------------------------------------------------- the start */

static void say_ready(struct service *service, uint64_t start)
{
    static const char *const modes[] = {"", ", experts in memory", ", experts from the storage, slots for each layer ",
                                        ", experts where they are mapped"};
    const struct model *model = &service->model;
    const uint64_t ticks = hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state) - start;
    log_begin(&service->log, LOG_INFO);
    log_text(&service->log, model->info.model);
    log_text(&service->log, ": image ");
    log_number(&service->log, model->image_bytes);
    log_text(&service->log, " bytes, arena ");
    log_number(&service->log, model->arena_bytes);
    log_text(&service->log, " bytes, kernels ");
    log_text(&service->log, model->info.kernels);
    log_text(&service->log, modes[model->mode]);
    if (model->mode == STORE_BLOCK) {
        log_number(&service->log, model->cache_slots);
    }
    log_text(&service->log, ", ready after ");
    log_number(&service->log, ticks * 1000u / service->link.ticks_per_second);
    log_text(&service->log, " ms");
    log_end(&service->log);
}

static void say_no_model(struct service *service, colibri_status status, const struct colibri_detail *detail)
{
    log_begin(&service->log, LOG_ERROR);
    log_text(&service->log, "no model: ");
    log_text(&service->log, colibri_status_text(status));
    log_text(&service->log, " (");
    log_text(&service->log, detail->where);
    log_text(&service->log, ": ");
    log_number(&service->log, detail->got);
    log_text(&service->log, ", ");
    log_number(&service->log, detail->wanted);
    log_text(&service->log, ")");
    log_end(&service->log);
}

/* Sets updates up anew. With nothing running, a device with a key must not take what it would have refused before. */
static void init_updates(struct service *service, struct update_setup setup)
{
    setup.own_counter = update_own_counter(&service->update);
    setup.counter = update_counter(&service->update);
    update_init(&service->update, &setup);
}

/* What there is for updates. */
static void open_updates(struct service *service)
{
    const struct model *model = &service->model;
    const bool chosen = service->boot.chosen && model->mode != STORE_MAPPED;
    const struct update_setup setup = {.medium = chosen ? &service->medium : NULL,
                                       .boot = chosen ? &service->boot : NULL,
                                       .board = hal_board.name,
                                       .engine = model->engine,
                                       .image = chosen && model->engine != NULL ? hal_board.memory : NULL,
                                       .image_bytes = model->loaded_bytes};
    init_updates(service, setup);
}

static void end(struct service *service, colibri_status status, const struct colibri_detail *detail, uint64_t start)
{
    open_updates(service);
    if (status == COLIBRI_OK) {
        service_ready(service);
        say_ready(service, start);
    } else {
        service_no_model(service, status, detail);
        say_no_model(service, status, detail);
    }
}

/* A model on trial must pass the self-test of every kernel set, too, and compute a position. */
static colibri_status check_trial(struct service *service, struct colibri_detail *detail)
{
    struct colibri_selftest_report report = {0};
    colibri_status status = COLIBRI_OK;
    (void)service_poll(service); /* the engine's start takes long enough by itself */
    if (service->scratch != NULL) {
        status = colibri_selftest(NULL, service->scratch, COLIBRI_SELFTEST_BYTES, &report);
    }
    if (status != COLIBRI_OK) {
        return col_fail(status, detail, report.failed, report.failed_size, 0);
    }
    status = boot_check(service->model.engine);
    return status == COLIBRI_OK ? status : col_fail(status, detail, "first position", 0, 0);
}

/* One that hangs must come to an end, without anybody's help: its start is watched, as a request is. */
static colibri_status start_trial(struct service *service, const struct store_options *options,
                                  struct colibri_detail *detail)
{
    const bool watched = service->watched; /* by CONFIGURE */
    service_watch(service);
    colibri_status status = set_up(service, options, boot_extent(&service->boot), detail);
    if (status == COLIBRI_OK) {
        status = check_trial(service, detail);
    }
    if (!watched) {
        service_unwatch(service);
    }
    return status;
}

/* Finds the volume or image on the medium; the first page of memory is overwritten. */
static colibri_status open_medium(struct service *service, struct colibri_detail *detail)
{
    const struct layout layout = board_memory(service);
    colibri_status status = storage_open(&service->storage, &hal_board.block, detail);
    service->medium = storage_medium(&service->storage);
    service->model.kept_bytes = 0;
    if (status == COLIBRI_OK && layout.bytes < COL_PAGE) {
        return col_fail(COLIBRI_E_MODEL_TOO_LARGE, detail, "memory", COL_PAGE, layout.bytes);
    }
    return status == COLIBRI_OK ? boot_open(&service->boot, &service->medium, layout.memory, detail) : status;
}

static colibri_status start_chosen(struct service *service, const struct store_options *options,
                                   struct colibri_detail *detail)
{
    struct boot *boot = &service->boot;
    colibri_status status = COLIBRI_OK;
    do {
        *detail = (struct colibri_detail){0};
        boot_next(boot);
        service->model.kept_bytes = 0;
        status = boot->on_trial ? start_trial(service, options, detail)
                                : set_up(service, options, boot_extent(boot), detail);
        if (status != COLIBRI_OK) {
            service->model.engine = NULL;
        }
    } while (status != COLIBRI_OK && boot_failed(boot, status));
    return status;
}

void setup_start(struct service *service)
{
    struct colibri_detail detail = {0};
    colibri_status status = COLIBRI_OK;
    service->store = runtime_options.store;
    if (is_mapped(&service->store)) {
        status = set_up(service, &service->store, (struct extent){0}, &detail);
    } else {
        status = open_medium(service, &detail);
        if (status == COLIBRI_OK) {
            status = start_chosen(service, &service->store, &detail);
        }
    }
    end(service, status, &detail, service->started);
}

/* ---------------------------------------------------------------------------------------------------- CONFIGURE */

static colibri_status read_options(struct reader *body, struct store_options *options, struct colibri_detail *detail)
{
    const uint8_t mode = read_u8(body);
    const uint8_t prefetch = read_u8(body);
    const uint16_t reserved = read_u16(body);
    *options = (struct store_options){.mode = mode, .prefetch = prefetch != 0, .cache_slots = read_u32(body)};
    options->memory_limit = read_u64(body);
    if (!reader_done(body) || mode > STORE_BLOCK || prefetch > 1 || reserved != 0) {
        return col_fail(COLIBRI_E_REQUEST, detail, "mode, prefetch or length", mode, STORE_BLOCK);
    }
    return COLIBRI_OK;
}

/* The image that was started, in another way; where that is a mapped one, or none was found, what the medium has. */
static colibri_status set_up_again(struct service *service, const struct store_options *options,
                                   struct colibri_detail *detail)
{
    if (service->boot.chosen || is_mapped(options)) {
        service->store = *options;
        return set_up(service, &service->store, boot_extent(&service->boot), detail);
    }
    const colibri_status status = open_medium(service, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    service->store = *options;
    return start_chosen(service, &service->store, detail);
}

void setup_configure(struct service *service, struct request *request)
{
    struct colibri_detail detail = {0};
    struct store_options options;
    colibri_status status = read_options(&request->body, &options, &detail);
    service_release(service);
    if (status != COLIBRI_OK) {
        service_error(service, request, status, &detail);
        return;
    }
    if (update_is_working(&service->update)) {
        detail = (struct colibri_detail){.where = "update"};
        service_error(service, request, COLIBRI_E_BUSY, &detail);
        return;
    }
    const uint64_t start = hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state);
    init_updates(service, (struct update_setup){0}); /* they end */
    service_begin(service, request);
    service->model.engine = NULL;
    service->state = DEVICE_LOADING;
    status = set_up_again(service, &options, &detail);
    service_end(service);
    end(service, status, &detail, start);
    if (status != COLIBRI_OK) {
        service_error(service, request, status, &detail);
        return;
    }
    const struct model *model = &service->model;
    uint8_t data[32];
    struct writer writer;
    writer_begin(&writer, data, sizeof data);
    write_u8(&writer, model->mode);
    write_u8(&writer, model->prefetch);
    write_u16(&writer, 0);
    write_u32(&writer, model->cache_slots);
    write_u64(&writer, model->arena_bytes);
    write_u64(&writer, model->loaded_bytes);
    service_result(service, request, writer.data, writer.bytes);
}
