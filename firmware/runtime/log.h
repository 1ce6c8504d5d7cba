/* SPDX-License-Identifier: Apache-2.0
 *
 * log.h: lines for people, kept until a host is there to take them. When the buffer is full the oldest lines go. */
#ifndef COLIBRI_LOG_H
#define COLIBRI_LOG_H

#include <stddef.h>
#include <stdint.h>

struct link;

/* What is said before a host connects: some twenty lines. */
#define LOG_BYTES 1024u
#define LOG_LINE 200u

enum log_level { LOG_ERROR = 1, LOG_WARNING = 2, LOG_INFO = 3 };

struct log {
    uint32_t bytes;          /* of `data` in use: records of u8 level, u8 length, text */
    uint8_t data[LOG_BYTES];
    uint8_t level;           /* of the line being written */
    uint32_t line_bytes;
    char line[LOG_LINE];     /* what is longer is cut */
};

void log_init(struct log *log);

/* One line: begin, any number of texts and numbers, end. */
void log_begin(struct log *log, enum log_level level);
void log_text(struct log *log, const char *text);
void log_number(struct log *log, uint64_t number);
void log_end(struct log *log);

/* Sends all lines as LOG events if a session is open. Blocks as link_put does; not to be called inside a message. */
void log_send(struct log *log, struct link *link);

#endif
