/* SPDX-License-Identifier: Apache-2.0
 *
 * session.c: plan and start an engine, and the text functions of the public interface. */
#include "detail.h"
#include "engine.h"

#define DEFAULT_BATCH 16u
#define MAX_BATCH 256u
#define DEFAULT_TEXT_BYTES 4096u
#define MAX_TEXT_BYTES (1u << 24)

/* Opens the image and applies the configuration's defaults and limits. */
static colibri_status configure(struct colibri *engine, const void *image, uint64_t image_bytes,
                                const struct colibri_config *config, struct colibri_detail *detail)
{
    const colibri_status status = col_image_open(image, image_bytes, &engine->image, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    const struct col_model *model = engine->image.model;
    engine->context = config->context == 0u ? model->context_max : config->context;
    engine->batch = config->batch == 0u ? DEFAULT_BATCH : config->batch;
    engine->max_text_bytes = config->max_text_bytes == 0u ? DEFAULT_TEXT_BYTES : config->max_text_bytes;
    engine->kv_format = config->kv_format == COLIBRI_KV_IMAGE ? model->kv_format : config->kv_format;
    if (engine->context > model->context_max) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "context", engine->context, model->context_max);
    }
    if (engine->batch > MAX_BATCH) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "batch", engine->batch, MAX_BATCH);
    }
    if (engine->max_text_bytes > MAX_TEXT_BYTES) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "max_text_bytes", engine->max_text_bytes, MAX_TEXT_BYTES);
    }
    if (engine->kv_format > COL_KV_LAST) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "kv_format", engine->kv_format, COL_KV_LAST);
    }
    if (config->storage.depth > COLIBRI_MAX_READS) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "storage.depth", config->storage.depth, COLIBRI_MAX_READS);
    }
    if (engine->image.front && config->storage.depth == 0u) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "image", image_bytes, engine->image.header->image_bytes);
    }
    /* A batch larger than the context would only cost memory. */
    engine->batch = engine->batch < engine->context ? engine->batch : engine->context;
    return COLIBRI_OK;
}

/* Weights that one token reads: all resident ones but the embedding, of which it reads a row, and the chosen experts. */
static uint64_t active_bytes(const struct col_image *image)
{
    const struct col_model *model = image->model;
    uint64_t bytes = image->section[COL_SECTION_RESIDENT]->bytes;
    if (model->embedding.offset != model->head.weight.offset) {
        bytes -= model->embedding.bytes;
    }
    for (uint32_t i = 0; i < model->layers; i++) {
        bytes += image->layer[i].expert_bytes * image->layer[i].router.top_k;
    }
    return bytes;
}

/* All before the experts, or everything. */
static uint64_t front_bytes(const struct col_image *image)
{
    const struct col_section *experts = image->section[COL_SECTION_EXPERTS];
    return experts == NULL ? image->bytes : experts->offset;
}

/* Lays the engine out with that many slots per layer. False: in more bytes than `limit`, or than a number holds. */
static bool fits(struct colibri *engine, uint32_t slots, uint64_t limit, struct col_arena *arena)
{
    engine->store.slots = slots;
    col_layout(engine, arena);
    return !arena->overflow && (limit == 0u || arena->used <= limit);
}

/* Chooses the number of slots and states the exact bytes of a configured engine's arena; its regions go to *plan, which may
 * be NULL. */
static colibri_status measure(struct colibri *engine, const struct colibri_config *config, struct colibri_plan *plan,
                              uint64_t *bytes, struct colibri_detail *detail)
{
    const uint32_t experts = config->storage.depth == 0u ? 0u : engine->image.widest.experts;
    uint32_t slots = config->cache_slots != 0u && config->cache_slots < experts ? config->cache_slots : experts;
    uint32_t low = config->cache_slots == 0u && experts > 0u ? 1u : slots; /* the fewest that there may be */
    while (low < slots) {
        const uint32_t middle = slots - (slots - low) / 2u;
        struct col_arena arena = {0};
        if (fits(engine, middle, config->arena_limit, &arena)) {
            low = middle;
        } else {
            slots = middle - 1u;
        }
    }
    struct col_arena arena = {.plan = plan};
    const bool fit = fits(engine, slots, config->arena_limit, &arena);
    *bytes = arena.used;
    if (arena.overflow) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "arena", arena.used, UINT64_MAX);
    }
    return fit ? COLIBRI_OK : col_fail(COLIBRI_E_ARENA_SIZE, detail, "arena limit", config->arena_limit, arena.used);
}

