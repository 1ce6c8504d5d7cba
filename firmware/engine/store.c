/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c: experts on demand. See store.h. */
#include "store.h"

#include "engine.h"

void col_store_layout(struct colibri *engine, struct col_arena *arena)
{
    struct col_store *store = &engine->store;
    const struct col_image *image = &engine->image;
    const uint32_t layers = image->model->layers;
    col_arena_region(arena, "expert places");
    store->place = col_arena_claim(arena, image->expert_count, sizeof *store->place);
    store->slot_bytes = 0;
    if (store->slots == 0u) {
        return;
    }
    store->shelf = col_arena_claim(arena, layers, sizeof *store->shelf);
    for (uint32_t i = 0; i < layers; i++) {
        struct col_shelf measured;
        struct col_shelf *shelf = store->shelf == NULL ? &measured : &store->shelf[i];
        col_cache_layout(&shelf->cache, arena, image->layer[i].router.experts, store->slots);
        shelf->slot = col_arena_claim(arena, shelf->cache.slots, sizeof *shelf->slot);
    }
    col_arena_region(arena, "expert slots");
    for (uint32_t i = 0; i < layers; i++) {
        const struct col_layer *l = &image->layer[i];
        if (l->router.experts == 0u) {
            continue;
        }
        col_arena_align(arena, COLIBRI_EXPERT_ALIGN);
        const uint32_t slots = store->slots < l->router.experts ? store->slots : l->router.experts;
        uint8_t *memory = col_arena_claim(arena, slots, l->expert_bytes);
        store->slot_bytes += slots * l->expert_bytes;
        if (store->shelf != NULL) {
            store->shelf[i].memory = memory;
        }
    }
}

void col_store_init(struct colibri *engine)
{
    const struct col_image *image = &engine->image;
    for (uint32_t i = 0; i < image->expert_count; i++) {
        col_image_effective(image, i, &engine->store.place[i]);
    }
    for (uint32_t i = 0; i < image->model->layers && engine->store.slots > 0u; i++) {
        struct col_shelf *shelf = &engine->store.shelf[i];
        col_cache_clear(&shelf->cache);
        for (uint32_t e = 0; e < shelf->cache.experts; e++) {
            col_cache_pin(&shelf->cache, e, image->expert[image->layer[i].first_expert + e].pin);
        }
        for (uint32_t s = 0; s < shelf->cache.slots; s++) {
            shelf->slot[s] = (struct col_slot){.state = COL_SLOT_READY};
        }
    }
}

static struct col_cache *cache_of(struct colibri *engine, uint32_t layer)
{
    return &engine->store.shelf[layer].cache;
}

static uint32_t step_expert(const struct colibri *engine, uint32_t index)
{
    return engine->dispatch.context[index].expert;
}

/* ----------------------------------------------------------------------------------------------------------- reads */

/* The expert's bytes are not in its slot. In a step that needs it this is kept for whoever waits; else nobody cares. */
static void fail(struct colibri *engine, uint32_t layer, uint32_t expert, colibri_status status, uint32_t crc32)
{
    struct col_shelf *shelf = &engine->store.shelf[layer];
    const struct col_cache_expert *kept = &shelf->cache.expert[expert];
    struct col_slot *slot = &shelf->slot[kept->slot];
    slot->status = status;
    slot->crc32 = crc32;
    slot->state = COL_SLOT_FAILED;
    if (kept->need != COL_NEED_NOW) {
        slot->state = COL_SLOT_READY;
        col_cache_forget(&shelf->cache, expert);
    }
}

/* Begins the read of an expert that waits for one. False: not yet. */
static bool ask(struct colibri *engine, uint32_t layer, uint32_t expert)
{
    struct col_store *store = &engine->store;
    struct col_shelf *shelf = &store->shelf[layer];
    const uint32_t number = shelf->cache.expert[expert].slot;
    if (number == COL_CACHE_NONE || shelf->slot[number].state != COL_SLOT_ASKED) {
        return true;
    }
    struct col_slot *slot = &shelf->slot[number];
    uint32_t read = 0;
    while (read < store->storage.depth && store->read[read].busy) {
        read++;
    }
    if (slot->written || read == store->storage.depth) {
        return false;
    }
    const struct col_place *place = col_place_of(engine, layer, expert);
    const uint64_t bytes = engine->image.layer[layer].expert_bytes;
    const struct colibri_read what = {
        .offset = place->offset,
        .bytes = bytes,
        .to = shelf->memory + number * bytes,
        .layer = layer,
        .expert = expert,
        .generation = place->generation,
        .digest = place->digest,
    };
    struct colibri_layer_stats *stats = &engine->layer_stats[layer];
    stats->read_bytes += bytes;
    const colibri_status status = store->storage.start(store->storage.user, read, &what);
    if (status < 0) {
        fail(engine, layer, expert, status, 0);
        return true;
    }
    stats->prefetched += shelf->cache.expert[expert].guessed ? 1u : 0u;
    slot->state = COL_SLOT_READING;
    slot->written = true;
    store->read[read] = (struct col_store_read){.busy = true, .layer = layer, .slot = number, .expert = expert};
    return true;
}

