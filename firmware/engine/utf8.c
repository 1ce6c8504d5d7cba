/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8.c: strict UTF-8, after Table 3-7 (well-formed byte sequences) of the Unicode Standard.
 */
#include "utf8.h"

/* What a lead byte promises: the sequence's length and the range of its second byte, which excludes over-long forms,
 * surrogates and values past U+10FFFF. Later bytes are 80..BF. Length 0: no lead byte. */
struct lead {
    uint32_t length;
    uint8_t low;
    uint8_t high;
};

static struct lead lead_of(uint8_t byte)
{
    struct lead lead = {0, 0x80, 0xbf};
    if (byte < 0x80) {
        lead.length = 1;
    } else if (byte < 0xc2) {
        lead.length = 0;
    } else if (byte < 0xe0) {
        lead.length = 2;
    } else if (byte < 0xf0) {
        lead.length = 3;
        lead.low = byte == 0xe0 ? 0xa0 : 0x80;
        lead.high = byte == 0xed ? 0x9f : 0xbf;
    } else if (byte < 0xf5) {
        lead.length = 4;
        lead.low = byte == 0xf0 ? 0x90 : 0x80;
        lead.high = byte == 0xf4 ? 0x8f : 0xbf;
    }
    return lead;
}

/* How many of the bytes after the lead byte belong to its sequence, up to what is wanted and readable. */
static uint32_t tail_length(struct lead lead, const uint8_t *text, size_t bytes)
{
    uint32_t have = 1;
    while (have < lead.length && have < bytes) {
        uint8_t low = have == 1 ? lead.low : 0x80;
        uint8_t high = have == 1 ? lead.high : 0xbf;
        if (text[have] < low || text[have] > high) {
            break;
        }
        have++;
    }
    return have;
}

uint32_t col_utf8_decode(const uint8_t *text, size_t bytes, uint32_t *length)
{
    struct lead lead = lead_of(text[0]);
    *length = 1;
    if (lead.length == 1) {
        return text[0];
    }
    if (lead.length == 0 || tail_length(lead, text, bytes) < lead.length) {
        return COL_UTF8_INVALID;
    }
    *length = lead.length;
    uint32_t point = text[0] & (0x7fu >> lead.length);
    for (uint32_t i = 1; i < lead.length; i++) {
        point = point << 6 | (text[i] & 0x3fu);
    }
    return point;
}

uint32_t col_utf8_last(const uint8_t *text, size_t bytes, uint32_t *length)
{
    uint32_t back = 1;
    while (back < 4 && back < bytes && (text[bytes - back] & 0xc0u) == 0x80) {
        back++;
    }
    uint32_t point = col_utf8_decode(text + (bytes - back), back, length);
    if (*length == back) {
        return point;
    }
    *length = 1; /* of what is no whole character, the last byte */
    return COL_UTF8_INVALID;
}

uint32_t col_utf8_encode(uint32_t code_point, uint8_t out[4])
{
    if (code_point < 0x80) {
        out[0] = (uint8_t)code_point;
        return 1;
    }
    uint32_t length = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (uint32_t i = length - 1; i > 0; i--, code_point >>= 6) {
        out[i] = (uint8_t)(0x80u | (code_point & 0x3fu));
    }
    out[0] = (uint8_t)(0xf00u >> length | code_point);
    return length;
}

size_t col_utf8_complete(const uint8_t *text, size_t bytes)
{
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        const uint8_t *at = text + (bytes - back);
        struct lead lead = lead_of(*at);
        if (lead.length > back && tail_length(lead, at, back) == back) {
            return bytes - back;
        }
        if (lead.length != 0) {
            break; /* a character begins here and needs nothing more, or is broken already */
        }
    }
    return bytes;
}
