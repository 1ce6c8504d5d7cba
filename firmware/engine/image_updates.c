/* SPDX-License-Identifier: Apache-2.0
 *
 * image_updates.c: the experts that were replaced since the image was packed: which copy of the table counts, whether
 * its entries make sense, and where an expert therefore lies.
 *
 * The table says nothing about who may replace an expert: signatures are the runtime's to verify (docs/field-update.md),
 * before it writes an entry. */
#include "image_checks.h"

#define HEAD_CRC_OFFSET offsetof(struct col_update_head, crc32)

bool col_updates_whole(const struct col_update_head *copy, uint64_t copy_bytes, const uint8_t image_id[16])
{
    static const uint8_t magic[] = COL_UPDATES_MAGIC;
    const uint8_t *entries = (const uint8_t *)copy + sizeof *copy;
    return col_same_bytes(copy->magic, magic, sizeof copy->magic) &&
           colibri_crc32(0, copy, HEAD_CRC_OFFSET) == copy->crc32 && copy->sequence > 0u &&
           copy->count <= (copy_bytes - sizeof *copy) / sizeof(struct col_update) &&
           col_same_bytes(copy->image_id, image_id, sizeof copy->image_id) && col_all_zero(copy->reserved, 117) &&
           colibri_crc32(0, entries, (size_t)copy->count * sizeof(struct col_update)) == copy->entries_crc32;
}

/* The entry of an expert in `update`, or NULL. */
static const struct col_update *find(const struct col_update *update, uint32_t count, uint32_t layer, uint32_t expert)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2u;
        const struct col_update *u = &update[middle];
        if (u->layer == layer && u->expert == expert) {
            return u;
        }
        if (u->layer < layer || (u->layer == layer && u->expert < expert)) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return NULL;
}

/* The directory's entry whose blob begins at `offset` of the experts section, or NULL. */
static const struct col_expert *packed_at(const struct col_image *image, uint64_t offset)
{
    uint32_t low = 0, high = image->expert_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2u;
        if (image->expert[middle].offset == offset) {
            return &image->expert[middle];
        }
        if (image->expert[middle].offset < offset) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return NULL;
}

/* A place is a spare one, or that of a packed expert that has been replaced; and large enough. */
static bool place_ok(const struct col_image *image, const struct col_update *update, uint32_t count,
                     const struct col_update *entry)
{
    if (entry->offset >= image->blob_bytes) {
        const uint64_t behind = entry->offset - image->blob_bytes;
        return behind % image->place_bytes == 0u && behind / image->place_bytes < image->spare_count;
    }
    const struct col_expert *packed = packed_at(image, entry->offset);
    return packed != NULL && entry->bytes <= packed->bytes &&
           find(update, count, packed->layer, packed->expert) != NULL;
}

bool col_update_ok(const struct col_image *image, const struct col_update *update)
{
    const struct col_layer *l = update->layer < image->model->layers ? &image->layer[update->layer] : NULL;
    return l != NULL && update->expert < l->router.experts && update->bytes == l->expert_bytes &&
           update->generation != 0u &&
           col_same_bytes(update->image_id, image->header->image_id, sizeof update->image_id) &&
           col_name_ok(update->board, sizeof update->board) && col_all_zero(update->reserved, 14);
}

colibri_status col_updates_check(const struct col_image *image, const struct col_update *update, uint32_t count,
                                 struct colibri_detail *detail)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct col_update *u = &update[i];
        if (!col_update_ok(image, u)) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "updates", u->expert, u->layer);
        }
        const struct col_update *last = i > 0u ? &update[i - 1u] : NULL;
        if (last != NULL && (last->layer > u->layer || (last->layer == u->layer && last->expert >= u->expert))) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "updates", u->expert, u->layer);
        }
    }
    /* Searching needs the order checked above. A place is used once: what overlaps begins at the same byte. */
    for (uint32_t i = 0; i < count; i++) {
        bool ok = place_ok(image, update, count, &update[i]);
        for (uint32_t j = 0; j < i && ok; j++) {
            ok = update[j].offset != update[i].offset;
        }
        if (!ok) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "updates", update[i].offset, image->blob_bytes);
        }
    }
    return COLIBRI_OK;
}

colibri_status col_check_updates(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *s = image->section[COL_SECTION_UPDATES];
    const uint64_t copy_bytes = s->bytes / 2u;
    const uint64_t largest = sizeof(struct col_update_head) + COL_MAX_UPDATES * sizeof(struct col_update);
    if (s->bytes % (2u * COL_PAGE) != 0u || copy_bytes > largest) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "updates", s->bytes, 2u * largest);
    }
    const struct col_update_head *chosen = NULL;
    for (uint32_t i = 0; i < 2u; i++) {
        const struct col_update_head *copy = (const void *)(image->base + s->offset + i * copy_bytes);
        if (col_updates_whole(copy, copy_bytes, image->header->image_id) &&
            (chosen == NULL || copy->sequence > chosen->sequence)) {
            chosen = copy;
            image->updates_copy = i;
        }
    }
    if (chosen == NULL) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "updates", 0, 1);
    }
    image->updates_sequence = chosen->sequence;
    image->update_count = chosen->count;
    image->update = (const void *)(chosen + 1);
    return col_updates_check(image, image->update, image->update_count, detail);
}

void col_image_effective(const struct col_image *image, uint32_t index, struct col_place *place)
{
    const struct col_expert *packed = &image->expert[index];
    const struct col_update *update = find(image->update, image->update_count, packed->layer, packed->expert);
    const uint64_t experts = image->section[COL_SECTION_EXPERTS]->offset;
    *place = update == NULL ? (struct col_place){.offset = experts + packed->offset, .crc32 = packed->crc32,
                                                 .digest = packed->digest}
                            : (struct col_place){.offset = experts + update->offset, .crc32 = update->crc32,
                                                 .generation = update->generation, .digest = update->digest};
}
