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
#include <stdbool.h>
#include <stdint.h>

#define COL_IMAGE_MAGIC "COLIBRI\x1a"
#define COL_FORMAT_VERSION 2u
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
    uint8_t image_id[16];     /* first half of the SHA-256 over everything from byte 4096 to the signature section */
    char model_name[48];      /* UTF-8, NUL-padded, at least one NUL */
    uint32_t prng;            /* enum col_prng */
    uint32_t reserved[6];
    uint32_t header_crc32;    /* CRC-32 of page 0 with these four bytes as zero */
};
COL_ASSERT_SIZE(struct col_header, 128);

enum col_prng { COL_PRNG_SPLITMIX64 = 1 };

#define COL_MAX_SECTIONS ((COL_PAGE - 128u) / 64u)

/* Sections lie in the order of their kinds, each kind at most once, the bytes between two sections are zero.
 *
 * Two stretches from byte 0 on have names. What stands before the signature is *signed*: it states everything else, the
 * experts through their digests. What stands before the experts is the *front*, which a device reads once and keeps. */
enum col_section_kind {
    COL_SECTION_MODEL = 1,      /* one struct col_model */
    COL_SECTION_LAYERS = 2,     /* col_model.layers x struct col_layer */
    COL_SECTION_TOKENIZER = 3,  /* struct col_tokenizer and its tables; absent in a model that takes ids only */
    COL_SECTION_TEMPLATE = 4,   /* struct col_template and its segments; absent together with the tokenizer */
    COL_SECTION_ROPE = 5,       /* cosines, then sines: 2 x [context_max][rotary_dim / 2] binary32 */
    COL_SECTION_RESIDENT = 6,   /* weights that every token uses */
    COL_SECTION_EXPERT_DIR = 7, /* struct col_expert for each expert of each layer; absent in a model without any */
    COL_SECTION_CARD = 8,       /* UTF-8 JSON for people and tools; the engine checks its CRC and reads nothing */
    COL_SECTION_SIGNATURE = 9,  /* one struct col_signature; its CRC-32 in the directory is 0, it has its own */
    COL_SECTION_UPDATES = 10,   /* two copies of the table of replaced experts, each with checksums; absent with 7 */
    COL_SECTION_EXPERTS = 11    /* the experts' blobs, each with a checksum, then spare places; absent with 7 */
};
#define COL_SECTION_LAST COL_SECTION_EXPERTS

