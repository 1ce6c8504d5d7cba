/* SPDX-License-Identifier: Apache-2.0
 *
 * image_open.c: the structure of an image, checked before anything is believed.
 *
 * Everything that comes from the file is compared with a limit before it is used in arithmetic, and every sum and
 * product is of values so limited that it can't wrap (image_view.h). The weights themselves are not read here. */
#include "image_view.h"

#include "detail.h"
#include "numeric.h"
#include "tensor.h"

#define HEADER_CRC_OFFSET ((uint32_t)offsetof(struct col_header, header_crc32))

static const char *const section_names[COL_SECTION_CARD + 1] = {
    [COL_SECTION_MODEL] = "model",         [COL_SECTION_LAYERS] = "layers",     [COL_SECTION_TOKENIZER] = "tokenizer",
    [COL_SECTION_TEMPLATE] = "template",   [COL_SECTION_ROPE] = "rope",         [COL_SECTION_RESIDENT] = "resident",
    [COL_SECTION_EXPERT_DIR] = "expert-dir", [COL_SECTION_EXPERTS] = "experts", [COL_SECTION_CARD] = "card",
};

#define REQUIRE(call)                                                                                                  \
    do {                                                                                                               \
        const colibri_status status_ = (call);                                                                         \
        if (status_ != COLIBRI_OK) {                                                                                   \
            return status_;                                                                                            \
        }                                                                                                              \
    } while (0)

static bool all_zero(const uint32_t *word, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (word[i] != 0u) {
            return false;
        }
    }
    return true;
}

/* The field holds exactly `text`, NUL-padded; NULL: any text with at least one NUL. */
static bool name_ok(const char *field, size_t bytes, const char *text)
{
    size_t length = 0;
    while (length < bytes && field[length] != '\0') {
        length++;
    }
    if (length == bytes) {
        return false;
    }
    for (size_t i = length; i < bytes; i++) {
        if (field[i] != '\0') {
            return false;
        }
    }
    if (text == NULL) {
        return true;
    }
    for (size_t i = 0; i <= length; i++) {
        if (field[i] != text[i]) {
            return false;
        }
    }
    return true;
}

static bool finite_positive(float x)
{
    return col_all_finite(&x, 1) && x > 0.0f;
}

static colibri_status check_header(struct col_image *image, struct colibri_detail *detail)
{
    if (((uintptr_t)image->base & (COLIBRI_ARENA_ALIGN - 1u)) != 0u) {
        return col_fail(COLIBRI_E_ARENA_ALIGN, detail, "image", (uintptr_t)image->base & (COLIBRI_ARENA_ALIGN - 1u), 0);
    }
    if (image->bytes < COL_PAGE) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "header", image->bytes, COL_PAGE);
    }
    const struct col_header *h = image->header = (const void *)image->base;
    for (size_t i = 0; i < sizeof h->magic; i++) {
        if (h->magic[i] != (uint8_t)COL_IMAGE_MAGIC[i]) {
            return col_fail(COLIBRI_E_IMAGE_MAGIC, detail, "header", h->magic[i], (uint8_t)COL_IMAGE_MAGIC[i]);
        }
    }
    if (h->format_version != COL_FORMAT_VERSION) {
        return col_fail(COLIBRI_E_IMAGE_VERSION, detail, "format version", h->format_version, COL_FORMAT_VERSION);
    }
    const uint32_t zero = 0;
    uint32_t crc = colibri_crc32(0, image->base, HEADER_CRC_OFFSET);
    crc = colibri_crc32(crc, &zero, sizeof zero);
    crc = colibri_crc32(crc, image->base + HEADER_CRC_OFFSET + 4u, COL_PAGE - HEADER_CRC_OFFSET - 4u);
    if (crc != h->header_crc32) {
        return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, "header", crc, h->header_crc32);
    }
    if (h->numeric_version != COL_NUMERIC_VERSION) {
        return col_fail(COLIBRI_E_IMAGE_VERSION, detail, "numeric version", h->numeric_version, COL_NUMERIC_VERSION);
    }
    if (h->image_bytes != image->bytes) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, "image", image->bytes, h->image_bytes);
    }
    if (h->page_bytes != COL_PAGE || h->image_bytes % COL_PAGE != 0u) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "header", h->page_bytes, COL_PAGE);
    }
    if (h->section_count == 0u || h->section_count > COL_MAX_SECTIONS) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "section count", h->section_count, COL_MAX_SECTIONS);
    }
    if (h->prng != COL_PRNG_SPLITMIX64) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "prng", h->prng, COL_PRNG_SPLITMIX64);
    }
    if (!name_ok(h->model_name, sizeof h->model_name, NULL) || !all_zero(h->reserved, 6)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "header", 1, 0);
    }
    return COLIBRI_OK;
}

