/* SPDX-License-Identifier: Apache-2.0
 *
 * console.c: the link's bytes over stdin/stdout, a pseudo-terminal, a Unix or TCP socket, or an inherited descriptor.
 * Waits in poll(2), so that an idle device costs nothing. A client that goes away leaves the device running, as an
 * unplugged cable would; on stdin/stdout and inherited descriptors it ends the process, which nobody could reach. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

#include "host_board.h"

#define HAND_OVER "COLIBRI_HOST_DESCRIPTORS"
/* How long a full line may block the device. A UART would never: what nobody reads is lost there. */
#define STUCK_MS 1000

static struct {
    enum host_channel_kind kind;
    int listener; /* -1: none */
    int in;       /* -1: no client */
    int out;
    bool stuck;   /* nobody has read for STUCK_MS: drop until the line moves again */
    bool fresh;   /* written since the last read */
    size_t pending;
    uint8_t buffer[4096];
} console = {.listener = -1, .in = -1, .out = -1};

static void must(bool good, const char *what)
{
    if (!good) {
        host_die("%s: %s", what, strerror(errno));
    }
}

static void unblock(int file)
{
    int flags = fcntl(file, F_GETFL);
    must(flags >= 0 && fcntl(file, F_SETFL, flags | O_NONBLOCK) == 0, "the link's descriptor");
}

/* ------------------------------------------------------------------------------------------------------- opening */

static void open_pty(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    must(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0, "pseudo-terminal");
    const char *name = ptsname(master);
    /* Kept open on this side too: without it a read fails whenever no host has the terminal open. */
    int slave = name == NULL ? -1 : open(name, O_RDWR | O_NOCTTY);
    struct termios settings;
    must(slave >= 0 && tcgetattr(slave, &settings) == 0, "pseudo-terminal");
    cfmakeraw(&settings);
    must(tcsetattr(slave, TCSANOW, &settings) == 0, "pseudo-terminal");
    console.in = master;
    console.out = master;
    printf("listening pty:%s\n", name);
}

static void open_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        host_die("the path of a Unix socket has at most %zu bytes: %s", sizeof address.sun_path - 1, path);
    }
    memcpy(address.sun_path, path, strlen(path));
    struct stat status;
    if (lstat(path, &status) == 0 && S_ISSOCK(status.st_mode)) {
        unlink(path); /* left by an earlier run */
    }
    console.listener = socket(AF_UNIX, SOCK_STREAM, 0);
    must(console.listener >= 0 && bind(console.listener, (struct sockaddr *)&address, sizeof address) == 0 &&
             listen(console.listener, 4) == 0,
         path);
    printf("listening unix:%s\n", path);
}