static void finish(struct colibri *engine, const struct col_store_read *read, colibri_status status, uint32_t crc32)
{
    struct col_slot *slot = &engine->store.shelf[read->layer].slot[read->slot];
    slot->written = false;
    if (slot->state != COL_SLOT_READING) {
        return; /* given to another expert in the meantime */
    }
    slot->state = COL_SLOT_READY;
    /* Where the CRC-32 is wrong, a digest is, too: that is damage, and needs no new signature. */
    if ((status == COLIBRI_OK || status == COLIBRI_E_SIGNATURE) &&
        crc32 != col_place_of(engine, read->layer, read->expert)->crc32) {
        status = COLIBRI_E_EXPERT_CHECKSUM;
    }
    if (status != COLIBRI_OK) {
        fail(engine, read->layer, read->expert, status, crc32);
    }
}

/* Moves all reads on and begins what can begin: first what the step needs, in its order, then what was guessed. */
static void move_on(struct colibri *engine)
{
    struct col_store *store = &engine->store;
    for (uint32_t i = 0; i < store->storage.depth; i++) {
        struct col_store_read *read = &store->read[i];
        uint32_t crc32 = 0;
        const colibri_status status =
            read->busy ? store->storage.check(store->storage.user, i, &crc32) : COLIBRI_PENDING;
        if (status <= 0) {
            read->busy = false;
            finish(engine, read, status, crc32);
        }
    }
    while (store->asked < store->assigned && ask(engine, store->layer, step_expert(engine, store->asked))) {
        store->asked++;
    }
    if (store->asked < store->count) {
        return;
    }
    while (store->guess_asked < store->guess_count &&
           ask(engine, store->guess_layer, store->guess[store->guess_asked])) {
        store->guess_asked++;
    }
}

bool col_store_poll(void *user)
{
    struct colibri *engine = user;
    move_on(engine);
    return engine->hooks.poll != NULL && engine->hooks.poll(engine->hooks.user);
}

/* ------------------------------------------------------------------------------------------------------------ steps */

/* Gives slots to the step's next experts, as far as there are any. */
static colibri_status assign(struct colibri *engine)
{
    struct col_store *store = &engine->store;
    struct col_shelf *shelf = &store->shelf[store->layer];
    struct colibri_layer_stats *stats = &engine->layer_stats[store->layer];
    while (store->assigned < store->count) {
        const uint32_t expert = step_expert(engine, store->assigned);
        const bool guessed = shelf->cache.expert[expert].guessed;
        uint32_t slot = 0;
        bool hit = false;
        if (!col_cache_assign(&shelf->cache, expert, store->assigned == store->done, &slot, &hit)) {
            break;
        }
        store->assigned++;
        if (!hit) {
            shelf->slot[slot].state = COL_SLOT_ASKED;
        }
        stats->hits += hit ? 1u : 0u;
        stats->misses += hit ? 0u : 1u;
        stats->prefetch_used += guessed ? 1u : 0u;
    }
    move_on(engine);
    return store->assigned > store->done || store->done == store->count ? COLIBRI_OK : COLIBRI_E_INTERNAL;
}

/* Guesses whose reads have not begun are given up, the others are experts like any. */
static void end_guesses(struct colibri *engine)
{
    struct col_store *store = &engine->store;
    for (uint32_t i = 0; i < store->guess_count; i++) {
        struct col_shelf *shelf = &store->shelf[store->guess_layer];
        const uint32_t slot = shelf->cache.expert[store->guess[i]].slot;
        col_cache_done(&shelf->cache, store->guess[i]);
        if (slot != COL_CACHE_NONE && shelf->slot[slot].state == COL_SLOT_ASKED) {
            shelf->slot[slot].state = COL_SLOT_READY;
            col_cache_forget(&shelf->cache, store->guess[i]);
        }
    }
    store->guess_count = 0;
    store->guess_asked = 0;
}

colibri_status col_store_begin(struct colibri *engine, uint32_t layer)
{
    struct col_store *store = &engine->store;
    if (store->slots == 0u) {
        return COLIBRI_OK;
    }
    end_guesses(engine);
    store->layer = layer;
    store->count = engine->dispatch.context_count;
    store->assigned = 0;
    store->asked = 0;
    store->done = 0;
    col_cache_begin(cache_of(engine, layer));
    for (uint32_t i = 0; i < store->count; i++) {
        col_cache_want(cache_of(engine, layer), step_expert(engine, i));
    }
    return assign(engine);
}

