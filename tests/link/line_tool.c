/* SPDX-License-Identifier: Apache-2.0
 *
 * line_tool.c: the device's COBS, frames and cursors behind lines of text, for vectors and property tests. Each line
 * of stdin is a command with hexadecimal bytes ("-" for none), each gets one line of stdout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../firmware/runtime/cobs.h"
#include "../../firmware/runtime/frame.h"
#include "../../firmware/runtime/messages.h"

#define LINE 65536

static uint8_t *from_hex(const char *text, size_t *bytes)
{
    size_t length = strcmp(text, "-") == 0 ? 0 : strlen(text) / 2;
    uint8_t *data = malloc(length + 1); /* of exactly the size, so that the sanitizer sees an overrun */
    for (size_t i = 0; i < length; i++) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        data[i] = (uint8_t)byte;
    }
    *bytes = length;
    return data;
}

static void print_hex(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) {
        printf("-");
    }
    for (size_t i = 0; i < bytes; i++) {
        printf("%02x", data[i]);
    }
}

static void encode(const uint8_t *data, size_t bytes)
{
    uint8_t *out = malloc(COBS_MAX(bytes));
    struct cobs_encoder encoder;
    cobs_encode_begin(&encoder, out);
    for (size_t i = 0; i < bytes; i++) { /* in pieces, as frame.c does */
        cobs_encode_put(&encoder, data + i, 1);
    }
    print_hex(out, cobs_encode_end(&encoder));
    free(out);
}

/* A stream with delimiters: every frame that parses, and every damaged run. */
static void decode(const uint8_t *data, size_t bytes)
{
    uint8_t raw[FRAME_RAW];
    struct cobs_decoder decoder;
    cobs_decode_begin(&decoder, raw, sizeof raw);
    for (size_t i = 0; i < bytes; i++) {
        enum cobs_event event = cobs_decode_push(&decoder, data[i]);
        struct frame frame;
        if (event == COBS_NOTHING) {
            continue;
        }
        if (event == COBS_DAMAGED || !frame_parse(decoder.data, decoder.bytes, &frame)) {
            printf("damaged ");
            continue;
        }
        printf("%u,%u,%u,%u,%u,%lu,", frame.version, frame.kind, frame.seq, frame.ack, frame.credit,
               (unsigned long)frame.session);
        print_hex(frame.payload, frame.bytes);
        printf(" ");
    }
}

static void uncobs(const uint8_t *data, size_t bytes)
{
    uint8_t *out = malloc(bytes + 1);
    struct cobs_decoder decoder;
    cobs_decode_begin(&decoder, out, bytes);
    enum cobs_event event = COBS_NOTHING;
    for (size_t i = 0; i < bytes; i++) {
        event = cobs_decode_push(&decoder, data[i]);
    }
    event = cobs_decode_push(&decoder, 0);
    if (event == COBS_FRAME) {
        print_hex(decoder.data, decoder.bytes);
    } else {
        printf(event == COBS_DAMAGED ? "damaged" : "nothing");
    }
    free(out);
}

static void make_frame(char *fields)
{
    unsigned kind, seq, ack, credit;
    unsigned long session;
    static char payload[LINE];
    size_t bytes;
    sscanf(fields, "%u %u %u %u %lu %s", &kind, &seq, &ack, &credit, &session, payload);
    uint8_t *data = from_hex(payload, &bytes);
    struct frame frame = {.kind = (uint8_t)kind, .seq = (uint8_t)seq, .ack = (uint8_t)ack, .credit = (uint8_t)credit,
                          .session = (uint32_t)session, .payload = data, .bytes = bytes};
    uint8_t wire[FRAME_WIRE];
    print_hex(wire, frame_encode(&frame, wire));
    free(data);
}

/* Reads a body by a layout of letters (b h w q f: u8 u16 u32 u64 f32; s: str) and writes it again. */
static void body(char *fields)
{
    static char layout[64], text[LINE];
    size_t bytes;
    sscanf(fields, "%63s %s", layout, text);
    uint8_t *data = from_hex(text, &bytes);
    static uint8_t again[LINE];
    struct reader reader;
    struct writer writer;
    reader_begin(&reader, data, bytes);
    writer_begin(&writer, again, sizeof again);
    for (const char *letter = layout; *letter != '\0'; letter++) {
        union {
            float number;
            uint32_t bits;
        } value;
        size_t length = 0;
        const uint8_t *string;
        switch (*letter) {
        case 'b': write_u8(&writer, read_u8(&reader)); break;
        case 'h': write_u16(&writer, read_u16(&reader)); break;
        case 'w': write_u32(&writer, read_u32(&reader)); break;
        case 'q': write_u64(&writer, read_u64(&reader)); break;
        case 'f':
            value.number = read_f32(&reader);
            write_u32(&writer, value.bits);
            break;
        default:
            string = read_str(&reader, &length);
            if (string != NULL) {
                write_u16(&writer, (uint16_t)length);
                write_bytes(&writer, string, length);
            }
        }
    }
    printf(reader.failed ? "short " : reader_done(&reader) ? "whole " : "long ");
    print_hex(again, writer.bytes);
    free(data);
}

int main(void)
{
    static char line[2 * LINE];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *argument = strchr(line, ' ');
        if (argument == NULL) {
            return 1;
        }
        *argument++ = '\0';
        size_t bytes = 0;
        uint8_t *data = NULL;
        if (strcmp(line, "frame") == 0) {
            make_frame(argument);
        } else if (strcmp(line, "body") == 0) {
            body(argument);
        } else {
            data = from_hex(argument, &bytes);
            if (strcmp(line, "encode") == 0) {
                encode(data, bytes);
            } else if (strcmp(line, "uncobs") == 0) {
                uncobs(data, bytes);
            } else {
                decode(data, bytes);
            }
        }
        free(data);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
