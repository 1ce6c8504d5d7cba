/* SPDX-License-Identifier: Apache-2.0
 *
 * image_layers.c: the description of the model and of its layers: every dimension in its limits, every tensor of the
 * shape that the description implies, every option one that this engine knows.
 *
 * Checks follow one another and share a struct check, which keeps the first failure: behind it nothing is looked at.
 * Only where a number is used in arithmetic must its check have been asked for. */
#include "image_checks.h"
#include "numeric.h"
#include "tensor.h"

struct check {
    struct colibri_detail *detail;
    uint64_t limit; /* bytes of what the tensors lie in: the resident section, or an expert's blob */
    colibri_status status;
};

static void fail(struct check *c, colibri_status status, const char *name, uint64_t got, uint64_t wanted)
{
    if (c->status == COLIBRI_OK) {
        c->status = col_fail(status, c->detail, name, got, wanted);
    }
}

/* A dimension that is not as others imply. */
static void wrong(struct check *c, const char *name, uint64_t got, uint64_t wanted)
{
    fail(c, COLIBRI_E_IMAGE_DIMENSION, name, got, wanted);
}

static void equal(struct check *c, uint64_t got, uint64_t wanted, const char *name)
{
    if (got != wanted) {
        wrong(c, name, got, wanted);
    }
}

static void range(struct check *c, uint32_t value, uint32_t low, uint32_t high, const char *name)
{
    if (value < low || value > high) {
        wrong(c, name, value, value < low ? low : high);
    }
}

/* One of an enumeration's kinds. */
static void kind(struct check *c, uint32_t value, uint32_t low, uint32_t high, const char *name)
{
    if (value < low || value > high) {
        fail(c, COLIBRI_E_IMAGE_UNSUPPORTED, name, value, high);
    }
}

/* A number above zero when `wanted`, else zero. */
static void number(struct check *c, float value, bool wanted, const char *name)
{
    if (!(wanted ? col_is_finite(value) && value > 0.0f : value == 0.0f)) {
        fail(c, COLIBRI_E_IMAGE_NUMBER, name, col_float_bits(value), 0);
    }
}

static void zeros(struct check *c, const uint32_t *word, size_t count, const char *name)
{
    if (!col_all_zero(word, count)) {
        fail(c, COLIBRI_E_IMAGE_SECTION, name, 1, 0);
    }
}

static bool absent(const struct col_tensor *t)
{
    return col_all_zero((const uint32_t *)(const void *)t, sizeof *t / sizeof(uint32_t));
}

static void must_be_absent(struct check *c, const struct col_tensor *t, const char *name)
{
    if (!absent(t)) {
        wrong(c, name, t->format, 0);
    }
}

