/* SPDX-License-Identifier: Apache-2.0
 *
 * update_list.c: see update_list.h. Lists are short, so they are searched from one end to the other; what
 * takes a search for each entry is done when a list changes, not when somebody asks. */
#include "update_list.h"

#include "../engine/detail.h"
#include "bytes.h"

#define PAGE_ENTRIES (COL_PAGE / (uint32_t)sizeof(struct col_update))
#define HEAD_BLOCKS (sizeof(struct col_update_head) / HAL_BLOCK)

static uint64_t key(uint32_t layer, uint32_t expert)
{
    return (uint64_t)layer << 32 | expert;
}

/* Of `candidate` and `best` (may be NULL) the one with the lower key that is not below `from`; of the same key the newer
 * one. */
static const struct col_update *better(const struct col_update *best, const struct col_update *candidate, uint64_t from)
{
    const uint64_t k = key(candidate->layer, candidate->expert);
    if (candidate->generation == 0 || k < from) {
        return best;
    }
    const uint64_t b = best == NULL ? UINT64_MAX : key(best->layer, best->expert);
    return best == NULL || k < b || (k == b && candidate->generation > best->generation) ? candidate : best;
}

/* The entry with the lowest key from `from` on; `extra` (may be NULL) counts as one of the list. */
static const struct col_update *lowest(const struct update_list *list, const struct col_update *extra, uint64_t from)
{
    const struct col_update *best = NULL;
    for (uint32_t i = 0; i < list->image->update_count; i++) {
        best = better(best, &list->image->update[i], from);
    }
    for (uint32_t i = 0; i < list->added_slots; i++) {
        best = better(best, &list->added[i], from);
    }
    return extra == NULL ? best : better(best, extra, from);
}

const struct col_update *update_list_find(const struct update_list *list, uint32_t layer, uint32_t expert)
{
    const struct col_update *found = lowest(list, NULL, key(layer, expert));
    return found != NULL && found->layer == layer && found->expert == expert ? found : NULL;
}

const struct col_update *update_list_next(const struct update_list *list, const struct col_update *last)
{
    return lowest(list, NULL, last == NULL ? 0 : key(last->layer, last->expert) + 1u);
}

const struct col_expert *update_list_packed(const struct update_list *list, uint32_t layer, uint32_t expert)
{
    const struct col_image *image = list->image;
    if (layer >= image->model->layers || expert >= image->layer[layer].router.experts) {
        return NULL;
    }
    return &image->expert[image->layer[layer].first_expert + expert];
}

static bool uses(const struct update_list *list, const struct col_update *entry, uint64_t offset)
{
    return entry->generation != 0 && entry->offset == offset &&
           update_list_find(list, entry->layer, entry->expert) == entry;
}

static bool is_used(const struct update_list *list, uint64_t offset)
{
    for (uint32_t i = 0; i < list->image->update_count; i++) {
        if (uses(list, &list->image->update[i], offset)) {
            return true;
        }
    }
    for (uint32_t i = 0; i < list->added_slots; i++) {
        if (uses(list, &list->added[i], offset)) {
            return true;
        }
    }
    return false;
}

/* Calls `visit` with each free place: spare ones, and those of packed experts that are replaced. */
static void each_free_place(const struct update_list *list,
                            void (*visit)(void *user, uint64_t offset, uint64_t bytes), void *user)
{
    const struct col_image *image = list->image;
    for (uint32_t i = 0; i < image->spare_count; i++) {
        const uint64_t offset = image->blob_bytes + i * image->place_bytes;
        if (!is_used(list, offset)) {
            visit(user, offset, image->place_bytes);
        }
    }
    for (const struct col_update *u = update_list_next(list, NULL); u != NULL; u = update_list_next(list, u)) {
        const struct col_expert *packed = update_list_packed(list, u->layer, u->expert);
        if (packed != NULL && !is_used(list, packed->offset)) {
            visit(user, packed->offset, packed->bytes);
        }
    }
}

struct search {
    uint64_t wanted; /* bytes */
    uint64_t offset;
    uint64_t bytes;  /* of the place found; 0: none */
    uint32_t places;
};

static void look_at(void *user, uint64_t offset, uint64_t bytes)
{
    struct search *search = user;
    search->places++;
    if (bytes >= search->wanted && (search->bytes == 0 || bytes < search->bytes)) {
        search->offset = offset;
        search->bytes = bytes;
    }
}

bool update_list_free_place(const struct update_list *list, uint64_t bytes, uint64_t *offset)
{
    struct search search = {.wanted = bytes};
    each_free_place(list, look_at, &search);
    *offset = search.offset;
    return search.bytes != 0;
}

static uint32_t count_free_places(const struct update_list *list)
{
    struct search search = {0};
    each_free_place(list, look_at, &search);
    return search.places;
}

void update_list_init(struct update_list *list, const struct col_image *image)
{
    const struct col_section *section = image->section[COL_SECTION_UPDATES];
    *list = (struct update_list){.image = image,
                                 .copy_bytes = section->bytes / 2u,
                                 .count = image->update_count,
                                 .copy = image->updates_copy,
                                 .sequence = image->updates_sequence};
    list->capacity = (uint32_t)((list->copy_bytes - sizeof(struct col_update_head)) / sizeof(struct col_update));
    /* The other copy's memory; its head's too, so there is always one slot more than the list has entries. */
    uint64_t other = section->offset + (1u - list->copy) * list->copy_bytes;
    list->added = (struct col_update *)((uintptr_t)image->base + (uintptr_t)other);
    list->added_slots = (uint32_t)(list->copy_bytes / sizeof(struct col_update));
    for (uint32_t i = 0; i < list->added_slots; i++) {
        list->added[i] = (struct col_update){0};
    }
    for (uint32_t i = 0; i < image->update_count; i++) {
        const uint64_t counter = image->update[i].counter;
        list->counter = counter > list->counter ? counter : list->counter;
    }
    list->free_places = count_free_places(list);
}

