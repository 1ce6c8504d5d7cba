/* SPDX-License-Identifier: Apache-2.0
 *
 * trust.h: who may decide what this board runs. docs/image-format.md has the structs that are signed.
 *
 * A firmware is built with a public key or without. With one, it takes only images and updates that the key's owner
 * signed, for this board or for any, and not older than what it has confirmed before. Without one, it takes everything;
 * trust_has_key tells, and so do the device's INFO and `colibri-sdk doctor`.
 *
 * EdDSA on Curve25519 with BLAKE2b, and BLAKE2b itself, are Monocypher's; the engine has no part in this. */
#ifndef COLIBRI_TRUST_H
#define COLIBRI_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../engine/colibri.h"
#include "../engine/image.h"

#define TRUST_DIGEST_BYTES 32u       /* of an expert */
#define TRUST_IMAGE_DIGEST_BYTES 64u /* of an image's signed bytes */

/* Whether this firmware was built with a public key. */
bool trust_has_key(void);

/* The 16 bytes that name the key (first half of the BLAKE2b-256 of it), as in col_signature.key_id; zeros without one. */
const uint8_t *trust_key_id(void);

/* Whether what a signature says may run here: its key, its signature over its own fields, its counter (not below
 * `counter`) and its board (`board` or any). The digest in it is not compared: the caller compares it with the digest
 * of the bytes that the signature speaks of, before any of them is used.
 *
 * COLIBRI_E_SIGNATURE (detail "unsigned", "key" or "signature"), COLIBRI_E_COUNTER (got the counter, wanted at least),
 * COLIBRI_E_OTHER_BOARD (detail: the board that it is for). Without a key always COLIBRI_OK. */
COLIBRI_MUST_CHECK colibri_status trust_check_signature(const struct col_signature *signature, const char *board,
                                                        uint64_t counter, struct colibri_detail *detail);

/* The same of a whole image or its front in memory, and the digest of everything before the signature: detail "digest".
 * `between` is called about every 64 KB with `user`; it may be NULL. */
COLIBRI_MUST_CHECK colibri_status trust_check_image(const void *image, uint64_t bytes, const char *board,
                                                    uint64_t counter, void (*between)(void *user), void *user,
                                                    struct colibri_detail *detail);

/* Whether the experts in memory are those that were signed: every replaced one has a signature of its own, and every
 * expert that can be addressed has its digest. For an image that trust_check_image accepted. COLIBRI_E_SIGNATURE (detail
 * "unsigned", "key", "signature", or "expert", got the layer, wanted the expert), COLIBRI_E_OTHER_BOARD. */
COLIBRI_MUST_CHECK colibri_status trust_check_experts(const void *image, uint64_t bytes, const char *board,
                                                      void (*between)(void *user), void *user,
                                                      struct colibri_detail *detail);

/* Whether an update of an expert may be taken into the image of that id: COLIBRI_E_UPDATE_BASE when it was made for
 * another one, with a key or without; then as trust_check_signature. The blob's digest is the caller's to compare. */
COLIBRI_MUST_CHECK colibri_status trust_check_update(const struct col_update *update, const uint8_t image_id[16],
                                                     const char *board, uint64_t counter,
                                                     struct colibri_detail *detail);

/* BLAKE2b over a stream of bytes. */
struct trust_digest {
    uint64_t state[28];
};

/* `digest_bytes`: 1 to 64. */
void trust_digest_begin(struct trust_digest *digest, size_t digest_bytes);
void trust_digest_add(struct trust_digest *digest, const void *data, size_t bytes);

/* Ends the stream; `out` gets the `digest_bytes` of trust_digest_begin. */
void trust_digest_end(struct trust_digest *digest, uint8_t *out);

/* Compares digests, in a time that does not depend on them. */
bool trust_same_digest(const uint8_t *a, const uint8_t *b, size_t bytes);

#endif
