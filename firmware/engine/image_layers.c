/* SPDX-License-Identifier: Apache-2.0
 *
 * image_layers.c: the description of the model and of its layers: every dimension in its limits, every tensor of the
 * shape that the description implies, every option one that this engine knows. */
#include "image_checks.h"
#include "numeric.h"
#include "tensor.h"

static bool finite_positive(float x)
{
    return col_is_finite(x) && x > 0.0f;
}

static colibri_status check_range(uint32_t value, uint32_t low, uint32_t high, const char *name,
                                  struct colibri_detail *detail)
{
    if (value < low || value > high) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, name, value, value < low ? low : high);
    }
    return COLIBRI_OK;
}

static colibri_status check_number(float value, bool ok, const char *name, struct colibri_detail *detail)
{
    return ok ? COLIBRI_OK : col_fail(COLIBRI_E_IMAGE_NUMBER, detail, name, col_float_bits(value), 0);
}

static bool absent(const struct col_tensor *t)
{
    return t->format == 0u && t->offset == 0u && t->bytes == 0u && t->rows == 0u && t->cols == 0u && t->reserved == 0u;
}

static colibri_status must_be_absent(const struct col_tensor *t, const char *name, struct colibri_detail *detail)
{
    return absent(t) ? COLIBRI_OK : col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, name, t->format, 0);
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

/* A vector of `cols` that exists exactly when `wanted`. */
static colibri_status check_vector(const struct col_tensor *t, bool wanted, uint32_t cols, uint64_t limit,
                                   const char *name, struct colibri_detail *detail)
{
    return wanted ? check_tensor(t, 0, cols, limit, name, detail) : must_be_absent(t, name, detail);
}

/* A linear map that exists exactly when `wanted`; its bias may exist or not. */
static colibri_status check_linear(const struct col_linear *linear, bool wanted, uint32_t rows, uint32_t cols,
                                   uint64_t limit, const char *name, struct colibri_detail *detail)
{
    if (!wanted) {
        COL_REQUIRE(must_be_absent(&linear->weight, name, detail));
        return must_be_absent(&linear->bias, name, detail);
    }
    COL_REQUIRE(check_tensor(&linear->weight, rows, cols, limit, name, detail));
    return check_vector(&linear->bias, !absent(&linear->bias), rows, limit, name, detail);
}

colibri_status col_check_model(struct col_image *image, struct colibri_detail *detail)
{
    const struct col_section *section = image->section[COL_SECTION_MODEL];
    if (section->bytes != sizeof(struct col_model)) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "model", section->bytes, sizeof(struct col_model));
    }
    const struct col_model *m = image->model = (const void *)(image->base + section->offset);
    COL_REQUIRE(check_range(m->vocab, 1, COL_MAX_VOCAB, "vocab", detail));
    COL_REQUIRE(check_range(m->hidden, 1, COL_MAX_WIDTH, "hidden", detail));
    COL_REQUIRE(check_range(m->layers, 1, COL_MAX_LAYERS, "layers", detail));
    COL_REQUIRE(check_range(m->context_max, 1, COL_MAX_CONTEXT, "context", detail));
    COL_REQUIRE(check_range(m->rotary_dim, 2, COL_MAX_WIDTH, "rotary_dim", detail));
    COL_REQUIRE(check_range(m->eos_count, 0, COL_MAX_EOS, "eos count", detail));
    if (m->kv_format == COLIBRI_KV_IMAGE || m->kv_format > COL_KV_LAST) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "kv format", m->kv_format, COL_KV_LAST);
    }
    if (m->rotary_dim % 2u != 0u) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "rotary_dim", m->rotary_dim, m->rotary_dim + 1u);
    }
    COL_REQUIRE(check_number(m->norm_eps, finite_positive(m->norm_eps), "norm_eps", detail));
    for (uint32_t i = 0; i < COL_MAX_EOS; i++) {
        if (i < m->eos_count ? m->eos[i] >= m->vocab : m->eos[i] != 0u) {
            return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "eos", m->eos[i], m->vocab);
        }
    }
    if (!col_name_ok(m->architecture, sizeof m->architecture, NULL) ||
        !col_name_ok(m->quantisation, sizeof m->quantisation, NULL) || !col_all_zero(m->reserved, 4)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "model", 1, 0);
    }
    const uint64_t resident = image->section[COL_SECTION_RESIDENT]->bytes;
    COL_REQUIRE(check_tensor(&m->embedding, m->vocab, m->hidden, resident, "embedding", detail));
    COL_REQUIRE(check_tensor(&m->final_norm, 0, m->hidden, resident, "final norm", detail));
    COL_REQUIRE(check_linear(&m->head, true, m->vocab, m->hidden, resident, "head", detail));

    const struct col_section *rope = image->section[COL_SECTION_ROPE];
    const uint64_t table = (uint64_t)m->context_max * (m->rotary_dim / 2u);
    if (rope->bytes != 2u * table * sizeof(float)) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "rope", rope->bytes, 2u * table * sizeof(float));
    }
    image->cosines = (const void *)(image->base + rope->offset);
    image->sines = image->cosines + table;
    image->resident = image->base + image->section[COL_SECTION_RESIDENT]->offset;
    return COLIBRI_OK;
}

