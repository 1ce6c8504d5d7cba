/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_link.c: libFuzzer target for what a stranger on the serial line can reach: frame decoder, sessions, messages,
 * every request. The input is a script of what the host does; checksums and sequence numbers are made right where
 * the script wants that, so that the fuzzer gets behind them. Time is virtual. The engine is the tests' fake one:
 * its answers cost nothing, and the real engine has targets of its own.
 *
 * Besides the sanitizers it checks what the protocol promises: whatever the device writes is a whole frame, its
 * numbered frames are in turn, and no request is answered twice.
 */
#include <setjmp.h>
#include <string.h>

#include "../../firmware/hal/hal.h"
#include "../../firmware/runtime/frame.h"
#include "../../firmware/runtime/messages.h"
#include "../../firmware/runtime/runtime.h"
#include "../../tests/link/fake_engine.c"
#include "fuzz.h"

#define MICROSECONDS 1000000u
#define LIMIT_SECONDS 60u
#define LOOK_MICROSECONDS 50u /* a look at the clock stands for all other work */
#define TAIL_MICROSECONDS 500000u /* after the script's end, for what still runs */
/* Requests of the script are numbered from here, so that their answers can be counted. */
#define FIRST_REQUEST 0x51000000u
#define REQUESTS 4096u

struct hal_board hal_board;

static struct {
    const uint8_t *data;
    size_t bytes;
    size_t at;
    uint64_t time;
    uint64_t end;
    jmp_buf leave;
    uint8_t rx[4096];
    size_t rx_at, rx_bytes;
    uint32_t session;
    uint8_t seq;      /* next number of the host */
    uint8_t expected; /* next number of the device */
    bool silent;      /* the host acknowledges nothing */
    uint32_t asked;
    uint8_t answered[REQUESTS];
    struct cobs_decoder decoder;
    uint8_t raw[FRAME_RAW];
    bool first;       /* the next piece begins a message */
    bool begins;      /* the device's next frame begins a message */
} host;

static uint8_t memory[131072] __attribute__((aligned(4096)));
static uint8_t image[4096] __attribute__((aligned(64))) = "C";

/* ------------------------------------------------------------------------------------------------------ the script */

static uint8_t take(void)
{
    return host.at < host.bytes ? host.data[host.at++] : 0;
}

static size_t take_block(const uint8_t **block, size_t limit)
{
    size_t wanted = take();
    wanted = wanted >= 250 ? (wanted - 249u) * 80u : wanted;
    wanted = wanted < limit ? wanted : limit;
    size_t there = host.bytes - host.at;
    size_t bytes = wanted < there ? wanted : there;
    *block = host.data + host.at;
    host.at += bytes;
    return bytes;
}

static void put(const uint8_t *data, size_t bytes)
{
    size_t room = sizeof host.rx - host.rx_bytes;
    bytes = bytes < room ? bytes : room;
    memcpy(host.rx + host.rx_bytes, data, bytes);
    host.rx_bytes += bytes;
}

static void put_frame(uint8_t kind, uint8_t seq, uint8_t credit, const uint8_t *payload, size_t bytes)
{
    uint8_t wire[FRAME_WIRE];
    struct frame frame = {.kind = kind, .seq = seq, .ack = host.expected, .credit = credit, .session = host.session,
                          .payload = payload, .bytes = bytes};
    put(wire, frame_encode(&frame, wire));
}

static void open_session(void)
{
    static const uint8_t syn[8] = {LINK_VERSION, LINK_VERSION, 0x00, 0x02, 0xff, 0xff, 0xff, 0x00};
    if (host.session == 0 || take() % 4u != 0) { /* otherwise a SYN that was sent twice */
        host.session++;
        host.seq = 0;
        host.expected = 0;
        host.first = true;
    }
    put_frame(FRAME_SYN, 0, 32, syn, sizeof syn);
}

static void send_piece(void)
{
    uint8_t payload[FRAME_PAYLOAD];
    const uint8_t *body;
    uint8_t choice = take();
    size_t bytes = 0;
    if (host.first) {
        memset(payload, 0, MESSAGE_HEADER);
        payload[0] = choice & 0x1f; /* all requests, and some that do not exist */
        store_u32(payload + 4, (choice & 0x60) == 0 ? 0 : FIRST_REQUEST + host.asked);
        host.asked++;
        bytes = MESSAGE_HEADER;
    }
    size_t more = take_block(&body, sizeof payload - bytes);
    memcpy(payload + bytes, body, more);
    host.first = (choice & 0x80) == 0;
    put_frame(host.first ? FRAME_DATA : FRAME_MORE, host.seq, 32, payload, bytes + more);
    host.seq++;
}

