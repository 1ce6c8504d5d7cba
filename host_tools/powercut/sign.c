/* SPDX-License-Identifier: Apache-2.0
 *
 * sign.c: see sign.h. */
#include "sign.h"

#include <string.h>

#include "monocypher.h"

/* By the key whose seed is the bytes 0 to 31. The public half is in site_scons/host_builds.py; did the two not belong
 * together, no image would start. */
static void sign(uint8_t signature[64], const void *message, size_t bytes)
{
    uint8_t seed[32], secret[64], public_key[32];
    for (uint8_t i = 0; i < sizeof seed; i++) {
        seed[i] = i;
    }
    crypto_eddsa_key_pair(secret, public_key, seed);
    crypto_eddsa_sign(signature, secret, message, bytes);
}

void sign_image(const struct image_file *file, uint64_t counter)
{
    if (!trust_has_key()) {
        return;
    }
    const uint64_t at = file->image.section[COL_SECTION_SIGNATURE]->offset;
    struct col_signature *signature = (void *)(file->data + at);
    *signature = (struct col_signature){
        .version = COL_SIGNATURE_VERSION, .algorithm = COL_SIGNATURE_EDDSA, .counter = counter};
    memcpy(signature->magic, COL_SIGNATURE_MAGIC, sizeof signature->magic);
    memcpy(signature->key_id, trust_key_id(), sizeof signature->key_id);
    crypto_blake2b(signature->digest, sizeof signature->digest, file->data, (size_t)at);
    sign(signature->signature, signature, COL_SIGNED_BYTES);
    signature->crc32 = colibri_crc32(0, signature, offsetof(struct col_signature, crc32));
}

void sign_update(struct col_update *update, uint64_t counter)
{
    if (!trust_has_key()) {
        return;
    }
    update->counter = counter;
    memcpy(update->key_id, trust_key_id(), sizeof update->key_id);
    sign(update->signature, &update->bytes, COL_UPDATE_SIGNED_BYTES);
}
