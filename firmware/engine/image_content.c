/* SPDX-License-Identifier: Apache-2.0
 *
 * image_content.c: the bytes of an image whose structure is right: checksums, padding, numbers. */
#include "image_checks.h"
#include "numeric.h"
#include "tensor.h"

static bool zero_bytes(const uint8_t *data, uint64_t bytes)
{
    uint8_t any = 0;
    for (uint64_t i = 0; i < bytes; i++) {
        any |= data[i];
    }
    return any == 0u;
}

static colibri_status check_sections(const struct col_image *image, struct colibri_detail *detail)
{
    uint64_t end = COL_PAGE;
    for (uint32_t kind = COL_SECTION_MODEL; kind <= COL_SECTION_LAST; kind++) {
        const struct col_section *s = image->section[kind];
        if (s == NULL || s->offset == image->bytes) { /* where a front ends */
            continue;
        }
        if (!zero_bytes(image->base + end, s->offset - end)) {
            return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, s->name, end, s->offset);
        }
        end = s->offset + s->bytes;
        const colibri_status status = col_image_check_section(image, kind, detail);
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    if (!zero_bytes(image->base + end, image->bytes - end)) {
        return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, "image", end, image->bytes);
    }
    for (uint32_t i = 0; i < image->expert_count && !image->front; i++) {
        const struct col_expert *e = &image->expert[i];
        struct col_place place;
        col_image_effective(image, i, &place);
        if (colibri_crc32(0, image->base + place.offset, (size_t)e->bytes) != place.crc32) {
            return col_fail(COLIBRI_E_IMAGE_CHECKSUM, detail, "experts", e->expert, e->layer);
        }
    }
    return COLIBRI_OK;
}

static colibri_status check_tensor(const struct col_tensor *t, const uint8_t *base, const char *name, uint32_t layer,
                                   struct colibri_detail *detail)
{
    if (t->format != 0u && !col_tensor_finite(t, base + t->offset)) {
        return col_fail(COLIBRI_E_IMAGE_NUMBER, detail, name, layer, 0);
    }
    return COLIBRI_OK;
}

static colibri_status check_ffn(const struct col_ffn *f, const uint8_t *base, uint32_t layer,
                                struct colibri_detail *detail)
{
    const struct col_linear *linear[] = {&f->gate, &f->up, &f->down};
    static const char *const name[] = {"gate", "up", "down"};
    for (size_t i = 0; i < 3; i++) {
        COL_REQUIRE(check_tensor(&linear[i]->weight, base, name[i], layer, detail));
        COL_REQUIRE(check_tensor(&linear[i]->bias, base, name[i], layer, detail));
    }
    return COLIBRI_OK;
}

colibri_status col_image_check_expert(const struct col_image *image, uint32_t layer, const uint8_t *blob,
                                      struct colibri_detail *detail)
{
    return check_ffn(&image->layer[layer].expert, blob, layer, detail);
}

static colibri_status check_layer(const struct col_image *image, uint32_t layer, struct colibri_detail *detail)
{
    const struct col_layer *l = &image->layer[layer];
    const struct col_attention *a = &l->attention;
    const struct {
        const struct col_tensor *tensor;
        const char *name;
    } resident[] = {
        {&a->norm, "attention norm"}, {&a->query_down.weight, "query down"}, {&a->query_down.bias, "query down"},
        {&a->query_down_norm, "query down norm"}, {&a->query.weight, "query"}, {&a->query.bias, "query"},
        {&a->key.weight, "key"}, {&a->key.bias, "key"}, {&a->value.weight, "value"}, {&a->value.bias, "value"},
        {&a->query_norm, "query norm"}, {&a->key_norm, "key norm"}, {&a->sinks, "sinks"}, {&a->absorb, "absorb"},
        {&a->expand, "expand"}, {&a->output.weight, "output"}, {&a->output.bias, "output"},
        {&l->router.gate.weight, "router"}, {&l->router.gate.bias, "router"},
        {&l->router.correction, "router correction"}, {&l->router.integer_table, "integer table"},
        {&l->norm, "expert norm"}, {&l->shared_gate, "shared gate"},
    };
    for (size_t t = 0; t < sizeof resident / sizeof *resident; t++) {
        COL_REQUIRE(check_tensor(resident[t].tensor, image->resident, resident[t].name, layer, detail));
    }
    COL_REQUIRE(check_ffn(&l->shared, image->resident, layer, detail));
    for (uint32_t e = 0; e < l->router.experts && !image->front; e++) {
        struct col_place place;
        col_image_effective(image, l->first_expert + e, &place);
        COL_REQUIRE(col_image_check_expert(image, layer, image->base + place.offset, detail));
    }
    return COLIBRI_OK;
}

static colibri_status check_numbers(const struct col_image *image, struct colibri_detail *detail)
{
    const struct col_model *m = image->model;
    const uint64_t rope = 2u * (uint64_t)m->context_max * (m->rotary_dim / 2u);
    for (uint64_t i = 0; i < rope; i += m->rotary_dim) {
        if (!col_all_finite(image->cosines + i, m->rotary_dim)) {
            return col_fail(COLIBRI_E_IMAGE_NUMBER, detail, "rope", i, rope);
        }
    }
    COL_REQUIRE(check_tensor(&m->embedding, image->resident, "embedding", 0, detail));
    COL_REQUIRE(check_tensor(&m->final_norm, image->resident, "final norm", 0, detail));
    COL_REQUIRE(check_tensor(&m->head.weight, image->resident, "head", 0, detail));
    COL_REQUIRE(check_tensor(&m->head.bias, image->resident, "head", 0, detail));
    for (uint32_t i = 0; i < m->layers; i++) {
        COL_REQUIRE(check_layer(image, i, detail));
    }
    return COLIBRI_OK;
}

colibri_status col_image_check_content(const struct col_image *image, struct colibri_detail *detail)
{
    const colibri_status status = check_sections(image, detail);
    return status != COLIBRI_OK ? status : check_numbers(image, detail);
}
