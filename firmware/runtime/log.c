/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c: lines for people, see log.h. */
#include "log.h"

#include "link.h"
#include "messages.h"

void log_init(struct log *log)
{
    log->bytes = 0;
    log->line_bytes = 0;
    log->level = LOG_INFO;
}

void log_begin(struct log *log, enum log_level level)
{
    log->level = (uint8_t)level;
    log->line_bytes = 0;
}

void log_text(struct log *log, const char *text)
{
    for (size_t i = 0; text[i] != '\0' && log->line_bytes < LOG_LINE; i++) {
        log->line[log->line_bytes++] = text[i];
    }
}

void log_number(struct log *log, uint64_t number)
{
    char digits[21];
    size_t at = sizeof digits;
    digits[--at] = '\0';
    do {
        digits[--at] = (char)('0' + (char)(number % 10u));
        number /= 10u;
    } while (number != 0);
    log_text(log, digits + at);
}

static uint32_t first_record(const struct log *log)
{
    return 2u + log->data[1];
}

static void drop_first(struct log *log)
{
    uint32_t record = first_record(log);
    for (uint32_t i = record; i < log->bytes; i++) {
        log->data[i - record] = log->data[i];
    }
    log->bytes -= record;
}

void log_end(struct log *log)
{
    while (log->bytes + 2u + log->line_bytes > LOG_BYTES) {
        drop_first(log);
    }
    log->data[log->bytes++] = log->level;
    log->data[log->bytes++] = (uint8_t)log->line_bytes;
    for (uint32_t i = 0; i < log->line_bytes; i++) {
        log->data[log->bytes++] = (uint8_t)log->line[i];
    }
}

void log_send(struct log *log, struct link *link)
{
    while (link->open && log->bytes != 0) {
        uint8_t head[3] = {log->data[0], log->data[1], 0}; /* level, u16 length */
        link_begin(link, link->epoch, MESSAGE_LOG, 0);
        link_put(link, head, sizeof head);
        link_put(link, log->data + 2, log->data[1]);
        link_end(link);
        drop_first(log);
    }
}
