/* SPDX-License-Identifier: Apache-2.0
 *
 * checks.c: clock, memory, floats, disk, watchdog and faults of a board.
 */
#include "checks.h"

#include "console.h"

void *memcpy(void *restrict destination, const void *restrict source, size_t bytes);
void *memmove(void *destination, const void *source, size_t bytes);
void *memset(void *destination, int value, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);

static bool fault_again;

static uint64_t now(void)
{
    return hal_board.clock.api->ticks(hal_board.clock.config, hal_board.clock.state);
}

static uint64_t frequency(void)
{
    return hal_board.clock.api->ticks_per_second(hal_board.clock.config, hal_board.clock.state);
}

void check_start(void)
{
    fault_again = false;
}

void check_clock(void)
{
    const uint64_t first = now();
    uint64_t last = first;
    int64_t backwards = 0;
    while (last - first < frequency() / 100u) {
        const uint64_t next = now();
        backwards += next < last;
        last = next;
    }
    print("clock");
    print_signed("frequency", (int64_t)frequency());
    print_signed("first", (int64_t)first);
    print_signed("last", (int64_t)last);
    print_signed("backwards", backwards);
}

/* One word per page is enough to find an end that is not RAM, or two addresses that are the same RAM. */
void check_memory(void)
{
    const uint64_t step = 4096;
    int64_t wrong = 0;
    for (uint64_t at = 0; at < hal_board.memory_bytes; at += step) {
        *(volatile uint64_t *)(void *)(hal_board.memory + at) = at ^ 0x5aa5c33c0ff01881u;
    }
    for (uint64_t at = 0; at < hal_board.memory_bytes; at += step) {
        wrong += *(volatile uint64_t *)(void *)(hal_board.memory + at) != (at ^ 0x5aa5c33c0ff01881u);
    }
    volatile uint8_t *last = hal_board.memory + hal_board.memory_bytes - 1u;
    *last = 0x77;
    wrong += *last != 0x77;
    print("memory");
    print_signed("pages", (int64_t)(hal_board.memory_bytes / step));
    print_signed("wrong", wrong);
}

#define SPAN 160u
static uint8_t copied[SPAN], expected[SPAN], original[SPAN];

static bool spans_differ(void)
{
    for (size_t i = 0; i < SPAN; i++) {
        if (((volatile uint8_t *)copied)[i] != ((volatile uint8_t *)expected)[i]) {
            return true;
        }
    }
    return false;
}

/* Byte by byte, through volatile: the reference must not become a call of what it checks. */
static void reset_spans(void)
{
    for (size_t i = 0; i < SPAN; i++) {
        ((volatile uint8_t *)original)[i] = (uint8_t)(i * 7u + 1u);
        ((volatile uint8_t *)copied)[i] = (uint8_t)(i * 7u + 1u);
        ((volatile uint8_t *)expected)[i] = (uint8_t)(i * 7u + 1u);
    }
}

static int64_t check_one(size_t to, size_t from, size_t bytes)
{
    int64_t wrong = 0;
    reset_spans();
    for (size_t i = 0; i < bytes; i++) {
        ((volatile uint8_t *)expected)[to + i] = original[from + i];
    }
    wrong += memmove(copied + to, copied + from, bytes) != copied + to || spans_differ();
    reset_spans();
    for (size_t i = 0; i < bytes; i++) {
        ((volatile uint8_t *)expected)[to + i] = original[from + i];
    }
    wrong += memcpy(copied + to, original + from, bytes) != copied + to || spans_differ();
    for (size_t i = 0; i < bytes; i++) {
        ((volatile uint8_t *)expected)[to + i] = (uint8_t)from;
    }
    wrong += memset(copied + to, (int)from, bytes) != copied + to || spans_differ();
    wrong += memcmp(copied + to, expected + to, bytes) != 0;
    if (bytes > 0) {
        ((volatile uint8_t *)copied)[to + bytes - 1u]++;
        const uint8_t mine = copied[to + bytes - 1u], other = expected[to + bytes - 1u];
        const int order = memcmp(copied + to, expected + to, bytes);
        wrong += mine > other ? order <= 0 : order >= 0;
    }
    return wrong;
}

void check_copies(void)
{
    int64_t wrong = 0;
    int64_t cases = 0;
    for (size_t to = 0; to < 20; to++) {
        for (size_t from = 0; from < 20; from++) {
            for (size_t bytes = 0; bytes < 72; bytes++, cases++) {
                wrong += check_one(32u + to, 32u + from, bytes);
            }
        }
    }
    print("copies");
    print_signed("cases", cases);
    print_signed("wrong", wrong);
}

static uint64_t float_control(void)
{
    uint64_t control;
#if defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
#else
    __asm__ volatile("csrr %0, fcsr" : "=r"(control));
    control &= ~0x1full; /* the flags of what was computed so far */
#endif
    return control;
}

static uint32_t bits(float value)
{
    uint32_t result;
    memcpy(&result, &value, sizeof result);
    return result;
}