/* Heads and their dimensions; no product of them exceeds COL_MAX_WIDTH. */
static colibri_status check_heads(const struct col_image *image, const struct col_attention *a, bool latent,
                                  struct colibri_detail *detail)
{
    COL_REQUIRE(check_range(a->heads, 1, COL_MAX_WIDTH, "heads", detail));
    const uint32_t widest = COL_MAX_WIDTH / a->heads;
    COL_REQUIRE(check_range(a->kv_heads, 1, latent ? 1u : a->heads, "kv_heads", detail));
    COL_REQUIRE(check_range(a->query_dim, 1, widest, "query_dim", detail));
    COL_REQUIRE(check_range(a->head_dim, 1, widest, "head_dim", detail));
    COL_REQUIRE(check_range(a->value_dim, 1, widest, "value_dim", detail));
    COL_REQUIRE(check_range(a->output_dim, 1, widest, "output_dim", detail));
    if (a->heads % a->kv_heads != 0u) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "kv_heads", a->kv_heads, a->heads);
    }
    if (a->rotary_dim != 0u && a->rotary_dim != image->model->rotary_dim) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "rotary_dim", a->rotary_dim, image->model->rotary_dim);
    }
    if (latent) {
        if (a->rotary_dim >= a->query_dim || a->rotary_dim >= a->head_dim) {
            return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "rotary_dim", a->rotary_dim, a->query_dim);
        }
        return check_range(a->value_dim, a->head_dim - a->rotary_dim, a->head_dim - a->rotary_dim, "value_dim", detail);
    }
    COL_REQUIRE(check_range(a->rotary_dim, 0, a->head_dim, "rotary_dim", detail));
    COL_REQUIRE(check_range(a->query_dim, a->head_dim, a->head_dim, "query_dim", detail));
    return check_range(a->output_dim, a->value_dim, a->value_dim, "output_dim", detail);
}

