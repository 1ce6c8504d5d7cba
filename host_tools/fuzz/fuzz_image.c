/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_image.c: libFuzzer target for everything that believes an image: validator, plan, start, forward pass,
 * generation. The input is an image.
 *
 * Checksums would stop nearly every mutation at the door. So the target makes all of them right in its own copy, unless
 * the header's own checksum was right already: then nothing is touched, and the checks of the checksums have their
 * turn. Seeds come with a zeroed header checksum for the first way and a right one for the second.
 *
 * What may go wrong beyond what the sanitizers see is checked here: two engines that differ in kernels, batch size and
 * the garbage in their arenas must agree on every status and every logit bit; logits are finite; an arena one byte
 * short is refused. Configuration and tokens come from the image's id, which nothing checks.
 *
 * The kernels' self-test is replaced by one that says yes: it has nothing to do with the input and takes longer than
 * everything else.
 */
#include <string.h>

#include "colibri.h"
#include "fuzz.h"
#include "image_checks.h"
#include "numeric.h"

#define MAX_INPUT (1u << 20)
#define MAX_ARENA (64u << 20)
#define MAX_POLLS 3000u /* of the poll hook, that is at most some 64 K multiply-adds each */
#define MAX_TEXT 128u
#define GENERATED 4u

colibri_status colibri_selftest(const char *kernels, void *scratch, size_t scratch_bytes,
                                struct colibri_selftest_report *report)
{
    require(kernels != NULL && scratch != NULL && scratch_bytes >= COLIBRI_SELFTEST_BYTES);
    memset(report, 0, sizeof *report);
    return COLIBRI_OK;
}

/* Memory of exactly that size and the engine's alignment, so that the sanitizer sees the first byte too far. */
static uint8_t *exact(size_t bytes)
{
    void *p = NULL;
    require(posix_memalign(&p, COLIBRI_ARENA_ALIGN, bytes > 0 ? bytes : 1) == 0);
    return p;
}

/* ------------------------------------------------------------------------------------------------------ checksums */

static bool inside(uint64_t offset, uint64_t bytes, uint64_t whole)
{
    return offset <= whole && bytes <= whole - offset;
}

/* Entry `index` of the section directory, if there is room for it. */
static bool section_at(const uint8_t *image, size_t size, uint32_t index, struct col_section *section)
{
    size_t at = sizeof(struct col_header) + (size_t)index * sizeof *section;
    if (index >= COL_MAX_SECTIONS || at + sizeof *section > size) {
        return false;
    }
    memcpy(section, image + at, sizeof *section);
    return true;
}

static uint32_t section_count(const uint8_t *image, size_t size)
{
    struct col_header header;
    if (size < COL_PAGE) {
        return 0;
    }
    memcpy(&header, image, sizeof header);
    return header.section_count < COL_MAX_SECTIONS ? header.section_count : (uint32_t)COL_MAX_SECTIONS;
}

/* The first section of that kind whose bytes lie in the image; bytes 0 if there is none. */
static struct col_section find_section(const uint8_t *image, size_t size, uint32_t kind)
{
    struct col_section section;
    for (uint32_t i = 0; i < section_count(image, size); i++) {
        if (section_at(image, size, i, &section) && section.kind == kind &&
            inside(section.offset, section.bytes, size)) {
            return section;
        }
    }
    return (struct col_section){.bytes = 0};
}

/* The checksums of one copy of the table of updates, and those of the experts that it names; its image id, too. */
static void fix_updates(uint8_t *image, uint8_t *copy, uint64_t copy_bytes, const struct col_section *experts)
{
    struct col_update_head head;
    if (copy_bytes < sizeof head) {
        return;
    }
    memcpy(&head, copy, sizeof head);
    memcpy(head.image_id, image + offsetof(struct col_header, image_id), sizeof head.image_id);
    const uint64_t room = (copy_bytes - sizeof head) / sizeof(struct col_update);
    const uint64_t count = head.count < room ? head.count : room;
    for (uint64_t i = 0; i < count; i++) {
        struct col_update u;
        uint8_t *at = copy + sizeof head + i * sizeof u;
        memcpy(&u, at, sizeof u);
        memcpy(u.image_id, head.image_id, sizeof u.image_id);
        if (inside(u.offset, u.bytes, experts->bytes)) {
            u.crc32 = colibri_crc32(0, image + experts->offset + u.offset, (size_t)u.bytes);
        }
        memcpy(at, &u, sizeof u);
    }
    head.entries_crc32 = colibri_crc32(0, copy + sizeof head, (size_t)count * sizeof(struct col_update));
    head.crc32 = colibri_crc32(0, &head, offsetof(struct col_update_head, crc32));
    memcpy(copy, &head, sizeof head);
}

