/* SPDX-License-Identifier: Apache-2.0
 *
 * frame.h: frames of the link protocol (PROTOCOL.md, section 1): bytes on the line to and from a struct. */
#ifndef COLIBRI_FRAME_H
#define COLIBRI_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cobs.h"

#define LINK_VERSION 2u

/* Largest payload. At 115,200 baud such a frame takes 46 ms: a damaged one costs little, and the 17 bytes around the
 * payload are 3%. */
#define FRAME_PAYLOAD 512u
#define FRAME_HEADER 8u
#define FRAME_CRC 4u
#define FRAME_RAW (FRAME_HEADER + FRAME_PAYLOAD + FRAME_CRC)
#define FRAME_WIRE (COBS_MAX(FRAME_RAW) + 2u) /* with both delimiters */

enum frame_kind {
    FRAME_DATA = 1,
    FRAME_MORE = 2,
    FRAME_ACK = 3,
    FRAME_NAK = 4,
    FRAME_PING = 5,
    FRAME_SYN = 6,
    FRAME_SYN_ACK = 7,
    FRAME_RST = 8,
    FRAME_FAULT = 9,
    FRAME_REBOOT = 10
};

struct frame {
    uint8_t version; /* of the protocol */
    uint8_t kind;    /* enum frame_kind, or a value this version does not know */
    uint8_t seq;
    uint8_t ack;
    uint8_t credit;
    uint32_t session;
    const uint8_t *payload;
    size_t bytes; /* of the payload, at most FRAME_PAYLOAD */
};

/* Writes the frame with its delimiters; frame->version is not looked at. Returns the number of bytes. */
size_t frame_encode(const struct frame *frame, uint8_t wire[FRAME_WIRE]);

/* Reads what cobs_decode_push returned. False when it is too short or its CRC is wrong. The payload points into
 * `raw`. */
bool frame_parse(const uint8_t *raw, size_t bytes, struct frame *frame);

#endif