static colibri_status check_attention(struct col_image *image, const struct col_attention *a,
                                      struct colibri_detail *detail)
{
    const uint32_t hidden = image->model->hidden;
    const uint64_t limit = image->section[COL_SECTION_RESIDENT]->bytes;
    const bool latent = !absent(&a->absorb);
    COL_REQUIRE(check_heads(image, a, latent, detail));
    COL_REQUIRE(check_number(a->scale, finite_positive(a->scale), "attention scale", detail));
    COL_REQUIRE(check_number(a->norm_eps, finite_positive(a->norm_eps), "norm_eps", detail));
    COL_REQUIRE(check_number(a->qk_norm_eps, finite_positive(a->qk_norm_eps), "qk_norm_eps", detail));
    COL_REQUIRE(check_number(a->clip, a->clip == 0.0f || finite_positive(a->clip), "clip", detail));
    if (a->qk_norm > COL_QK_NORM_LATENT || (a->qk_norm == COL_QK_NORM_LATENT && !latent)) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "qk_norm", a->qk_norm, COL_QK_NORM_LATENT);
    }
    if (!col_all_zero(a->reserved, 3)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "layers", 1, 0);
    }
    const bool low_rank = !absent(&a->query_down.weight);
    const uint32_t rank = low_rank ? a->query_down.weight.rows : hidden;
    COL_REQUIRE(check_range(rank, 1, COL_MAX_WIDTH, "query down", detail));
    const uint32_t query = a->heads * a->query_dim;
    const uint32_t key = a->kv_heads * a->head_dim;
    const uint32_t value = a->kv_heads * a->value_dim;
    const bool full = a->qk_norm == COL_QK_NORM_FULL;
    const bool query_norm = full || a->qk_norm == COL_QK_NORM_HEAD;
    const bool key_norm = a->qk_norm != COL_QK_NORM_NONE;
    const uint32_t key_norm_width = full ? key : (a->qk_norm == COL_QK_NORM_LATENT ? a->value_dim : a->head_dim);
    COL_REQUIRE(check_tensor(&a->norm, 0, hidden, limit, "attention norm", detail));
    COL_REQUIRE(check_linear(&a->query_down, low_rank, rank, hidden, limit, "query down", detail));
    COL_REQUIRE(check_vector(&a->query_down_norm, low_rank, rank, limit, "query down norm", detail));
    COL_REQUIRE(check_linear(&a->query, true, query, rank, limit, "query", detail));
    COL_REQUIRE(check_linear(&a->key, true, key, hidden, limit, "key", detail));
    COL_REQUIRE(check_linear(&a->value, !latent, value, hidden, limit, "value", detail));
    COL_REQUIRE(check_vector(&a->query_norm, query_norm, full ? query : a->query_dim, limit, "query norm", detail));
    COL_REQUIRE(check_vector(&a->key_norm, key_norm, key_norm_width, limit, "key norm", detail));
    COL_REQUIRE(check_vector(&a->sinks, !absent(&a->sinks), a->heads, limit, "sinks", detail));
    COL_REQUIRE(check_linear(&a->output, true, hidden, a->heads * a->output_dim, limit, "output", detail));
    if (latent) {
        COL_REQUIRE(check_tensor(&a->absorb, a->heads * col_round_up(a->value_dim, COL_TILE_ROWS),
                                 a->query_dim - a->rotary_dim, limit, "absorb", detail));
        COL_REQUIRE(check_tensor(&a->expand, a->heads * col_round_up(a->output_dim, COL_TILE_ROWS), a->value_dim, limit,
                                 "expand", detail));
    } else {
        COL_REQUIRE(must_be_absent(&a->expand, "expand", detail));
    }
    struct col_widths *w = &image->widest;
    w->rank = col_max(w->rank, low_rank ? rank : 0u);
    w->query = col_max(w->query, col_max(query, a->heads * a->head_dim));
    w->kv = col_max(w->kv, col_max(key, value));
    w->attended = col_max(w->attended, a->heads * col_max(a->value_dim, a->output_dim));
    const uint32_t head = col_max(col_max(a->query_dim, a->head_dim), col_max(a->value_dim, a->output_dim));
    w->head = col_max(w->head, latent ? head + COL_TILE_ROWS - 1u : head); /* products per head write whole tiles */
    return COLIBRI_OK;
}

static colibri_status check_no_router(const struct col_router *r, struct colibri_detail *detail)
{
    const uint8_t *bytes = (const uint8_t *)r;
    for (size_t i = 0; i < sizeof *r; i++) {
        if (bytes[i] != 0u) {
            return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "router", i, 0);
        }
    }
    return COLIBRI_OK;
}

static colibri_status check_router(struct col_image *image, const struct col_router *r, struct colibri_detail *detail)
{
    const uint64_t limit = image->section[COL_SECTION_RESIDENT]->bytes;
    if (r->experts == 0u) {
        return check_no_router(r, detail);
    }
    if (image->section[COL_SECTION_EXPERTS] == NULL) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "experts", 0, r->experts);
    }
    COL_REQUIRE(check_range(r->experts, 1, COL_MAX_EXPERTS, "experts", detail));
    COL_REQUIRE(check_range(r->top_k, 1, r->experts < COL_MAX_TOP_K ? r->experts : COL_MAX_TOP_K, "top_k", detail));
    if (r->score < COL_SCORE_LOGIT || r->score > COL_SCORE_HASH) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "router score", r->score, COL_SCORE_HASH);
    }
    COL_REQUIRE(check_range(r->normalise, 0, 1, "normalise", detail));
    COL_REQUIRE(check_number(r->scale, finite_positive(r->scale), "router scale", detail));
    COL_REQUIRE(check_range(r->groups, 1, r->experts, "groups", detail));
    COL_REQUIRE(check_range(r->top_groups, 1, r->groups, "top_groups", detail));
    const bool grouped = r->groups > 1u;
    COL_REQUIRE(check_range(r->group_score, grouped ? COL_GROUP_MAX : 0u, grouped ? COL_GROUP_TOP_TWO : 0u,
                            "group_score", detail));
    const uint32_t group = r->experts / r->groups;
    if (r->experts % r->groups != 0u || r->top_k > r->top_groups * group ||
        (r->group_score == COL_GROUP_TOP_TWO && group < 2u)) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "groups", r->groups, r->experts);
    }
    /* The map must leave enough experts for the choice, whatever the prompt's length. */
    if ((r->map_first == 0u) != (r->map_tokens == 0u) || (grouped && r->map_first != 0u)) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "map_tokens", r->map_tokens, r->map_first);
    }
    COL_REQUIRE(check_range(r->map_first, r->map_first == 0u ? 0u : r->top_k, r->experts, "map_first", detail));
    const bool hash = r->score == COL_SCORE_HASH;
    const bool integer = r->score == COL_SCORE_INTEGER;
    COL_REQUIRE(check_number(r->integer_scale, integer ? finite_positive(r->integer_scale) : r->integer_scale == 0.0f,
                             "integer_scale", detail));
    COL_REQUIRE(check_range(r->integer_shift, 0, integer ? COL_MAX_INTEGER_SHIFT : 0u, "integer_shift", detail));
    if (!col_all_zero(r->reserved, 4)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "layers", 1, 0);
    }
    /* What has no scores can't correct or group them. */
    const bool plain = hash || integer;
    if (plain && (grouped || !absent(&r->correction))) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "router score", r->score, COL_SCORE_SIGMOID);
    }
    COL_REQUIRE(check_linear(&r->gate, !hash, r->experts, image->model->hidden, limit, "router", detail));
    COL_REQUIRE(check_vector(&r->correction, !absent(&r->correction), r->experts, limit, "router correction", detail));
    COL_REQUIRE(check_vector(&r->integer_table, integer, 256, limit, "integer table", detail));
    image->widest.experts = col_max(image->widest.experts, r->experts);
    image->widest.top_k = col_max(image->widest.top_k, r->top_k);
    return COLIBRI_OK;
}

