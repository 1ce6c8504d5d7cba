/* SPDX-License-Identifier: Apache-2.0
 *
 * trust.c: see trust.h. The build defines TRUST_PUBLIC_KEY, the 32 bytes of the key as an initializer, or not. */
#include "trust.h"

#include "../engine/detail.h"
#include "../engine/image_view.h"
#include "monocypher.h"

#define BETWEEN_BYTES 65536u

_Static_assert(sizeof(crypto_blake2b_ctx) <= sizeof(struct trust_digest), "a digest's state must fit");
_Static_assert(offsetof(struct col_signature, signature) == COL_SIGNED_BYTES, "signed: all fields before");
_Static_assert(offsetof(struct col_update, signature) - offsetof(struct col_update, bytes) == COL_UPDATE_SIGNED_BYTES,
               "signed: from `bytes` on");

#ifdef TRUST_PUBLIC_KEY
static const bool has_key = true;
static const uint8_t public_key[32] = TRUST_PUBLIC_KEY;
#else
static const bool has_key = false;
static const uint8_t public_key[32];
#endif

void trust_digest_begin(struct trust_digest *digest, size_t digest_bytes)
{
    crypto_blake2b_init((crypto_blake2b_ctx *)(void *)digest, digest_bytes);
}

void trust_digest_add(struct trust_digest *digest, const void *data, size_t bytes)
{
    crypto_blake2b_update((crypto_blake2b_ctx *)(void *)digest, data, bytes);
}

void trust_digest_end(struct trust_digest *digest, uint8_t *out)
{
    crypto_blake2b_final((crypto_blake2b_ctx *)(void *)digest, out);
}

bool trust_same_digest(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    uint8_t any = 0;
    for (size_t i = 0; i < bytes; i++) {
        any |= a[i] ^ b[i];
    }
    return any == 0u;
}

bool trust_has_key(void)
{
    return has_key;
}

const uint8_t *trust_key_id(void)
{
    static uint8_t id[TRUST_DIGEST_BYTES]; /* its first 16 bytes; the rest is not asked for */
    if (has_key) {
        crypto_blake2b(id, sizeof id, public_key, sizeof public_key);
    }
    return id;
}

static bool names_no_board(const char *board)
{
    return board[0] == '\0';
}

static bool same_board(const char *field, size_t bytes, const char *board)
{
    for (size_t i = 0; i < bytes; i++) {
        if (field[i] != board[i]) {
            return false;
        }
        if (board[i] == '\0') {
            return true;
        }
    }
    return false;
}

/* What image and update have in common: `message` is what was signed. */
static colibri_status check(const uint8_t *key_id, const uint8_t *signature, const void *message, size_t message_bytes,
                            uint64_t signed_counter, const char *signed_board, size_t signed_board_bytes,
                            const char *board, uint64_t counter, struct colibri_detail *detail)
{
    if (!trust_same_digest(key_id, trust_key_id(), 16)) {
        return col_fail(COLIBRI_E_SIGNATURE, detail, "key", 0, 1);
    }
    if (crypto_eddsa_check(signature, public_key, message, message_bytes) != 0) {
        return col_fail(COLIBRI_E_SIGNATURE, detail, "signature", 0, 1);
    }
    if (signed_counter < counter) {
        return col_fail(COLIBRI_E_COUNTER, detail, "counter", signed_counter, counter);
    }
    if (!names_no_board(signed_board) && !same_board(signed_board, signed_board_bytes, board)) {
        char name[32]; /* the signer's, but with an end for certain */
        for (size_t i = 0; i < sizeof name; i++) {
            name[i] = i + 1u < sizeof name && i < signed_board_bytes ? signed_board[i] : '\0';
        }
        return col_fail(COLIBRI_E_OTHER_BOARD, detail, name, 0, 1);
    }
    return COLIBRI_OK;
}

colibri_status trust_check_signature(const struct col_signature *signature, const char *board, uint64_t counter,
                                     struct colibri_detail *detail)
{
    if (!has_key) {
        return COLIBRI_OK;
    }
    if (signature->algorithm != COL_SIGNATURE_EDDSA) {
        return col_fail(COLIBRI_E_SIGNATURE, detail, "unsigned", signature->algorithm, COL_SIGNATURE_EDDSA);
    }
    return check(signature->key_id, signature->signature, signature, COL_SIGNED_BYTES, signature->counter,
                 signature->board, sizeof signature->board, board, counter, detail);
}

