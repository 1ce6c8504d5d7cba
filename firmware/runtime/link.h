/* SPDX-License-Identifier: Apache-2.0
 *
 * link.h: the device's end of the link (PROTOCOL.md, sections 2 and 3): messages in order, once, over bytes that may
 * be damaged. It owns one session at a time, an inbox of messages, and a window of outgoing frames; all of that lies
 * in struct link, which the caller provides. Nothing runs in the background: the link lives by link_pump, which is to
 * be called at least each millisecond.
 */
#ifndef COLIBRI_LINK_H
#define COLIBRI_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../hal/hal.h"
#include "cobs.h"
#include "frame.h"

/* Frames on the way at once, in each direction. Eight keep a 115,200 baud line busy over a round trip of 0.3 s.
 * A power of two, so that a sequence number's slot is its remainder. */
#define LINK_WINDOW 8u
/* Longest message from the host: a context of 4,096 ids fills it; longer texts are a matter of max_text_bytes. */
#define LINK_MAX_MESSAGE 16384u
/* Incoming messages wait here, one after the other, each behind its two lengths: one that is as long as may be, and a
 * window of short ones (CANCEL) behind it. */
#define LINK_RECORD 8u
#define LINK_INBOX (LINK_RECORD + LINK_MAX_MESSAGE + LINK_WINDOW * (LINK_RECORD + FRAME_PAYLOAD))
/* Bytes that arrive while the device writes: more than one frame each way. A power of two. */
#define LINK_RING 2048u

struct link_slot {
    uint16_t bytes;
    uint8_t kind; /* FRAME_DATA or FRAME_MORE */
    uint8_t payload[FRAME_PAYLOAD];
};

struct link_counters {
    uint32_t received; /* frames with a right CRC */
    uint32_t damaged;  /* byte runs between delimiters that were no frame */
    uint32_t repeated; /* numbered frames that had been taken before */
    uint32_t sent;     /* numbered frames, first time */
    uint32_t resent;   /* numbered frames, again */
};

struct link_config {
    const struct hal_console *console;
    const struct hal_clock *clock;
    uint32_t baud; /* 0: the line needs no time worth counting */
    void *user;
    size_t (*hello)(void *user, uint8_t *data, size_t capacity); /* writes HELLO's result body, at most 256 bytes */
    void (*alive)(void *user);                                   /* called by each pump: kick the watchdog */
};

struct link {
    struct link_config config;
    uint64_t ticks_per_second;
    struct link_counters counters;

    bool open;
    bool busy;             /* a request runs: the host must give signs of life */
    uint32_t session;
    uint32_t epoch;        /* counts sessions opened and closed; a message of an old epoch is not sent */
    uint64_t heard;        /* ticks when the last valid frame of the session came */
    uint64_t active;       /* ticks when the last byte came at all */
    bool ever_active;

    uint8_t ring[LINK_RING];
    uint32_t ring_head;    /* next byte to take; both count on and on */
    uint32_t ring_tail;    /* next byte to fill */
    struct cobs_decoder decoder;
    uint8_t raw[FRAME_RAW];

    uint8_t expected;      /* number of the next frame to take */
    bool ack_due;
    bool nak_due;
    bool nak_sent;         /* for this value of `expected` ... */
    uint64_t nak_time;     /* ... at this time */
    bool taken;             /* the caller reads the first message of the inbox */
    uint32_t inbox_bytes;   /* of whole messages; the one that is coming in lies behind them */
    uint64_t message_bytes; /* of it, so far; may exceed LINK_MAX_MESSAGE, what is beyond is not kept */
    uint8_t inbox[LINK_INBOX];

    uint8_t base;          /* oldest frame not acknowledged */
    uint8_t sent;          /* next frame to put on the line */
    uint8_t fresh;         /* next frame that was never on the line */
    uint8_t next;          /* next number to give */
    uint8_t credit;        /* of the host, from `base` */
    uint8_t backoff;       /* how often the timer ran out, less how often there was progress */
    bool went_back;        /* a NAK was obeyed since `base` moved or the timer ran out */
    uint64_t timer;        /* ticks when it was started */
    uint32_t payload_limit;
    uint32_t building;     /* bytes in slot[next] so far */
    bool failed;           /* the message being built has lost its session */
    uint32_t message_epoch;
    struct link_slot slot[LINK_WINDOW];
    uint8_t wire[FRAME_WIRE];
};

/* Starts without a session and tells a host that may listen so. */
void link_init(struct link *link, const struct link_config *config);

/* Reads what has arrived, answers what the protocol itself must answer, sends at most one queued frame. */
void link_pump(struct link *link);

/* Waits for input at most about that long (not at all where the console cannot wait), then pumps. */
void link_wait(struct link *link, uint32_t milliseconds);

/* The next whole message, if there is one and none is taken. It stays valid until link_release. *whole_bytes is its
 * true length, of which at most LINK_MAX_MESSAGE bytes are there. */
bool link_take(struct link *link, const uint8_t **message, uint64_t *whole_bytes);
void link_release(struct link *link);

/* Sends one message: begin, any number of puts, end. Blocks while the window is full and pumps meanwhile. When the
 * session `epoch` is not the current one (any more), all three do nothing. Must not be nested. */
void link_begin(struct link *link, uint32_t epoch, uint16_t type, uint32_t request);
void link_put(struct link *link, const void *data, size_t bytes);
void link_end(struct link *link);

/* Pumps until the host has acknowledged everything, at most that long. */
void link_flush(struct link *link, uint32_t milliseconds);

/* True when a byte has arrived within the last second: somebody is talking. */
bool link_is_active(const struct link *link);

#endif
