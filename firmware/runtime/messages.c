/* SPDX-License-Identifier: Apache-2.0
 *
 * messages.c: cursors over message bodies, see messages.h. */
#include "messages.h"

/* Longest string that the device sends; board, model and log texts are far shorter. */
#define STR_MAX 255u

void reader_begin(struct reader *reader, const uint8_t *data, size_t bytes)
{
    reader->data = data;
    reader->bytes = bytes;
    reader->at = 0;
    reader->failed = false;
}

const uint8_t *read_bytes(struct reader *reader, size_t bytes)
{
    if (reader->failed || bytes > reader->bytes - reader->at) {
        reader->failed = true;
        return NULL;
    }
    const uint8_t *data = reader->data + reader->at;
    reader->at += bytes;
    return data;
}

uint8_t read_u8(struct reader *reader)
{
    const uint8_t *p = read_bytes(reader, 1);
    return p == NULL ? 0 : *p;
}

uint16_t read_u16(struct reader *reader)
{
    const uint8_t *p = read_bytes(reader, 2);
    return p == NULL ? 0 : load_u16(p);
}

uint32_t read_u32(struct reader *reader)
{
    const uint8_t *p = read_bytes(reader, 4);
    return p == NULL ? 0 : load_u32(p);
}

uint64_t read_u64(struct reader *reader)
{
    const uint8_t *p = read_bytes(reader, 8);
    return p == NULL ? 0 : (uint64_t)load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

float read_f32(struct reader *reader)
{
    union {
        uint32_t bits;
        float value;
    } number = {.bits = read_u32(reader)};
    if ((number.bits & 0x7f800000u) == 0x7f800000u) {
        reader->failed = true;
        number.bits = 0;
    }
    return number.value;
}

const uint8_t *read_str(struct reader *reader, size_t *bytes)
{
    *bytes = read_u16(reader);
    return read_bytes(reader, *bytes);
}

bool reader_done(const struct reader *reader)
{
    return !reader->failed && reader->at == reader->bytes;
}

void writer_begin(struct writer *writer, uint8_t *data, size_t capacity)
{
    writer->data = data;
    writer->capacity = capacity;
    writer->bytes = 0;
    writer->failed = false;
}

void write_bytes(struct writer *writer, const void *data, size_t bytes)
{
    if (writer->failed || bytes > writer->capacity - writer->bytes) {
        writer->failed = true;
        return;
    }
    const uint8_t *source = data;
    for (size_t i = 0; i < bytes; i++) {
        writer->data[writer->bytes++] = source[i];
    }
}

void write_u8(struct writer *writer, uint8_t value)
{
    write_bytes(writer, &value, 1);
}

void write_u16(struct writer *writer, uint16_t value)
{
    const uint8_t data[2] = {(uint8_t)value, (uint8_t)(value >> 8)};
    write_bytes(writer, data, sizeof data);
}

void write_u32(struct writer *writer, uint32_t value)
{
    uint8_t data[4];
    store_u32(data, value);
    write_bytes(writer, data, sizeof data);
}

void write_u64(struct writer *writer, uint64_t value)
{
    write_u32(writer, (uint32_t)value);
    write_u32(writer, (uint32_t)(value >> 32));
}

void write_str(struct writer *writer, const char *text)
{
    size_t bytes = 0;
    while (text != NULL && bytes < STR_MAX && text[bytes] != '\0') {
        bytes++;
    }
    write_u16(writer, (uint16_t)bytes);
    write_bytes(writer, text, bytes);
}