static colibri_status check_directory(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *table = (const void *)(image->base + sizeof(struct col_header));
    const uint32_t count = image->header->section_count;
    uint64_t end = COL_PAGE;
    uint32_t last_kind = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct col_section *s = &table[i];
        if (s->kind == 0u || s->kind > COL_SECTION_CARD) {
            return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "section kind", s->kind, COL_SECTION_CARD);
        }
        const char *name = section_names[s->kind];
        if (s->kind <= last_kind) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, s->kind, last_kind + 1u);
        }
        last_kind = s->kind;
        if (!name_ok(s->name, sizeof s->name, name) || !all_zero(s->reserved, 6)) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, i, s->kind);
        }
        if (s->offset % COL_PAGE != 0u || s->offset < end) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, s->offset, end);
        }
        if (s->offset > image->bytes || s->bytes == 0u || s->bytes > image->bytes - s->offset) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, s->bytes,
                            s->offset > image->bytes ? 0 : image->bytes - s->offset);
        }
        /* The image is whole pages, so rounding up stays inside of it. */
        end = (s->offset + s->bytes + COL_PAGE - 1u) & ~((uint64_t)COL_PAGE - 1u);
        image->section[s->kind] = s;
    }
    if (end != image->bytes) {
        return col_fail(COLIBRI_E_IMAGE_SIZE, detail, section_names[last_kind], image->bytes, end);
    }
    for (uint32_t kind = COL_SECTION_MODEL; kind <= COL_SECTION_CARD; kind++) {
        const bool text = kind == COL_SECTION_TOKENIZER || kind == COL_SECTION_TEMPLATE;
        if (image->section[kind] == NULL && !text) {
            return col_fail(COLIBRI_E_IMAGE_SECTION, detail, section_names[kind], 0, 1);
        }
    }
    if ((image->section[COL_SECTION_TOKENIZER] == NULL) != (image->section[COL_SECTION_TEMPLATE] == NULL)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "template", 0, 1);
    }
    return COLIBRI_OK;
}

colibri_status col_image_check_section(const struct col_image *image, uint32_t kind, struct colibri_detail *detail)
{
    const struct col_section *s = image->section[kind];
    /* The experts have a checksum each, so that one can be replaced without reading the others. */
    const uint32_t crc =
        kind == COL_SECTION_EXPERTS ? 0u : colibri_crc32(0, image->base + s->offset, (size_t)s->bytes);
    return crc == s->crc32 ? COLIBRI_OK : col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, s->name, crc, s->crc32);
}

/* The tables are small and everything hangs on them: a damaged one is called damaged, not inconsistent. */
static colibri_status check_tables(const struct col_image *image, struct colibri_detail *detail)
{
    static const uint8_t tables[] = {COL_SECTION_MODEL, COL_SECTION_LAYERS, COL_SECTION_TOKENIZER,
                                     COL_SECTION_TEMPLATE, COL_SECTION_EXPERT_DIR};
    for (size_t i = 0; i < sizeof tables; i++) {
        if (image->section[tables[i]] != NULL) {
            REQUIRE(col_image_check_section(image, tables[i], detail));
        }
    }
    return COLIBRI_OK;
}

/* A matrix (or, rows 0, a vector) of the expected shape that lies inside `limit` bytes. */
static colibri_status check_tensor(const struct col_tensor *t, uint32_t rows, uint32_t cols, uint64_t limit,
                                   const char *name, struct colibri_detail *detail)
{
    const bool vector = rows == 0u;
    if (vector ? t->format != COL_F32_VECTOR : (t->format < COL_F32 || t->format > COL_Q4)) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, name, t->format, COL_Q4);
    }
    if (t->rows != (vector ? 1u : rows)) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, name, t->rows, vector ? 1u : rows);
    }
    if (t->cols != cols) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, name, t->cols, cols);
    }
    const uint64_t bytes = col_tensor_bytes(t->format, t->rows, t->cols);
    if (t->bytes != bytes) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, name, t->bytes, bytes);
    }
    if (t->offset % 64u != 0u || t->offset > limit || bytes > limit - t->offset || t->reserved != 0u) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, name, t->offset, limit);
    }
    return COLIBRI_OK;
}

static colibri_status check_range(uint32_t value, uint32_t low, uint32_t high, const char *name,
                                  struct colibri_detail *detail)
{
    if (value < low) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, name, value, low);
    }
    if (value > high) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, name, value, high);
    }
    return COLIBRI_OK;
}

