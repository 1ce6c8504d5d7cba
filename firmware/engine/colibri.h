/* SPDX-License-Identifier: Apache-2.0
 *
 * colibri.h: the engine's only public header.
 *
 * The engine runs a Mixture-of-Experts language model that lies, already laid out for the processor, in one
 * image (see image.h and docs/image-format.md). It has no heap, no libc and no global mutable state: the caller
 * hands it one block of memory, the arena, and the engine writes nowhere else. Two engines in one program
 * therefore work side by side; one engine must not be entered by two threads at once.
 *
 * The life of an engine:
 *
 *     struct colibri_config config = {0};                     // every zero is a documented default
 *     struct colibri_plan plan;
 *     colibri_plan(image, image_bytes, &config, &plan, NULL); // how much memory, region by region
 *     ... find plan.arena_bytes bytes, aligned to COLIBRI_ARENA_ALIGN ...
 *     struct colibri *engine;
 *     colibri_init(&engine, image, image_bytes, &config, arena, plan.arena_bytes, NULL);
 *     colibri_prompt(engine, "set pump 3 to 40 percent", 24, ids, capacity, &count);
 *     colibri_generate(engine, &request, &result);            // request.on_token sees each token
 *
 * Nothing is to be freed: forget the engine and reuse its arena.
 *
 * Every function that can fail returns a colibri_status, negative on failure, and the compiler insists that it
 * is looked at. The same image, prompt, sampling parameters and seed give the same logit bits on every target
 * (docs/numeric-contract.md).
 */
#ifndef COLIBRI_H
#define COLIBRI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface: major changes break callers, minor ones add to it. */
#define COLIBRI_API_MAJOR 1
#define COLIBRI_API_MINOR 1

/* The arena's and the image's required alignment in bytes: one cache line. */
#define COLIBRI_ARENA_ALIGN 64u

/* What places of experts in the image, their lengths and their slots in the arena are multiples of, in bytes. */
#define COLIBRI_EXPERT_ALIGN 4096u

#if defined(__GNUC__)
#define COLIBRI_MUST_CHECK __attribute__((warn_unused_result))
#else
#define COLIBRI_MUST_CHECK
#endif

/* ---------------------------------------------------------------------------------------------- status codes
 * One enum for the engine, the device's runtime, the link and the SDK. Values are part of the link protocol and
 * never change their meaning; colibri_status_text() has a sentence for each. */
