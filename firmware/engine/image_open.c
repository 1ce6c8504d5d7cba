/* SPDX-License-Identifier: Apache-2.0
 *
 * image_open.c: the structure of an image, checked before anything is believed.
 *
 * Everything that comes from the file is compared with a limit before it is used in arithmetic, and every sum and
 * product is of values so limited that it can't wrap (image_view.h). The weights themselves are not read here. */
#include "image_view.h"

#include "image_checks.h"

/* As they stand in the directory, NUL-padded. */
static const char section_names[COL_SECTION_LAST + 1][sizeof(((struct col_section *)0)->name)] = {
    [COL_SECTION_MODEL] = "model",         [COL_SECTION_LAYERS] = "layers",     [COL_SECTION_TOKENIZER] = "tokenizer",
    [COL_SECTION_TEMPLATE] = "template",   [COL_SECTION_ROPE] = "rope",         [COL_SECTION_RESIDENT] = "resident",
    [COL_SECTION_EXPERT_DIR] = "expert-dir", [COL_SECTION_CARD] = "card",       [COL_SECTION_SIGNATURE] = "signature",
    [COL_SECTION_UPDATES] = "updates",     [COL_SECTION_EXPERTS] = "experts",
};

static colibri_status check_header(struct col_image *image, struct colibri_detail *detail)
{
    if (((uintptr_t)image->base & (COLIBRI_ARENA_ALIGN - 1u)) != 0u) {
        return col_fail(COLIBRI_E_ARENA_ALIGN, detail, "image", (uintptr_t)image->base & (COLIBRI_ARENA_ALIGN - 1u), 0);
    }
    if (image->bytes < COL_PAGE) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "header", image->bytes, COL_PAGE);
    }
    const struct col_header *h = image->header = (const void *)image->base;
    if (!col_check_magic(h->magic, COL_IMAGE_MAGIC, "header", detail)) {
        return COLIBRI_E_IMAGE_MAGIC;
    }
    if (h->format_version != COL_FORMAT_VERSION) {
        return col_fail(COLIBRI_E_IMAGE_VERSION, detail, "format version", h->format_version, COL_FORMAT_VERSION);
    }
    const uint32_t crc = col_header_crc32(image->base);
    if (crc != h->header_crc32) {
        return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, "header", crc, h->header_crc32);
    }
    if (h->numeric_version != COL_NUMERIC_VERSION) {
        return col_fail(COLIBRI_E_IMAGE_VERSION, detail, "numeric version", h->numeric_version, COL_NUMERIC_VERSION);
    }
    /* Whether it is short or a front, the directory tells. */
    if (h->image_bytes < image->bytes || h->image_bytes % COL_PAGE != 0u) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "image", image->bytes, h->image_bytes);
    }
    if (h->page_bytes != COL_PAGE) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "header", h->page_bytes, COL_PAGE);
    }
    if (h->section_count == 0u || h->section_count > COL_MAX_SECTIONS) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "section count", h->section_count, COL_MAX_SECTIONS);
    }
    if (h->prng != COL_PRNG_SPLITMIX64) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "prng", h->prng, COL_PRNG_SPLITMIX64);
    }
    if (!col_name_ok(h->model_name, sizeof h->model_name) || !col_all_zero(h->reserved, 6)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "header", 1, 0);
    }
    return COLIBRI_OK;
}

static colibri_status check_directory(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *table = (const void *)(image->base + sizeof(struct col_header));
    const uint32_t count = image->header->section_count;
    const uint64_t whole = image->header->image_bytes;
    uint64_t end = COL_PAGE;
    uint32_t last_kind = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct col_section *s = &table[i];
        if (s->kind == 0u || s->kind > COL_SECTION_LAST) {
            return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "section kind", s->kind, COL_SECTION_LAST);
        }
        const char *name = section_names[s->kind];
        if (s->kind <= last_kind) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, s->kind, last_kind + 1u);
        }
        last_kind = s->kind;
        if (!col_same_bytes(s->name, name, sizeof s->name) || !col_all_zero(s->reserved, 6)) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, i, s->kind);
        }
        if (s->offset % COL_PAGE != 0u || s->offset < end) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, s->offset, end);
        }
        if (s->offset > whole || s->bytes == 0u || s->bytes > whole - s->offset) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, s->bytes,
                            s->offset > whole ? 0 : whole - s->offset);
        }
        /* The image is whole pages, so rounding up stays inside of it. */
        end = (s->offset + s->bytes + COL_PAGE - 1u) & ~((uint64_t)COL_PAGE - 1u);
        image->section[s->kind] = s;
    }
    if (end != whole) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, section_names[last_kind], whole, end);
    }
    const struct col_section *blobs = image->section[COL_SECTION_EXPERTS];
    image->front = image->bytes != whole;
    if (image->front && (blobs == NULL || image->bytes != blobs->offset)) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "image", image->bytes, whole);
    }
    for (uint32_t kind = COL_SECTION_MODEL; kind <= COL_SECTION_LAST; kind++) {
        const bool text = kind == COL_SECTION_TOKENIZER || kind == COL_SECTION_TEMPLATE;
        const bool experts = kind == COL_SECTION_EXPERT_DIR || kind >= COL_SECTION_UPDATES;
        if (image->section[kind] == NULL && !text && !experts) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, section_names[kind], 0, 1);
        }
    }
    if ((image->section[COL_SECTION_TOKENIZER] == NULL) != (image->section[COL_SECTION_TEMPLATE] == NULL)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "template", 0, 1);
    }
    const bool dense = image->section[COL_SECTION_EXPERT_DIR] == NULL;
    for (uint32_t kind = COL_SECTION_UPDATES; kind <= COL_SECTION_EXPERTS; kind++) {
        if (dense != (image->section[kind] == NULL)) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, section_names[kind], 0, 1);
        }
    }
    return COLIBRI_OK;
}