static void fix_signature(uint8_t *image, const struct col_section *section)
{
    struct col_signature signature;
    if (section->bytes >= sizeof signature) {
        memcpy(&signature, image + section->offset, sizeof signature);
        signature.crc32 = colibri_crc32(0, &signature, offsetof(struct col_signature, crc32));
        memcpy(image + section->offset, &signature, sizeof signature);
    }
}

/* From the inside out: experts, sections, header. */
static void fix_checksums(uint8_t *image, size_t size)
{
    const struct col_section directory = find_section(image, size, COL_SECTION_EXPERT_DIR);
    const struct col_section experts = find_section(image, size, COL_SECTION_EXPERTS);
    for (uint64_t at = 0; at + sizeof(struct col_expert) <= directory.bytes; at += sizeof(struct col_expert)) {
        struct col_expert e;
        memcpy(&e, image + directory.offset + at, sizeof e);
        if (inside(e.offset, e.bytes, experts.bytes)) {
            e.crc32 = colibri_crc32(0, image + experts.offset + e.offset, (size_t)e.bytes);
            memcpy(image + directory.offset + at, &e, sizeof e);
        }
    }
    const struct col_section updates = find_section(image, size, COL_SECTION_UPDATES);
    for (uint64_t copy = 0; copy < 2u; copy++) {
        fix_updates(image, image + updates.offset + copy * (updates.bytes / 2u), updates.bytes / 2u, &experts);
    }
    const struct col_section signature = find_section(image, size, COL_SECTION_SIGNATURE);
    fix_signature(image, &signature);
    for (uint32_t i = 0; i < section_count(image, size); i++) {
        struct col_section s;
        if (section_at(image, size, i, &s) && s.kind < COL_SECTION_SIGNATURE && inside(s.offset, s.bytes, size)) {
            s.crc32 = colibri_crc32(0, image + s.offset, (size_t)s.bytes);
            memcpy(image + sizeof(struct col_header) + (size_t)i * sizeof s, &s, sizeof s);
        }
    }
    const uint32_t crc = col_header_crc32(image);
    memcpy(image + offsetof(struct col_header, header_crc32), &crc, sizeof crc);
}

/* ---------------------------------------------------------------------------------------------------------- engines */

struct run {
    struct colibri *engine;
    uint8_t *arena;
    uint8_t *front; /* of an engine with a storage */
    uint32_t polls;
    colibri_status status[3]; /* of prefill, of forward, of generate */
    uint32_t generated;
    uint32_t tokens[GENERATED];
    uint32_t shown; /* CRC-32 over the text of all tokens */
    uint8_t digest[32];
    float *logits; /* [2][vocab]: after prefill, after forward */
};

static bool poll(void *user)
{
    struct run *run = user;
    return ++run->polls > MAX_POLLS;
}

static bool on_token(void *user, const struct colibri_token *token)
{
    struct run *run = user;
    require(token->index == run->generated);
    run->shown = colibri_crc32(run->shown, token->text, token->text_bytes);
    run->tokens[run->generated++] = token->id;
    return true;
}

/* Starts an engine in an arena that is full of `garbage`. */
static colibri_status start(struct run *run, const uint8_t *image, size_t size, struct colibri_config config,
                            int garbage)
{
    struct colibri_plan plan;
    struct colibri_detail detail;
    config.hooks = (struct colibri_hooks){.user = run, .poll = poll};
    colibri_status status = colibri_plan(image, size, &config, &plan, NULL);
    require(status == COLIBRI_OK);
    run->arena = exact((size_t)plan.arena_bytes);
    memset(run->arena, garbage, (size_t)plan.arena_bytes);
    status = colibri_init(&run->engine, image, size, &config, run->arena, plan.arena_bytes - 1u, NULL);
    require(status == COLIBRI_E_ARENA_SIZE);
    return colibri_init(&run->engine, image, size, &config, run->arena, plan.arena_bytes, &detail);
}

