/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_engine.c: a colibri.h for tests of the link. It has no weights: each token follows from a hash of all tokens
 * before it, so that an answer depends on every byte of the prompt and a lost or doubled one shows. One token per
 * byte, and three special ones; some answers hold a two-byte character, whose halves are two tokens. */
#include "../../firmware/engine/colibri.h"
#include "../../firmware/engine/detail.h"
#include "../../firmware/engine/image_view.h"
#include "../../firmware/engine/sha256.h"

#define VOCAB 259u
#define BOS 256u
#define EOS 258u
#define LAYERS 2u
#define EXPERTS 4u
#define CONTEXT 2048u
#define MAX_TEXT 4096u
#define POLLS 5u

struct colibri {
    struct colibri_config config;
    uint32_t context;
    uint32_t position;
    uint64_t hash;
    uint64_t tokens;
    float logits[VOCAB];
    struct colibri_layer_stats layer[LAYERS];
    struct colibri_expert_stats expert[LAYERS * EXPERTS];
};

static uint32_t context_of(const struct colibri_config *config)
{
    return config->context == 0 || config->context > CONTEXT ? CONTEXT : config->context;
}

colibri_status colibri_plan(const void *image, uint64_t image_bytes, const struct colibri_config *config,
                            struct colibri_plan *plan, struct colibri_detail *detail)
{
    if (image_bytes < 4096 || ((const char *)image)[0] != 'C') {
        if (detail != NULL) {
            *detail = (struct colibri_detail){.where = "header", .got = image_bytes, .wanted = 4096};
        }
        return COLIBRI_E_IMAGE_MAGIC;
    }
    *plan = (struct colibri_plan){.arena_bytes = 8192, .image_bytes = image_bytes, .context = context_of(config)};
    return COLIBRI_OK;
}

colibri_status colibri_init(struct colibri **engine, const void *image, uint64_t image_bytes,
                            const struct colibri_config *config, void *arena, uint64_t arena_bytes,
                            struct colibri_detail *detail)
{
    (void)image;
    (void)image_bytes;
    (void)detail;
    _Static_assert(sizeof(struct colibri) <= 8192, "the plan's arena");
    if (arena_bytes < 8192) {
        return COLIBRI_E_ARENA_SIZE;
    }
    struct colibri *self = arena;
    *self = (struct colibri){.config = *config, .context = context_of(config)};
    *engine = self;
    colibri_reset(self);
    return COLIBRI_OK;
}

void colibri_get_info(const struct colibri *engine, struct colibri_info *info)
{
    static const uint8_t id[16] = "fake image id 1";
    *info = (struct colibri_info){.model = "fake", .architecture = "Fake", .quantisation = "none", .kernels = "fake",
                                  .image_id = id, .vocab = VOCAB, .hidden = 8, .layers = LAYERS,
                                  .max_experts = EXPERTS, .max_top_k = 2, .context = engine->context,
                                  .max_text_bytes = MAX_TEXT, .kv_format = COLIBRI_KV_F32};
}

static colibri_status encode(const char *text, size_t bytes, uint32_t *ids, size_t capacity, size_t *count)
{
    if (bytes > MAX_TEXT) {
        return COLIBRI_E_TEXT_SIZE;
    }
    for (size_t i = 0; i < bytes && i < capacity; i++) {
        ids[i] = (uint8_t)text[i];
    }
    *count = bytes;
    return bytes > capacity ? COLIBRI_E_BUFFER_SIZE : COLIBRI_OK;
}

colibri_status colibri_tokenize(struct colibri *engine, const char *text, size_t text_bytes, uint32_t *ids,
                                size_t capacity, size_t *count)
{
    (void)engine;
    return encode(text, text_bytes, ids, capacity, count);
}

colibri_status colibri_tokenize_next(struct colibri *engine, const char *text, size_t text_bytes, uint32_t *ids,
                                     size_t capacity, size_t *count)
{
    return colibri_tokenize(engine, text, text_bytes, ids, capacity, count);
}

colibri_status colibri_prompt(struct colibri *engine, const char *text, size_t text_bytes, uint32_t *ids,
                              size_t capacity, size_t *count)
{
    (void)engine;
    size_t inside = capacity == 0 ? 0 : capacity - 1;
    colibri_status status = encode(text, text_bytes, ids + (capacity != 0), inside, count);
    *count += 1;
    if (capacity != 0) {
        ids[0] = BOS;
    }
    return status;
}