/* A matrix (or, rows 0, a vector) of the expected shape. */
static void tensor(struct check *c, const struct col_tensor *t, uint32_t rows, uint32_t cols, const char *name)
{
    if (rows == 0u) {
        kind(c, t->format, COL_F32_VECTOR, COL_F32_VECTOR, name);
        rows = 1;
    } else {
        kind(c, t->format, COL_F32, COL_Q4, name);
    }
    equal(c, t->rows, rows, name);
    equal(c, t->cols, cols, name);
    if (c->status == COLIBRI_OK) {
        const uint64_t bytes = col_tensor_bytes(t->format, rows, cols);
        equal(c, t->bytes, bytes, name);
        if (t->offset % 64u != 0u || t->offset > c->limit || bytes > c->limit - t->offset || t->reserved != 0u) {
            fail(c, COLIBRI_E_IMAGE_SECTION, name, t->offset, c->limit);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- tensors
 * What tensors there must be is a table: where each lies in the struct, and which two of the sizes are its shape. */

enum part_kind {
    MATRIX,   /* [rows][cols] */
    LINEAR,   /* [rows][cols], and a bias that may not exist */
    VECTOR,   /* [rows] */
    OPTIONAL, /* [rows], may not exist */
};

enum size {
    NONE, VOCAB, HIDDEN, LOW_RANK, QUERY_INPUT, QUERY, KEY, VALUE, QUERY_NORM, KEY_NORM, HEADS, ATTENDED, ABSORB_ROWS,
    ABSORB_COLS, EXPAND_ROWS, EXPAND_COLS, SCORED, EXPERTS, TABLE, SHARED, SHARED_OUT, EXPERT, EXPERT_OUT, SIZES
};

struct part {
    const char *name;
    uint16_t at; /* in the model or layer */
    uint8_t kind, rows, cols;
};

/* Each tensor as the table says; one with 0 rows must not exist. */
static void check_parts(struct check *c, const void *owner, const struct part *part, size_t count,
                        const uint32_t size[SIZES])
{
    for (; count > 0u; count--, part++) {
        const struct col_tensor *t = (const void *)((const uint8_t *)owner + part->at);
        const uint32_t rows = size[part->rows];
        if (part->kind >= VECTOR) {
            if (rows == 0u) {
                must_be_absent(c, t, part->name);
            } else if (part->kind == VECTOR || !absent(t)) {
                tensor(c, t, 0, rows, part->name);
            }
            continue;
        }
        const struct col_tensor *bias = t + 1;
        if (rows == 0u) {
            must_be_absent(c, t, part->name);
        } else {
            tensor(c, t, rows, size[part->cols], part->name);
        }
        if (part->kind == LINEAR && !absent(bias)) {
            if (rows == 0u) {
                must_be_absent(c, bias, part->name);
            } else {
                tensor(c, bias, 0, rows, part->name);
            }
        }
    }
}

#define PART(owner, member, name, kind, rows, cols) {name, offsetof(struct owner, member), kind, rows, cols}
#define PARTS(table) table, sizeof table / sizeof table[0]

static const struct part model_parts[] = {
    PART(col_model, embedding, "embedding", MATRIX, VOCAB, HIDDEN),
    PART(col_model, final_norm, "final norm", VECTOR, HIDDEN, NONE),
    PART(col_model, head, "head", LINEAR, VOCAB, HIDDEN),
};

static const struct part layer_parts[] = {
    PART(col_layer, attention.norm, "attention norm", VECTOR, HIDDEN, NONE),
    PART(col_layer, attention.query_down, "query down", LINEAR, LOW_RANK, HIDDEN),
    PART(col_layer, attention.query_down_norm, "query down norm", VECTOR, LOW_RANK, NONE),
    PART(col_layer, attention.query, "query", LINEAR, QUERY, QUERY_INPUT),
    PART(col_layer, attention.key, "key", LINEAR, KEY, HIDDEN),
    PART(col_layer, attention.value, "value", LINEAR, VALUE, HIDDEN),
    PART(col_layer, attention.query_norm, "query norm", VECTOR, QUERY_NORM, NONE),
    PART(col_layer, attention.key_norm, "key norm", VECTOR, KEY_NORM, NONE),
    PART(col_layer, attention.sinks, "sinks", OPTIONAL, HEADS, NONE),
    PART(col_layer, attention.output, "output", LINEAR, HIDDEN, ATTENDED),
    PART(col_layer, attention.absorb, "absorb", MATRIX, ABSORB_ROWS, ABSORB_COLS),
    PART(col_layer, attention.expand, "expand", MATRIX, EXPAND_ROWS, EXPAND_COLS),
    PART(col_layer, router.gate, "router", LINEAR, SCORED, HIDDEN),
    PART(col_layer, router.correction, "router correction", OPTIONAL, EXPERTS, NONE),
    PART(col_layer, router.integer_table, "integer table", VECTOR, TABLE, NONE),
    PART(col_layer, norm, "expert norm", VECTOR, HIDDEN, NONE),
    PART(col_layer, shared.gate, "gate", LINEAR, SHARED, HIDDEN),
    PART(col_layer, shared.up, "up", LINEAR, SHARED, HIDDEN),
    PART(col_layer, shared.down, "down", LINEAR, SHARED_OUT, SHARED),
};

static const struct part expert_parts[] = {
    PART(col_layer, expert.gate, "gate", LINEAR, EXPERT, HIDDEN),
    PART(col_layer, expert.up, "up", LINEAR, EXPERT, HIDDEN),
    PART(col_layer, expert.down, "down", LINEAR, EXPERT_OUT, EXPERT),
};

colibri_status col_check_model(struct col_image *image, struct colibri_detail *detail)
{
    struct check check = {.detail = detail, .limit = image->section[COL_SECTION_RESIDENT]->bytes};
    struct check *c = &check;
    const struct col_section *section = image->section[COL_SECTION_MODEL];
    equal(c, section->bytes, sizeof(struct col_model), "model");
    if (check.status != COLIBRI_OK) {
        return check.status;
    }
    const struct col_model *m = image->model = (const void *)(image->base + section->offset);
    range(c, m->vocab, 1, COL_MAX_VOCAB, "vocab");
    range(c, m->hidden, 1, COL_MAX_WIDTH, "hidden");
    range(c, m->layers, 1, COL_MAX_LAYERS, "layers");
    range(c, m->context_max, 1, COL_MAX_CONTEXT, "context");
    range(c, m->rotary_dim, 2, COL_MAX_WIDTH, "rotary_dim");
    range(c, m->eos_count, 0, COL_MAX_EOS, "eos count");
    kind(c, m->kv_format, COLIBRI_KV_IMAGE + 1, COL_KV_LAST, "kv format");
    equal(c, m->rotary_dim, m->rotary_dim + m->rotary_dim % 2u, "rotary_dim");
    number(c, m->norm_eps, true, "norm_eps");
    for (uint32_t i = 0; i < COL_MAX_EOS; i++) {
        if (i < m->eos_count ? m->eos[i] >= m->vocab : m->eos[i] != 0u) {
            wrong(c, "eos", m->eos[i], m->vocab);
        }
    }
    if (!col_name_ok(m->architecture, sizeof m->architecture) ||
        !col_name_ok(m->quantisation, sizeof m->quantisation)) {
        fail(c, COLIBRI_E_IMAGE_SECTION, "model", 1, 0);
    }
    zeros(c, m->reserved, 4, "model");
    const uint32_t size[SIZES] = {[VOCAB] = m->vocab, [HIDDEN] = m->hidden};
    check_parts(c, m, PARTS(model_parts), size);

    const struct col_section *rope = image->section[COL_SECTION_ROPE];
    const uint64_t table = (uint64_t)m->context_max * (m->rotary_dim / 2u);
    equal(c, rope->bytes, 2u * table * sizeof(float), "rope");
    if (check.status != COLIBRI_OK) {
        return check.status; /* no pointer is made of a size that is wrong */
    }
    image->cosines = (const void *)(image->base + rope->offset);
    image->sines = image->cosines + table;
    image->resident = image->base + image->section[COL_SECTION_RESIDENT]->offset;
    return check.status;
}

/* Heads and their dimensions; no product of them exceeds COL_MAX_WIDTH. */
static void check_heads(struct check *c, const struct col_image *image, const struct col_attention *a, bool latent)
{
    range(c, a->heads, 1, COL_MAX_WIDTH, "heads");
    if (c->status != COLIBRI_OK) {
        return;
    }
    const uint32_t widest = COL_MAX_WIDTH / a->heads;
    const uint32_t rotary = image->model->rotary_dim;
    range(c, a->kv_heads, 1, latent ? 1u : a->heads, "kv_heads");
    range(c, a->query_dim, 1, widest, "query_dim");
    range(c, a->head_dim, 1, widest, "head_dim");
    range(c, a->value_dim, 1, widest, "value_dim");
    range(c, a->output_dim, 1, widest, "output_dim");
    if (c->status != COLIBRI_OK) {
        return;
    }
    if (a->heads % a->kv_heads != 0u) {
        wrong(c, "kv_heads", a->kv_heads, a->heads);
    }
    if (a->rotary_dim != 0u) {
        equal(c, a->rotary_dim, rotary, "rotary_dim");
    }
    if (latent) {
        if (a->rotary_dim >= a->query_dim || a->rotary_dim >= a->head_dim) {
            wrong(c, "rotary_dim", a->rotary_dim, a->query_dim);
        }
        equal(c, a->value_dim, a->head_dim - a->rotary_dim, "value_dim");
    } else {
        range(c, a->rotary_dim, 0, a->head_dim, "rotary_dim");
        equal(c, a->query_dim, a->head_dim, "query_dim");
        equal(c, a->output_dim, a->value_dim, "output_dim");
    }
}

/* Fills the sizes that its tensors have. */
static void check_attention(struct check *c, struct col_image *image, const struct col_attention *a,
                            uint32_t size[SIZES])
{
    const bool latent = !absent(&a->absorb);
    check_heads(c, image, a, latent);
    number(c, a->scale, true, "attention scale");
    number(c, a->norm_eps, true, "norm_eps");
    number(c, a->qk_norm_eps, true, "qk_norm_eps");
    number(c, a->clip, a->clip != 0.0f, "clip");
    kind(c, a->qk_norm, COL_QK_NORM_NONE, latent ? COL_QK_NORM_LATENT : COL_QK_NORM_FULL, "qk_norm");
    zeros(c, a->reserved, 3, "layers");
    const bool low_rank = !absent(&a->query_down.weight);
    const uint32_t rank = low_rank ? a->query_down.weight.rows : size[HIDDEN];
    range(c, rank, 1, COL_MAX_WIDTH, "query down");
    if (c->status != COLIBRI_OK) {
        return;
    }
    const uint32_t query = a->heads * a->query_dim;
    const uint32_t key = a->kv_heads * a->head_dim;
    const uint32_t value = a->kv_heads * a->value_dim;
    size[LOW_RANK] = low_rank ? rank : 0u;
    size[QUERY_INPUT] = rank;
    size[QUERY] = query;
    size[KEY] = key;
    size[HEADS] = a->heads;
    size[ATTENDED] = a->heads * a->output_dim;
    switch (a->qk_norm) {
    case COL_QK_NORM_HEAD:
        size[QUERY_NORM] = a->query_dim;
        size[KEY_NORM] = a->head_dim;
        break;
    case COL_QK_NORM_FULL:
        size[QUERY_NORM] = query;
        size[KEY_NORM] = key;
        break;
    case COL_QK_NORM_LATENT:
        size[KEY_NORM] = a->value_dim;
        break;
    default:
        break;
    }
    if (latent) {
        size[ABSORB_ROWS] = a->heads * col_round_up(a->value_dim, COL_TILE_ROWS);
        size[ABSORB_COLS] = a->query_dim - a->rotary_dim;
        size[EXPAND_ROWS] = a->heads * col_round_up(a->output_dim, COL_TILE_ROWS);
        size[EXPAND_COLS] = a->value_dim;
    } else {
        size[VALUE] = value;
    }
    struct col_widths *w = &image->widest;
    w->rank = col_max(w->rank, size[LOW_RANK]);
    w->query = col_max(w->query, col_max(query, a->heads * a->head_dim));
    w->kv = col_max(w->kv, col_max(key, value));
    w->attended = col_max(w->attended, a->heads * col_max(a->value_dim, a->output_dim));
    const uint32_t head = col_max(col_max(a->query_dim, a->head_dim), col_max(a->value_dim, a->output_dim));
    w->head = col_max(w->head, latent ? head + COL_TILE_ROWS - 1u : head); /* products per head write whole tiles */
}

/* Fills the sizes that its tensors have. */
static void check_router(struct check *c, struct col_image *image, const struct col_router *r, uint32_t size[SIZES])
{
    if (r->experts == 0u) {
        if (!col_all_zero(&r->experts, sizeof *r / sizeof(uint32_t))) {
            wrong(c, "router", 1, 0);
        }
        return;
    }
    if (image->section[COL_SECTION_EXPERTS] == NULL) {
        fail(c, COLIBRI_E_IMAGE_SECTION, "experts", 0, r->experts);
    }
    range(c, r->experts, 1, COL_MAX_EXPERTS, "experts");
    range(c, r->top_k, 1, r->experts < COL_MAX_TOP_K ? r->experts : COL_MAX_TOP_K, "top_k");
    kind(c, r->score, COL_SCORE_LOGIT, COL_SCORE_HASH, "router score");
    range(c, r->normalise, 0, 1, "normalise");
    number(c, r->scale, true, "router scale");
    range(c, r->groups, 1, r->experts, "groups");
    range(c, r->top_groups, 1, r->groups, "top_groups");
    if (c->status != COLIBRI_OK) {
        return;
    }
    const bool grouped = r->groups > 1u;
    range(c, r->group_score, grouped ? COL_GROUP_MAX : 0u, grouped ? COL_GROUP_TOP_TWO : 0u, "group_score");
    const uint32_t group = r->experts / r->groups;
    if (r->experts % r->groups != 0u || r->top_k > r->top_groups * group ||
        (r->group_score == COL_GROUP_TOP_TWO && group < 2u)) {
        wrong(c, "groups", r->groups, r->experts);
    }
    /* The map must leave enough experts for the choice, whatever the prompt's length. */
    if ((r->map_first == 0u) != (r->map_tokens == 0u) || (grouped && r->map_first != 0u)) {
        wrong(c, "map_tokens", r->map_tokens, r->map_first);
    }
    range(c, r->map_first, r->map_first == 0u ? 0u : r->top_k, r->experts, "map_first");
    const bool hash = r->score == COL_SCORE_HASH;
    const bool integer = r->score == COL_SCORE_INTEGER;
    number(c, r->integer_scale, integer, "integer_scale");
    range(c, r->integer_shift, 0, integer ? COL_MAX_INTEGER_SHIFT : 0u, "integer_shift");
    number(c, r->smallest_sum, r->smallest_sum != 0.0f, "smallest_sum");
    zeros(c, r->reserved, 3, "layers");
    /* What has no scores can't correct or group them. */
    if ((hash || integer) && (grouped || !absent(&r->correction))) {
        fail(c, COLIBRI_E_IMAGE_UNSUPPORTED, "router score", r->score, COL_SCORE_SIGMOID);
    }
    size[SCORED] = hash ? 0u : r->experts;
    size[EXPERTS] = r->experts;
    size[TABLE] = integer ? 256u : 0u;
    image->widest.experts = col_max(image->widest.experts, r->experts);
    image->widest.top_k = col_max(image->widest.top_k, r->top_k);
}

colibri_status col_check_layer(struct col_image *image, const struct col_layer *l, struct colibri_detail *detail)
{
    struct check check = {.detail = detail, .limit = image->section[COL_SECTION_RESIDENT]->bytes};
    struct check *c = &check;
    uint32_t size[SIZES] = {[HIDDEN] = image->model->hidden};
    check_attention(c, image, &l->attention, size);
    check_router(c, image, &l->router, size);
    const bool experts = l->router.experts > 0u;
    range(c, l->shared_width, experts ? 0u : 1u, COL_MAX_WIDTH, "shared_width");
    range(c, l->expert_width, experts ? 1u : 0u, experts ? COL_MAX_WIDTH : 0u, "expert_width");
    if (check.status != COLIBRI_OK) {
        return check.status;
    }
    const uint64_t blobs = experts ? image->section[COL_SECTION_EXPERTS]->bytes : 0u;
    if (l->expert_bytes % COL_PAGE != 0u || l->expert_bytes > blobs || (l->expert_bytes == 0u) == experts) {
        wrong(c, "expert_bytes", l->expert_bytes, blobs);
    }
    kind(c, l->activation, COL_ACTIVATION_SWIGLU, COL_ACTIVATION_SWIGLU_CLAMPED, "activation");
    const bool clamped = l->activation == COL_ACTIVATION_SWIGLU_CLAMPED;
    number(c, l->limit, clamped, "limit");
    number(c, l->alpha, clamped, "alpha");
    zeros(c, l->reserved, 8, "layers");
    if (!experts && l->first_expert != 0u) {
        fail(c, COLIBRI_E_IMAGE_SECTION, "layers", 1, 0);
    }
    if (!absent(&l->shared_gate)) {
        range(c, l->shared_width, 1, COL_MAX_WIDTH, "shared gate");
        tensor(c, &l->shared_gate, 1, size[HIDDEN], "shared gate");
    }
    size[SHARED] = l->shared_width;
    size[SHARED_OUT] = l->shared_width > 0u ? size[HIDDEN] : 0u;
    size[EXPERT] = l->expert_width;
    size[EXPERT_OUT] = experts ? size[HIDDEN] : 0u;
    check_parts(c, l, PARTS(layer_parts), size);
    check.limit = l->expert_bytes;
    check_parts(c, l, PARTS(expert_parts), size);
    image->widest.ffn = col_max(image->widest.ffn, col_max(l->shared_width, l->expert_width));
    return check.status;
}