static void keep_logits(struct run *run, uint32_t which, const float *logits, uint32_t vocab)
{
    require(col_all_finite(logits, vocab));
    memcpy(run->logits + (size_t)which * vocab, logits, vocab * sizeof *logits);
}

/* A prompt, one more token, then a short generation from the same prompt. */
static void compute(struct run *run, const struct colibri_info *info, const uint32_t *ids, uint32_t count,
                    const struct colibri_sampling *sampling, uint8_t slide)
{
    const float *logits = NULL;
    run->logits = calloc((size_t)info->vocab * 2u, sizeof *logits);
    require(run->logits != NULL);
    run->status[0] = colibri_prefill(run->engine, ids, count, &logits);
    if (run->status[0] == COLIBRI_OK) {
        keep_logits(run, 0, logits, info->vocab);
        require(colibri_position(run->engine) == count);
        run->status[1] = colibri_forward(run->engine, ids[0], &logits);
        if (run->status[1] == COLIBRI_OK) {
            keep_logits(run, 1, logits, info->vocab);
        }
    }
    const struct colibri_request request = {
        .prompt = ids,
        .prompt_count = count,
        .max_tokens = GENERATED,
        .sampling = *sampling,
        .slide = slide % 2u != 0u,
        .slide_keep = slide / 2u % info->context,
        .stop_count = 1,
        .stop = {"ab"},
        .stop_bytes = {2},
        .on_token = on_token,
        .user = run,
    };
    struct colibri_result result;
    run->status[2] = colibri_generate(run->engine, &request, &result);
    if (run->status[2] == COLIBRI_OK) {
        require(result.generated_tokens == run->generated && run->generated <= GENERATED);
        require(result.finish != COLIBRI_FINISH_CANCELLED || run->polls > MAX_POLLS);
        memcpy(run->digest, result.logits_sha256, sizeof run->digest);
    }
    require(colibri_forward(run->engine, info->vocab, &logits) != COLIBRI_OK);
}

static void text_functions(struct run *run, const struct colibri_info *info, const uint8_t *text, size_t bytes)
{
    uint32_t ids[2 * MAX_TEXT];
    char back[2 * MAX_TEXT];
    size_t count = 0, back_bytes = 0;
    colibri_status status = colibri_tokenize(run->engine, (const char *)text, bytes, ids, 2 * MAX_TEXT, &count);
    if (status == COLIBRI_OK) {
        require(count <= 2 * bytes); /* each piece may have a space in front */
        for (size_t i = 0; i < count; i++) {
            require(ids[i] < info->vocab);
        }
        /* That the ids spell the text is fuzz_tokenizer's business, which knows the kinds for which they do. */
        status = colibri_detokenize(run->engine, ids, count, back, sizeof back, &back_bytes);
        require(status == COLIBRI_OK || status == COLIBRI_E_BUFFER_SIZE);
    } else {
        require(status == COLIBRI_E_IMAGE_UNSUPPORTED || status == COLIBRI_E_TEXT_SIZE);
    }
    status = colibri_prompt(run->engine, (const char *)text, bytes, ids, 2 * MAX_TEXT, &count);
    require(status == COLIBRI_OK || status == COLIBRI_E_IMAGE_UNSUPPORTED || status == COLIBRI_E_BUFFER_SIZE ||
            status == COLIBRI_E_TEXT_SIZE);
}

static void compare(const struct run *a, const struct run *b, uint32_t vocab)
{
    /* A cancelled run says nothing: batches of different sizes poll at different places. */
    if (a->polls > MAX_POLLS || b->polls > MAX_POLLS) {
        return;
    }
    require(memcmp(a->status, b->status, sizeof a->status) == 0);
    require(memcmp(a->logits, b->logits, (size_t)vocab * 2u * sizeof(float)) == 0);
    require(a->generated == b->generated && a->shown == b->shown);
    require(memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0);
    require(memcmp(a->digest, b->digest, sizeof a->digest) == 0);
}

static const char *best_kernels(void)
{
    const char *name = NULL;
    for (uint32_t i = 0; colibri_kernels_name(i) != NULL; i++) {
        name = colibri_kernels_name(i);
    }
    return name;
}

/* A storage: the image that the engine sees the front of. Each read needs two checks. */
struct medium {
    const uint8_t *image;
    size_t bytes;
    uint32_t checks[2];
    struct colibri_read read[2];
};