static colibri_status check_model(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *section = image->section[COL_SECTION_MODEL];
    if (section->bytes != sizeof(struct col_model)) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "model", section->bytes, sizeof(struct col_model));
    }
    const struct col_model *m = image->model = (const void *)(image->base + section->offset);
    REQUIRE(check_range(m->vocab, 1, COL_MAX_VOCAB, "vocab", detail));
    REQUIRE(check_range(m->hidden, 1, COL_MAX_WIDTH, "hidden", detail));
    REQUIRE(check_range(m->layers, 1, COL_MAX_LAYERS, "layers", detail));
    REQUIRE(check_range(m->context_max, 1, COL_MAX_CONTEXT, "context", detail));
    REQUIRE(check_range(m->rotary_dim, 2, COL_MAX_WIDTH, "rotary_dim", detail));
    REQUIRE(check_range(m->eos_count, 0, COL_MAX_EOS, "eos count", detail));
    if (m->kv_format != COLIBRI_KV_F32 && m->kv_format != COLIBRI_KV_F16) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "kv format", m->kv_format, COLIBRI_KV_F16);
    }
    if (m->rotary_dim % 2u != 0u) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "rotary_dim", m->rotary_dim, m->rotary_dim + 1u);
    }
    if (!finite_positive(m->norm_eps)) {
        return col_fail(COLIBRI_E_IMAGE_NUMBER, detail, "norm_eps", col_float_bits(m->norm_eps), 0);
    }
    for (uint32_t i = 0; i < COL_MAX_EOS; i++) {
        if (i < m->eos_count ? m->eos[i] >= m->vocab : m->eos[i] != 0u) {
            return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "eos", m->eos[i], m->vocab);
        }
    }
    if (!name_ok(m->architecture, sizeof m->architecture, NULL) ||
        !name_ok(m->quantisation, sizeof m->quantisation, NULL) || !all_zero(m->reserved, 4)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "model", 1, 0);
    }
    const uint64_t resident = image->section[COL_SECTION_RESIDENT]->bytes;
    REQUIRE(check_tensor(&m->embedding, m->vocab, m->hidden, resident, "embedding", detail));
    REQUIRE(check_tensor(&m->final_norm, 0, m->hidden, resident, "final norm", detail));
    REQUIRE(check_tensor(&m->head, m->vocab, m->hidden, resident, "head", detail));

    const struct col_section *rope = image->section[COL_SECTION_ROPE];
    const uint64_t table = (uint64_t)m->context_max * (m->rotary_dim / 2u);
    if (rope->bytes != 2u * table * sizeof(float)) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "rope", rope->bytes, 2u * table * sizeof(float));
    }
    image->cosines = (const void *)(image->base + rope->offset);
    image->sines = image->cosines + table;
    image->resident = image->base + image->section[COL_SECTION_RESIDENT]->offset;
    image->blobs = image->base + image->section[COL_SECTION_EXPERTS]->offset;
    return COLIBRI_OK;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static colibri_status check_layer(struct col_image *image, const struct col_layer *l, struct colibri_detail *detail)
{
    const struct col_model *m = image->model;
    const uint64_t resident = image->section[COL_SECTION_RESIDENT]->bytes;
    REQUIRE(check_range(l->heads, 1, COL_MAX_WIDTH, "heads", detail));
    REQUIRE(check_range(l->head_dim, 1, COL_MAX_WIDTH / l->heads, "head_dim", detail));
    REQUIRE(check_range(l->kv_heads, 1, l->heads, "kv_heads", detail));
    REQUIRE(check_range(m->rotary_dim, 2, l->head_dim, "rotary_dim", detail));
    REQUIRE(check_range(l->experts, 1, COL_MAX_EXPERTS, "experts", detail));
    REQUIRE(check_range(l->top_k, 1, l->experts < COL_MAX_TOP_K ? l->experts : COL_MAX_TOP_K, "top_k", detail));
    REQUIRE(check_range(l->expert_width, 1, COL_MAX_WIDTH, "expert_width", detail));
    if (l->heads % l->kv_heads != 0u) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "kv_heads", l->kv_heads, l->heads);
    }
    if (!finite_positive(l->attention_scale) || !finite_positive(l->norm_eps)) {
        return col_fail(COLIBRI_E_IMAGE_NUMBER, detail, "attention_scale", col_float_bits(l->attention_scale), 0);
    }
    if (l->router_kind != COL_ROUTER_TOPK_SOFTMAX) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "router kind", l->router_kind, COL_ROUTER_TOPK_SOFTMAX);
    }
    const uint64_t blobs = image->section[COL_SECTION_EXPERTS]->bytes;
    if (l->expert_bytes == 0u || l->expert_bytes % COL_PAGE != 0u || l->expert_bytes > blobs) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "expert_bytes", l->expert_bytes, blobs);
    }
    if (!all_zero(l->reserved, 4)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "layers", 1, 0);
    }
    const uint32_t query = l->heads * l->head_dim;
    const uint32_t kv = l->kv_heads * l->head_dim;
    REQUIRE(check_tensor(&l->attention_norm, 0, m->hidden, resident, "attention norm", detail));
    REQUIRE(check_tensor(&l->query, query, m->hidden, resident, "query", detail));
    REQUIRE(check_tensor(&l->key, kv, m->hidden, resident, "key", detail));
    REQUIRE(check_tensor(&l->value, kv, m->hidden, resident, "value", detail));
    REQUIRE(check_tensor(&l->output, m->hidden, query, resident, "output", detail));
    REQUIRE(check_tensor(&l->expert_norm, 0, m->hidden, resident, "expert norm", detail));
    REQUIRE(check_tensor(&l->router, l->experts, m->hidden, resident, "router", detail));
    REQUIRE(check_tensor(&l->gate, l->expert_width, m->hidden, l->expert_bytes, "gate", detail));
    REQUIRE(check_tensor(&l->up, l->expert_width, m->hidden, l->expert_bytes, "up", detail));
    REQUIRE(check_tensor(&l->down, m->hidden, l->expert_width, l->expert_bytes, "down", detail));
    struct col_widths *w = &image->widest;
    w->query = max_u32(w->query, query);
    w->kv = max_u32(w->kv, kv);
    w->expert = max_u32(w->expert, l->expert_width);
    w->experts = max_u32(w->experts, l->experts);
    w->top_k = max_u32(w->top_k, l->top_k);
    return COLIBRI_OK;
}

