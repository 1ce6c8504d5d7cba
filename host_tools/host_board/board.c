/* SPDX-License-Identifier: Apache-2.0
 *
 * board.c: hal_board of the host: memory between two pages that must not be touched, the mapped image, the clock, and
 * reset as a new start of the same program on the same line. */
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS 1000000000u

struct hal_board hal_board;

static struct host_options board_options;
static struct host_block_config block_config;
static struct host_block_state block_state;

void host_board_prepare(const struct host_options *options)
{
    board_options = *options;
}

/* ---- clock */
static hal_status clock_init(const void *config, void *state)
{
    (void)config;
    (void)state;
    return HAL_OK;
}

static uint64_t clock_ticks(const void *config, const void *state)
{
    (void)config;
    (void)state;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * NANOSECONDS + (uint64_t)time.tv_nsec;
}

static uint64_t clock_rate(const void *config, const void *state)
{
    (void)config;
    (void)state;
    return NANOSECONDS;
}

static const struct hal_clock_api clock_api = {clock_init, clock_ticks, clock_rate};

/* ---- power */
static void power_reset(const void *config)
{
    (void)config;
    host_console_flush();
    host_console_hand_over();
    execv("/proc/self/exe", board_options.arguments);
    _exit(3); /* there is nothing left that could report it */
}

static void power_off(const void *config, uint32_t exit_code)
{
    (void)config;
    host_console_flush();
    _exit((int)exit_code);
}

static const struct hal_power_api power_api = {power_reset, power_off};

/* ---- memory and image */
static void map_memory(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inside = (board_options.memory_bytes + page - 1) / page * page;
    /* The pages before and behind stay inaccessible: an overrun becomes a fault report. */
    uint8_t *base = mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || (inside != 0 && mprotect(base + page, inside, PROT_READ | PROT_WRITE) != 0)) {
        host_die("cannot map %llu bytes: %s; try a smaller --arena-limit",
                 (unsigned long long)board_options.memory_bytes, strerror(errno));
    }
    /* Large pages where there are any: a direct read has fewer of them to hold, and weights need fewer translations. */
    (void)madvise(base + page, inside, MADV_HUGEPAGE);
    hal_board.memory = base + page;
    hal_board.memory_bytes = board_options.memory_bytes;
}

static void map_image(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) {
        host_die("cannot open %s: %s", path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode) || status.st_size == 0) {
        host_die("%s is empty or not a file", path);
    }
    void *image = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (image == MAP_FAILED) {
        host_die("cannot map %s: %s", path, strerror(errno));
    }
    close(file);
    hal_board.mapped_model = image;
    hal_board.mapped_model_bytes = (uint64_t)status.st_size;
}

#if defined(__x86_64__)
#define ARCHITECTURE "x86_64"
#elif defined(__aarch64__)
#define ARCHITECTURE "aarch64"
#elif defined(__riscv) && __riscv_xlen == 64
#define ARCHITECTURE "riscv64"
#else
#define ARCHITECTURE "unknown"
#endif

hal_status hal_board_init(void)
{
    hal_board.name = "host";
    hal_board.architecture = ARCHITECTURE;
    hal_board.console = (struct hal_console){.api = &host_console_api};
    hal_board.clock = (struct hal_clock){.api = &clock_api};
    hal_board.power = (struct hal_power){.api = &power_api};
    hal_board.watchdog = (struct hal_watchdog){.api = &host_watchdog_api};
    hal_board.link_baud = 0;
    map_memory();
    if (board_options.image != NULL) {
        map_image(board_options.image);
    }
    block_config.path = board_options.image != NULL ? board_options.image : board_options.block;
    const bool read_only = access(block_config.path, F_OK) == 0 && access(block_config.path, W_OK) != 0;
    hal_board.block = (struct hal_block){.api = read_only ? &host_block_read_only_api : &host_block_api,
                                         .config = &block_config,
                                         .state = &block_state};
    host_faults_install();
    host_faults_of_reads((enum host_read_fault)board_options.fail_reads);
    host_console_open(&board_options);
    return host_console_api.init(NULL, NULL);
}
