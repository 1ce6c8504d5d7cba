/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: from reset to the loop: lays out the board's memory, loads the model, builds the engine, serves.
 *
 *     hal_board.memory  | image (unless mapped) | arena | canary | prompt ids | ... free ... | self-test scratch |
 */
#include "../engine/colibri.h"
#include "../engine/detail.h"
#include "../hal/hal.h"
#include "loader.h"
#include "runtime.h"
#include "service.h"

struct runtime_options runtime_options;

/* The runtime's whole state: the link's buffers, mostly. In one place, without a heap. */
static struct service service;

struct layout {
    uint8_t *memory; /* what is left of the board's memory, aligned to COLIBRI_ARENA_ALIGN */
    uint64_t bytes;
};

static struct layout reserve_scratch(void)
{
    struct layout layout = {.memory = hal_board.memory, .bytes = hal_board.memory_bytes};
    uint64_t scratch = (uint64_t)COLIBRI_SELFTEST_BYTES;
    if (layout.bytes >= scratch + COLIBRI_ARENA_ALIGN) {
        layout.bytes = (layout.bytes - scratch) / COLIBRI_ARENA_ALIGN * COLIBRI_ARENA_ALIGN;
        service.scratch = layout.memory + layout.bytes;
    }
    return layout;
}

static bool between_reads(void *user)
{
    const struct loader *loader = user;
    service.loaded = loader->loaded;
    service.total = loader->total;
    (void)service_poll(&service);
    return link_is_active(&service.link);
}

/* The image in memory: where it is mapped, or loaded to the start of *layout, which then begins behind it. */
static colibri_status get_image(struct layout *layout, const uint8_t **image, struct colibri_detail *detail)
{
    struct model *model = &service.model;
    if (hal_board.mapped_model != NULL) {
        *image = hal_board.mapped_model;
        model->image_bytes = hal_board.mapped_model_bytes;
        service.loaded = model->image_bytes;
        service.total = model->image_bytes;
        return COLIBRI_OK;
    }
    struct loader loader = {.block = &hal_board.block,
                            .memory = layout->memory,
                            .memory_bytes = layout->bytes,
                            .between = between_reads};
    loader.user = &loader;
    colibri_status status = loader_load(&loader, detail);
    service.loaded = loader.loaded;
    service.total = loader.total;
    if (status == COLIBRI_OK) {
        *image = layout->memory;
        model->image_bytes = loader.total;
        layout->memory += loader.total; /* whole pages */
        layout->bytes -= loader.total;
    }
    return status;
}

static colibri_status build_engine(const struct layout *layout, const uint8_t *image, struct colibri_detail *detail)
{
    struct model *model = &service.model;
    struct colibri_config config = {.context = runtime_options.context,
                                    .kernels = runtime_options.kernels,
                                    .hooks = service_hooks(&service)};
    static struct colibri_plan plan; /* 1 KB that the stack need not carry */
    colibri_status status = colibri_plan(image, model->image_bytes, &config, &plan, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    uint64_t behind = SERVICE_CANARY_BYTES + 4u + (uint64_t)plan.context * sizeof *model->ids; /* 4: alignment */
    if (plan.arena_bytes > layout->bytes || behind > layout->bytes - plan.arena_bytes) {
        uint64_t image_bytes = (uint64_t)(layout->memory - hal_board.memory);
        uint64_t needed = image_bytes + plan.arena_bytes + behind;
        needed = (needed + COLIBRI_ARENA_ALIGN - 1u) / COLIBRI_ARENA_ALIGN * COLIBRI_ARENA_ALIGN;
        return col_fail(COLIBRI_E_MODEL_TOO_LARGE, detail, "memory", needed + COLIBRI_SELFTEST_BYTES,
                        hal_board.memory_bytes);
    }
    struct colibri *engine;
    status = colibri_init(&engine, image, model->image_bytes, &config, layout->memory, plan.arena_bytes, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    model->arena_bytes = plan.arena_bytes;
    model->canary = layout->memory + plan.arena_bytes;
    uint64_t ids_at = (plan.arena_bytes + SERVICE_CANARY_BYTES + 3u) / 4u * 4u;
    model->ids = (uint32_t *)(void *)(layout->memory + ids_at);
    model->ids_capacity = plan.context;
    service_paint_canary(model->canary);
    colibri_get_info(engine, &model->info);
    model->engine = engine; /* last: HELLO may be answered from inside colibri_init */
    return COLIBRI_OK;
}

static void say_ready(uint64_t start)
{
    const struct model *model = &service.model;
    uint64_t ticks = hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state) - start;
    log_begin(&service.log, LOG_INFO);
    log_text(&service.log, model->info.model);
    log_text(&service.log, ": image ");
    log_number(&service.log, model->image_bytes);
    log_text(&service.log, " bytes, arena ");
    log_number(&service.log, model->arena_bytes);
    log_text(&service.log, " bytes, kernels ");
    log_text(&service.log, model->info.kernels);
    log_text(&service.log, ", ready after ");
    log_number(&service.log, ticks * 1000u / service.link.ticks_per_second);
    log_text(&service.log, " ms");
    log_end(&service.log);
}

static void say_no_model(colibri_status status, const struct colibri_detail *detail)
{
    log_begin(&service.log, LOG_ERROR);
    log_text(&service.log, "no model: ");
    log_text(&service.log, colibri_status_text(status));
    log_text(&service.log, " (");
    log_text(&service.log, detail->where);
    log_text(&service.log, ": ");
    log_number(&service.log, detail->got);
    log_text(&service.log, ", ");
    log_number(&service.log, detail->wanted);
    log_text(&service.log, ")");
    log_end(&service.log);
}

int runtime_main(void)
{
    service_init(&service);
    struct colibri_detail detail = {0};
    struct layout layout = reserve_scratch();
    const uint8_t *image = NULL;
    colibri_status status = get_image(&layout, &image, &detail);
    if (status == COLIBRI_OK) {
        status = build_engine(&layout, image, &detail);
    }
    if (status == COLIBRI_OK) {
        service_ready(&service);
        say_ready(service.started);
    } else {
        service_no_model(&service, status, &detail);
        say_no_model(status, &detail);
    }
    for (;;) {
        service_step(&service);
    }
}