void col_store_guess(struct colibri *engine, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    struct col_store *store = &engine->store;
    struct col_shelf *shelf = &store->shelf[layer];
    store->guess_layer = layer;
    store->guess_count = count;
    store->guess_asked = 0;
    for (uint32_t i = 0; i < count; i++) {
        store->guess[i] = expert[i];
        col_cache_expect(&shelf->cache, expert[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = 0;
        if (col_cache_guess(&shelf->cache, expert[i], &slot)) {
            shelf->slot[slot].state = COL_SLOT_ASKED;
        }
    }
    move_on(engine);
}

/* "layer 3 expert 17" */
static void name_fault(struct colibri_detail *detail, uint32_t layer, uint32_t expert)
{
    static const char text[] = "layer \1 expert \2";
    *detail = (struct colibri_detail){0};
    char *to = detail->where; /* two numbers below 100000 fit */
    for (const char *c = text; *c != '\0'; c++) {
        if (*c > '\2') {
            *to++ = *c;
            continue;
        }
        const uint32_t number = *c == '\1' ? layer : expert;
        uint32_t power = 1;
        while (number / power >= 10u) {
            power *= 10u;
        }
        for (; power > 0u; power /= 10u) {
            *to++ = (char)('0' + number / power % 10u);
        }
    }
}

static colibri_status wait(struct colibri *engine, uint32_t layer, const struct col_slot *slot)
{
    const uint64_t start = col_now(engine);
    bool stopped = false;
    while (!stopped && (slot->state == COL_SLOT_ASKED || slot->state == COL_SLOT_READING)) {
        stopped = col_store_poll(engine);
    }
    engine->layer_stats[layer].stall_ticks += col_now(engine) - start;
    return stopped ? COLIBRI_E_CANCELLED : COLIBRI_OK;
}

colibri_status col_store_expert(struct colibri *engine, uint32_t layer, uint32_t expert, const uint8_t **blob)
{
    struct col_store *store = &engine->store;
    if (expert >= engine->image.layer[layer].router.experts) {
        return COLIBRI_E_INTERNAL;
    }
    if (store->slots == 0u) {
        *blob = engine->image.base + col_place_of(engine, layer, expert)->offset;
        return COLIBRI_OK;
    }
    struct col_shelf *shelf = &store->shelf[layer];
    const uint32_t number = shelf->cache.expert[expert].slot;
    if (number == COL_CACHE_NONE) {
        return COLIBRI_E_INTERNAL;
    }
    struct col_slot *slot = &shelf->slot[number];
    if (slot->state != COL_SLOT_READY) {
        const colibri_status status = wait(engine, layer, slot);
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    if (slot->state == COL_SLOT_FAILED) {
        name_fault(&store->fault, layer, expert);
        if (slot->status == COLIBRI_E_EXPERT_CHECKSUM) {
            store->fault.got = slot->crc32;
            store->fault.wanted = col_place_of(engine, layer, expert)->crc32;
        }
        return slot->status;
    }
    *blob = shelf->memory + number * engine->image.layer[layer].expert_bytes;
    return COLIBRI_OK;
}

colibri_status col_store_done(struct colibri *engine)
{
    struct col_store *store = &engine->store;
    if (store->slots == 0u) {
        return COLIBRI_OK;
    }
    col_cache_done(cache_of(engine, store->layer), step_expert(engine, store->done++));
    return assign(engine);
}

/* A step that broke off: what it has not read it does not need. */
static void break_off(struct colibri *engine)
{
    struct col_store *store = &engine->store;
    struct col_shelf *shelf = &store->shelf[store->layer];
    for (uint32_t i = store->done; i < store->count; i++) {
        const uint32_t expert = step_expert(engine, i);
        const uint32_t number = shelf->cache.expert[expert].slot;
        col_cache_done(&shelf->cache, expert);
        if (number == COL_CACHE_NONE) {
            continue;
        }
        struct col_slot *slot = &shelf->slot[number];
        if (slot->state == COL_SLOT_ASKED || slot->state == COL_SLOT_FAILED) {
            slot->state = COL_SLOT_READY;
            col_cache_forget(&shelf->cache, expert);
        }
    }
    store->count = 0;
    store->assigned = 0;
    store->asked = 0;
    store->done = 0;
}

static bool reading(const struct col_store *store)
{
    bool any = false;
    for (uint32_t i = 0; i < store->storage.depth; i++) {
        any = any || store->read[i].busy;
    }
    return any;
}

void col_store_end(struct colibri *engine)
{
    if (engine->store.slots == 0u) {
        return;
    }
    break_off(engine);
    end_guesses(engine);
    while (reading(&engine->store)) {
        (void)col_store_poll(engine); /* whoever asks to stop is heard when the reads are over */
    }
}

void colibri_get_fault(const struct colibri *engine, struct colibri_detail *detail)
{
    *detail = engine->store.fault;
}