colibri_status colibri_plan(const void *image, uint64_t image_bytes, const struct colibri_config *config,
                            struct colibri_plan *plan, struct colibri_detail *detail)
{
    struct colibri engine = {0};
    const colibri_status status = configure(&engine, image, image_bytes, config, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    *plan = (struct colibri_plan){
        .image_bytes = engine.image.header->image_bytes,
        .front_bytes = front_bytes(&engine.image),
        .resident_bytes = engine.image.section[COL_SECTION_RESIDENT]->bytes,
        .expert_bytes = engine.image.blob_bytes, /* spare places are no experts */
        .active_bytes = active_bytes(&engine.image),
        .context = engine.context,
        .batch = engine.batch,
        .max_text_bytes = engine.max_text_bytes,
        .kv_format = engine.kv_format,
    };
    const colibri_status measured = measure(&engine, config, plan, &plan->arena_bytes, detail);
    plan->cache_slots = engine.store.slots;
    plan->slot_bytes = engine.store.slot_bytes;
    return measured;
}

colibri_status colibri_validate(const void *image, uint64_t image_bytes, struct colibri_detail *detail)
{
    struct col_image view;
    const colibri_status status = col_image_open(image, image_bytes, &view, detail);
    return status != COLIBRI_OK ? status : col_image_check_content(&view, detail);
}

static colibri_status choose_kernels(struct colibri *engine, const char *name, struct colibri_detail *detail)
{
    if (name == NULL) {
        engine->compute.kernels = col_kernels_choose(engine->hooks.now, engine->hooks.user,
                                                     engine->hooks.ticks_per_second, engine->scratch);
        return COLIBRI_OK;
    }
    engine->compute.kernels = col_kernels_find(name);
    if (engine->compute.kernels == NULL) {
        return col_fail(COLIBRI_E_KERNELS_UNKNOWN, detail, name, 0, 0);
    }
    struct colibri_selftest_report report;
    const colibri_status status = colibri_selftest(name, engine->scratch, COLIBRI_SELFTEST_BYTES, &report);
    return status == COLIBRI_OK ? status : col_fail(status, detail, report.failed, report.failed_size, 0);
}

colibri_status colibri_init(struct colibri **engine, const void *image, uint64_t image_bytes,
                            const struct colibri_config *config, void *arena, uint64_t arena_bytes,
                            struct colibri_detail *detail)
{
    struct colibri start = {.hooks = config->hooks};
    colibri_status status = configure(&start, image, image_bytes, config, detail);
    if (status == COLIBRI_OK) {
        status = measure(&start, config, NULL, &start.arena_bytes, detail);
    }
    if (status != COLIBRI_OK) {
        return status;
    }
    start.store.storage = config->storage;
    start.store.prefetch = config->prefetch && start.store.slots != 0u;
    if (start.store.slots != 0u && (config->storage.start == NULL || config->storage.check == NULL)) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "storage", 0, config->storage.depth);
    }
    if (arena == NULL || ((uintptr_t)arena & (COLIBRI_ARENA_ALIGN - 1u)) != 0u) {
        return col_fail(COLIBRI_E_ARENA_ALIGN, detail, "arena", (uintptr_t)arena & (COLIBRI_ARENA_ALIGN - 1u), 0);
    }
    if (arena_bytes < start.arena_bytes) {
        return col_fail(COLIBRI_E_ARENA_SIZE, detail, "arena", arena_bytes, start.arena_bytes);
    }
    status = config->skip_content_check ? COLIBRI_OK : col_image_check_content(&start.image, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    col_arena_paint(arena, start.arena_bytes);
    struct col_arena memory = {.base = arena};
    col_layout(&start, &memory);
    if (memory.used != start.arena_bytes) {
        return col_fail(COLIBRI_E_INTERNAL, detail, "arena", memory.used, start.arena_bytes);
    }
    start.compute = (struct col_compute){.poll = config->hooks.poll, .user = config->hooks.user};
    if (start.store.slots != 0u) {
        start.compute = (struct col_compute){.poll = col_store_poll, .user = arena};
    }
    status = choose_kernels(&start, config->kernels, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    struct colibri *e = arena;
    *e = start;
    col_store_init(e);
    colibri_clear_stats(e);
    *engine = e;
    return COLIBRI_OK;
}

void colibri_get_info(const struct colibri *engine, struct colibri_info *info)
{
    const struct col_image *image = &engine->image;
    *info = (struct colibri_info){
        .model = image->header->model_name,
        .architecture = image->model->architecture,
        .quantisation = image->model->quantisation,
        .kernels = engine->compute.kernels->name,
        .image_id = image->header->image_id,
        .vocab = image->model->vocab,
        .hidden = image->model->hidden,
        .layers = image->model->layers,
        .max_experts = image->widest.experts,
        .max_top_k = image->widest.top_k,
        .context = engine->context,
        .max_text_bytes = engine->max_text_bytes,
        .kv_format = engine->kv_format,
    };
}

static colibri_status tokenize(struct colibri *engine, const char *text, size_t text_bytes, bool begins, uint32_t *ids,
                               size_t capacity, size_t *count)
{
    *count = 0;
    if (!engine->image.has_tokenizer) {
        return COLIBRI_E_IMAGE_UNSUPPORTED;
    }
    const uint64_t start = col_now(engine);
    const colibri_status status = col_tokenizer_encode(&engine->image.tokenizer, engine->scratch,
                                                       engine->max_text_bytes, text, text_bytes, begins, ids, capacity,
                                                       count);
    engine->tokenizer_ticks += col_now(engine) - start;
    return status;
}

colibri_status colibri_tokenize(struct colibri *engine, const char *text, size_t text_bytes, uint32_t *ids,
                                size_t capacity, size_t *count)
{
    return tokenize(engine, text, text_bytes, true, ids, capacity, count);
}

colibri_status colibri_tokenize_next(struct colibri *engine, const char *text, size_t text_bytes, uint32_t *ids,
                                     size_t capacity, size_t *count)
{
    return tokenize(engine, text, text_bytes, false, ids, capacity, count);
}

colibri_status colibri_prompt(struct colibri *engine, const char *text, size_t text_bytes, uint32_t *ids,
                              size_t capacity, size_t *count)
{
    *count = 0;
    if (!engine->image.has_tokenizer) {
        return COLIBRI_E_IMAGE_UNSUPPORTED;
    }
    const uint64_t start = col_now(engine);
    const colibri_status status =
        col_template_encode(&engine->image.chat, &engine->image.tokenizer, engine->scratch, engine->max_text_bytes,
                            text, text_bytes, ids, capacity, count);
    engine->tokenizer_ticks += col_now(engine) - start;
    return status;
}

colibri_status colibri_detokenize(const struct colibri *engine, const uint32_t *ids, size_t id_count, char *text,
                                  size_t capacity, size_t *count)
{
    size_t length = 0;
    bool begun = false;
    *count = 0;
    if (!engine->image.has_tokenizer) {
        return COLIBRI_E_IMAGE_UNSUPPORTED;
    }
    for (size_t i = 0; i < id_count; i++) {
        const uint8_t *piece = NULL;
        uint32_t bytes = 0;
        if (ids[i] >= engine->image.model->vocab) {
            return COLIBRI_E_TOKEN_RANGE;
        }
        col_tokenizer_next_text(&engine->image.tokenizer, ids[i], &begun, &piece, &bytes);
        for (uint32_t b = 0; b < bytes; b++, length++) {
            if (length < capacity) {
                text[length] = (char)piece[b];
            }
        }
    }
    *count = length;
    return length > capacity ? COLIBRI_E_BUFFER_SIZE : COLIBRI_OK;
}

void colibri_reset(struct colibri *engine)
{
    engine->position = 0;
    engine->prompt_tokens = 0;
    engine->has_logits = false;
}

void colibri_expect(struct colibri *engine, uint32_t prompt_tokens)
{
    engine->prompt_tokens = prompt_tokens;
}

uint32_t colibri_position(const struct colibri *engine)
{
    return engine->position;
}
