/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: colibri-host: options, then the runtime. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../firmware/runtime/runtime.h"
#include "board.h"
#include "host_board.h"

/* Address space, not memory: pages come when the arena touches them. */
#define DEFAULT_MEMORY (2ull << 30)

static const char usage[] =
    "usage: colibri-host IMAGE [options]\n"
    "       colibri-host --block FILE [options]\n"
    "\n"
    "Runs the device's runtime in this process. The model IMAGE is used where it is mapped.\n"
    "\n"
    "  --stdio                  the link on stdin and stdout (the default)\n"
    "  --pty                    the link on a new pseudo-terminal, whose name is printed\n"
    "  --listen unix:PATH       the link for one client at a time on a Unix socket\n"
    "  --listen tcp:HOST:PORT   the same over TCP; port 0 takes a free one, which is printed\n"
    "  --fd N                   the link on an inherited descriptor\n"
    "  --block FILE             load the model from FILE as from a card or disk (raw image or partition table)\n"
    "  --kernels NAME           kernel set instead of the best one\n"
    "  --context N              positions of the KV cache instead of the image's maximum\n"
    "  --arena-limit BYTES      memory of the board, for the arena and what is loaded (2 GiB)\n"
    "  --store MODE             auto, memory, or block: read experts when they are needed, into slots of the arena\n"
    "  --cache-slots N          experts that each layer keeps then, instead of as many as the memory takes\n"
    "  --prefetch               guess the next layer's experts and read them ahead\n"
    "  --fail-reads KIND        for tests: after the N-th SIGUSR1 the N-th read fails (error), ends early (short), or\n"
    "                           delivers a wrong byte (corrupt)\n";

static uint64_t number(const char *option, const char *text, uint64_t limit)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > limit) {
        host_die("--%s takes a number up to %llu, not '%s'", option, (unsigned long long)limit, text);
    }
    return value;
}

/* The index of `text` among `names`, which ends with NULL. */
static uint32_t choice(const char *option, const char *text, const char *const *names)
{
    for (uint32_t i = 0; names[i] != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            return i;
        }
    }
    host_die("--%s takes %s, %s or %s, not '%s'", option, names[0], names[1], names[2], text);
}

static void set_listen(struct host_options *options, const char *target)
{
    if (strncmp(target, "unix:", 5) == 0 && target[5] != '\0') {
        options->channel = HOST_UNIX;
        options->address = target + 5;
    } else if (strncmp(target, "tcp:", 4) == 0 && strchr(target + 4, ':') != NULL) {
        options->channel = HOST_TCP;
        options->address = target + 4;
    } else {
        host_die("--listen takes unix:PATH or tcp:HOST:PORT, not '%s'", target);
    }
}

enum option_code { OPTION_STDIO = 1, OPTION_PTY, OPTION_LISTEN, OPTION_FD, OPTION_BLOCK, OPTION_KERNELS, OPTION_CONTEXT,
                   OPTION_LIMIT, OPTION_STORE, OPTION_SLOTS, OPTION_PREFETCH, OPTION_FAIL, OPTION_HELP };

static const struct option option_table[] = {
    {"stdio", no_argument, NULL, OPTION_STDIO},
    {"pty", no_argument, NULL, OPTION_PTY},
    {"listen", required_argument, NULL, OPTION_LISTEN},
    {"fd", required_argument, NULL, OPTION_FD},
    {"block", required_argument, NULL, OPTION_BLOCK},
    {"kernels", required_argument, NULL, OPTION_KERNELS},
    {"context", required_argument, NULL, OPTION_CONTEXT},
    {"arena-limit", required_argument, NULL, OPTION_LIMIT},
    {"store", required_argument, NULL, OPTION_STORE},
    {"cache-slots", required_argument, NULL, OPTION_SLOTS},
    {"prefetch", no_argument, NULL, OPTION_PREFETCH},
    {"fail-reads", required_argument, NULL, OPTION_FAIL},
    {"help", no_argument, NULL, OPTION_HELP},
    {NULL, 0, NULL, 0},
};

static void take_option(struct host_options *options, int code)
{
    switch (code) {
    case OPTION_STDIO:
        options->channel = HOST_STDIO;
        break;
    case OPTION_PTY:
        options->channel = HOST_PTY;
        break;
    case OPTION_LISTEN:
        set_listen(options, optarg);
        break;
    case OPTION_FD:
        options->channel = HOST_FD;
        options->address = optarg;
        (void)number("fd", optarg, 1u << 20);
        break;
    case OPTION_BLOCK:
        options->block = optarg;
        break;
    case OPTION_KERNELS:
        runtime_options.kernels = optarg;
        break;
    case OPTION_CONTEXT:
        runtime_options.context = (uint32_t)number("context", optarg, UINT32_MAX);
        break;
    case OPTION_LIMIT:
        options->memory_bytes = number("arena-limit", optarg, 1ull << 46);
        break;
    case OPTION_STORE:
        runtime_options.store.mode = choice("store", optarg, (const char *const[]){"auto", "memory", "block", NULL});
        break;
    case OPTION_SLOTS:
        runtime_options.store.cache_slots = (uint32_t)number("cache-slots", optarg, UINT32_MAX);
        break;
    case OPTION_PREFETCH:
        runtime_options.store.prefetch = true;
        break;
    case OPTION_FAIL:
        options->fail_reads =
            1u + choice("fail-reads", optarg, (const char *const[]){"error", "short", "corrupt", NULL});
        break;
    case OPTION_HELP:
        fputs(usage, stdout);
        exit(0);
    default: /* getopt has said what is wrong */
        fputs(usage, stderr);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct host_options options = {.channel = HOST_STDIO, .memory_bytes = DEFAULT_MEMORY, .arguments = argv};
    for (int code; (code = getopt_long(argc, argv, "", option_table, NULL)) != -1;) {
        take_option(&options, code);
    }
    if (optind < argc) {
        options.image = argv[optind++];
    }
    if (optind < argc || (options.image == NULL) == (options.block == NULL)) {
        fputs(usage, stderr);
        return 2;
    }
    host_board_prepare(&options);
    if (hal_board_init() != HAL_OK) {
        host_die("the board does not start");
    }
    return runtime_main();
}
