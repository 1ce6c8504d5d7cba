/* SPDX-License-Identifier: Apache-2.0
 *
 * replace.c: experts that move to another place in the image, between tokens. */
#include "engine.h"

void col_store_replace(struct colibri *engine)
{
    struct col_store *store = &engine->store;
    for (uint32_t i = 0; i < store->pending_count; i++) {
        const struct col_pending *pending = &store->pending[i];
        *col_place_of(engine, pending->layer, pending->expert) = pending->place;
        if (store->slots > 0u) {
            col_cache_forget(&store->shelf[pending->layer].cache, pending->expert);
        }
    }
    store->pending_count = 0;
}

/* A blob fits between the experts section's ends. */
static bool place_possible(const struct col_image *image, uint64_t offset, uint64_t bytes)
{
    const struct col_section *s = image->section[COL_SECTION_EXPERTS];
    return offset % COLIBRI_EXPERT_ALIGN == 0u && offset >= s->offset && bytes <= s->bytes &&
           offset - s->offset <= s->bytes - bytes;
}

colibri_status colibri_replace_expert(struct colibri *engine, uint32_t layer, uint32_t expert,
                                      const struct colibri_replacement *replacement)
{
    const struct col_image *image = &engine->image;
    struct col_store *store = &engine->store;
    if (layer >= image->model->layers || expert >= image->layer[layer].router.experts ||
        !place_possible(image, replacement->offset, image->layer[layer].expert_bytes)) {
        return COLIBRI_E_ARGUMENT;
    }
    struct col_pending *pending = store->pending;
    struct col_pending *const end = pending + store->pending_count;
    while (pending != end && (pending->layer != layer || pending->expert != expert)) {
        pending++;
    }
    const uint32_t generation = pending == end ? col_place_of(engine, layer, expert)->generation : pending->place.generation;
    if (replacement->generation <= generation) {
        return COLIBRI_E_ARGUMENT;
    }
    if (pending == store->pending + COLIBRI_MAX_REPLACEMENTS) {
        return COLIBRI_E_BUSY;
    }
    *pending = (struct col_pending){.layer = layer, .expert = expert,
                                    .place = {.offset = replacement->offset, .crc32 = replacement->crc32,
                                              .generation = replacement->generation, .digest = replacement->digest}};
    store->pending_count += pending == end ? 1u : 0u;
    return COLIBRI_OK;
}

uint32_t colibri_pending_replacements(const struct colibri *engine)
{
    return engine->store.pending_count;
}

void colibri_take_replacements(struct colibri *engine)
{
    col_store_replace(engine);
}