typedef enum colibri_status {
    COLIBRI_OK = 0,
    COLIBRI_E_INTERNAL = -1,          /* an invariant of the engine does not hold: a bug */
    COLIBRI_E_ARGUMENT = -2,          /* a parameter is out of its documented range */
    COLIBRI_E_ARENA_SIZE = -3,        /* the arena is smaller than the plan says */
    COLIBRI_E_ARENA_ALIGN = -4,       /* the arena or the image is not aligned to COLIBRI_ARENA_ALIGN */
    COLIBRI_E_IMAGE_SIZE = -5,        /* the file is shorter or longer than its header says */
    COLIBRI_E_IMAGE_MAGIC = -6,       /* not a Colibri image */
    COLIBRI_E_IMAGE_VERSION = -7,     /* made for another format or numeric version */
    COLIBRI_E_IMAGE_CHECKSUM = -8,    /* a section or an expert does not match its CRC-32 */
    COLIBRI_E_IMAGE_SECTION = -9,     /* a section is missing, doubled, misplaced or overlaps another */
    COLIBRI_E_IMAGE_DIMENSION = -10,  /* a dimension is zero, too large or contradicts another */
    COLIBRI_E_IMAGE_NUMBER = -11,     /* a scale or a float weight is NaN or infinite */
    COLIBRI_E_IMAGE_EXPERT = -12,     /* an expert's directory entry is wrong */
    COLIBRI_E_IMAGE_TOKENIZER = -13,  /* the tokenizer or template section is inconsistent */
    COLIBRI_E_IMAGE_UNSUPPORTED = -14,/* a kind, format or option this build does not know */
    COLIBRI_E_CONTEXT_FULL = -15,     /* no position left in the KV cache */
    COLIBRI_E_TOKEN_RANGE = -16,      /* a token id is not below the vocabulary's size */
    COLIBRI_E_TEXT_SIZE = -17,        /* the text is longer than config.max_text_bytes */
    COLIBRI_E_NUMERIC = -18,          /* a NaN or an infinity appeared in the computation */
    COLIBRI_E_CANCELLED = -19,        /* the caller's hook asked to stop */
    COLIBRI_E_KERNELS_UNKNOWN = -20,  /* no kernel set of that name on this processor */
    COLIBRI_E_KERNELS_WRONG = -21,    /* a kernel set disagrees with the scalar reference */
    COLIBRI_E_BUFFER_SIZE = -22,      /* the caller's output buffer is too small */
    COLIBRI_E_NO_PROMPT = -23,        /* generation was asked for without a token to continue */
    /* the device's runtime */
    COLIBRI_E_NO_MODEL = -40,         /* no model is loaded */
    COLIBRI_E_MODEL_TOO_LARGE = -41,  /* image and arena do not fit the board's memory */
    COLIBRI_E_STORAGE = -42,          /* the block device failed, or there is none */
    COLIBRI_E_STORAGE_EMPTY = -43,    /* no model partition or image on the block device */
    COLIBRI_E_BUSY = -44,             /* another request is running */
    COLIBRI_E_REQUEST = -45,          /* a request is malformed */
    COLIBRI_E_REQUEST_UNKNOWN = -46,  /* a request of a kind this firmware does not know */
    COLIBRI_E_LINK_VERSION = -47,     /* the other side speaks another protocol version */
    COLIBRI_E_TRAP = -48,             /* the processor trapped; registers follow */
    COLIBRI_E_WATCHDOG = -49,         /* the runtime made no progress in time */
    COLIBRI_E_LOADING = -50,          /* the model is still being loaded */
    /* the expert store and updates in the field */
    COLIBRI_E_EXPERT_CHECKSUM = -51,  /* an expert was read and does not match its CRC-32 */
    COLIBRI_E_SIGNATURE = -52,        /* unsigned, of another key, or not what was signed: see detail.where */
    COLIBRI_E_COUNTER = -53,          /* older than the device's security counter */
    COLIBRI_E_OTHER_BOARD = -54,      /* signed for another board */
    COLIBRI_E_UPDATE_STATE = -55,     /* no such update is under way, or its data came in the wrong place */
    COLIBRI_E_UPDATE_PLACE = -56,     /* no spare place for an expert, or no second slot for a model */
    COLIBRI_E_UPDATE_BASE = -57,      /* the update was made for another image */
    COLIBRI_E_READ_ONLY = -58         /* the storage cannot be written */
} colibri_status;

/* Not a failure, and returned only where it is named: the operation goes on. */
#define COLIBRI_PENDING 1

/* One sentence that says what is wrong, for every value above; "unknown status" for others. Never NULL. */
const char *colibri_status_text(colibri_status status);

/* Where and by how much a check failed. Filled on failure of the functions that take one; may be NULL there. */
struct colibri_detail {
    char where[32];  /* name of the section, tensor or parameter at fault, NUL-terminated */
    uint64_t got;    /* the value found, in the unit of the check (bytes, rows, index ...) */
    uint64_t wanted; /* the value or the limit required */
};

/* ------------------------------------------------------------------------------------------------- configuration */

enum colibri_kv_format {
    COLIBRI_KV_IMAGE = 0, /* as the image's packer chose */
    COLIBRI_KV_F32 = 1,   /* binary32 */
    COLIBRI_KV_F16 = 2,   /* binary16, rounded to nearest even */
    COLIBRI_KV_Q8 = 3     /* int8 in blocks of 32 with a binary32 scale each; docs/image-format.md has its error */
};

