/* SPDX-License-Identifier: Apache-2.0
 *
 * link.c: sessions, acknowledgement, retransmission and fragments on the device's side, see link.h. */
#include "link.h"

#include "../engine/colibri.h"
#include "messages.h"

/* Bytes written before the receiver is looked at again: half of a 16-byte UART FIFO. */
#define WRITE_PIECE 8u
#define RESEND_MS 300u
#define RESEND_MAX_MS 4000u
#define NAK_SPACING_MS 100u
#define SILENCE_MS 10000u
#define ACTIVE_MS 1000u
#define PAYLOAD_MIN 256u /* of the host, as PROTOCOL.md says */
#define HELLO_MAX 256u
#define SYN_BYTES 8u

static uint64_t now(const struct link *link)
{
    return link->config.clock->api->ticks(link->config.clock->config, link->config.clock->state);
}

static uint64_t ticks(const struct link *link, uint64_t milliseconds)
{
    return milliseconds * link->ticks_per_second / 1000u;
}

/* ------------------------------------------------------------------------------------------------------- bytes */

static void fill_ring(struct link *link)
{
    for (;;) {
        uint32_t at = link->ring_tail % LINK_RING;
        uint32_t room = LINK_RING - (link->ring_tail - link->ring_head);
        uint32_t straight = LINK_RING - at < room ? LINK_RING - at : room;
        if (straight == 0) {
            return; /* the hardware keeps the rest, or loses it and the protocol asks again */
        }
        const struct hal_console *console = link->config.console;
        size_t bytes = console->api->read(console->config, console->state, link->ring + at, straight);
        if (bytes == 0) {
            return;
        }
        link->ring_tail += (uint32_t)bytes;
        link->active = now(link);
        link->ever_active = true;
    }
}

static void put_on_line(struct link *link, const struct frame *frame)
{
    const struct hal_console *console = link->config.console;
    size_t bytes = frame_encode(frame, link->wire);
    for (size_t at = 0; at < bytes; at += WRITE_PIECE) {
        size_t piece = bytes - at < WRITE_PIECE ? bytes - at : WRITE_PIECE;
        console->api->write(console->config, console->state, link->wire + at, piece);
        fill_ring(link);
    }
}

/* ------------------------------------------------------------------------------------------------------- inbox */

static uint32_t kept(uint64_t message_bytes)
{
    return message_bytes < LINK_MAX_MESSAGE ? (uint32_t)message_bytes : LINK_MAX_MESSAGE;
}

/* Bytes that the inbox can take beyond the message that is coming in. */
static uint32_t inbox_room(const struct link *link)
{
    uint32_t used = link->inbox_bytes + LINK_RECORD + kept(link->message_bytes);
    return used < LINK_INBOX ? LINK_INBOX - used : 0;
}

static uint8_t own_credit(const struct link *link)
{
    uint32_t frames = inbox_room(link) / (LINK_RECORD + FRAME_PAYLOAD); /* each may begin a message */
    return (uint8_t)(frames < LINK_WINDOW ? frames : LINK_WINDOW);
}

/* False when there is no room for it. */
static bool keep_payload(struct link *link, const struct frame *frame)
{
    uint32_t at = kept(link->message_bytes);
    uint32_t more = kept(link->message_bytes + frame->bytes) - at;
    uint32_t start = link->inbox_bytes + LINK_RECORD;
    if (start + at + more > LINK_INBOX) {
        return false;
    }
    for (uint32_t i = 0; i < more; i++) {
        link->inbox[start + at + i] = frame->payload[i];
    }
    link->message_bytes += frame->bytes;
    return true;
}

static void finish_message(struct link *link)
{
    uint64_t whole = link->message_bytes < UINT32_MAX ? link->message_bytes : UINT32_MAX;
    store_u32(link->inbox + link->inbox_bytes, kept(link->message_bytes));
    store_u32(link->inbox + link->inbox_bytes + 4, (uint32_t)whole);
    link->inbox_bytes += LINK_RECORD + kept(link->message_bytes);
    link->message_bytes = 0;
}

/* ------------------------------------------------------------------------------------------------------- frames */

