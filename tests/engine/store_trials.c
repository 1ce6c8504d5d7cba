/* SPDX-License-Identifier: Apache-2.0
 *
 * store_trials.c: experts on demand from a storage that is slow, out of order and fails, on any processor and under any
 * sanitizer.
 *
 *     store_trials KERNELS STRIDE IMAGE...   KERNELS: a set's name, or "best"; STRIDE: 1, or n to try an n-th of it all
 *
 * Each image is run at every number of slots from 1 to all, with and without guesses, alone and in batches; then every read of
 * a short run fails in every way; then the run is cancelled at many moments. Each time the answer, or the one after it, must
 * be that of the image in memory. One line for each image: the hash of that answer, and how many of each were tried.
 */
#include "program.h"

#include <inttypes.h>

enum fault { FAULT_NONE, FAULT_FAILED, FAULT_REFUSED, FAULT_FLIPPED, FAULT_SHORT, FAULT_COUNT };

#define DEPTH 3u

struct storage {
    const uint8_t *image;
    size_t bytes;
    uint32_t random;
    uint32_t begun;     /* reads since the start */
    uint32_t fault_at;  /* the read that fails; counts from 0 */
    enum fault fault;
    uint32_t layer;     /* of that read */
    uint32_t expert;
    struct {
        bool busy;
        enum fault fault;
        uint32_t left; /* checks until it ends */
        struct colibri_read what;
    } read[DEPTH];
};

static uint32_t next_random(struct storage *s)
{
    s->random = s->random * 1664525u + 1013904223u;
    return s->random >> 16;
}

static colibri_status start(void *user, uint32_t read, const struct colibri_read *what)
{
    struct storage *s = user;
    if (read >= DEPTH || s->read[read].busy || what->offset % COLIBRI_EXPERT_ALIGN != 0u ||
        what->bytes % COLIBRI_EXPERT_ALIGN != 0u || what->offset > s->bytes || what->bytes > s->bytes - what->offset) {
        die("a read that can't be");
    }
    const enum fault fault = s->begun++ == s->fault_at ? s->fault : FAULT_NONE;
    if (fault != FAULT_NONE) {
        s->layer = what->layer;
        s->expert = what->expert;
    }
    if (fault == FAULT_REFUSED) {
        return COLIBRI_E_STORAGE;
    }
    memset(what->to, 0x5a, (size_t)what->bytes);
    s->read[read].busy = true;
    s->read[read].fault = fault;
    s->read[read].left = next_random(s) % 6u;
    s->read[read].what = *what;
    return COLIBRI_OK;
}

static colibri_status check(void *user, uint32_t read, uint32_t *crc32)
{
    struct storage *s = user;
    if (!s->read[read].busy) {
        die("a read that did not begin");
    }
    if (s->read[read].left > 0u) {
        s->read[read].left--;
        return COLIBRI_PENDING;
    }
    const struct colibri_read *what = &s->read[read].what;
    const enum fault fault = s->read[read].fault;
    uint8_t *to = what->to;
    s->read[read].busy = false;
    memcpy(to, s->image + what->offset, (size_t)what->bytes - (fault == FAULT_SHORT ? 512u : 0u));
    to[what->bytes / 3u] ^= fault == FAULT_FLIPPED ? 4u : 0u;
    *crc32 = colibri_crc32(0, to, (size_t)what->bytes);
    return fault == FAULT_FAILED ? COLIBRI_E_STORAGE : COLIBRI_OK;
}

struct trial {
    const char *kernels;
    void *image;
    void *front; /* what of it an engine with a storage may see */
    uint64_t front_bytes;
    size_t bytes;
    uint32_t experts;
    uint8_t wanted[32]; /* the answer's hash */
    struct storage storage;
    struct colibri *engine;
    uint64_t *arena;
    uint64_t *fresh; /* the arena as it was when the engine began */
    size_t arena_words;
    uint32_t polls_left; /* until the poll hook says stop; 0: never */
    uint32_t polls;
};

static bool poll(void *user)
{
    struct trial *t = user;
    t->polls++;
    return t->polls_left > 0u && --t->polls_left == 0u;
}

/* Word by word, and past the eyes of a sanitizer: there are fences between the arena's buffers. */
__attribute__((no_sanitize("address"))) static void copy(uint64_t *to, const uint64_t *from, size_t words)
{
    volatile uint64_t *out = to;
    const volatile uint64_t *in = from;
    for (size_t i = 0; i < words; i++) {
        out[i] = in[i];
    }
}

/* The engine as it began, with an empty cache. */
static void again(struct trial *t)
{
    copy(t->arena, t->fresh, t->arena_words);
    t->storage = (struct storage){.image = t->image, .bytes = t->bytes, .random = 7u};
}