static colibri_status check_ffn(const struct col_ffn *f, uint32_t width, uint32_t hidden, uint64_t limit,
                                struct colibri_detail *detail)
{
    const bool wanted = width > 0u;
    COL_REQUIRE(check_linear(&f->gate, wanted, width, hidden, limit, "gate", detail));
    COL_REQUIRE(check_linear(&f->up, wanted, width, hidden, limit, "up", detail));
    return check_linear(&f->down, wanted, hidden, width, limit, "down", detail);
}

colibri_status col_check_layer(struct col_image *image, const struct col_layer *l, struct colibri_detail *detail)
{
    const uint32_t hidden = image->model->hidden;
    const uint64_t resident = image->section[COL_SECTION_RESIDENT]->bytes;
    COL_REQUIRE(check_attention(image, &l->attention, detail));
    COL_REQUIRE(check_router(image, &l->router, detail));
    const bool experts = l->router.experts > 0u;
    COL_REQUIRE(check_range(l->shared_width, experts ? 0u : 1u, COL_MAX_WIDTH, "shared_width", detail));
    COL_REQUIRE(check_range(l->expert_width, experts ? 1u : 0u, experts ? COL_MAX_WIDTH : 0u, "expert_width", detail));
    const uint64_t blobs = experts ? image->section[COL_SECTION_EXPERTS]->bytes : 0u;
    if (l->expert_bytes % COL_PAGE != 0u || l->expert_bytes > blobs || (l->expert_bytes == 0u) == experts) {
        return col_fail(COLIBRI_E_IMAGE_DIMENSION, detail, "expert_bytes", l->expert_bytes, blobs);
    }
    if (l->activation != COL_ACTIVATION_SWIGLU && l->activation != COL_ACTIVATION_SWIGLU_CLAMPED) {
        return col_fail(COLIBRI_E_IMAGE_UNSUPPORTED, detail, "activation", l->activation,
                        COL_ACTIVATION_SWIGLU_CLAMPED);
    }
    const bool clamped = l->activation == COL_ACTIVATION_SWIGLU_CLAMPED;
    COL_REQUIRE(check_number(l->limit, clamped ? finite_positive(l->limit) : l->limit == 0.0f, "limit", detail));
    COL_REQUIRE(check_number(l->alpha, clamped ? finite_positive(l->alpha) : l->alpha == 0.0f, "alpha", detail));
    if (!col_all_zero(l->reserved, 8) || (!experts && l->first_expert != 0u)) {
        return col_fail(COLIBRI_E_IMAGE_SECTION, detail, "layers", 1, 0);
    }
    COL_REQUIRE(check_tensor(&l->norm, 0, hidden, resident, "expert norm", detail));
    if (!absent(&l->shared_gate)) {
        COL_REQUIRE(check_range(l->shared_width, 1, COL_MAX_WIDTH, "shared gate", detail));
        COL_REQUIRE(check_tensor(&l->shared_gate, 1, hidden, resident, "shared gate", detail));
    }
    COL_REQUIRE(check_ffn(&l->shared, l->shared_width, hidden, resident, detail));
    COL_REQUIRE(check_ffn(&l->expert, l->expert_width, hidden, l->expert_bytes, detail));
    image->widest.ffn = col_max(image->widest.ffn, col_max(l->shared_width, l->expert_width));
    return COLIBRI_OK;
}