/* What the engine asks of its surroundings. All may be NULL; `user` is passed back unchanged. */
struct colibri_hooks {
    void *user;
    /* Called often, also inside a layer (at most about 64 K multiply-adds apart). Returning true stops the running
     * call with COLIBRI_E_CANCELLED; the engine stays usable. Must not call the engine but for colibri_replace_expert,
     * colibri_pending_replacements and colibri_get_stats. */
    bool (*poll)(void *user);
    /* A monotonic clock; its unit is `ticks_per_second`. Without it, times read 0 and kernels are chosen by rank. */
    uint64_t (*now)(void *user);
    uint64_t ticks_per_second;
    /* Sees each routing decision: `expert` and `weight` have `count` entries, experts ascending. */
    void (*route)(void *user, uint32_t layer, uint32_t position, uint32_t count, const uint32_t *expert,
                  const float *weight);
};

/* One read of an expert's bytes. */
struct colibri_read {
    uint64_t offset;       /* from the image's start; a multiple of COLIBRI_EXPERT_ALIGN */
    uint64_t bytes;        /* likewise */
    void *to;              /* the slot; likewise a multiple, from the arena's start */
    uint32_t layer;
    uint32_t expert;
    uint32_t generation;   /* counts the expert's replacements */
    const uint8_t *digest; /* 32 bytes, BLAKE2b-256 of the expert as the image states it, for storages that verify; may be
                              NULL */
};

#define COLIBRI_MAX_READS 8u

/* Where experts are read from when only the beginning of the image can be addressed. `depth` 0, the default: all of it can,
 * and experts are used where they lie. Otherwise each layer keeps a few of its experts in slots of the arena, and the
 * image that colibri_plan and colibri_init are given may end where its experts begin (plan.front_bytes).
 *
 * The engine calls both functions from its own calls only, and no read is under way when one of those has returned. */
struct colibri_storage {
    void *user;
    uint32_t depth; /* reads that may be under way at once, at most COLIBRI_MAX_READS */
    /* Begins read number `read`, which is below `depth` and not under way. `what` is valid during this call only. A negative
     * status: nothing was begun. */
    colibri_status (*start)(void *user, uint32_t read, const struct colibri_read *what);
    /* Moves the read on. COLIBRI_PENDING: it goes on. COLIBRI_OK: all bytes are there, and *crc32 is the CRC-32 of what was
     * delivered (colibri_crc32), which the engine compares. COLIBRI_E_SIGNATURE: the same, but for a digest that does not
     * match. Other negative: it has failed, and nothing more is written. Must not call the engine, but may wait a little for
     * the read. */
    colibri_status (*check)(void *user, uint32_t read, uint32_t *crc32);
};

struct colibri_config {
    uint32_t context;        /* positions in the KV cache; 0: the image's maximum; more than that is refused */
    uint32_t batch;          /* prompt tokens computed together; 0: 16; at most 256. Changes no bit of any result */
    uint32_t max_text_bytes; /* longest text that is tokenised at once, in bytes; 0: 4096 */
    uint32_t kv_format;      /* enum colibri_kv_format; 0: as the image says */
    const char *kernels;     /* name of a kernel set ("scalar", "neon", "neon-dotprod", "avx2"); NULL: the best */
    bool skip_content_check; /* true: trust CRCs and weights that were verified before; structure is always checked */
    struct colibri_hooks hooks;
    struct colibri_storage storage; /* depth 0: the whole image can be addressed */
    uint32_t cache_slots;    /* with a storage: experts that each layer keeps, as far as it has so many; 0: as many as
                                arena_limit allows. Changes no bit of any result */
    uint64_t arena_limit;    /* bytes that the arena may have at most; 0: any number */
    bool prefetch;           /* with a storage: guess the next layer's experts while a single token's are computed, and read
                                them. Changes no bit of any result */
};

/* ---------------------------------------------------------------------------------------------------- planning */

#define COLIBRI_MAX_REGIONS 24u

