/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.c: reports a trap or a watchdog over the link, again and again, until the host says REBOOT (PROTOCOL.md,
 * section 5). A device that has crashed does not go on silently, and does not stay dead for ever. */
#include "fault.h"

#include "../hal/hal.h"
#include "cobs.h"
#include "frame.h"
#include "messages.h"

#define REPEAT_SECONDS 1u
#define RESET_SECONDS 60u /* long enough for a person to plug in a cable and read */
#define WAIT_MS 10u

static volatile uint32_t running_request;
static volatile bool handling;
static struct cobs_decoder decoder;
static uint8_t raw[FRAME_RAW];
static uint8_t wire[FRAME_WIRE];
static uint8_t payload[FRAME_PAYLOAD];

void fault_name_request(uint32_t request)
{
    running_request = request;
}

static size_t describe(const struct hal_fault *fault)
{
    struct writer writer;
    uint32_t count = fault->register_count < HAL_FAULT_REGISTERS ? fault->register_count : HAL_FAULT_REGISTERS;
    writer_begin(&writer, payload, sizeof payload);
    write_u32(&writer, fault->kind);
    write_u32(&writer, running_request);
    write_u64(&writer, fault->pc);
    write_u64(&writer, fault->sp);
    write_u64(&writer, fault->cause);
    write_u64(&writer, fault->address);
    write_u64(&writer, fault->status);
    write_u32(&writer, count);
    write_u32(&writer, 0);
    for (uint32_t i = 0; i < count; i++) {
        write_u64(&writer, fault->registers[i]);
    }
    write_str(&writer, hal_board.name);
    return writer.bytes;
}

static void reset(void)
{
    hal_board.power.api->reset(hal_board.power.config);
}

/* Takes what has arrived. True when a SYN was among it: a host is there and does not know yet. */
static bool listen(void)
{
    const struct hal_console *console = &hal_board.console;
    bool asked = false;
    uint8_t bytes[64];
    size_t count = console->api->read(console->config, console->state, bytes, sizeof bytes);
    for (size_t i = 0; i < count; i++) {
        struct frame frame;
        if (cobs_decode_push(&decoder, bytes[i]) != COBS_FRAME || !frame_parse(decoder.data, decoder.bytes, &frame)) {
            continue;
        }
        if (frame.kind == FRAME_REBOOT) {
            reset();
        }
        asked = asked || frame.kind == FRAME_SYN;
    }
    return asked;
}

void hal_on_fault(const struct hal_fault *fault)
{
    if (handling) {
        reset(); /* a fault while reporting one */
    }
    handling = true;
    if (hal_board.watchdog.api != NULL) {
        hal_board.watchdog.api->stop(hal_board.watchdog.config, hal_board.watchdog.state);
    }
    cobs_decode_begin(&decoder, raw, sizeof raw);
    struct frame frame = {.kind = FRAME_FAULT, .payload = payload, .bytes = describe(fault)};
    size_t bytes = frame_encode(&frame, wire);

    const struct hal_console *console = &hal_board.console;
    const struct hal_clock *clock = &hal_board.clock;
    uint64_t second = clock->api->ticks_per_second(clock->config, clock->state);
    uint64_t start = clock->api->ticks(clock->config, clock->state);
    uint64_t last = start;
    bool due = true;
    for (;;) {
        uint64_t time = clock->api->ticks(clock->config, clock->state);
        if (due || time - last >= REPEAT_SECONDS * second) {
            console->api->write(console->config, console->state, wire, bytes);
            last = time;
        }
        if (time - start >= RESET_SECONDS * second) {
            reset();
        }
        if (console->api->wait != NULL) {
            console->api->wait(console->config, console->state, WAIT_MS);
        }
        due = listen();
    }
}
