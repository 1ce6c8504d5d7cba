/* SPDX-License-Identifier: Apache-2.0
 *
 * image.h: every struct that lies in a Colibri image, and nothing else. docs/image-format.md explains it;
 * python_sdk/src/colibri_sdk/image/layout.py mirrors it, and a test compares the two through DWARF.
 *
 * Rules: little-endian; every struct has a static-asserted size and no implicit padding; sections start on pages;
 * reserved fields are zero and checked to be zero, so that a later version can give them a meaning. All offsets
 * are in bytes. The engine reads these structs in place: nothing is parsed and nothing is copied.
 */
#ifndef COLIBRI_IMAGE_H
#define COLIBRI_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#define COL_IMAGE_MAGIC "COLIBRI\x1a"
#define COL_FORMAT_VERSION 1u
#define COL_NUMERIC_VERSION 1u
#define COL_PAGE 4096u

#define COL_ASSERT_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " must have " #bytes " bytes")

/* ------------------------------------------------------------------ page 0: header, then the section directory */

struct col_header {
    uint8_t magic[8];         /* COL_IMAGE_MAGIC */
    uint32_t format_version;  /* COL_FORMAT_VERSION */
    uint32_t numeric_version; /* COL_NUMERIC_VERSION */
    uint64_t image_bytes;     /* the whole file, a multiple of COL_PAGE */
    uint32_t page_bytes;      /* COL_PAGE */
    uint32_t section_count;   /* entries of the directory that follows at byte 128 */
    uint8_t image_id[16];     /* first half of the SHA-256 over everything from byte 4096 on */
    char model_name[48];      /* UTF-8, NUL-padded, at least one NUL */
    uint32_t prng;            /* enum col_prng */
    uint32_t reserved[6];
    uint32_t header_crc32;    /* CRC-32 of page 0 with these four bytes as zero */
};
COL_ASSERT_SIZE(struct col_header, 128);

enum col_prng { COL_PRNG_SPLITMIX64 = 1 };

#define COL_MAX_SECTIONS ((COL_PAGE - 128u) / 64u)

/* Sections lie in the order of their kinds, each kind exactly once, the bytes between two sections are zero. */
enum col_section_kind {
    COL_SECTION_MODEL = 1,     /* one struct col_model */
    COL_SECTION_LAYERS = 2,    /* col_model.layers x struct col_layer */
    COL_SECTION_TOKENIZER = 3, /* struct col_tokenizer and its tables; absent in a model that takes ids only */
    COL_SECTION_TEMPLATE = 4,  /* struct col_template and its segments; absent together with the tokenizer */
    COL_SECTION_ROPE = 5,      /* cosines, then sines: 2 x [context_max][rotary_dim / 2] binary32 */
    COL_SECTION_RESIDENT = 6,  /* weights that every token uses */
    COL_SECTION_EXPERT_DIR = 7,/* struct col_expert for each expert of each layer; absent in a model without any */
    COL_SECTION_EXPERTS = 8,   /* the experts' blobs; its CRC-32 is 0, each expert has its own */
    COL_SECTION_CARD = 9       /* UTF-8 JSON for people and tools; the engine checks its CRC and reads nothing */
};

struct col_section {
    char name[16];      /* "model", "layers", "tokenizer", "template", "rope", "resident", "expert-dir", "experts",
                           "card": NUL-padded, for messages */
    uint32_t kind;      /* enum col_section_kind */
    uint32_t crc32;     /* over `bytes` bytes from `offset` */
    uint64_t offset;    /* from the image's start, a multiple of COL_PAGE */
    uint64_t bytes;     /* exact length, not rounded up to a page */
    uint32_t reserved[6];
};
COL_ASSERT_SIZE(struct col_section, 64);

/* ------------------------------------------------------------------------------------------------------- tensors */

/* A matrix is [rows][cols]: `rows` outputs, `cols` inputs. It is stored in tiles of COL_TILE_ROWS rows; the last
 * tile's missing rows are zero. Tiles of one row group follow each other along the columns, then the next row group.
 * A vector is `rows` = 1, format COL_F32_VECTOR, `cols` plain binary32 values. */
enum col_format {
    COL_F32_VECTOR = 1, /* float[cols] */
    COL_F32 = 2,        /* per row group: float[cols][8] */
    COL_F16 = 3,        /* per row group: binary16[cols][8] */
    COL_Q8 = 4,         /* per row group: struct col_tile_q8[ceil(cols / 32)]; missing columns are zero */
    COL_Q4 = 5          /* per row group: struct col_tile_q4[ceil(cols / 32)]; missing columns are the nibble 8 */
};