struct colibri_region {
    char name[24];   /* e.g. "kv cache" */
    uint64_t offset; /* bytes from the arena's start */
    uint64_t bytes;
};

/* The arena's exact map. The regions follow each other without gaps but for alignment. */
struct colibri_plan {
    uint64_t arena_bytes;    /* exactly what colibri_init needs */
    uint64_t image_bytes;    /* the whole image */
    uint64_t front_bytes;    /* what of it must be addressable with a storage: all before the experts */
    uint64_t resident_bytes; /* weights that every token uses */
    uint64_t expert_bytes;   /* all experts together, without spare places */
    uint64_t active_bytes;   /* weights that one token reads: resident + chosen experts */
    uint32_t context;        /* positions, after defaults */
    uint32_t batch;          /* tokens, after defaults */
    uint32_t max_text_bytes; /* bytes, after defaults */
    uint32_t kv_format;      /* enum colibri_kv_format, after defaults; never 0 */
    uint32_t cache_slots;    /* experts that each layer keeps; 0 without a storage or without experts */
    uint64_t slot_bytes;     /* all slots of all layers together */
    uint32_t region_count;
    struct colibri_region region[COLIBRI_MAX_REGIONS];
};

/* Checks the image's structure (not the weights' checksums) and states the memory that an engine for it needs.
 * COLIBRI_E_ARENA_SIZE when that is more than config->arena_limit: with config->cache_slots slots per layer, or, if
 * their number is free, even with one.
 * `image` must be aligned to COLIBRI_ARENA_ALIGN and stay unchanged and readable as long as the engine lives. */
COLIBRI_MUST_CHECK colibri_status colibri_plan(const void *image, uint64_t image_bytes,
                                               const struct colibri_config *config, struct colibri_plan *plan,
                                               struct colibri_detail *detail);

/* Checks everything about an image that can be checked without running it: structure, every checksum, every
 * scale and float weight finite. colibri_init does the same unless config.skip_content_check is set. */
COLIBRI_MUST_CHECK colibri_status colibri_validate(const void *image, uint64_t image_bytes,
                                                   struct colibri_detail *detail);

/* ----------------------------------------------------------------------------------------------------- engine */

struct colibri; /* opaque; lies at the arena's start */

/* Builds an engine in the arena. `arena` must be aligned to COLIBRI_ARENA_ALIGN and hold at least the plan's
 * arena_bytes; bytes beyond those are never touched. On failure nothing of the arena is of use. */
COLIBRI_MUST_CHECK colibri_status colibri_init(struct colibri **engine, const void *image, uint64_t image_bytes,
                                               const struct colibri_config *config, void *arena, uint64_t arena_bytes,
                                               struct colibri_detail *detail);

/* What the image says of itself. Strings are NUL-terminated and live in the image. */
struct colibri_info {
    const char *model;        /* the model's name */
    const char *architecture; /* e.g. "MixtralForCausalLM" */
    const char *quantisation; /* e.g. "q8" */
    const char *kernels;      /* the kernel set in use */
    const uint8_t *image_id;  /* 16 bytes that identify the image */
    uint32_t vocab;           /* tokens */
    uint32_t hidden;          /* width of the residual stream */
    uint32_t layers;
    uint32_t max_experts;     /* largest number of experts of any layer */
    uint32_t max_top_k;       /* largest number of chosen experts of any layer */
    uint32_t context;         /* positions of this engine */
    uint32_t max_text_bytes;
    uint32_t kv_format;
};
void colibri_get_info(const struct colibri *engine, struct colibri_info *info);

/* ------------------------------------------------------------------------------------------------------ tokens */

/* Plain text to token ids. Special tokens are never made from text. Bytes that are no valid UTF-8 are kept as they
 * are. *count is the number of ids, also when `capacity` is too small (COLIBRI_E_BUFFER_SIZE). The text is the beginning
 * of what the model sees: some tokenizers put a space in front of it. */