colibri_status col_image_check_section(const struct col_image *image, uint32_t kind, struct colibri_detail *detail)
{
    const struct col_section *s = image->section[kind];
    /* What changes after packing has checksums of its own, so that a part can be written without reading the rest. */
    const uint32_t crc =
        kind >= COL_SECTION_SIGNATURE ? 0u : colibri_crc32(0, image->base + s->offset, (size_t)s->bytes);
    return crc == s->crc32 ? COLIBRI_OK : col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, s->name, crc, s->crc32);
}

/* The tables are small and everything hangs on them: a damaged one is called damaged, not inconsistent. */
static colibri_status check_tables(const struct col_image *image, struct colibri_detail *detail)
{
    static const uint8_t tables[] = {COL_SECTION_MODEL, COL_SECTION_LAYERS, COL_SECTION_TOKENIZER,
                                     COL_SECTION_TEMPLATE, COL_SECTION_EXPERT_DIR, COL_SECTION_SIGNATURE,
                                     COL_SECTION_UPDATES, COL_SECTION_EXPERTS};
    for (size_t i = 0; i < sizeof tables; i++) {
        if (image->section[tables[i]] != NULL) {
            COL_REQUIRE(col_image_check_section(image, tables[i], detail));
        }
    }
    return COLIBRI_OK;
}

/* Whether all fields of an unsigned image's signature are zero. */
static bool unsigned_ok(const struct col_signature *s)
{
    uint8_t any = s->counter != 0u;
    for (size_t i = 0; i < sizeof s->board; i++) {
        any |= (uint8_t)s->board[i];
    }
    for (size_t i = 0; i < sizeof s->key_id; i++) {
        any |= s->key_id[i];
    }
    for (size_t i = 0; i < sizeof s->signature; i++) {
        any |= s->digest[i] | s->signature[i];
    }
    return any == 0u;
}

/* The signature's form. Whether it is right, and whose, is the runtime's to verify. */
static colibri_status check_signature(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *section = image->section[COL_SECTION_SIGNATURE];
    if (section->bytes != sizeof(struct col_signature)) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "signature", section->bytes, sizeof(struct col_signature));
    }
    const struct col_signature *s = image->signature = (const void *)(image->base + section->offset);
    const uint32_t crc = colibri_crc32(0, s, offsetof(struct col_signature, crc32));
    if (crc != s->crc32) {
        return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, "signature", crc, s->crc32);
    }
    if (!col_check_magic(s->magic, COL_SIGNATURE_MAGIC, "signature", detail)) {
        return COLIBRI_E_IMAGE_SECTION;
    }
    if (s->version != COL_SIGNATURE_VERSION) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "signature", s->version, COL_SIGNATURE_VERSION);
    }
    if (s->algorithm != COL_SIGNATURE_NONE && s->algorithm != COL_SIGNATURE_EDDSA) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "signature", s->algorithm, COL_SIGNATURE_EDDSA);
    }
    if (!col_name_ok(s->board, sizeof s->board) || !col_all_zero(s->reserved, 13) ||
        (s->algorithm == COL_SIGNATURE_NONE && !unsigned_ok(s))) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "signature", 1, 0);
    }
    return COLIBRI_OK;
}

/* Each layer's experts follow each other in the directory, layers ascending, and their blobs in the experts section, so
 * that every entry and every blob has one place. Adds to image->blob_bytes. */