static void open_tcp(const char *target)
{
    char host[256];
    const char *colon = strrchr(target, ':');
    size_t bytes = (size_t)(colon - target);
    if (bytes >= sizeof host) {
        host_die("too long a host name: %s", target);
    }
    memcpy(host, target, bytes);
    host[bytes] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found;
    int failed = getaddrinfo(bytes == 0 ? "127.0.0.1" : host, colon + 1, &hints, &found);
    if (failed != 0) {
        host_die("%s: %s", target, gai_strerror(failed));
    }
    int one = 1;
    console.listener = socket(found->ai_family, SOCK_STREAM, 0);
    must(console.listener >= 0 &&
             setsockopt(console.listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
             bind(console.listener, found->ai_addr, found->ai_addrlen) == 0 && listen(console.listener, 4) == 0,
         target);
    freeaddrinfo(found);
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof bound;
    char port[16];
    must(getsockname(console.listener, (struct sockaddr *)&bound, &length) == 0, target);
    failed = getnameinfo((struct sockaddr *)&bound, length, host, sizeof host, port, sizeof port,
                         NI_NUMERICHOST | NI_NUMERICSERV);
    if (failed != 0) {
        host_die("%s: %s", target, gai_strerror(failed));
    }
    printf("listening tcp:%s:%s\n", host, port);
}

/* After a reset: the descriptors of the process before. */
static bool take_over(void)
{
    const char *text = getenv(HAND_OVER);
    if (text == NULL || sscanf(text, "%d,%d,%d", &console.listener, &console.in, &console.out) != 3) {
        return false;
    }
    unsetenv(HAND_OVER);
    return true;
}

void host_console_hand_over(void)
{
    char text[48];
    snprintf(text, sizeof text, "%d,%d,%d", console.listener, console.in, console.out);
    setenv(HAND_OVER, text, 1);
}

void host_console_open(const struct host_options *options)
{
    console.kind = options->channel;
    if (!take_over()) {
        switch (options->channel) {
        case HOST_STDIO:
            console.in = STDIN_FILENO;
            console.out = STDOUT_FILENO;
            break;
        case HOST_FD:
            console.in = atoi(options->address); /* main.c has checked that it is a number */
            console.out = console.in;
            break;
        case HOST_PTY:
            open_pty();
            break;
        case HOST_UNIX:
            open_unix(options->address);
            break;
        case HOST_TCP:
            open_tcp(options->address);
            break;
        }
        fflush(stdout);
    }
    int files[3] = {console.listener, console.in, console.out};
    for (size_t i = 0; i < 3; i++) {
        if (files[i] >= 0) {
            unblock(files[i]);
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- clients */

static void hang_up(void)
{
    if (console.kind == HOST_STDIO || console.kind == HOST_FD) {
        _exit(0);
    }
    if (console.listener >= 0 && console.in >= 0) {
        close(console.in);
        console.in = -1;
        console.out = -1;
    }
    console.pending = 0;
}

static bool connected(void)
{
    if (console.in < 0 && console.listener >= 0) {
        int client = accept(console.listener, NULL, NULL);
        if (client >= 0) {
            int one = 1;
            (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a Unix socket has no need */
            unblock(client);
            console.in = client;
            console.out = client;
            console.stuck = false;
        }
    }
    return console.in >= 0;
}

static bool gone(ssize_t result)
{
    return result == 0 || (result < 0 && errno != EAGAIN && errno != EINTR);
}

void host_console_flush(void)
{
    size_t done = 0;
    while (done < console.pending && connected()) {
        ssize_t written = write(console.out, console.buffer + done, console.pending - done);
        if (written > 0) {
            done += (size_t)written;
            console.stuck = false;
        } else if (gone(written)) {
            hang_up();
        } else {
            struct pollfd ready = {.fd = console.out, .events = POLLOUT};
            if (console.stuck || poll(&ready, 1, STUCK_MS) == 0) {
                console.stuck = true;
                break;
            }
        }
    }
    console.pending = 0;
}

/* ------------------------------------------------------------------------------------------------------ the driver */

static hal_status console_init(const void *config, void *state)
{
    (void)config;
    (void)state;
    return HAL_OK;
}

static void console_write(const void *config, void *state, const uint8_t *data, size_t bytes)
{
    (void)config;
    (void)state;
    for (size_t i = 0; i < bytes; i++) {
        if (console.pending == sizeof console.buffer) {
            host_console_flush();
        }
        console.buffer[console.pending++] = data[i];
    }
    console.fresh = true;
}

static size_t console_read(const void *config, void *state, uint8_t *data, size_t capacity)
{
    (void)config;
    (void)state;
    /* The link looks for input after every few bytes that it writes. Such a read leaves the output where it is, so
     * that a frame goes out in one piece; the next one sends it. */
    if (console.fresh) {
        console.fresh = false;
    } else if (console.pending != 0) {
        host_console_flush();
    }
    if (!connected()) {
        return 0;
    }
    ssize_t got = read(console.in, data, capacity);
    if (got > 0) {
        return (size_t)got;
    }
    if (gone(got)) {
        hang_up();
    }
    return 0;
}

static void console_wait(const void *config, void *state, uint32_t milliseconds)
{
    (void)config;
    (void)state;
    host_console_flush();
    struct pollfd ready = {.fd = connected() ? console.in : console.listener, .events = POLLIN};
    (void)poll(&ready, 1, (int)milliseconds);
}

const struct hal_console_api host_console_api = {console_init, console_read, console_write, console_wait};