COLIBRI_MUST_CHECK colibri_status colibri_tokenize(struct colibri *engine, const char *text, size_t text_bytes,
                                                   uint32_t *ids, size_t capacity, size_t *count);

/* The same for a text that other tokens stand before. */
COLIBRI_MUST_CHECK colibri_status colibri_tokenize_next(struct colibri *engine, const char *text, size_t text_bytes,
                                                        uint32_t *ids, size_t capacity, size_t *count);

/* As colibri_tokenize, with the image's chat template around the text, as one user turn that the model is to answer. */
COLIBRI_MUST_CHECK colibri_status colibri_prompt(struct colibri *engine, const char *text, size_t text_bytes,
                                                 uint32_t *ids, size_t capacity, size_t *count);

/* Token ids to bytes; special tokens give none. *count is the number of bytes, also when `capacity` is too small.
 * A space that the tokenizer put in front of a text is left out in front of the whole.
 * The result is UTF-8 where the ids spell UTF-8; a sequence cut in the middle of a character is cut there. */
COLIBRI_MUST_CHECK colibri_status colibri_detokenize(const struct colibri *engine, const uint32_t *ids,
                                                     size_t id_count, char *text, size_t capacity, size_t *count);

/* ----------------------------------------------------------------------------------------------------- forward */

/* Forgets all positions. Costs nothing: the KV cache is overwritten as it is refilled. */
void colibri_reset(struct colibri *engine);

/* Computes `count` >= 1 more positions. *logits points to info.vocab floats of the last one and stays valid until
 * the next call. */
COLIBRI_MUST_CHECK colibri_status colibri_prefill(struct colibri *engine, const uint32_t *ids, size_t count,
                                                  const float **logits);

/* One more position: colibri_prefill with one token. */
COLIBRI_MUST_CHECK colibri_status colibri_forward(struct colibri *engine, uint32_t id, const float **logits);

/* States the length of a prompt, in tokens, before its first part is computed: models whose expert map follows the
 * prompt's length need it where the prompt comes in parts. Otherwise the first colibri_prefill after a reset counts, and
 * colibri_generate does it itself. */
void colibri_expect(struct colibri *engine, uint32_t prompt_tokens);

/* Number of positions computed since the last reset. */
uint32_t colibri_position(const struct colibri *engine);

/* ------------------------------------------------------------------------------------------------ expert store */

/* What was at fault when a call of the engine failed with COLIBRI_E_STORAGE, COLIBRI_E_EXPERT_CHECKSUM or another status of the
 * storage: `where` names layer and expert ("layer 3 expert 17"); of a wrong checksum `got` and `wanted` are the CRC-32s,
 * else both are 0. Empty when no read has failed yet. */
void colibri_get_fault(const struct colibri *engine, struct colibri_detail *detail);

struct colibri_replacement {
    uint64_t offset;       /* where in the image the new expert lies; a multiple of COLIBRI_EXPERT_ALIGN */
    uint32_t crc32;        /* of its bytes, which are as many as those of any expert of the layer */
    uint32_t generation;   /* greater than that of the expert it replaces */
    const uint8_t *digest; /* for the storage: struct colibri_read; must stay readable as long as the engine lives */
};

#define COLIBRI_MAX_REPLACEMENTS 16u

/* Lets an expert be read from another place in the image from the next call of colibri_prefill, colibri_forward or
 * colibri_generate's next token on: no token sees two generations. Where the image is addressed as a whole, the new bytes lie
 * at their place already, and stay. May be called from the poll hook. COLIBRI_E_BUSY when COLIBRI_MAX_REPLACEMENTS experts
 * wait already, COLIBRI_E_ARGUMENT for an expert, a place or a generation that can't be. */
COLIBRI_MUST_CHECK colibri_status colibri_replace_expert(struct colibri *engine, uint32_t layer, uint32_t expert,
                                                         const struct colibri_replacement *replacement);

/* Replacements that wait for a token to end. Until there are none the engine may still use what was replaced. */
uint32_t colibri_pending_replacements(const struct colibri *engine);

