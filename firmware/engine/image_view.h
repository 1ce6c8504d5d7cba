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
    uint64_t bytes;
    const struct col_header *header;
    const struct col_section *section[COL_SECTION_CARD + 1]; /* by kind; NULL: absent */
    const struct col_model *model;
    const struct col_layer *layer;   /* [model->layers] */
    const struct col_expert *expert; /* [expert_count]; NULL without any */
    uint32_t expert_count;
    const uint8_t *resident;
    const uint8_t *blobs;
    const float *cosines; /* [context_max][rotary_dim / 2] */
    const float *sines;   /* the same shape */
    bool has_tokenizer;
    struct col_tokenizer_view tokenizer;
    struct col_template_view chat;
    struct col_widths widest;
};

/* Checks the structure of an image, the checksums of its tables included, and fills *image. Touches the header page,
 * the tables and the tokenizer, not the weights. On failure *image is of no use. */
COLIBRI_MUST_CHECK colibri_status col_image_open(const void *base, uint64_t bytes, struct col_image *image,
                                                 struct colibri_detail *detail);

/* Checks the contents of an opened image: every CRC-32, the zero bytes between sections, every scale and float
 * weight finite. Reads every byte once or twice. */
COLIBRI_MUST_CHECK colibri_status col_image_check_content(const struct col_image *image,
                                                          struct colibri_detail *detail);

/* Checks the CRC-32 of one section that exists. */
COLIBRI_MUST_CHECK colibri_status col_image_check_section(const struct col_image *image, uint32_t kind,
                                                          struct colibri_detail *detail);

#endif
