/* SPDX-License-Identifier: Apache-2.0
 *
 * cobs.c: byte stuffing, see cobs.h. */
#include "cobs.h"

void cobs_encode_begin(struct cobs_encoder *encoder, uint8_t *out)
{
    encoder->out = out;
    encoder->code = 0;
    encoder->bytes = 1;
    out[0] = 1;
}

static void next_group(struct cobs_encoder *encoder)
{
    encoder->code = encoder->bytes;
    encoder->out[encoder->bytes++] = 1;
}

void cobs_encode_put(struct cobs_encoder *encoder, const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        /* A full group stands for its 254 bytes and no zero. Its successor is opened only when there is one. */
        if (encoder->out[encoder->code] == 0xff) {
            next_group(encoder);
        }
        if (data[i] == 0) {
            next_group(encoder);
        } else {
            encoder->out[encoder->bytes++] = data[i];
            encoder->out[encoder->code]++;
        }
    }
}

size_t cobs_encode_end(struct cobs_encoder *encoder)
{
    return encoder->bytes;
}

void cobs_decode_begin(struct cobs_decoder *decoder, uint8_t *data, size_t capacity)
{
    decoder->data = data;
    decoder->capacity = capacity;
    decoder->ended = true;
}

static void append(struct cobs_decoder *decoder, uint8_t byte)
{
    if (decoder->bytes == decoder->capacity) {
        decoder->overflowed = true;
    } else {
        decoder->data[decoder->bytes++] = byte;
    }
}

enum cobs_event cobs_decode_push(struct cobs_decoder *decoder, uint8_t byte)
{
    if (decoder->ended) {
        decoder->ended = false;
        decoder->overflowed = false;
        decoder->bytes = 0;
        decoder->code = 0;
        decoder->left = 0;
    }
    if (byte == 0) {
        decoder->ended = true;
        if (decoder->code == 0) {
            return COBS_NOTHING;
        }
        return decoder->overflowed || decoder->left != 0 ? COBS_DAMAGED : COBS_FRAME;
    }
    if (decoder->left != 0) {
        decoder->left--;
        append(decoder, byte);
    } else {
        if (decoder->code != 0 && decoder->code != 0xff) {
            append(decoder, 0);
        }
        decoder->code = byte;
        decoder->left = (uint8_t)(byte - 1);
    }
    return COBS_NOTHING;
}
