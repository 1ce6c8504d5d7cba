/* SPDX-License-Identifier: Apache-2.0
 *
 * messages.h: the messages' numbers (PROTOCOL.md, section 4) and bounds-checked cursors to read and write their
 * bodies. A cursor that meets the end remembers it, so that a body is read field by field and checked once. */
#ifndef COLIBRI_MESSAGES_H
#define COLIBRI_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Arrays of integers and floats are sent as they lie in memory. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the link and the image are little-endian, and so must be the processor"
#endif

#define MESSAGE_HEADER 8u /* u16 type, u16 reserved, u32 request */

enum message_type {
    MESSAGE_HELLO = 1,
    MESSAGE_INFO = 2,
    MESSAGE_GENERATE = 3,
    MESSAGE_CANCEL = 4,
    MESSAGE_STATS = 5,
    MESSAGE_SELFTEST = 6,
    MESSAGE_LOGITS = 7,
    MESSAGE_TOKENIZE = 8,
    MESSAGE_REBOOT = 9,
    MESSAGE_PROVOKE = 10,
    MESSAGE_UPDATE_STATUS = 11,
    MESSAGE_UPDATE_BEGIN = 12,
    MESSAGE_UPDATE_DATA = 13,
    MESSAGE_UPDATE_COMMIT = 14,
    MESSAGE_UPDATE_CONFIRM = 15,
    MESSAGE_UPDATE_ROLLBACK = 16,
    MESSAGE_DIRECTORY = 17,
    MESSAGE_UPDATE_COPY = 18,
    MESSAGE_UPDATE_CRC = 19,
    MESSAGE_CONFIGURE = 20,
    MESSAGE_TOKEN = 64,
    MESSAGE_ROUTE = 65,
    MESSAGE_LOGIT_ROW = 66,
    MESSAGE_LOG = 67,
    MESSAGE_RESULT = 128, /* + the request's type */
    MESSAGE_ERROR = 255
};

enum generate_flag {
    GENERATE_TEMPLATE = 1,
    GENERATE_IGNORE_EOS = 2,
    GENERATE_TRACE_LOGITS = 4,
    GENERATE_TRACE_ROUTING = 8,
    GENERATE_SLIDE = 16,
    GENERATE_FLAGS = 31
};
enum segment_kind { SEGMENT_TEXT = 1, SEGMENT_IDS = 2 };
enum tokenize_flag { TOKENIZE_TEMPLATE = 1, TOKENIZE_FLAGS = 1 };
enum stats_flag { STATS_CLEAR = 1, STATS_FLAGS = 1 };
enum provoke_kind { PROVOKE_ILLEGAL = 1, PROVOKE_ACCESS = 2, PROVOKE_HANG = 3 };
enum update_kind { UPDATE_EXPERT = 1, UPDATE_MODEL = 2 };
enum update_state { UPDATE_IDLE = 0, UPDATE_OPEN = 1, UPDATE_WORKING = 2 };
enum update_where { UPDATE_TARGET = 0, UPDATE_RUNNING_IMAGE = 1 };
#define UPDATE_DATA_BYTES 12288u /* of one UPDATE_DATA */
enum device_state { DEVICE_LOADING = 1, DEVICE_READY = 2, DEVICE_NO_MODEL = 3 };

static inline uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void store_u32(uint8_t *p, uint32_t value)
{
    p[0] = (uint8_t)value;
    p[1] = (uint8_t)(value >> 8);
    p[2] = (uint8_t)(value >> 16);
    p[3] = (uint8_t)(value >> 24);
}

/* Reads a body. Past the end every value is 0 and `failed` is set. */
struct reader {
    const uint8_t *data;
    size_t bytes;
    size_t at;
    bool failed;
};
void reader_begin(struct reader *reader, const uint8_t *data, size_t bytes);
uint8_t read_u8(struct reader *reader);
uint16_t read_u16(struct reader *reader);
uint32_t read_u32(struct reader *reader);
uint64_t read_u64(struct reader *reader);
float read_f32(struct reader *reader); /* NaN and infinity are failures */
const uint8_t *read_bytes(struct reader *reader, size_t bytes); /* NULL past the end */
const uint8_t *read_str(struct reader *reader, size_t *bytes);  /* u16 count, bytes */
bool reader_done(const struct reader *reader); /* everything was read, and nothing beyond */

/* Writes a body into a buffer that the caller owns. What does not fit is left out and `failed` is set. */
struct writer {
    uint8_t *data;
    size_t capacity;
    size_t bytes;
    bool failed;
};
void writer_begin(struct writer *writer, uint8_t *data, size_t capacity);
void write_u8(struct writer *writer, uint8_t value);
void write_u16(struct writer *writer, uint16_t value);
void write_u32(struct writer *writer, uint32_t value);
void write_u64(struct writer *writer, uint64_t value);
void write_bytes(struct writer *writer, const void *data, size_t bytes);
void write_str(struct writer *writer, const char *text); /* NUL-terminated, cut at 255 bytes; NULL: empty */

#endif