static void send_frame(struct link *link, uint8_t kind, uint8_t seq, const uint8_t *payload, size_t bytes)
{
    struct frame frame = {.kind = kind,
                          .seq = seq,
                          .ack = link->expected,
                          .credit = own_credit(link),
                          .session = link->session,
                          .payload = payload,
                          .bytes = bytes};
    link->ack_due = false; /* every frame of the session carries the acknowledgement */
    put_on_line(link, &frame);
}

static void send_reset(struct link *link, uint32_t session, colibri_status status)
{
    uint8_t payload[6];
    store_u32(payload, (uint32_t)status);
    payload[4] = LINK_VERSION;
    payload[5] = LINK_VERSION;
    struct frame frame = {.kind = FRAME_RST, .session = session, .payload = payload, .bytes = sizeof payload};
    put_on_line(link, &frame);
}

/* ---------------------------------------------------------------------------------------------------- sessions */

static void leave_session(struct link *link)
{
    link->open = false;
    link->epoch++;
    link->expected = 0;
    link->ack_due = false;
    link->nak_due = false;
    link->nak_sent = false;
    /* A message that is being read stays until it is released. */
    link->inbox_bytes = link->taken ? LINK_RECORD + load_u32(link->inbox) : 0;
    link->message_bytes = 0;
    link->base = 0;
    link->sent = 0;
    link->fresh = 0;
    link->next = 0;
    link->backoff = 0;
    link->went_back = false;
}

static void answer_syn(struct link *link)
{
    uint8_t hello[HELLO_MAX];
    size_t bytes = link->config.hello(link->config.user, hello, sizeof hello);
    send_frame(link, FRAME_SYN_ACK, 0, hello, bytes);
}

static void on_syn(struct link *link, const struct frame *frame)
{
    if (frame->session == 0 || frame->bytes < 2) {
        return;
    }
    if (frame->version != LINK_VERSION || frame->payload[0] > LINK_VERSION || frame->payload[1] < LINK_VERSION) {
        send_reset(link, frame->session, COLIBRI_E_LINK_VERSION);
        return;
    }
    if (frame->bytes < SYN_BYTES || load_u16(frame->payload + 2) < PAYLOAD_MIN) {
        send_reset(link, frame->session, COLIBRI_E_REQUEST);
        return;
    }
    link->heard = now(link);
    if (!link->open || frame->session != link->session) {
        leave_session(link);
        link->open = true;
        link->session = frame->session;
        link->credit = frame->credit;
        uint32_t limit = load_u16(frame->payload + 2);
        link->payload_limit = limit < FRAME_PAYLOAD ? limit : FRAME_PAYLOAD;
    }
    answer_syn(link);
}

/* ----------------------------------------------------------------------------------------------------- receiver */

static void on_numbered(struct link *link, const struct frame *frame)
{
    uint8_t behind = (uint8_t)(link->expected - frame->seq);
    if (behind != 0) {
        if (behind <= 128) {
            link->counters.repeated++;
            link->ack_due = true;
        } else {
            link->nak_due = true;
        }
        return;
    }
    link->ack_due = true;
    if (!keep_payload(link, frame)) {
        return; /* the sender has not heeded the credit */
    }
    link->expected++;
    link->nak_sent = false;
    if (frame->kind == FRAME_DATA) {
        finish_message(link);
    }
}

static void on_acknowledgement(struct link *link, const struct frame *frame)
{
    uint8_t taken = (uint8_t)(frame->ack - link->base);
    if (taken > (uint8_t)(link->fresh - link->base)) {
        return; /* of frames that were never sent */
    }
    if (taken > (uint8_t)(link->sent - link->base)) {
        link->sent = frame->ack; /* it went back to frames that had arrived */
    }
    link->base = frame->ack;
    link->credit = frame->credit;
    if (taken != 0) {
        if (link->backoff != 0) {
            link->backoff--; /* not to 0 at once: the line may be slower than it says */
        }
        link->timer = now(link);
        link->went_back = false;
    }
    /* Once: on a line with long buffers the next NAKs are older than what was sent again. */
    if (frame->kind == FRAME_NAK && link->sent != link->base && !link->went_back) {
        link->went_back = true;
        link->sent = link->base;
        link->timer = now(link);
    }
}