#define COL_TILE_ROWS 8u
#define COL_BLOCK 32u

/* 8 rows x 32 columns of int8. Group g holds columns 4g .. 4g+3 of each row: q[g][4 * row + c] is column 4g + c.
 * The weight's value is (float)q * scale[row]. Every int8 value is allowed, -128 too. */
struct col_tile_q8 {
    uint16_t scale[COL_TILE_ROWS]; /* binary16, finite */
    int8_t q[8][COL_BLOCK];
};
COL_ASSERT_SIZE(struct col_tile_q8, 272);

/* The same in nibbles. q[p][4 * row + c] holds column 8p + c in its low nibble and column 8p + 4 + c in its high
 * nibble, that is groups 2p and 2p + 1 of the int8 tile. The weight's value is (float)(nibble - 8) * scale[row]. */
struct col_tile_q4 {
    uint16_t scale[COL_TILE_ROWS]; /* binary16, finite */
    uint8_t q[4][COL_BLOCK];
};
COL_ASSERT_SIZE(struct col_tile_q4, 144);

struct col_tensor {
    uint64_t offset;  /* from the start of its section (resident) or of its expert's blob; a multiple of 64 */
    uint64_t bytes;   /* exact, follows from format, rows and cols */
    uint32_t rows;
    uint32_t cols;
    uint32_t format;  /* enum col_format; 0 with all other fields 0: the tensor does not exist */
    uint32_t reserved;
};
COL_ASSERT_SIZE(struct col_tensor, 32);

/* --------------------------------------------------------------------------------------------- model and layers */

#define COL_MAX_EOS 4u

struct col_model {
    char architecture[40];   /* the checkpoint's class, e.g. "MixtralForCausalLM"; for people only */
    char quantisation[24];   /* e.g. "q8"; for people only */
    uint32_t vocab;          /* rows of embedding and head */
    uint32_t hidden;         /* width of the residual stream */
    uint32_t layers;
    uint32_t context_max;    /* rows of the rotary tables, the largest context */
    uint32_t rotary_dim;     /* dimensions of a head that rotate, even, at most head_dim */
    uint32_t kv_format;      /* enum colibri_kv_format, not 0 */
    float norm_eps;          /* of the final norm */
    uint32_t eos_count;      /* at most COL_MAX_EOS */
    uint32_t eos[COL_MAX_EOS];
    uint32_t reserved[4];
    struct col_tensor embedding;  /* [vocab][hidden], any matrix format */
    struct col_tensor final_norm; /* [hidden] */
    struct col_tensor head;       /* [vocab][hidden]; may name the embedding's bytes (tied) */
};
COL_ASSERT_SIZE(struct col_model, 224);

/* How a layer chooses its experts. All ties go to the lower expert index. */
enum col_router_kind {
    COL_ROUTER_TOPK_SOFTMAX = 1 /* the top_k largest logits, softmax over these (equal to a softmax over all that is
                                   renormalised over the chosen) */
};

struct col_layer {
    uint32_t heads;        /* query heads */
    uint32_t kv_heads;     /* key/value heads; heads is a multiple of it */
    uint32_t head_dim;
    float attention_scale; /* factor on query . key */
    float norm_eps;        /* of both norms */
    uint32_t router_kind;  /* enum col_router_kind */
    uint32_t experts;
    uint32_t top_k;        /* 1 .. experts */
    uint32_t expert_width; /* rows of gate and up, columns of down */
    uint32_t first_expert; /* index of expert 0 of this layer in the expert directory */
    uint64_t expert_bytes; /* length of each expert's blob in this layer, a multiple of COL_PAGE */
    uint32_t reserved[4];
    struct col_tensor attention_norm; /* [hidden] */
    struct col_tensor query;          /* [heads * head_dim][hidden] */
    struct col_tensor key;            /* [kv_heads * head_dim][hidden] */
    struct col_tensor value;          /* [kv_heads * head_dim][hidden] */
    struct col_tensor output;         /* [hidden][heads * head_dim] */
    struct col_tensor expert_norm;    /* [hidden] */
    struct col_tensor router;         /* [experts][hidden] */
    struct col_tensor gate;           /* in each expert's blob: [expert_width][hidden] */
    struct col_tensor up;             /* in each expert's blob: [expert_width][hidden] */
    struct col_tensor down;           /* in each expert's blob: [hidden][expert_width] */
};
COL_ASSERT_SIZE(struct col_layer, 384);

