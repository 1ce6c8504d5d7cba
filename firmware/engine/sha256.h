/* SPDX-License-Identifier: Apache-2.0
 *
 * sha256.h: SHA-256 (FIPS 180-4) over a stream of bytes. It identifies the logits of a generation.
 */
#ifndef COLIBRI_SHA256_H
#define COLIBRI_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct col_sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* taken so far */
    uint8_t block[64]; /* its first bytes % 64 bytes wait for the rest of their block */
};

void col_sha256_init(struct col_sha256 *hash);
void col_sha256_update(struct col_sha256 *hash, const void *data, size_t bytes);

/* Ends the stream; `hash` must be initialised again before its next use. */
void col_sha256_final(struct col_sha256 *hash, uint8_t digest[32]);

#endif