static void digest_of(const uint8_t *at, uint64_t left, uint8_t *out, size_t out_bytes, void (*between)(void *user),
                      void *user)
{
    struct trust_digest digest;
    trust_digest_begin(&digest, out_bytes);
    while (left > 0u) {
        const size_t part = left < BETWEEN_BYTES ? (size_t)left : BETWEEN_BYTES;
        trust_digest_add(&digest, at, part);
        at += part;
        left -= part;
        if (between != NULL) {
            between(user);
        }
    }
    trust_digest_end(&digest, out);
}

/* The one signature section of an image whose first page lies at `image`, or NULL. The directory is believed no further
 * than that: it is among the bytes that are signed, and the engine checks the rest of it. */
static const struct col_signature *find_signature(const uint8_t *image, uint64_t bytes)
{
    const struct col_header *header = (const void *)image;
    const struct col_section *section = (const void *)(image + sizeof *header);
    if (bytes < COL_PAGE || header->section_count > COL_MAX_SECTIONS) {
        return NULL;
    }
    const struct col_signature *found = NULL;
    for (uint32_t i = 0; i < header->section_count; i++) {
        if (section[i].kind != COL_SECTION_SIGNATURE) {
            continue;
        }
        if (found != NULL || section[i].offset < COL_PAGE || section[i].offset % COL_PAGE != 0u ||
            section[i].offset > bytes || bytes - section[i].offset < sizeof *found) {
            return NULL;
        }
        found = (const void *)(image + section[i].offset);
    }
    return found;
}

colibri_status trust_check_image(const void *image, uint64_t bytes, const char *board, uint64_t counter,
                                 void (*between)(void *user), void *user, struct colibri_detail *detail)
{
    if (!has_key) {
        return COLIBRI_OK;
    }
    const struct col_signature *signature = find_signature(image, bytes);
    if (signature == NULL) {
        return col_fail(COLIBRI_E_SIGNATURE, detail, "unsigned", 0, 1);
    }
    const colibri_status status = trust_check_signature(signature, board, counter, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    uint8_t found[TRUST_IMAGE_DIGEST_BYTES];
    digest_of(image, (uint64_t)((const uint8_t *)signature - (const uint8_t *)image), found, sizeof found, between,
              user);
    return trust_same_digest(found, signature->digest, sizeof found)
               ? COLIBRI_OK
               : col_fail(COLIBRI_E_SIGNATURE, detail, "digest", 0, 1);
}

colibri_status trust_check_update(const struct col_update *update, const uint8_t image_id[16], const char *board,
                                  uint64_t counter, struct colibri_detail *detail)
{
    if (!trust_same_digest(update->image_id, image_id, sizeof update->image_id)) {
        return col_fail(COLIBRI_E_UPDATE_BASE, detail, "image", 0, 1);
    }
    if (!has_key) {
        return COLIBRI_OK;
    }
    static const uint8_t nobody[16];
    if (trust_same_digest(update->key_id, nobody, sizeof nobody)) {
        return col_fail(COLIBRI_E_SIGNATURE, detail, "unsigned", 0, 1);
    }
    return check(update->key_id, update->signature, &update->bytes, COL_UPDATE_SIGNED_BYTES, update->counter,
                 update->board, sizeof update->board, board, counter, detail);
}

#ifdef TRUST_PUBLIC_KEY
colibri_status trust_check_experts(const void *image, uint64_t bytes, const char *board, void (*between)(void *user),
                                   void *user, struct colibri_detail *detail)
{
    static struct col_image view; /* 400 bytes that the stack need not carry */
    colibri_status status = col_image_open(image, bytes, &view, detail);
    /* What was taken once stays good when the counter is raised: it belongs to an image that is accepted. */
    for (uint32_t i = 0; i < view.update_count && status == COLIBRI_OK; i++) {
        status = trust_check_update(&view.update[i], view.header->image_id, board, 0, detail);
    }
    for (uint32_t i = 0; i < view.expert_count && status == COLIBRI_OK && !view.front; i++) {
        const struct col_expert *e = &view.expert[i];
        struct col_place place;
        uint8_t found[TRUST_DIGEST_BYTES];
        col_image_effective(&view, i, &place);
        digest_of(view.base + place.offset, e->bytes, found, sizeof found, between, user);
        if (!trust_same_digest(found, place.digest, sizeof found)) {
            return col_fail(COLIBRI_E_SIGNATURE, detail, "expert", e->layer, e->expert);
        }
    }
    return status;
}
#else
colibri_status trust_check_experts(const void *image, uint64_t bytes, const char *board, void (*between)(void *user),
                                   void *user, struct colibri_detail *detail)
{
    (void)image, (void)bytes, (void)board, (void)between, (void)user, (void)detail;
    return COLIBRI_OK;
}
#endif