void colibri_expect(struct colibri *engine, uint32_t prompt_tokens)
{
    (void)engine;
    (void)prompt_tokens;
}

void colibri_reset(struct colibri *engine)
{
    engine->position = 0;
    engine->hash = 0x9e3779b97f4a7c15u;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static colibri_status step(struct colibri *engine, uint32_t id)
{
    const struct colibri_hooks *hooks = &engine->config.hooks;
    if (id >= VOCAB) {
        return COLIBRI_E_TOKEN_RANGE;
    }
    if (engine->position == engine->context) {
        return COLIBRI_E_CONTEXT_FULL;
    }
    for (uint32_t i = 0; i < POLLS; i++) {
        if (hooks->poll != NULL && hooks->poll(hooks->user)) {
            return COLIBRI_E_CANCELLED;
        }
    }
    engine->hash = mix(engine->hash ^ (id + 1u));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t first = (uint32_t)(engine->hash >> (8u * layer)) % 3u;
        const uint32_t expert[2] = {first, first + 1u};
        const float weight[2] = {0.75f, 0.25f};
        engine->expert[layer * EXPERTS + first].tokens++;
        engine->expert[layer * EXPERTS + first + 1].tokens++;
        if (hooks->route != NULL) {
            hooks->route(hooks->user, layer, engine->position, 2, expert, weight);
        }
    }
    uint64_t h = engine->hash;
    for (uint32_t i = 0; i < VOCAB; i++) {
        h = mix(h + i);
        engine->logits[i] = (float)(int32_t)(h >> 40) / 65536.0f;
    }
    engine->position++;
    engine->tokens++;
    return COLIBRI_OK;
}