static colibri_status start_read(void *user, uint32_t read, const struct colibri_read *what)
{
    struct medium *medium = user;
    require(read < 2 && medium->checks[read] == 0);
    require(what->offset <= medium->bytes && what->bytes <= medium->bytes - what->offset);
    medium->read[read] = *what;
    medium->checks[read] = 1;
    return COLIBRI_OK;
}

static colibri_status check_read(void *user, uint32_t read, uint32_t *crc32)
{
    struct medium *medium = user;
    const struct colibri_read *what = &medium->read[read];
    require(medium->checks[read] != 0);
    if (medium->checks[read]++ == 1) {
        return COLIBRI_PENDING;
    }
    medium->checks[read] = 0;
    memcpy(what->to, medium->image + what->offset, (size_t)what->bytes);
    *crc32 = colibri_crc32(0, what->to, (size_t)what->bytes);
    return COLIBRI_OK;
}

/* The same with experts on demand; what lies behind the front can't even be touched. */
static void start_stored(struct run *run, struct medium *medium, const uint8_t *id, struct colibri_config config)
{
    struct colibri_plan plan;
    require(colibri_plan(medium->image, medium->bytes, &config, &plan, NULL) == COLIBRI_OK);
    run->front = exact((size_t)plan.front_bytes);
    memcpy(run->front, medium->image, (size_t)plan.front_bytes);
    config.storage = (struct colibri_storage){.user = medium, .depth = 1u + id[7] % 2u, .start = start_read,
                                              .check = check_read};
    config.cache_slots = id[7] / 2u % 5u;
    config.prefetch = id[7] / 16u % 2u != 0u;
    require(start(run, run->front, (size_t)plan.front_bytes, config, 0x3c) == COLIBRI_OK);
}

/* The engine's life on an image whose structure is right. */
static void use(const uint8_t *image, size_t size, const uint8_t *id, struct colibri_config config)
{
    const colibri_status valid = colibri_validate(image, size, NULL);
    struct run plain = {0}, fast = {0}, stored = {0};
    struct medium medium = {.image = image, .bytes = size};
    config.kernels = "scalar";
    config.batch = 1;
    const colibri_status started = start(&plain, image, size, config, 0x00);
    require(started == valid);
    config.kernels = best_kernels();
    config.batch = 1u + id[0] % 7u;
    require(start(&fast, image, size, config, 0xa5) == started);
    if (started == COLIBRI_OK) {
        struct colibri_info info;
        colibri_get_info(plain.engine, &info);
        uint32_t ids[8];
        uint32_t count = 1u + id[1] % 8u;
        count = count <= info.context ? count : info.context;
        for (uint32_t i = 0; i < count; i++) {
            ids[i] = (id[2 + i] * 257u + i) % info.vocab;
        }
        const struct colibri_sampling sampling = {
            .temperature = (float)(id[10] % 4u) * 0.5f,
            .top_p = (float)(id[11] % 5u) * 0.25f,
            .repetition_penalty = (float)(id[12] % 3u) * 1.1f,
            .top_k = id[13] % 8u,
            .seed = id[14],
        };
        compute(&plain, &info, ids, count, &sampling, id[8]);
        compute(&fast, &info, ids, count, &sampling, id[8]);
        compare(&plain, &fast, info.vocab);
        start_stored(&stored, &medium, id, config);
        compute(&stored, &info, ids, count, &sampling, id[8]);
        require(medium.checks[0] == 0 && medium.checks[1] == 0);
        compare(&plain, &stored, info.vocab);
        text_functions(&fast, &info, id, 16);
        text_functions(&plain, &info, (const uint8_t *)"it's 12  pumps,\n\nab \xe4\xb8\xad", 23);
    }
    free(plain.logits);
    free(fast.logits);
    free(stored.logits);
    free(plain.arena);
    free(fast.arena);
    free(stored.arena);
    free(stored.front);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT) {
        return 0;
    }
    uint8_t *image = exact(size);
    memcpy(image, data, size);
    if (size >= COL_PAGE) {
        uint32_t stored;
        memcpy(&stored, image + offsetof(struct col_header, header_crc32), sizeof stored);
        if (stored != col_header_crc32(image)) {
            fix_checksums(image, size);
        }
    }
    struct colibri_config config = {.batch = 8, .max_text_bytes = MAX_TEXT};
    uint8_t id[16] = {0};
    if (size >= COL_PAGE) {
        memcpy(id, image + offsetof(struct col_header, image_id), sizeof id);
        config.kv_format = id[15] % (COLIBRI_KV_Q8 + 1u);
        config.context = id[9] % 16u; /* 0: all */
    }
    struct colibri_plan plan;
    struct colibri_detail detail = {.where = ""};
    const colibri_status status = colibri_plan(image, size, &config, &plan, &detail);
    if (status == COLIBRI_OK) {
        uint64_t end = 0;
        require(plan.region_count > 0 && plan.region_count <= COLIBRI_MAX_REGIONS);
        for (uint32_t i = 0; i < plan.region_count; i++) {
            require(plan.region[i].offset >= end && plan.region[i].bytes <= plan.arena_bytes);
            end = plan.region[i].offset + plan.region[i].bytes;
        }
        require(end <= plan.arena_bytes);
        if (plan.arena_bytes <= MAX_ARENA) {
            use(image, size, id, config);
        }
    } else {
        require(status < 0 && detail.where[0] != '\0' && memchr(detail.where, '\0', sizeof detail.where) != NULL);
        require(colibri_validate(image, size, NULL) != COLIBRI_OK || status == COLIBRI_E_ARGUMENT ||
                status == COLIBRI_E_IMAGE_DIMENSION);
    }
    free(image);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------- mutator
 * Nearly every byte of an image is a weight, and nearly every change to the rest is refused. So most mutations choose a
 * section first, and weights get numbers that matter. */