/* Lets replacements take effect at once. Not to be called from the poll hook. */
void colibri_take_replacements(struct colibri *engine);

/* The rule by which a layer keeps its experts (docs/expert-store.md), alone: what would be read for recorded routing. The
 * counters are those of an engine with a storage, as many slots and no prefetch. */
struct colibri_replay; /* opaque; lies at the memory's start */

/* Memory that a replay needs, in bytes, aligned to COLIBRI_ARENA_ALIGN. `experts` has `layers` entries, the experts of each
 * layer, 0 for a layer without. 0 when a number is out of range. */
uint64_t colibri_replay_bytes(uint32_t layers, const uint32_t *experts, uint32_t slots);

/* `pin` has an entry for each expert, layer after layer: 0, or from 1 on the order in which the layer's experts are pinned;
 * NULL: none is. */
COLIBRI_MUST_CHECK colibri_status colibri_replay_begin(struct colibri_replay **replay, void *memory, uint64_t bytes,
                                                       uint32_t layers, const uint32_t *experts, uint32_t slots,
                                                       const uint32_t *pin);

/* One layer of one batch of tokens: `expert` are the distinct experts that its tokens chose, ascending. *misses of them were
 * not kept and had to be read. */
COLIBRI_MUST_CHECK colibri_status colibri_replay_step(struct colibri_replay *replay, uint32_t layer, const uint32_t *expert,
                                                      uint32_t count, uint32_t *misses);

/* -------------------------------------------------------------------------------------------------- generation */

struct colibri_sampling {
    float temperature;        /* 0: greedy (the largest logit, ties to the lower id); at most 100 */
    float top_p;              /* keep the likeliest tokens up to this probability; 0 or 1: all */
    float repetition_penalty; /* > 1 makes tokens already in the context less likely; 0 or 1: off */
    uint32_t top_k;           /* keep this many of the likeliest tokens; 0: all */
    uint64_t seed;            /* of the image's integer generator */
};

struct colibri_token {
    uint32_t id;
    uint32_t index;       /* 0 for the first generated token */
    uint32_t position;    /* in the context, of this token */
    const char *text;     /* whole UTF-8 characters that are ready to be shown, often none; not NUL-terminated */
    uint32_t text_bytes;
    const float *logits;  /* what the token was sampled from, info.vocab floats, before penalties */
};

enum colibri_finish {
    COLIBRI_FINISH_EOS = 1,       /* the model ended its answer */
    COLIBRI_FINISH_LENGTH = 2,    /* request.max_tokens */
    COLIBRI_FINISH_CONTEXT = 3,   /* the KV cache is full */
    COLIBRI_FINISH_STOP = 4,      /* a stop string appeared */
    COLIBRI_FINISH_CANCELLED = 5  /* on_token or the poll hook said so */
};

#define COLIBRI_MAX_STOPS 4u
#define COLIBRI_MAX_STOP_BYTES 64u

struct colibri_request {
    const uint32_t *prompt; /* token ids that are prefilled first */
    size_t prompt_count;    /* 0 continues after the last forward call */
    uint32_t max_tokens;    /* 0: as many as the context holds */
    struct colibri_sampling sampling;
    bool keep_context;      /* false: reset first */
    bool ignore_eos;        /* go on after the model's end-of-answer tokens */
    bool slide;             /* when the context is full, forget its middle and go on; false: end there */
    uint32_t slide_keep;    /* tokens from the context's beginning that sliding never forgets */
    uint32_t stop_count;    /* at most COLIBRI_MAX_STOPS */
    const char *stop[COLIBRI_MAX_STOPS]; /* texts that end the answer and are not part of it */
    uint32_t stop_bytes[COLIBRI_MAX_STOPS]; /* their lengths, 1 to COLIBRI_MAX_STOP_BYTES */
    /* Sees each token; returning false cancels. May be NULL. */
    bool (*on_token)(void *user, const struct colibri_token *token);
    void *user;
};