static void act(void)
{
    const uint8_t *block;
    size_t bytes;
    switch (take() % 8u) {
    case 0:
        bytes = take_block(&block, 512);
        put(block, bytes);
        break;
    case 1:
        open_session();
        break;
    case 2:
        host.time += (uint64_t)take() * 20000u;
        break;
    case 3:
        host.silent = !host.silent;
        break;
    case 4: { /* any frame with a right checksum */
        uint8_t kind = take(), seq = take(), credit = take();
        bytes = take_block(&block, FRAME_PAYLOAD);
        if (bytes >= MESSAGE_HEADER && load_u32(block + 4) - FIRST_REQUEST < REQUESTS) {
            break; /* a number that was given already would be answered twice, and rightly so */
        }
        put_frame(kind, seq, credit, block, bytes);
        break;
    }
    default:
        send_piece();
        break;
    }
}

/* -------------------------------------------------------------------------------------------- what the device writes */

static void check_message(const struct frame *frame, bool begins)
{
    if (!begins || frame->bytes < MESSAGE_HEADER) {
        return;
    }
    uint16_t type = load_u16(frame->payload);
    uint32_t request = load_u32(frame->payload + 4) - FIRST_REQUEST;
    if (type >= MESSAGE_RESULT && request < REQUESTS) {
        require(request < host.asked);
        require(host.answered[request]++ == 0);
    }
}

static void watch(uint8_t byte)
{
    enum cobs_event event = cobs_decode_push(&host.decoder, byte);
    require(event != COBS_DAMAGED);
    if (event != COBS_FRAME) {
        return;
    }
    struct frame frame;
    require(frame_parse(host.decoder.data, host.decoder.bytes, &frame));
    if (frame.kind == FRAME_SYN_ACK && host.expected == 0) {
        host.begins = true;
    }
    if ((frame.kind != FRAME_DATA && frame.kind != FRAME_MORE) || frame.session != host.session) {
        return;
    }
    if (frame.seq == host.expected && !host.silent) {
        check_message(&frame, host.begins);
        host.begins = frame.kind == FRAME_DATA;
        host.expected++;
        put_frame(FRAME_ACK, 0, 32, NULL, 0);
    }
}

/* ------------------------------------------------------------------------------------------------------- the board */

static size_t console_read(const void *config, void *state, uint8_t *data, size_t capacity)
{
    (void)config;
    (void)state;
    if (host.rx_at == host.rx_bytes) {
        host.rx_at = 0;
        host.rx_bytes = 0;
    }
    size_t bytes = host.rx_bytes - host.rx_at;
    bytes = bytes < capacity ? bytes : capacity;
    memcpy(data, host.rx + host.rx_at, bytes);
    host.rx_at += bytes;
    return bytes;
}

static void console_write(const void *config, void *state, const uint8_t *data, size_t bytes)
{
    (void)config;
    (void)state;
    for (size_t i = 0; i < bytes; i++) {
        watch(data[i]);
    }
}

static void next_act(void)
{
    if (host.at >= host.bytes && host.end == 0) {
        host.end = host.time + TAIL_MICROSECONDS;
    }
    if (host.time > (uint64_t)LIMIT_SECONDS * MICROSECONDS || (host.end != 0 && host.time > host.end)) {
        longjmp(host.leave, 1);
    }
    if (host.end == 0 && host.rx_at == host.rx_bytes) {
        act();
    }
}

static void console_wait(const void *config, void *state, uint32_t milliseconds)
{
    (void)config;
    (void)state;
    host.time += milliseconds * 1000u;
    next_act();
}

static uint64_t clock_ticks(const void *config, const void *state)
{
    (void)config;
    (void)state;
    host.time += LOOK_MICROSECONDS;
    if (host.time % 4096u < LOOK_MICROSECONDS) {
        next_act(); /* the host acts also while a request runs */
    }
    return host.time;
}

static uint64_t clock_rate(const void *config, const void *state)
{
    (void)config;
    (void)state;
    return MICROSECONDS;
}

static void power_reset(const void *config)
{
    (void)config;
    longjmp(host.leave, 1);
}

void hal_provoke_fault(uint32_t kind)
{
    (void)kind;
}

static const struct hal_console_api console_api = {.read = console_read, .write = console_write, .wait = console_wait};
static const struct hal_clock_api clock_api = {.ticks = clock_ticks, .ticks_per_second = clock_rate};
static const struct hal_power_api power_api = {.reset = power_reset};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memset(&host, 0, sizeof host);
    host.data = data;
    host.bytes = size;
    host.first = true;
    cobs_decode_begin(&host.decoder, host.raw, sizeof host.raw);
    hal_board = (struct hal_board){.name = "fuzz", .architecture = "none",
                                   .console = {.api = &console_api},
                                   .clock = {.api = &clock_api},
                                   .power = {.api = &power_api},
                                   .memory = memory, .memory_bytes = sizeof memory,
                                   .mapped_model = image, .mapped_model_bytes = sizeof image};
    if (size != 0 && (data[0] & 1) != 0) {
        hal_board.mapped_model = NULL; /* no model: there is no block device either */
    }
    runtime_options.context = 128; /* a generation without end ends soon */
    if (setjmp(host.leave) == 0) {
        runtime_main();
    }
    return 0;
}