/* An engine with an empty cache; slots 0: in memory. */
static void begin(struct trial *t, uint32_t slots, bool prefetch, uint32_t batch)
{
    struct colibri_config config = {.batch = batch, .context = PROMPT + ANSWER, .kernels = t->kernels,
                                    .skip_content_check = true, .cache_slots = slots, .prefetch = prefetch,
                                    .hooks = {.user = t, .poll = poll}};
    if (slots > 0u) {
        config.storage = (struct colibri_storage){.user = &t->storage, .depth = DEPTH, .start = start, .check = check};
    }
    const void *image = slots > 0u ? t->front : t->image;
    const uint64_t bytes = slots > 0u ? t->front_bytes : t->bytes;
    struct colibri_plan plan;
    if (colibri_plan(image, bytes, &config, &plan, NULL) != COLIBRI_OK) {
        die("no plan");
    }
    if (t->front == NULL) {
        t->front_bytes = plan.front_bytes;
        t->front = block((size_t)plan.front_bytes);
        memcpy(t->front, t->image, (size_t)plan.front_bytes);
    }
    free(t->arena);
    free(t->fresh);
    t->arena = block((size_t)plan.arena_bytes);
    t->fresh = block((size_t)plan.arena_bytes);
    t->arena_words = (size_t)plan.arena_bytes / sizeof *t->arena;
    const colibri_status status = colibri_init(&t->engine, image, bytes, &config, t->arena, plan.arena_bytes, NULL);
    if (status != COLIBRI_OK) {
        die(colibri_status_text(status));
    }
    copy(t->fresh, t->arena, t->arena_words);
    again(t);
}

static void require_idle(const struct trial *t)
{
    for (uint32_t i = 0; i < DEPTH; i++) {
        if (t->storage.read[i].busy) {
            die("a read is under way after a call has returned");
        }
    }
}

static void require_answer(struct trial *t)
{
    struct colibri_result result;
    const colibri_status status = answer(t->engine, NULL, &result);
    if (status != COLIBRI_OK) {
        die(colibri_status_text(status));
    }
    require_idle(t);
    if (memcmp(result.logits_sha256, t->wanted, sizeof t->wanted) != 0) {
        die("another answer than that of the image in memory");
    }
}

static void require_fault(struct trial *t, enum fault fault)
{
    struct colibri_result result;
    const colibri_status status = answer(t->engine, NULL, &result);
    const colibri_status wanted =
        fault == FAULT_FLIPPED || fault == FAULT_SHORT ? COLIBRI_E_EXPERT_CHECKSUM : COLIBRI_E_STORAGE;
    struct colibri_detail detail;
    colibri_get_fault(t->engine, &detail);
    char where[32];
    snprintf(where, sizeof where, "layer %" PRIu32 " expert %" PRIu32, t->storage.layer, t->storage.expert);
    if (status != wanted || strcmp(where, detail.where) != 0) {
        die("a fault that was not found, or not where it was");
    }
    require_idle(t);
}

static void run(const char *path, const char *kernels, uint32_t stride)
{
    struct trial t = {.kernels = kernels};
    t.image = read_file(path, &t.bytes);
    begin(&t, 0, false, 5);
    struct colibri_result result;
    struct colibri_info info;
    if (answer(t.engine, NULL, &result) != COLIBRI_OK) {
        die("no answer from memory");
    }
    memcpy(t.wanted, result.logits_sha256, sizeof t.wanted);
    colibri_get_info(t.engine, &info);
    const uint32_t all = info.max_experts == 0u ? 1u : info.max_experts;
    uint32_t runs = 0;
    uint32_t faults = 0;
    uint32_t cancels = 0;
    for (uint32_t slots = 1; slots <= all; slots += stride) {
        for (uint32_t kind = 0; kind < 4u; kind++, runs++) {
            begin(&t, slots, (kind & 1u) != 0u, (kind & 2u) != 0u ? 5u : 1u);
            require_answer(&t);
        }
    }
    begin(&t, 2, false, 1);
    require_answer(&t);
    const uint32_t reads = t.storage.begun;
    for (uint32_t n = 0; n < reads; n += stride) {
        for (enum fault fault = FAULT_FAILED; fault < FAULT_COUNT; fault++, faults++) {
            again(&t);
            t.storage.fault = fault;
            t.storage.fault_at = n;
            require_fault(&t, fault);
            t.storage.fault = FAULT_NONE;
            require_answer(&t);
        }
    }
    begin(&t, 3, true, 1);
    t.polls = 0;
    require_answer(&t);
    const uint32_t polls = t.polls;
    for (uint32_t n = 1; n < polls; n += stride * (1u + polls / 150u), cancels++) {
        again(&t);
        t.polls_left = n;
        if (answer(t.engine, NULL, &result) != COLIBRI_OK || result.finish != COLIBRI_FINISH_CANCELLED) {
            die("not cancelled");
        }
        require_idle(&t);
        t.polls_left = 0;
        require_answer(&t);
    }
    for (size_t i = 0; i < sizeof t.wanted; i++) {
        printf("%02x", t.wanted[i]);
    }
    printf(" %" PRIu32 " %" PRIu32 " %" PRIu32 "\n", runs, faults, cancels);
    free(t.arena);
    free(t.fresh);
    free(t.image);
    free(t.front);
}

int main(int argc, char **argv)
{
    const uint32_t stride = argc < 4 ? 0u : (uint32_t)strtoul(argv[2], NULL, 10);
    if (stride == 0u) {
        die("KERNELS STRIDE IMAGE... are missing");
    }
    for (int i = 3; i < argc; i++) {
        run(argv[i], strcmp(argv[1], "best") == 0 ? NULL : argv[1], stride);
    }
    return 0;
}