void update_list_forget(struct update_list *list)
{
    for (uint32_t i = 0; i < list->added_slots; i++) {
        struct col_update *entry = &list->added[i];
        if (entry->generation != 0 && update_list_find(list, entry->layer, entry->expert) != entry) {
            *entry = (struct col_update){0};
        }
    }
}

const struct col_update *update_list_add(struct update_list *list, const struct col_update *entry)
{
    list->count += update_list_find(list, entry->layer, entry->expert) == NULL ? 1u : 0u;
    list->copy = 1u - list->copy;
    list->sequence++;
    struct col_update *slot = list->added;
    while (slot->generation != 0 && slot + 1 != list->added + list->added_slots) {
        slot++;
    }
    *slot = *entry;
    /* What it replaces was accepted with a counter that is not above its own. */
    list->counter = entry->counter > list->counter ? entry->counter : list->counter;
    list->free_places = count_free_places(list);
    return slot;
}

/* ------------------------------------------------------------------------------------------------- on the medium */

static colibri_status failed(struct colibri_detail *detail, hal_status status, uint64_t block)
{
    return col_fail(COLIBRI_E_STORAGE, detail, medium_failure(status), block, 0);
}

static colibri_status write_head(const struct update_list *list, const struct update_list_write *write,
                                 const struct medium *medium, uint64_t block, uint8_t *buffer, bool *flipped,
                                 struct colibri_detail *detail)
{
    struct col_update_head *head = (void *)buffer;
    struct col_update_head *back = head + 1;
    *head = (struct col_update_head){.sequence = list->sequence + 1u, .count = write->count,
                                     .entries_crc32 = write->crc};
    bytes_copy(head->magic, COL_UPDATES_MAGIC, sizeof head->magic);
    bytes_copy(head->image_id, list->image->header->image_id, sizeof head->image_id);
    head->crc32 = colibri_crc32(0, head, offsetof(struct col_update_head, crc32));
    *flipped = true;
    hal_status status = medium->write(medium->user, block, HEAD_BLOCKS, head);
    if (status == HAL_OK) {
        status = medium_read(medium, block, HEAD_BLOCKS, back);
    }
    if (status != HAL_OK) {
        return failed(detail, status, block);
    }
    const uint32_t crc = colibri_crc32(0, back, sizeof *back);
    const uint32_t wanted = colibri_crc32(0, head, sizeof *head);
    return crc == wanted ? COLIBRI_OK : col_fail(COLIBRI_E_STORAGE, detail, "updates", crc, wanted);
}

colibri_status update_list_step(const struct update_list *list, struct update_list_write *write,
                                const struct col_update *entry, const struct medium *medium, uint64_t first,
                                uint8_t *buffer, bool *flipped, struct colibri_detail *detail)
{
    const struct col_section *section = list->image->section[COL_SECTION_UPDATES];
    const uint64_t copy = first + (section->offset + (1u - list->copy) * list->copy_bytes) / HAL_BLOCK;
    write->count = list->count + (update_list_find(list, entry->layer, entry->expert) == NULL ? 1u : 0u);
    *flipped = false;
    if (write->phase == UPDATE_LIST_HEAD) {
        return write_head(list, write, medium, copy, buffer, flipped, detail);
    }
    const uint32_t left = write->count - write->done;
    const uint32_t entries = left < PAGE_ENTRIES ? left : PAGE_ENTRIES;
    const uint64_t block = copy + HEAD_BLOCKS + (uint64_t)write->done * sizeof *entry / HAL_BLOCK;
    const uint32_t blocks = (uint32_t)((entries * sizeof *entry + HAL_BLOCK - 1u) / HAL_BLOCK);
    struct col_update *page = (void *)buffer;
    hal_status status;
    if (write->phase == UPDATE_LIST_ENTRIES) {
        page[entries - 1u + (entries & 1u)] = (struct col_update){0}; /* the last sector's second half */
        for (uint32_t i = 0; i < entries; i++) {
            const struct col_update *last = write->last;
            write->last = lowest(list, entry, last == NULL ? 0 : key(last->layer, last->expert) + 1u);
            page[i] = *write->last;
        }
        write->crc = colibri_crc32(write->crc, page, entries * sizeof *page);
        status = medium->write(medium->user, block, blocks, page);
    } else {
        status = medium->read(medium->user, block, blocks, page);
        write->crc_back = colibri_crc32(write->crc_back, page, entries * sizeof *page);
    }
    if (status != HAL_OK) {
        return failed(detail, status, block);
    }
    write->done += entries;
    if (write->done == write->count) {
        write->done = 0;
        write->phase++;
        if (write->phase == UPDATE_LIST_HEAD && write->crc != write->crc_back) {
            return col_fail(COLIBRI_E_STORAGE, detail, "updates", write->crc_back, write->crc);
        }
    }
    return (colibri_status)COLIBRI_PENDING;
}