struct col_section {
    char name[16];      /* "model", "layers", "tokenizer", "template", "rope", "resident", "expert-dir", "card",
                           "signature", "updates", "experts": NUL-padded, for messages */
    uint32_t kind;      /* enum col_section_kind */
    uint32_t crc32;     /* over `bytes` bytes from `offset`; 0 where the section has checksums of its own */
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

/* weight x + bias; the bias, a vector as long as the weight has rows, may not exist. */
struct col_linear {
    struct col_tensor weight;
    struct col_tensor bias;
};
COL_ASSERT_SIZE(struct col_linear, 64);

/* ------------------------------------------------------------------------------------------------------- the model */

#define COL_MAX_EOS 4u

struct col_model {
    char architecture[40];   /* the checkpoint's class, e.g. "MixtralForCausalLM"; for people only */
    char quantisation[24];   /* e.g. "q8"; for people only */
    uint32_t vocab;          /* rows of embedding and head */
    uint32_t hidden;         /* width of the residual stream */
    uint32_t layers;
    uint32_t context_max;    /* rows of the rotary tables, the largest context */
    uint32_t rotary_dim;     /* columns of the rotary tables are half of it; even */
    uint32_t kv_format;      /* enum colibri_kv_format, not 0 */
    float norm_eps;          /* of the final norm */
    uint32_t eos_count;      /* at most COL_MAX_EOS */
    uint32_t eos[COL_MAX_EOS];
    uint32_t reserved[4];
    struct col_tensor embedding;  /* [vocab][hidden], any matrix format */
    struct col_tensor final_norm; /* [hidden] */
    struct col_linear head;       /* [vocab][hidden]; may name the embedding's bytes (tied) */
};
COL_ASSERT_SIZE(struct col_model, 256);

/* A layer is a description, not a name: the engine does what it says and knows no architecture. Whatever can be put
 * into the weights when packing (multipliers, the order of rotating dimensions) is there and not here. */

/* Normalisation of queries and keys before they rotate: RMSNorm with a weight. */
enum col_qk_norm {
    COL_QK_NORM_NONE = 0,
    COL_QK_NORM_HEAD = 1,  /* over each head; weights are [query_dim] and [head_dim] */
    COL_QK_NORM_FULL = 2,  /* over all heads together; weights are [heads * query_dim] and [kv_heads * head_dim] */
    COL_QK_NORM_LATENT = 3 /* over the latent part of the key only; the query's weight does not exist */
};

/* Grouped-query attention, and multi-head latent attention as a form of it: there, one cached vector of each position
 * serves all heads as key and, from its dimension rotary_dim on, as value. */
struct col_attention {
    uint32_t heads;       /* query heads */
    uint32_t kv_heads;    /* key/value heads; heads is a multiple of it; latent: 1 */
    uint32_t query_dim;   /* per head, that `query` gives */
    uint32_t head_dim;    /* per head, of the cached key; equals query_dim unless latent */
    uint32_t value_dim;   /* per head, of the cached value; latent: head_dim - rotary_dim */
    uint32_t output_dim;  /* per head, that `output` takes; equals value_dim unless latent */
    uint32_t rotary_dim;  /* leading dimensions of a head that rotate: 0 or col_model.rotary_dim */
    uint32_t window;      /* positions that a token sees, itself included; 0: all before it */
    uint32_t qk_norm;     /* enum col_qk_norm */
    float scale;          /* factor on query . key */
    float norm_eps;       /* of both norms of this layer's inputs */
    float qk_norm_eps;    /* of query_down_norm, query_norm and key_norm */
    float clip;           /* queries, keys and values are clamped to +-clip, behind qk_norm; 0: not */
    uint32_t reserved[3];
    struct col_tensor norm;            /* [hidden]: of the layer's input */
    struct col_linear query_down;      /* may not exist: [rank][hidden]; then `query` takes its normalised output */
    struct col_tensor query_down_norm; /* [rank], exists together with query_down */
    struct col_linear query;           /* [heads * query_dim][hidden or rank] */
    struct col_linear key;             /* [kv_heads * head_dim][hidden] */
    struct col_linear value;           /* [kv_heads * value_dim][hidden]; latent: does not exist */
    struct col_tensor query_norm;      /* see qk_norm */
    struct col_tensor key_norm;
    struct col_tensor sinks;           /* may not exist: [heads], a logit that takes part in the softmax and has no value */
    struct col_tensor absorb;          /* latent only: per head [value_dim][query_dim - rotary_dim], heads one below the other,
                                          each from a tile on, so that its rows are padded to a multiple of COL_TILE_ROWS:
                                          what turns the query's rest into the latent space */
    struct col_tensor expand;          /* latent only: per head [output_dim][value_dim], in the same way: what turns the
                                          attended latent into the head's output */
    struct col_linear output;          /* [hidden][heads * output_dim] */
};
COL_ASSERT_SIZE(struct col_attention, 608);

/* How a layer chooses its experts. Scores come from the router's logits; the choice is made by score + correction;
 * the weights are the scores of the chosen. All ties go to the lower index. */
enum col_router_score {
    COL_SCORE_LOGIT = 1,   /* the logit itself; the weights are a softmax over the chosen */
    COL_SCORE_SOFTMAX = 2, /* softmax over all experts */
    COL_SCORE_SIGMOID = 3, /* 1 / (1 + exp(-logit)) */
    COL_SCORE_INTEGER = 4, /* as COL_SCORE_LOGIT in integers: each logit's distance below the largest is rounded to steps of
                              1 / integer_scale, fine enough that nearly no two experts tie, and ends at 2^22 steps; the
                              softmax is looked up in integer_table, whose entries are 2^integer_shift steps apart, with
                              straight lines between; weights are Q16.16 */
    COL_SCORE_HASH = 5     /* no logits: choice i of a token is expert ((col_token_hash(id, i) % experts) ^ layer) % experts, or the
                              next free one above it (modulo experts); all weights are 1 / top_k */
};

/* Spreads token ids: the finaliser of MurmurHash3 over id and the number of the choice. */
static inline uint32_t col_token_hash(uint32_t id, uint32_t choice)
{
    uint32_t h = id + choice * 0x9e3779b9u;
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    h ^= h >> 16;
    return h;
}

enum col_group_score {
    COL_GROUP_MAX = 1,    /* a group is worth its best expert */
    COL_GROUP_TOP_TWO = 2 /* the sum of its two best */
};

struct col_router {
    uint32_t experts;       /* 0: the layer has none, all other fields are 0 then */
    uint32_t top_k;         /* 1 .. experts */
    uint32_t score;         /* enum col_router_score */
    uint32_t normalise;     /* 1: the weights are divided by their sum */
    float scale;            /* factor on the weights, after that; finite, not 0 */
    uint32_t groups;        /* the experts stand in so many equal groups ... */
    uint32_t top_groups;    /* ... of which so many are open to the choice; both 1: no groups */
    uint32_t group_score;   /* enum col_group_score; 0 without groups */
    uint32_t map_first;     /* dynamic expert map: with a prompt of n tokens, experts 0 .. map_first + n / map_tokens - 1 */
    uint32_t map_tokens;    /* are in use; both 0: all are */
    float integer_scale;    /* COL_SCORE_INTEGER: steps per unit of logit; else 0 */
    uint32_t integer_shift; /* COL_SCORE_INTEGER: see integer_table, at most COL_MAX_INTEGER_SHIFT; else 0 */
    float smallest_sum;     /* that weights are divided by, with `normalise`; 0: 1e-20 */
    uint32_t reserved[3];
    struct col_linear gate;           /* [experts][hidden]; COL_SCORE_HASH: does not exist */
    struct col_tensor correction;     /* may not exist: [experts] */
    struct col_tensor integer_table;  /* COL_SCORE_INTEGER: [256], entry i is 65536 exp(-i 2^integer_shift / integer_scale)
                                         rounded; else does not exist */
};
COL_ASSERT_SIZE(struct col_router, 192);

enum col_activation_kind {
    COL_ACTIVATION_SWIGLU = 1,        /* silu(gate) * up */
    COL_ACTIVATION_SWIGLU_CLAMPED = 2 /* g = min(gate, limit), u = clamp(up, -limit, limit): g sigmoid(alpha g) (u + 1) */
};

/* One feed-forward block: down(activation(gate(x), up(x))). */
struct col_ffn {
    struct col_linear gate; /* [width][hidden] */
    struct col_linear up;   /* [width][hidden] */
    struct col_linear down; /* [hidden][width] */
};
COL_ASSERT_SIZE(struct col_ffn, 192);

struct col_layer {
    struct col_attention attention;
    struct col_router router;
    uint32_t activation;     /* enum col_activation_kind, of all blocks of the layer */
    float limit;             /* COL_ACTIVATION_SWIGLU_CLAMPED, else 0 */
    float alpha;             /* COL_ACTIVATION_SWIGLU_CLAMPED, else 0 */
    uint32_t shared_width;   /* rows of shared.gate; 0: no block that every token takes */
    uint32_t expert_width;   /* rows of expert.gate; 0 without experts */
    uint32_t first_expert;   /* index of expert 0 of this layer in the expert directory */
    uint64_t expert_bytes;   /* length of each expert's blob in this layer, a multiple of COL_PAGE; 0 without experts */
    uint32_t reserved[8];
    struct col_tensor norm;        /* [hidden]: of the feed-forward part's input */
    struct col_tensor shared_gate; /* may not exist: [1][hidden]; the shared block is weighted by its sigmoid */
    struct col_ffn shared;         /* resident: the shared experts, or the one block of a dense layer */
    struct col_ffn expert;         /* in each expert's blob */
};
COL_ASSERT_SIZE(struct col_layer, 1312);

/* An expert as it was packed. Blobs follow each other in the order of the directory, without gaps. */
struct col_expert {
    uint64_t offset;    /* of the blob, from the start of the experts section: the sum of `bytes` of all entries before */
    uint64_t bytes;     /* equals the layer's expert_bytes */
    uint32_t crc32;     /* over the blob */
    uint32_t pin;       /* 0: not pinned; else its place in the order in which the layer's experts stay cached, from 1 */
    uint32_t layer;
    uint32_t expert;
    uint8_t digest[32]; /* BLAKE2b-256 of the blob */
};
COL_ASSERT_SIZE(struct col_expert, 64);

/* ----------------------------------------------------------------------------------------- signature and updates */

#define COL_SIGNATURE_MAGIC "COLISIG\x1a"
#define COL_SIGNATURE_VERSION 1u

enum col_signature_algorithm {
    COL_SIGNATURE_NONE = 0, /* unsigned: all fields but magic, version and crc32 are zero */
    COL_SIGNATURE_EDDSA = 1 /* EdDSA on Curve25519 with BLAKE2b (crypto_eddsa_sign of Monocypher) */
};

/* Who vouches for the bytes before this section. */
struct col_signature {
    uint8_t magic[8];      /* COL_SIGNATURE_MAGIC */
    uint32_t version;      /* COL_SIGNATURE_VERSION */
    uint32_t algorithm;    /* enum col_signature_algorithm */
    uint64_t counter;      /* a device refuses what is below the highest one that it has confirmed */
    char board[32];        /* the only board that may run this; NUL-padded; empty: any */
    uint8_t key_id[16];    /* first half of the BLAKE2b-256 of the public key */
    uint8_t digest[64];    /* BLAKE2b-512 over everything from byte 0 to this section */
    uint8_t signature[64]; /* over the COL_SIGNED_BYTES bytes of this struct that stand before */
    uint32_t reserved[13];
    uint32_t crc32;        /* over the 252 bytes before */
};
COL_ASSERT_SIZE(struct col_signature, 256);
#define COL_SIGNED_BYTES 136u

/* The updates section: two copies of the same length, a multiple of COL_PAGE, so that one can be written while the other
 * counts. Each is a struct col_update_head and `count` entries; what follows means nothing. The copy that is whole and
 * has the higher sequence counts; the packer writes copy 0 with sequence 1 and no entry, and copy 1 as zeros. */
#define COL_UPDATES_MAGIC "COLIUPD\x1a"
#define COL_MAX_UPDATES 1022u /* as many as 64 pages hold */

struct col_update_head {
    uint8_t magic[8];       /* COL_UPDATES_MAGIC */
    uint64_t sequence;      /* at least 1 */
    uint32_t count;
    uint32_t entries_crc32; /* over the entries */
    uint8_t image_id[16];   /* the header's */
    uint32_t reserved[117];
    uint32_t crc32;         /* over the 508 bytes before */
};
COL_ASSERT_SIZE(struct col_update_head, 512); /* one sector, the smallest that storage writes */

/* An expert that replaces the packed one. Entries ascend by layer, then by expert; one for each expert. Without a
 * signature, key_id and signature are zero. */
struct col_update {
    uint64_t offset;       /* of its place, from the start of the experts section; the device's choice, not signed */
    uint64_t bytes;        /* equals the layer's expert_bytes */
    uint32_t layer;
    uint32_t expert;
    uint32_t generation;   /* counts the expert's replacements, from 1; as packed it has 0 */
    uint32_t crc32;        /* over the blob */
    uint64_t counter;      /* as in struct col_signature */
    char board[32];        /* as in struct col_signature */
    uint8_t image_id[16];  /* of the image that this is made for */
    uint8_t digest[32];    /* BLAKE2b-256 of the blob */
    uint8_t key_id[16];    /* as in struct col_signature */
    uint8_t signature[64]; /* over the COL_UPDATE_SIGNED_BYTES bytes of this struct from `bytes` to key_id */
    uint32_t reserved[14];
};
COL_ASSERT_SIZE(struct col_update, 256);
#define COL_UPDATE_SIGNED_BYTES 128u

/* ------------------------------------------------------------------------------------------------------ tokenizer */

enum col_tokenizer_kind {
    COL_TOKENIZER_BYTE_BPE = 1, /* byte-level byte-pair encoding: pairs merge, beginning with single bytes */
    COL_TOKENIZER_CHAR_BPE = 2, /* SentencePiece's: pairs merge, beginning with characters; a space is one of them */
    COL_TOKENIZER_UNIGRAM = 3   /* SentencePiece's: the tokens whose scores have the greatest sum */
};

/* What texts of kinds 2 and 3 begin with: a space of the tokenizer's own. */
enum col_space_prefix {
    COL_PREFIX_NONE = 0,
    COL_PREFIX_EACH = 1,    /* each text between two added or special tokens */
    COL_PREFIX_MISSING = 2, /* each piece that has no space in front already */
    COL_PREFIX_FIRST = 3    /* as MISSING, but only at the very beginning of the input */
};

/* What becomes of that space when ids are turned into text again. */
enum col_space_strip {
    COL_STRIP_NONE = 0,
    COL_STRIP_ONE = 1,  /* one space in front of the text of all ids is left out */
    COL_STRIP_TOKEN = 2 /* all spaces in front of the first id's text are left out */
};

#define COL_TOKENIZER_WHOLE 1u  /* a piece that is a token is not cut (ignore_merges); needs `sorted` */
#define COL_TOKENIZER_FUSE 2u   /* unknown characters beside each other are one unknown token */
#define COL_TOKENIZER_SINGLE 4u /* SentencePiece's sums of scores: the best so far is rounded to binary32; `late` tokens
                                   have scores as well and are not cut out before */

/* How a text is rewritten by rules, each of which has something else stand for what it finds; instead of normal forms. */
#define COL_REWRITE_RULES 1u    /* at all: the rules, if there are any, and what follows here */
#define COL_REWRITE_CLUSTERS 2u /* a rule takes a whole grapheme cluster below COL_SHORT_CLUSTER bytes, or else one
                                   character; without: the longest text at a place that any rule is for */
#define COL_REWRITE_KEEP 4u     /* texts of `late` tokens stay; U+2581 becomes a space */
#define COL_REWRITE_COLLAPSE 8u /* spaces behind a space are left out */
#define COL_REWRITE_TRIM 16u    /* spaces at the text's beginning and end are left out */
#define COL_REWRITE_TRIM_END 32u /* all white space at the text's end is */
#define COL_REWRITE_PREFIX 64u  /* a space goes before the first text of what is tokenised at once */
#define COL_SHORT_CLUSTER 6u
#define COL_MAX_RULE_BYTES 64u  /* longest text that a rule is for */

/* Head of the tokenizer section. Offsets are from the section's start. The tables lie in the order of their offsets
 * below, each at the first multiple of 8 after the one before; the section ends with the last. A table whose count is 0
 * has no bytes. Kinds 2 and 3 spell the space U+2581 in token texts as a space. */
struct col_tokenizer {
    uint32_t kind;            /* enum col_tokenizer_kind */
    uint32_t flags;           /* COL_TOKENIZER_* */
    uint32_t prefix;          /* enum col_space_prefix; NONE for kind 1 */
    uint32_t strip;           /* enum col_space_strip; NONE for kind 1 */
    uint32_t vocab;           /* equals col_model.vocab or is smaller (padded embeddings) */
    uint32_t unknown;         /* token of what has no other, or COL_NO_TOKEN */
    uint32_t max_token_bytes; /* longest text of any token, special ones included */
    uint32_t text_bytes;      /* length of the token text pool */
    uint32_t byte_count;      /* 256, or 0 where characters without a token are unknown */
    uint32_t merge_slots;     /* power of two, more than merge_count; kind 3: 0 */
    uint32_t merge_count;     /* slots in use; ranks are below it */
    uint32_t score_count;     /* vocab for kind 3, else 0 */
    uint32_t sorted_count;    /* tokens that are looked up by their text */
    uint32_t early_count;     /* tokens that are found in a text before it is normalised */
    uint32_t late_count;      /* those that are found afterwards */
    uint32_t class_count;     /* ranges in the class table, at least 1 */
    uint32_t classes_used;    /* classes are below it; at most 255 */
    uint32_t first_space;     /* from this class on characters are white space */
    uint32_t split_count;     /* at most COL_MAX_SPLITS */
    uint32_t move_count;
    uint32_t decomposition_count; /* 0: texts are not normalised */
    uint32_t composition_count;
    uint32_t order_count;
    uint32_t point_count;
    uint32_t rewrite;         /* COL_REWRITE_*; 0 where there are decompositions */
    uint32_t rule_count;      /* units of the trie of rules */
    uint32_t rule_bytes;      /* what they have stand for texts, each ends with a zero byte */
    uint32_t first_word;      /* from this class to first_space characters are parts of words */
    uint32_t byte_ids;        /* offset: uint32_t[byte_count], the token of each byte */
    uint32_t token_offsets;   /* offset: uint32_t[vocab + 1] into the pool; ascending */
    uint32_t token_flags;     /* offset: uint8_t[vocab], COL_TOKEN_* */
    uint32_t token_text;      /* offset: uint8_t[text_bytes] */
    uint32_t merges;          /* offset: struct col_merge[merge_slots], open addressing, see col_merge_hash */
    uint32_t scores;          /* offset: double[score_count] */
    uint32_t sorted;          /* offset: uint32_t[sorted_count], tokens, their texts strictly ascending byte by byte */
    uint32_t early;           /* offset: uint32_t[early_count], the same */
    uint32_t late;            /* offset: uint32_t[late_count], the same */
    uint32_t classes;         /* offset: uint32_t[class_count], first code point << 8 | class; ascending from 0 */
    uint32_t splits;          /* offset: uint32_t[split_count], states of each split, at most COL_MAX_SPLIT_STATES */
    uint32_t moves;           /* offset: uint16_t[move_count], for each split [states][classes_used + 1]: next state,
                                 and COL_SPLIT_MATCH where a match ends before the character; the last column is the
                                 text's end and leads to state 0, where nothing more matches; a match begins in state 1 */
    uint32_t decompositions;  /* offset: struct col_decomposition[decomposition_count], code points ascending */
    uint32_t compositions;    /* offset: struct col_composition[composition_count], ascending by first, then second */
    uint32_t orders;          /* offset: uint32_t[order_count], first code point << 8 | canonical combining class;
                                 ascending from 0 */
    uint32_t points;          /* offset: uint32_t[point_count], code points that decompositions consist of */
    uint32_t rules;           /* offset: uint32_t[rule_count], see col_rule_label */
    uint32_t rule_text;       /* offset: uint8_t[rule_bytes] */
    uint32_t reserved[2];
};
COL_ASSERT_SIZE(struct col_tokenizer, 192);

#define COL_NO_TOKEN 0xffffffffu
#define COL_MAX_SPLITS 8u
#define COL_MAX_SPLIT_STATES 512u
#define COL_SPLIT_MATCH 0x8000u

/* A split cuts a text into its matches and what is between them; the next split cuts each of these pieces. With
 * COL_REWRITE_CLUSTERS the last one is none of them: its matches are grapheme clusters. */

/* What stands for a code point when nothing in it can be decomposed further. Hangul syllables have no entry; they are
 * decomposed and, where there are compositions, composed by the Unicode Standard's arithmetic. */
struct col_decomposition {
    uint32_t point;
    uint16_t first; /* index into points */
    uint16_t count; /* at least 1 */
};
COL_ASSERT_SIZE(struct col_decomposition, 8);

struct col_composition {
    uint32_t first;
    uint32_t second;
    uint32_t composed;
};
COL_ASSERT_SIZE(struct col_composition, 12);

#define COL_TOKEN_SPECIAL 1u /* gives no text and never comes from text; the pool holds its name for tools */
/* Of an added token, in `early` or `late`: */
#define COL_TOKEN_TAKES_BEFORE 2u /* white space before it becomes part of it */
#define COL_TOKEN_TAKES_AFTER 4u  /* white space behind it does */
#define COL_TOKEN_WORD 8u         /* found only where no word goes on at either end */

/* The trie of rules is a double array, as in SentencePiece's files: unit 0 is the root; from a unit, each byte leads to
 * the unit at (its own place ^ its offset ^ the byte), if that one has the byte for its label. A unit with a leaf has at
 * (place ^ offset) the place in rule_text of what stands for the bytes so far. */
static inline uint32_t col_rule_label(uint32_t unit)
{
    return unit & 0x800000ffu;
}

static inline uint32_t col_rule_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & 0x200u) >> 6);
}

static inline bool col_rule_has_leaf(uint32_t unit)
{
    return (unit & 0x100u) != 0;
}

#define COL_RULE_VALUE 0x7fffffffu

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
#define COL_USER_BEGINS 2u          /* the text is the input's beginning for the tokenizer, though tokens stand before it */
#define COL_USER_AFTER_TAKER 4u     /* a token before it takes white space, of this text and what is joined with it */
#define COL_USER_BEFORE_TAKER 8u    /* and one behind it */
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