static void on_frame(struct link *link, const struct frame *frame)
{
    if (frame->kind == FRAME_SYN) {
        on_syn(link, frame);
        return;
    }
    if (frame->version != LINK_VERSION) {
        return;
    }
    bool ours = link->open && frame->session == link->session;
    if (frame->kind == FRAME_RST) {
        if (ours) {
            leave_session(link);
        }
        return;
    }
    if (frame->kind < FRAME_DATA || frame->kind > FRAME_PING) {
        return;
    }
    if (!ours) {
        if (frame->session != 0) {
            send_reset(link, frame->session, COLIBRI_OK);
        }
        return;
    }
    link->heard = now(link);
    on_acknowledgement(link, frame);
    if (frame->kind == FRAME_DATA || frame->kind == FRAME_MORE) {
        on_numbered(link, frame);
    } else if (frame->kind == FRAME_PING) {
        link->ack_due = true;
    }
}

static void take_bytes(struct link *link)
{
    /* Only what is there now: answers read more, and a flood must not keep the caller in here. */
    uint32_t end = link->ring_tail;
    while (link->ring_head != end) {
        uint8_t byte = link->ring[link->ring_head++ % LINK_RING];
        enum cobs_event event = cobs_decode_push(&link->decoder, byte);
        if (event == COBS_NOTHING) {
            continue;
        }
        struct frame frame;
        if (event == COBS_FRAME && frame_parse(link->decoder.data, link->decoder.bytes, &frame)) {
            link->counters.received++;
            on_frame(link, &frame);
        } else {
            link->counters.damaged++;
            link->nak_due = link->open;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- sender */

static uint64_t resend_after(const struct link *link)
{
    uint64_t milliseconds = RESEND_MS;
    if (link->config.baud != 0) {
        uint64_t bytes = (uint64_t)(uint8_t)(link->sent - link->base) * FRAME_WIRE;
        milliseconds += bytes * 10u * 1000u / link->config.baud;
    }
    for (uint8_t i = 0; i < link->backoff && milliseconds < RESEND_MAX_MS; i++) {
        milliseconds *= 2;
    }
    return ticks(link, milliseconds);
}

static void check_timers(struct link *link)
{
    if (!link->open) {
        return;
    }
    uint64_t time = now(link);
    bool outstanding = link->base != link->next;
    if ((outstanding || link->busy) && time - link->heard > ticks(link, SILENCE_MS)) {
        leave_session(link);
        return;
    }
    if (outstanding && time - link->timer > resend_after(link)) {
        if (link->sent == link->base) {
            send_frame(link, FRAME_PING, 0, NULL, 0); /* the host had no room; its ACK will say whether it has now */
        }
        link->sent = link->base;
        link->went_back = false;
        link->timer = time;
        link->backoff = (uint8_t)(link->backoff < 8 ? link->backoff + 1 : 8);
    }
}

static void send_next(struct link *link)
{
    if (!link->open || link->sent == link->next || (uint8_t)(link->sent - link->base) >= link->credit) {
        return;
    }
    if (link->sent == link->base) {
        link->timer = now(link);
    }
    const struct link_slot *slot = &link->slot[link->sent % LINK_WINDOW];
    uint8_t seq = link->sent;
    link->sent++;
    if (seq == link->fresh) {
        link->fresh++;
        link->counters.sent++;
    } else {
        link->counters.resent++;
    }
    send_frame(link, slot->kind, seq, slot->payload, slot->bytes);
}

static void send_control(struct link *link)
{
    if (!link->open) {
        return;
    }
    if (link->nak_due) {
        link->nak_due = false;
        uint64_t time = now(link);
        if (!link->nak_sent || time - link->nak_time > ticks(link, NAK_SPACING_MS)) {
            link->nak_sent = true;
            link->nak_time = time;
            send_frame(link, FRAME_NAK, 0, NULL, 0);
        }
    }
    if (link->ack_due) {
        send_frame(link, FRAME_ACK, 0, NULL, 0);
    }
}

/* ---------------------------------------------------------------------------------------------------- interface */

void link_init(struct link *link, const struct link_config *config)
{
    struct link_config copy = *config;
    uint8_t *bytes = (uint8_t *)link;
    for (size_t i = 0; i < sizeof *link; i++) {
        bytes[i] = 0; /* an initialiser would build 25 KB on the stack first */
    }
    link->config = copy;
    link->ticks_per_second = config->clock->api->ticks_per_second(config->clock->config, config->clock->state);
    link->payload_limit = FRAME_PAYLOAD;
    cobs_decode_begin(&link->decoder, link->raw, sizeof link->raw);
    send_reset(link, 0, COLIBRI_OK);
}

void link_pump(struct link *link)
{
    if (link->config.alive != NULL) {
        link->config.alive(link->config.user);
    }
    fill_ring(link);
    take_bytes(link);
    check_timers(link);
    send_next(link);
    send_control(link);
}

void link_wait(struct link *link, uint32_t milliseconds)
{
    const struct hal_console *console = link->config.console;
    bool waiting = link->inbox_bytes != 0 && !link->taken;
    if (console->api->wait != NULL && link->ring_head == link->ring_tail && !waiting) {
        console->api->wait(console->config, console->state, milliseconds);
    }
    link_pump(link);
}

bool link_take(struct link *link, const uint8_t **message, uint64_t *whole_bytes)
{
    if (link->taken || link->inbox_bytes == 0) {
        return false;
    }
    link->taken = true;
    *message = link->inbox + LINK_RECORD;
    *whole_bytes = load_u32(link->inbox + 4);
    return true;
}

void link_release(struct link *link)
{
    uint32_t first = LINK_RECORD + load_u32(link->inbox);
    uint32_t all = link->inbox_bytes + LINK_RECORD + kept(link->message_bytes);
    bool was_full = own_credit(link) < LINK_WINDOW;
    for (uint32_t i = first; i < all && i < LINK_INBOX; i++) {
        link->inbox[i - first] = link->inbox[i];
    }
    link->inbox_bytes -= first;
    link->taken = false;
    link->ack_due = link->ack_due || (was_full && link->open); /* the credit has risen */
}

/* Gives slot[next], which is full or holds the message's end, its number. */
static void close_slot(struct link *link, uint8_t kind)
{
    struct link_slot *slot = &link->slot[link->next % LINK_WINDOW];
    slot->kind = kind;
    slot->bytes = (uint16_t)link->building;
    link->building = 0;
    if (link->base == link->next) {
        link->timer = now(link);
    }
    link->next++;
    link_pump(link);
    link->failed = link->epoch != link->message_epoch;
}

static void wait_for_slot(struct link *link)
{
    while (link->epoch == link->message_epoch && (uint8_t)(link->next - link->base) >= LINK_WINDOW) {
        link_wait(link, 1);
    }
    link->failed = link->epoch != link->message_epoch;
}

void link_begin(struct link *link, uint32_t epoch, uint16_t type, uint32_t request)
{
    link->message_epoch = epoch;
    link->failed = !link->open || link->epoch != epoch;
    link->building = 0;
    uint8_t header[MESSAGE_HEADER] = {(uint8_t)type, (uint8_t)(type >> 8)};
    store_u32(header + 4, request);
    link_put(link, header, sizeof header);
}

void link_put(struct link *link, const void *data, size_t bytes)
{
    const uint8_t *source = data;
    while (bytes != 0 && !link->failed) {
        if (link->building == link->payload_limit) {
            close_slot(link, FRAME_MORE);
            continue;
        }
        if (link->building == 0) {
            wait_for_slot(link);
            if (link->failed) {
                return;
            }
        }
        size_t room = link->payload_limit - link->building;
        size_t piece = bytes < room ? bytes : room;
        uint8_t *payload = link->slot[link->next % LINK_WINDOW].payload + link->building;
        for (size_t i = 0; i < piece; i++) {
            payload[i] = source[i];
        }
        link->building += (uint32_t)piece;
        source += piece;
        bytes -= piece;
    }
}

void link_end(struct link *link)
{
    if (!link->failed) {
        close_slot(link, FRAME_DATA);
    }
}

void link_flush(struct link *link, uint32_t milliseconds)
{
    uint64_t start = now(link);
    while (link->open && link->base != link->next && now(link) - start < ticks(link, milliseconds)) {
        link_wait(link, 1);
    }
}

bool link_is_active(const struct link *link)
{
    return link->ever_active && now(link) - link->active < ticks(link, ACTIVE_MS);
}
