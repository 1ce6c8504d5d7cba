/* SPDX-License-Identifier: Apache-2.0
 *
 * image_view.h: an image whose structure has been checked, as pointers into it. */
#ifndef COLIBRI_IMAGE_VIEW_H
#define COLIBRI_IMAGE_VIEW_H

#include "colibri.h"
#include "image.h"
#include "template.h"
#include "tokenizer.h"

/* Limits that keep every product of dimensions far inside 64 bits. */
#define COL_MAX_VOCAB (1u << 22)
#define COL_MAX_WIDTH (1u << 20)   /* hidden, heads * head_dim, expert_width */
#define COL_MAX_CONTEXT (1u << 22)
#define COL_MAX_LAYERS 4096u
#define COL_MAX_EXPERTS 65536u     /* of one layer */
#define COL_MAX_TOP_K 64u
#define COL_MAX_TOKEN_BYTES 65000u /* of one token's text */
#define COL_MAX_INTEGER_SHIFT 16u

#define COL_KV_LAST COLIBRI_KV_Q8

/* Where an expert lies that counts now: the packed one, or what replaced it. */
struct col_place {
    uint64_t offset;       /* from the image's start */
    uint32_t crc32;
    uint32_t generation;   /* 0: as packed */
    const uint8_t *digest; /* [32], in the image */
};

/* The largest dimensions over all layers, which size the buffers. */
struct col_widths {
    uint32_t rank;     /* rows of query_down */
    uint32_t query;    /* heads * the larger of query_dim and head_dim */
    uint32_t kv;       /* kv_heads * the larger of head_dim and value_dim */
    uint32_t attended; /* heads * the larger of value_dim and output_dim */
    uint32_t head;     /* one head's largest dimension; latent: and a tile's padding */
    uint32_t ffn;      /* shared_width and expert_width */
    uint32_t experts;  /* experts of one layer; 0: a dense model */
    uint32_t top_k;
};

struct col_image {
    const uint8_t *base;
    uint64_t bytes; /* that can be addressed: the whole image, or its front */
    bool front;     /* the experts can't be addressed: blobs is NULL */
    const struct col_header *header;
    const struct col_section *section[COL_SECTION_LAST + 1]; /* by kind; NULL: absent */
    const struct col_model *model;
    const struct col_layer *layer;   /* [model->layers] */
    const struct col_expert *expert; /* [expert_count]; NULL without any */
    uint32_t expert_count;
    const struct col_signature *signature;
    const struct col_update *update; /* [update_count]; NULL without experts */
    uint32_t update_count;
    uint32_t updates_copy;     /* 0 or 1: the copy that counts */
    uint64_t updates_sequence; /* its sequence; 0 without experts */
    const uint8_t *resident;
    const uint8_t *blobs;
    uint64_t blob_bytes;  /* of all experts as packed; spare places follow */
    uint64_t place_bytes; /* of one spare place: the largest expert_bytes */
    uint32_t spare_count;
    const float *cosines; /* [context_max][rotary_dim / 2] */
    const float *sines;   /* the same shape */
    bool has_tokenizer;
    struct col_tokenizer_view tokenizer;
    struct col_template_view chat;
    struct col_widths widest;
};

/* Checks the structure of an image, the checksums of its tables included, and fills *image. `bytes` is the length of
 * the whole image or of its front, what stands before the experts section. Touches the header page, the tables and
 * the tokenizer, not the weights. On failure *image is of no use. */
COLIBRI_MUST_CHECK colibri_status col_image_open(const void *base, uint64_t bytes, struct col_image *image,
                                                 struct colibri_detail *detail);

/* As far as the first page goes, which may be all that is there: checks the header and the directory of sections, and fills
 * of *image what they tell: `header`, `section`, `bytes` (of the whole image). `page` is aligned as an image. */
COLIBRI_MUST_CHECK colibri_status col_image_open_page(const void *page, struct col_image *image,
                                                      struct colibri_detail *detail);

/* Checks the contents of an opened image: every CRC-32, the zero bytes between sections, every scale and float
 * weight finite; of a front everything but the experts. Reads every byte once or twice. */
COLIBRI_MUST_CHECK colibri_status col_image_check_content(const struct col_image *image,
                                                          struct colibri_detail *detail);

/* Checks the numbers of one blob, as col_image_check_content does those of all: `blob` is one of the layer's experts. */
COLIBRI_MUST_CHECK colibri_status col_image_check_expert(const struct col_image *image, uint32_t layer,
                                                         const uint8_t *blob, struct colibri_detail *detail);

/* Checks the CRC-32 of one section that exists; those that have checksums of their own have 0 in the directory. */
COLIBRI_MUST_CHECK colibri_status col_image_check_section(const struct col_image *image, uint32_t kind,
                                                          struct colibri_detail *detail);

/* The place of entry `index` of the expert directory, after updates. */
void col_image_effective(const struct col_image *image, uint32_t index, struct col_place *place);

/* Whether a copy of the updates section, `copy_bytes` long, is whole and belongs to the image of that id. */
bool col_updates_whole(const struct col_update_head *copy, uint64_t copy_bytes, const uint8_t image_id[16]);

/* Whether an update can stand in the image's table, wherever its blob is to lie. */
bool col_update_ok(const struct col_image *image, const struct col_update *update);

/* Checks a table of updates against an image that is open but for its updates: each entry's expert, length, generation
 * and place, and the order. COLIBRI_E_IMAGE_EXPERT, detail "updates". */
COLIBRI_MUST_CHECK colibri_status col_updates_check(const struct col_image *image, const struct col_update *update,
                                                    uint32_t count, struct colibri_detail *detail);

#endif