colibri_status colibri_prefill(struct colibri *engine, const uint32_t *ids, size_t count, const float **logits)
{
    for (size_t i = 0; i < count; i++) {
        colibri_status status = step(engine, ids[i]);
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    *logits = engine->logits;
    return COLIBRI_OK;
}

colibri_status colibri_forward(struct colibri *engine, uint32_t id, const float **logits)
{
    return colibri_prefill(engine, &id, 1, logits);
}

/* What there is of an image is not one: nothing in it can be updated. */
colibri_status col_image_open(const void *base, uint64_t bytes, struct col_image *image, struct colibri_detail *detail)
{
    (void)base;
    (void)bytes;
    (void)image;
    return col_fail(COLIBRI_E_IMAGE_MAGIC, detail, "fake", 0, 1);
}

colibri_status col_image_open_page(const void *page, struct col_image *image, struct colibri_detail *detail)
{
    return col_image_open(page, 0, image, detail);
}

colibri_status col_image_check_expert(const struct col_image *image, uint32_t layer, const uint8_t *blob,
                                      struct colibri_detail *detail)
{
    (void)image;
    (void)layer;
    (void)blob;
    return col_fail(COLIBRI_E_IMAGE_NUMBER, detail, "fake", 0, 1);
}

void col_image_effective(const struct col_image *image, uint32_t index, struct col_place *place)
{
    (void)image;
    (void)index;
    *place = (struct col_place){0};
}

bool col_update_ok(const struct col_image *image, const struct col_update *update)
{
    (void)image;
    (void)update;
    return false;
}

bool col_updates_whole(const struct col_update_head *copy, uint64_t copy_bytes, const uint8_t image_id[16])
{
    (void)copy;
    (void)copy_bytes;
    (void)image_id;
    return false;
}

uint32_t colibri_pending_replacements(const struct colibri *engine)
{
    (void)engine;
    return 0;
}

void colibri_take_replacements(struct colibri *engine)
{
    (void)engine;
}

colibri_status colibri_replace_expert(struct colibri *engine, uint32_t layer, uint32_t expert,
                                      const struct colibri_replacement *replacement)
{
    (void)engine;
    (void)layer;
    (void)expert;
    (void)replacement;
    return COLIBRI_E_ARGUMENT;
}

/* 'a' .. 'z', blanks, now and then the first half of a two-byte character, whose second half then follows. */
static uint32_t choose(uint64_t hash, uint32_t last, bool ignore_eos)
{
    if (last == 0xc3) {
        return 0xa9;
    }
    uint32_t draw = (uint32_t)(hash >> 20) % 64u;
    if (draw == 63 && !ignore_eos) {
        return EOS;
    }
    return draw < 52 ? 'a' + draw / 2u : draw < 60 ? ' ' : 0xc3;
}

static bool ends_with_stop(const struct colibri_request *request, const char *text, size_t bytes)
{
    for (uint32_t s = 0; s < request->stop_count; s++) {
        size_t length = request->stop_bytes[s];
        bool equal = length <= bytes;
        for (size_t i = 0; equal && i < length; i++) {
            equal = request->stop[s][i] == text[bytes - length + i];
        }
        if (equal) {
            return true;
        }
    }
    return false;
}

colibri_status colibri_generate(struct colibri *engine, const struct colibri_request *request,
                                struct colibri_result *result)
{
    *result = (struct colibri_result){.prompt_tokens = (uint32_t)request->prompt_count};
    if (request->prompt_count == 0) {
        return COLIBRI_E_NO_PROMPT;
    }
    if (!(request->sampling.temperature >= 0.0f && request->sampling.temperature <= 100.0f)) {
        return COLIBRI_E_ARGUMENT;
    }
    struct col_sha256 sha;
    col_sha256_init(&sha);
    colibri_reset(engine);
    const float *logits;
    colibri_status status = colibri_prefill(engine, request->prompt, request->prompt_count, &logits);
    char text[CONTEXT + 1];
    size_t shown = 0;
    uint32_t id = 0;
    result->finish = COLIBRI_FINISH_LENGTH;
    while (status == COLIBRI_OK) {
        col_sha256_update(&sha, logits, sizeof engine->logits);
        id = choose(engine->hash ^ request->sampling.seed, id, request->ignore_eos);
        struct colibri_token token = {.id = id, .index = result->generated_tokens++,
                                      .position = engine->position, .logits = logits};
        if (id < 256 && id != 0xc3 && shown + 2 <= sizeof text) {
            token.text = text + shown;
            if (id == 0xa9) {
                text[shown++] = (char)0xc3;
            }
            text[shown++] = (char)id;
            token.text_bytes = (uint32_t)(text + shown - token.text);
        }
        bool stopped = ends_with_stop(request, text, shown);
        if (stopped) {
            token.text_bytes = 0;
        }
        bool go_on = request->on_token == NULL || request->on_token(request->user, &token);
        if (id == EOS || stopped || !go_on) {
            result->finish = id == EOS ? COLIBRI_FINISH_EOS : stopped ? COLIBRI_FINISH_STOP : COLIBRI_FINISH_CANCELLED;
            break;
        }
        if (result->generated_tokens == request->max_tokens) {
            break;
        }
        if (request->slide && engine->position == engine->context) {
            engine->position /= 2u; /* there is nothing to be forgotten or computed anew */
        }
        status = colibri_forward(engine, id, &logits);
    }
    if (status == COLIBRI_E_CONTEXT_FULL && result->generated_tokens != 0) {
        result->finish = COLIBRI_FINISH_CONTEXT;
        status = COLIBRI_OK;
    }
    if (status == COLIBRI_E_CANCELLED) {
        result->finish = COLIBRI_FINISH_CANCELLED;
        status = COLIBRI_OK;
    }
    col_sha256_final(&sha, result->logits_sha256);
    return status;
}

void colibri_get_stats(const struct colibri *engine, struct colibri_stats *stats)
{
    *stats = (struct colibri_stats){.arena_bytes = 8192, .arena_peak_bytes = 8192, .tokens = engine->tokens,
                                    .ticks_per_second = engine->config.hooks.ticks_per_second, .layers = LAYERS,
                                    .max_experts = EXPERTS, .layer = engine->layer, .expert = engine->expert};
}

void colibri_get_fault(const struct colibri *engine, struct colibri_detail *detail)
{
    (void)engine; /* its experts never fail */
    *detail = (struct colibri_detail){0};
}

void colibri_clear_stats(struct colibri *engine)
{
    engine->tokens = 0;
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        engine->expert[i] = (struct colibri_expert_stats){0};
    }
}

colibri_status colibri_selftest(const char *kernels, void *scratch, size_t scratch_bytes,
                                struct colibri_selftest_report *report)
{
    (void)kernels;
    for (size_t i = 0; i < scratch_bytes; i++) {
        ((uint8_t *)scratch)[i] = 0xee; /* all of it is the caller's to give */
    }
    *report = (struct colibri_selftest_report){.kernels = "fake", .cases = 7};
    return COLIBRI_OK;
}