static colibri_status check_experts(struct col_image *image, uint32_t layer, struct colibri_detail *detail)
{
    const struct col_layer *l = &image->layer[layer];
    const uint64_t section = image->section[COL_SECTION_EXPERTS]->bytes;
    for (uint32_t e = 0; e < l->router.experts; e++) {
        const struct col_expert *entry = &image->expert[l->first_expert + e];
        if (entry->layer != layer || entry->expert != e) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", entry->expert, e);
        }
        if (entry->bytes != l->expert_bytes) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", entry->bytes, l->expert_bytes);
        }
        if (entry->offset != image->blob_bytes || entry->bytes > section - entry->offset) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", entry->offset, image->blob_bytes);
        }
        if (entry->pin > l->router.experts) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", entry->pin, l->router.experts);
        }
        image->blob_bytes += entry->bytes;
    }
    if (l->router.experts > 0u && l->expert_bytes > image->place_bytes) {
        image->place_bytes = l->expert_bytes;
    }
    return COLIBRI_OK;
}

static colibri_status check_layers(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *layers = image->section[COL_SECTION_LAYERS];
    const struct col_section *directory = image->section[COL_SECTION_EXPERT_DIR];
    const uint64_t layer_bytes = (uint64_t)image->model->layers * sizeof(struct col_layer);
    if (layers->bytes != layer_bytes) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "layers", layers->bytes, layer_bytes);
    }
    image->layer = (const void *)(image->base + layers->offset);
    if (directory != NULL) {
        if (directory->bytes % sizeof(struct col_expert) != 0u ||
            directory->bytes / sizeof(struct col_expert) > (uint64_t)COL_MAX_LAYERS * COL_MAX_EXPERTS) {
            return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "expert-dir", directory->bytes,
                            sizeof(struct col_expert));
        }
        image->expert = (const void *)(image->base + directory->offset);
        image->expert_count = (uint32_t)(directory->bytes / sizeof(struct col_expert));
        image->blobs = image->front ? NULL : image->base + image->section[COL_SECTION_EXPERTS]->offset;
    }
    uint32_t next = 0;
    for (uint32_t i = 0; i < image->model->layers; i++) {
        const struct col_layer *l = &image->layer[i];
        COL_REQUIRE(col_check_layer(image, l, detail));
        if (l->router.experts == 0u) {
            continue;
        }
        if (l->first_expert != next || l->router.experts > image->expert_count - next) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", l->first_expert, next);
        }
        COL_REQUIRE(check_experts(image, i, detail));
        next += l->router.experts;
    }
    if (next != image->expert_count) {
        return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", image->expert_count, next);
    }
    if (directory == NULL) {
        return COLIBRI_OK;
    }
    const uint64_t spare = image->section[COL_SECTION_EXPERTS]->bytes - image->blob_bytes;
    if (image->place_bytes == 0u || spare % image->place_bytes != 0u || spare / image->place_bytes > UINT32_MAX) {
        return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "experts", spare, image->place_bytes);
    }
    image->spare_count = (uint32_t)(spare / image->place_bytes);
    return col_check_updates(image, detail);
}

static colibri_status check_text(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *tokenizer = image->section[COL_SECTION_TOKENIZER];
    const struct col_section *chat = image->section[COL_SECTION_TEMPLATE];
    if (tokenizer == NULL) {
        return COLIBRI_OK;
    }
    COL_REQUIRE(col_tokenizer_open(image->base + tokenizer->offset, tokenizer->bytes, image->model->vocab,
                               &image->tokenizer, detail));
    COL_REQUIRE(col_template_open(image->base + chat->offset, chat->bytes, image->model->vocab, &image->chat, detail));
    /* A token's text travels with a 16-bit length, and the stream that holds it back is sized by 32-bit sums. */
    COL_REQUIRE(image->tokenizer.max_token_bytes <= COL_MAX_TOKEN_BYTES
                    ? COLIBRI_OK
                    : col_fail(COLIBRI_E_IMAGE_TOKENIZER, detail, "tokenizer.max_token_bytes",
                               image->tokenizer.max_token_bytes, COL_MAX_TOKEN_BYTES));
    image->has_tokenizer = true;
    return COLIBRI_OK;
}

colibri_status col_image_open_page(const void *page, struct col_image *image, struct colibri_detail *detail)
{
    *image = (struct col_image){.base = page, .bytes = COL_PAGE};
    COL_REQUIRE(check_header(image, detail));
    image->bytes = image->header->image_bytes;
    return check_directory(image, detail);
}

colibri_status col_image_open(const void *base, uint64_t bytes, struct col_image *image, struct colibri_detail *detail)
{
    *image = (struct col_image){.base = base, .bytes = bytes};
    if (base == NULL) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "image", 0, 1);
    }
    COL_REQUIRE(check_header(image, detail));
    COL_REQUIRE(check_directory(image, detail));
    COL_REQUIRE(check_tables(image, detail));
    COL_REQUIRE(check_signature(image, detail));
    COL_REQUIRE(col_check_model(image, detail));
    COL_REQUIRE(check_layers(image, detail));
    return check_text(image, detail);
}