struct colibri_result {
    enum colibri_finish finish;
    uint32_t prompt_tokens;
    uint32_t generated_tokens;   /* tokens sampled, the final end token included */
    uint8_t logits_sha256[32];   /* SHA-256 over the raw logits (little-endian binary32) of each generated token */
    uint64_t prefill_ticks;      /* of hooks.now: prompt's first operation to first logits */
    uint64_t decode_ticks;       /* first logits to the last token */
};

/* Prompt in, tokens out. A cancelled, full or stopped generation is COLIBRI_OK with its reason in result->finish. */
COLIBRI_MUST_CHECK colibri_status colibri_generate(struct colibri *engine, const struct colibri_request *request,
                                                   struct colibri_result *result);

/* -------------------------------------------------------------------------------------------------- statistics */

struct colibri_layer_stats {
    uint64_t attention_ticks; /* norm, projections, attention itself, output projection */
    uint64_t router_ticks;    /* norm, router product, choice */
    uint64_t expert_ticks;    /* all experts, stalls included */
    /* The rest stays 0 where experts are used where they lie. An expert counts once for all tokens of a batch. */
    uint64_t hits;            /* experts that were in a slot, or on their way there, when they were needed */
    uint64_t misses;          /* experts that were not */
    uint64_t read_bytes;      /* of all reads that were asked for, prefetched ones included */
    uint64_t stall_ticks;     /* spent waiting for reads */
    uint64_t prefetched;      /* experts that were read because they were guessed */
    uint64_t prefetch_used;   /* of those, the ones that a step needed while they were kept */
};

struct colibri_expert_stats {
    uint64_t tokens; /* how often the expert was chosen */
    uint64_t ticks;
};

struct colibri_stats {
    uint64_t arena_bytes;      /* the plan's figure */
    uint64_t arena_peak_bytes; /* the high-water mark, measured: colibri_init paints the arena, this is how far it was
                                  written since, rounded up to COLIBRI_ARENA_ALIGN */
    uint64_t tokens;           /* positions computed since init */
    uint64_t head_ticks;       /* final norm and output head */
    uint64_t sampler_ticks;
    uint64_t tokenizer_ticks;
    uint64_t ticks_per_second;
    uint32_t layers;
    uint32_t max_experts;                     /* row length of `expert` */
    const struct colibri_layer_stats *layer;  /* [layers] */
    const struct colibri_expert_stats *expert;/* [layers][max_experts] */
};
void colibri_get_stats(const struct colibri *engine, struct colibri_stats *stats);
void colibri_clear_stats(struct colibri *engine);

/* --------------------------------------------------------------------------------------------------- self-test */

/* Scratch memory the self-test needs, in bytes, aligned to COLIBRI_ARENA_ALIGN. */
#define COLIBRI_SELFTEST_BYTES 49152u

struct colibri_selftest_report {
    char kernels[16];     /* the set that was compared with the scalar reference */
    char failed[24];      /* first operation that differed; empty when none */
    uint32_t cases;       /* comparisons made */
    uint32_t failures;
    uint32_t failed_size; /* length or shape at which it differed */
};

/* Compares a kernel set with the scalar reference, to the bit, at every size class and at odd counts. `kernels`
 * NULL: every set that this processor can run, one after the other; the report is then of the first that fails or
 * of the last. COLIBRI_E_KERNELS_WRONG when a bit differs. */
COLIBRI_MUST_CHECK colibri_status colibri_selftest(const char *kernels, void *scratch, size_t scratch_bytes,
                                                   struct colibri_selftest_report *report);

/* Names of the kernel sets this build has and this processor can run, from the least preferred; NULL past the end. */
const char *colibri_kernels_name(uint32_t index);

/* ------------------------------------------------------------------------------------------- small public tools */

/* CRC-32 as in IEEE 802.3 / zlib; start with 0, feed the result back to go on. */
uint32_t colibri_crc32(uint32_t crc, const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