void check_floats(void)
{
    volatile float one = 1.0f, three = 3.0f, tiny = 1.17549435e-38f, half = 0.5f, two = 2.0f;
    volatile float almost = 1.0f + 0x1p-12f; /* its square needs 25 bits: FMA keeps what rounding drops */
    print("floats");
    print_hex("control", float_control());
    print_hex("third", bits(one / three));
    print_hex("denormal", bits(tiny * half));
    print_hex("root", bits(__builtin_sqrtf(two)));
    print_hex("fused", bits(almost * almost - (1.0f + 0x1p-11f)));
}

static hal_status disk_init(void)
{
    return hal_board.block.api->init(hal_board.block.config, hal_board.block.state);
}

void check_disk(void)
{
    const uint64_t before = now();
    const hal_status status = disk_init();
    print("disk");
    print_signed("status", status);
    print_signed("blocks", (int64_t)hal_board.block.api->block_count(hal_board.block.config, hal_board.block.state));
    print_signed("ticks", (int64_t)(now() - before));
}

/* Bit by bit, so that it shares nothing with the engine's. */
static uint32_t crc32(const uint8_t *data, uint64_t bytes)
{
    uint32_t crc = 0xffffffffu;
    for (uint64_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

void check_read(const char *arguments)
{
    const uint64_t block = next_number(&arguments);
    const uint32_t count = (uint32_t)next_number(&arguments);
    uint8_t *to = hal_board.memory + next_number(&arguments);
    const uint64_t bytes = (uint64_t)count * HAL_BLOCK;
    memset(to, 0xee, bytes + 1u);
    const uint64_t before = now();
    const hal_status status = hal_block_read(&hal_board.block, block, count, to);
    const uint64_t ticks = now() - before;
    print("read");
    print_signed("status", status);
    print_hex("crc", crc32(to, bytes));
    print_signed("beyond", to[bytes]); /* 0xee: nothing was written behind the last block */
    print_signed("ticks", (int64_t)ticks);
}

void check_write(const char *arguments)
{
    const uint64_t block = next_number(&arguments);
    const uint32_t count = (uint32_t)next_number(&arguments);
    uint32_t x = (uint32_t)next_number(&arguments);
    for (uint64_t i = 0; i < (uint64_t)count * HAL_BLOCK; i++) {
        x = x * 1664525u + 1013904223u;
        hal_board.memory[i] = (uint8_t)(x >> 24);
    }
    print("write");
    print_signed("status", hal_board.block.api->write(hal_board.block.config, hal_board.block.state, block, count,
                                                      hal_board.memory));
}

#define PERIOD_MS 50u

static void start_watchdog(void)
{
    const struct hal_watchdog *watchdog = &hal_board.watchdog;
    print_signed("status", watchdog->api->start(watchdog->config, watchdog->state, PERIOD_MS));
}

void check_kick(void)
{
    const struct hal_watchdog *watchdog = &hal_board.watchdog;
    const uint64_t period = frequency() * PERIOD_MS / 1000u;
    print("kick");
    start_watchdog();
    for (uint64_t end = now() + 3u * period; now() < end;) {
        watchdog->api->kick(watchdog->config, watchdog->state);
    }
    watchdog->api->stop(watchdog->config, watchdog->state);
    for (uint64_t end = now() + 2u * period; now() < end;) {
    }
    print(" stopped");
}

void check_starve(void)
{
    print("starve");
    start_watchdog();
    print("\n");
    for (;;) {
        __asm__ volatile("nop");
    }
}

static uint64_t wait_ticks(uint32_t milliseconds)
{
    const struct hal_console *console = &hal_board.console;
    const uint64_t before = now();
    console->api->wait(console->config, console->state, milliseconds);
    return now() - before;
}

void check_wait(void)
{
    print("wait");
    print_signed("frequency", (int64_t)frequency());
    print_signed("silent", (int64_t)wait_ticks(30));
    print("\n"); /* now the test sends a line */
    print("input");
    print_signed("ticks", (int64_t)wait_ticks(60000));
}

void check_sleep(void)
{
    print("sleep");
    start_watchdog();
    print("\n");
    for (;;) {
        (void)wait_ticks(1000);
    }
}

/* Never inlined, so that the symbol can be found at the trap. */
__attribute__((noinline)) static uint64_t dig(uint64_t depth)
{
    volatile uint64_t frame[16];
    for (size_t i = 0; i < 16; i++) {
        frame[i] = depth + i;
    }
    if (depth != UINT64_MAX) {
        frame[depth % 16u] += dig(depth + 1u);
    }
    return frame[(depth + 1u) % 16u];
}

void check_overflow(void)
{
    print_hex("", dig(0));
}

void check_double_fault(void)
{
    fault_again = true;
    hal_provoke_fault(1);
}

void check_after_fault(void)
{
    if (fault_again) {
        hal_provoke_fault(1);
    }
}