struct col_expert {
    uint64_t offset;     /* of the blob, from the start of the experts section; a multiple of COL_PAGE */
    uint64_t bytes;      /* equals the layer's expert_bytes */
    uint32_t crc32;      /* over the blob */
    uint32_t generation; /* counts replacements; 0 when packed */
    uint32_t layer;
    uint32_t expert;
};
COL_ASSERT_SIZE(struct col_expert, 32);

/* ------------------------------------------------------------------------------------------------------ tokenizer */

enum col_tokenizer_kind { COL_TOKENIZER_BYTE_BPE = 1 };
enum col_pretokenizer { COL_PRETOKENIZER_GPT2 = 1 }; /* the byte-level split of GPT-2 */

/* Unicode classes that the pre-tokeniser tells apart. */
enum col_char_class { COL_CLASS_OTHER = 0, COL_CLASS_LETTER = 1, COL_CLASS_NUMBER = 2, COL_CLASS_SPACE = 3 };

/* Head of the tokenizer section. Offsets are from the section's start. The tables lie in the order of their offsets
 * below, each at the first multiple of 8 after the one before; the section ends with the last. */
struct col_tokenizer {
    uint32_t kind;          /* enum col_tokenizer_kind */
    uint32_t pretokenizer;  /* enum col_pretokenizer */
    uint32_t vocab;         /* equals col_model.vocab or is smaller (padded embeddings) */
    uint32_t merge_slots;   /* power of two, more than merge_count */
    uint32_t merge_count;   /* slots in use; ranks are below it */
    uint32_t class_count;   /* ranges in the class table, at least 1 */
    uint32_t max_token_bytes; /* longest text of any token, special ones included */
    uint32_t text_bytes;    /* length of the token text pool */
    uint32_t byte_ids;      /* offset: uint32_t[256], the token of each byte */
    uint32_t token_offsets; /* offset: uint32_t[vocab + 1] into the pool; ascending */
    uint32_t token_flags;   /* offset: uint8_t[vocab], COL_TOKEN_* */
    uint32_t token_text;    /* offset: uint8_t[text_bytes] */
    uint32_t merges;        /* offset: struct col_merge[merge_slots], open addressing, see col_merge_hash */
    uint32_t classes;       /* offset: uint32_t[class_count], first code point << 8 | class; ascending from 0 */
    uint32_t reserved[2];
};
COL_ASSERT_SIZE(struct col_tokenizer, 64);

#define COL_TOKEN_SPECIAL 1u /* gives no text and never comes from text; the pool holds its name for tools */

/* One merge: tokens left and right become `merged`; lower rank first. Empty slot: rank COL_NO_RANK. */
struct col_merge {
    uint32_t left;
    uint32_t right;
    uint32_t rank;
    uint32_t merged;
};
COL_ASSERT_SIZE(struct col_merge, 16);
#define COL_NO_RANK 0xffffffffu

/* Slot at which the search for a pair starts; go up by one, modulo merge_slots, to an empty slot. All in uint32. */
static inline uint32_t col_merge_hash(uint32_t left, uint32_t right, uint32_t slots)
{
    uint32_t h = left * 0x9e3779b1u ^ right * 0x85ebca6bu;
    h ^= h >> 15;
    h *= 0xc2b2ae35u;
    h ^= h >> 13;
    return h & (slots - 1u);
}

/* ------------------------------------------------------------------------------------------------- chat template */

/* The chat template, rendered by the packer for one user turn. Text between two special tokens is tokenised as one
 * piece, the user's part included, so that the result equals tokenising the rendered whole. */
enum col_segment_kind {
    COL_SEGMENT_TOKEN = 1, /* `value` is a token id */
    COL_SEGMENT_TEXT = 2,  /* `value` is an offset from the section's start, `bytes` its length */
    COL_SEGMENT_USER = 3   /* the user's text stands here; exactly once; `value` is COL_USER_* */
};

#define COL_USER_TRIM 1u            /* the template strips white space from both ends of the user's text */
#define COL_TEMPLATE_MAX_TEXT 65536u /* longest text segment, in bytes */

struct col_segment {
    uint32_t kind;  /* enum col_segment_kind */
    uint32_t value;
    uint32_t bytes; /* of a text; 0 for the other kinds */
    uint32_t reserved;
};
COL_ASSERT_SIZE(struct col_segment, 16);

struct col_template {
    uint32_t segment_count; /* at least 1; the segments follow this struct, then their texts in the same order without
                               gaps to the section's end; no two segments of text follow each other */
    uint32_t reserved[3];
};
COL_ASSERT_SIZE(struct col_template, 16);

#endif
