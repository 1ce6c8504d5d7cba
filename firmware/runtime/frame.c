/* SPDX-License-Identifier: Apache-2.0
 *
 * frame.c: frames of the link protocol, see frame.h. */
#include "frame.h"

#include "../engine/colibri.h"
#include "messages.h"

size_t frame_encode(const struct frame *frame, uint8_t wire[FRAME_WIRE])
{
    uint8_t header[FRAME_HEADER];
    header[0] = (uint8_t)(LINK_VERSION << 4 | (frame->kind & 0x0fu));
    header[1] = frame->seq;
    header[2] = frame->ack;
    header[3] = frame->credit;
    store_u32(header + 4, frame->session);
    size_t bytes = frame->bytes <= FRAME_PAYLOAD ? frame->bytes : FRAME_PAYLOAD;
    uint32_t crc = colibri_crc32(0, header, sizeof header);
    if (bytes != 0) {
        crc = colibri_crc32(crc, frame->payload, bytes);
    }
    uint8_t tail[FRAME_CRC];
    store_u32(tail, crc);

    struct cobs_encoder encoder;
    wire[0] = 0;
    cobs_encode_begin(&encoder, wire + 1);
    cobs_encode_put(&encoder, header, sizeof header);
    cobs_encode_put(&encoder, frame->payload, bytes);
    cobs_encode_put(&encoder, tail, sizeof tail);
    size_t length = cobs_encode_end(&encoder);
    wire[1 + length] = 0;
    return length + 2;
}

bool frame_parse(const uint8_t *raw, size_t bytes, struct frame *frame)
{
    if (bytes < FRAME_HEADER + FRAME_CRC || bytes > FRAME_RAW) {
        return false;
    }
    size_t covered = bytes - FRAME_CRC;
    if (colibri_crc32(0, raw, covered) != load_u32(raw + covered)) {
        return false;
    }
    frame->version = (uint8_t)(raw[0] >> 4);
    frame->kind = raw[0] & 0x0fu;
    frame->seq = raw[1];
    frame->ack = raw[2];
    frame->credit = raw[3];
    frame->session = load_u32(raw + 4);
    frame->payload = raw + FRAME_HEADER;
    frame->bytes = covered - FRAME_HEADER;
    return true;
}