/* Each layer's experts follow each other in the directory, layers ascending, so every entry has one place. */
static colibri_status check_experts(const struct col_image *image, uint32_t layer, struct colibri_detail *detail)
{
    const struct col_layer *l = &image->layer[layer];
    const uint64_t blobs = image->section[COL_SECTION_EXPERTS]->bytes;
    for (uint32_t e = 0; e < l->experts; e++) {
        const struct col_expert *entry = &image->expert[l->first_expert + e];
        if (entry->layer != layer || entry->expert != e) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", entry->expert, e);
        }
        if (entry->bytes != l->expert_bytes) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", entry->bytes, l->expert_bytes);
        }
        if (entry->offset % COL_PAGE != 0u || entry->offset > blobs || entry->bytes > blobs - entry->offset) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", entry->offset, blobs);
        }
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
    if (directory->bytes % sizeof(struct col_expert) != 0u ||
        directory->bytes / sizeof(struct col_expert) > (uint64_t)COL_MAX_LAYERS * COL_MAX_EXPERTS) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "expert-dir", directory->bytes, sizeof(struct col_expert));
    }
    image->layer = (const void *)(image->base + layers->offset);
    image->expert = (const void *)(image->base + directory->offset);
    image->expert_count = (uint32_t)(directory->bytes / sizeof(struct col_expert));
    uint32_t next = 0;
    for (uint32_t i = 0; i < image->model->layers; i++) {
        const struct col_layer *l = &image->layer[i];
        REQUIRE(check_layer(image, l, detail));
        if (l->first_expert != next || l->experts > image->expert_count - next) {
            return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", l->first_expert, next);
        }
        REQUIRE(check_experts(image, i, detail));
        next += l->experts;
    }
    if (next != image->expert_count) {
        return col_fail(COLIBRI_E_IMAGE_EXPERT, detail, "expert-dir", image->expert_count, next);
    }
    return COLIBRI_OK;
}

static colibri_status check_text(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *tokenizer = image->section[COL_SECTION_TOKENIZER];
    const struct col_section *chat = image->section[COL_SECTION_TEMPLATE];
    if (tokenizer == NULL) {
        return COLIBRI_OK;
    }
    REQUIRE(col_tokenizer_open(image->base + tokenizer->offset, tokenizer->bytes, image->model->vocab,
                               &image->tokenizer, detail));
    REQUIRE(col_template_open(image->base + chat->offset, chat->bytes, image->model->vocab, &image->chat, detail));
    image->has_tokenizer = true;
    return COLIBRI_OK;
}

colibri_status col_image_open(const void *base, uint64_t bytes, struct col_image *image, struct colibri_detail *detail)
{
    *image = (struct col_image){.base = base, .bytes = bytes};
    if (base == NULL) {
        return col_fail(COLIBRI_E_ARGUMENT, detail, "image", 0, 1);
    }
    REQUIRE(check_header(image, detail));
    REQUIRE(check_directory(image, detail));
    REQUIRE(check_tables(image, detail));
    REQUIRE(check_model(image, detail));
    REQUIRE(check_layers(image, detail));
    return check_text(image, detail);
}