static uint32_t next(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Overwrites an aligned word with a float or two halves at the edges of what is finite, or a small integer. */
static void write_number(uint8_t *data, uint64_t bytes, uint32_t *random)
{
    static const uint32_t numbers[] = {
        0x00000000u, 0x80000000u, 0x00000001u, 0x007fffffu, 0x00800000u, 0x0da24260u /* 1e-30 */, 0x3f800000u,
        0x42fe0000u, 0x60ad78ecu /* 1e20 */, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0x7fc00000u, 0x7bff7bffu,
        0xfbff0001u, 0x03ff8000u, 0x7c007e00u, 0x80808080u, 0x7f7f7f7fu, 1u, 2u, 3u, 7u, 8u, 31u, 32u, 33u, 64u,
    };
    if (bytes >= 4) {
        uint64_t at = next(random) % (bytes / 4u) * 4u;
        memcpy(data + at, &numbers[next(random) % (sizeof numbers / sizeof numbers[0])], 4);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
    uint32_t random = seed | 1u;
    const uint32_t kind = next(&random) % 16u;
    if (size < COL_PAGE || kind == 0) {
        return LLVMFuzzerMutate(data, size, capacity);
    }
    if (kind == 15) { /* configuration, tokens, text */
        LLVMFuzzerMutate(data + offsetof(struct col_header, image_id), 16, 16);
        return size;
    }
    if (kind == 14) {
        const size_t end = sizeof(struct col_header) + COL_SECTION_LAST * sizeof(struct col_section);
        LLVMFuzzerMutate(data, end, end);
        return size;
    }
    static const uint8_t sections[14] = {0, COL_SECTION_MODEL, COL_SECTION_LAYERS, COL_SECTION_TOKENIZER,
                                         COL_SECTION_TEMPLATE, COL_SECTION_ROPE, COL_SECTION_RESIDENT,
                                         COL_SECTION_EXPERT_DIR, COL_SECTION_EXPERTS, COL_SECTION_MODEL,
                                         COL_SECTION_LAYERS, COL_SECTION_UPDATES, COL_SECTION_UPDATES,
                                         COL_SECTION_SIGNATURE};
    const struct col_section s = find_section(data, size, sections[kind]);
    if (s.bytes == 0) {
        return LLVMFuzzerMutate(data, size, capacity);
    }
    if (next(&random) % 3u == 0) {
        LLVMFuzzerMutate(data + s.offset, (size_t)s.bytes, (size_t)s.bytes);
    } else {
        for (uint32_t i = 1u + next(&random) % 4u; i > 0; i--) {
            write_number(data + s.offset, s.bytes, &random);
        }
    }
    return size;
}
