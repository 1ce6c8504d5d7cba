/* SPDX-License-Identifier: Apache-2.0
 *
 * cobs.h: Consistent Overhead Byte Stuffing (S. Cheshire, M. Baker, IEEE/ACM Transactions on Networking 7(2), 1999):
 * takes the zeros out of a frame, so that a zero can delimit it. Both directions work byte by byte and need no copy
 * of the frame beside the one that they make. */
#ifndef COLIBRI_COBS_H
#define COLIBRI_COBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that `n` bytes take at most after encoding, without delimiters. */
#define COBS_MAX(n) ((n) + ((n) + 253u) / 254u + ((n) == 0u ? 1u : 0u))

/* Encodes into `out`, which must hold COBS_MAX of all bytes that are put. */
struct cobs_encoder {
    uint8_t *out;
    size_t bytes; /* written so far, the pending code byte included */
    size_t code;  /* where the code byte of the current group stands */
};
void cobs_encode_begin(struct cobs_encoder *encoder, uint8_t *out);
void cobs_encode_put(struct cobs_encoder *encoder, const uint8_t *data, size_t bytes);
size_t cobs_encode_end(struct cobs_encoder *encoder); /* the encoded length */

enum cobs_event {
    COBS_NOTHING = 0, /* the frame goes on, or was empty */
    COBS_FRAME = 1,   /* data[0 .. bytes) is a frame, valid until the next byte is pushed */
    COBS_DAMAGED = 2  /* what stood before this delimiter was no frame, or longer than the capacity */
};

/* Decodes a stream with its delimiters into `data`, `capacity` bytes that the caller owns. */
struct cobs_decoder {
    uint8_t *data;
    size_t capacity;
    size_t bytes;
    uint8_t code;    /* of the current group; 0 before the first */
    uint8_t left;    /* bytes that the group still wants */
    bool ended;      /* the last push ended a frame: the next one starts anew */
    bool overflowed; /* more than `capacity` bytes: skip to the next delimiter */
};
void cobs_decode_begin(struct cobs_decoder *decoder, uint8_t *data, size_t capacity);
enum cobs_event cobs_decode_push(struct cobs_decoder *decoder, uint8_t byte);

#endif
