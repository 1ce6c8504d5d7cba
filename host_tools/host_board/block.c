/* SPDX-License-Identifier: Apache-2.0
 *
 * block.c: a file as the board's block device. A read is cut into pieces for a pool of threads, which read past the
 * page cache where the file system allows it: a disk gives its bandwidth only to somebody who asks for several things
 * at once. The thread that has read a piece computes its CRC-32, while the disk reads for the others. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "../../firmware/engine/colibri.h"
#include "crc_join.h"
#include "host_board.h"

#define THREADS 8u
/* Reading past the page cache needs this alignment of place, length and memory; what has less goes through it. */
#define DIRECT_ALIGN 4096u
/* Longer pieces cost less, but the last ones of a read leave threads idle. By trial with experts of 0.4 and 6.7 MB. */
#define SHORT_PIECE (256u << 10)
#define LONG_PIECE (512u << 10)
#define READ_OF_LONG_PIECES (4u << 20)
/* Somebody who does nothing but ask again is put to sleep for so long, or until a read ends. */
#define ASKS_BEFORE_SLEEP 64u
#define ASKING_NS 20000u
#define SLEEP_NS 200000u

/* A read under way. All but the status is under the lock. */
struct transfer {
    atomic_int status; /* hal_status */
    uint64_t at;       /* bytes */
    size_t bytes;
    uint8_t *to;
    size_t taken;       /* bytes whose pieces have been given to threads */
    size_t ended;       /* bytes of pieces that have ended */
    hal_status worst;   /* of these */
    struct crc_join crc;
    enum host_read_fault fault; /* on purpose: of the first piece */
};

struct piece {
    struct transfer *transfer; /* NULL: there is nothing to do */
    size_t from;
    size_t bytes;
    enum host_read_fault fault;
};

static struct transfer transfers[HOST_BLOCK_DEPTH];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int cached_file = -1;
static int direct_file = -1; /* -1: the file system has no such thing */

static ssize_t read_some(uint8_t *to, size_t bytes, uint64_t at)
{
    const bool aligned = ((uintptr_t)to | bytes | at) % DIRECT_ALIGN == 0;
    ssize_t got = -1;
    if (direct_file >= 0 && aligned) {
        got = pread(direct_file, to, bytes, (off_t)at);
    }
    if (got < 0 || (got == 0 && bytes != 0)) { /* also the rest of a file that ends inside a page */
        got = pread(cached_file, to, bytes, (off_t)at);
    }
    return got;
}

static hal_status read_piece(const struct piece *piece)
{
    uint8_t *to = piece->transfer->to + piece->from;
    const uint64_t at = piece->transfer->at + piece->from;
    if (piece->fault == HOST_READ_ERROR) {
        return HAL_E_IO;
    }
    for (size_t done = 0; done < piece->bytes;) {
        const ssize_t got = read_some(to + done, piece->bytes - done, at + done);
        if (got <= 0 || piece->fault == HOST_READ_SHORT) {
            return HAL_E_IO;
        }
        done += (size_t)got;
    }
    if (piece->fault == HOST_READ_CORRUPT) {
        to[piece->bytes / 2u] ^= 0x10u;
    }
    return HAL_OK;
}

/* Under the lock. */
static struct piece take_piece(void)
{
    for (size_t i = 0; i < HOST_BLOCK_DEPTH; i++) {
        struct transfer *transfer = &transfers[i];
        const size_t left = transfer->bytes - transfer->taken;
        if (left > 0) {
            const size_t limit = transfer->bytes < READ_OF_LONG_PIECES ? SHORT_PIECE : LONG_PIECE;
            const struct piece piece = {.transfer = transfer,
                                        .from = transfer->taken,
                                        .bytes = left < limit ? left : limit,
                                        .fault = transfer->taken == 0 ? transfer->fault : HOST_READ_WELL};
            transfer->taken += piece.bytes;
            return piece;
        }
    }
    return (struct piece){0};
}

static void end_piece(const struct piece *piece, hal_status status, uint32_t crc)
{
    struct transfer *transfer = piece->transfer;
    transfer->ended += piece->bytes;
    transfer->worst = status < transfer->worst ? status : transfer->worst;
    crc_join_add(&transfer->crc, piece->from, piece->bytes, crc);
    if (transfer->ended == transfer->bytes) {
        atomic_store(&transfer->status, transfer->worst);
        pthread_cond_signal(&ended);
    }
}

static void *run_reader(void *user)
{
    (void)user;
    pthread_mutex_lock(&lock);
    for (;;) {
        const struct piece piece = take_piece();
        if (piece.transfer == NULL) {
            pthread_cond_wait(&work, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        const hal_status status = read_piece(&piece);
        const uint32_t crc = colibri_crc32(0, piece.transfer->to + piece.from, piece.bytes);
        pthread_mutex_lock(&lock);
        end_piece(&piece, status, crc);
    }
    return NULL;
}

/* Signals are for the main thread: faults of this one would be reported with the other's registers. */
static bool start_readers(void)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) {
        return false;
    }
    bool started = true;
    for (size_t i = 0; i < THREADS && started; i++) {
        pthread_t thread;
        started = pthread_create(&thread, NULL, run_reader, NULL) == 0;
    }
    return pthread_sigmask(SIG_SETMASK, &before, NULL) == 0 && started;
}

/* On a real card a write must last when it returns: what comes next relies on it, and power fails there too. A file's
 * writes outlive this process anyway. */
static int when_written(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISBLK(about.st_mode) ? O_DSYNC : 0;
}

static hal_status block_init(const void *config, void *state)
{
    const struct host_block_config *block = config;
    struct host_block_state *device = state;
    if (cached_file >= 0) {
        return HAL_OK; /* brought up before */
    }
    cached_file = open(block->path, O_RDWR | O_CLOEXEC | when_written(block->path));
    if (cached_file < 0) {
        cached_file = open(block->path, O_RDONLY | O_CLOEXEC);
    }
    if (cached_file < 0) {
        return HAL_E_ABSENT;
    }
    const off_t bytes = lseek(cached_file, 0, SEEK_END); /* also the size of a block device */
    if (bytes < 0) {
        return HAL_E_IO;
    }
    device->blocks = (uint64_t)bytes / HAL_BLOCK;
    direct_file = open(block->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct_file < 0) {
        fprintf(stderr, "colibri-host: %s: read through the page cache, not past it: %s\n", block->path,
                strerror(errno));
    }
    return start_readers() ? HAL_OK : HAL_E_IO;
}

static uint64_t block_count(const void *config, const void *state)
{
    (void)config;
    return ((const struct host_block_state *)state)->blocks;
}

static bool in_range(const struct host_block_state *device, uint64_t block, uint32_t count)
{
    return block <= device->blocks && count <= device->blocks - block;
}

static hal_status block_start(const void *config, void *state, uint32_t transfer, uint64_t block, uint32_t count,
                              void *data)
{
    (void)config;
    struct transfer *read = &transfers[transfer];
    if (!in_range(state, block, count)) {
        return HAL_E_RANGE;
    }
    pthread_mutex_lock(&lock);
    read->at = block * HAL_BLOCK;
    read->bytes = (size_t)count * HAL_BLOCK;
    read->to = data;
    read->taken = 0;
    read->ended = 0;
    read->worst = HAL_OK;
    read->fault = host_fault_of_read();
    crc_join_begin(&read->crc, read->bytes);
    atomic_store(&read->status, count == 0 ? HAL_OK : HAL_PENDING);
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
    return HAL_OK;
}

/* A caller that has nothing else to do would take the readers' processor. One that computes between its looks is not
 * delayed: it asks seldom. */
static void rest(struct host_block_state *device, const struct transfer *read)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    const uint64_t now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    device->asks = now - device->asked < ASKING_NS ? device->asks + 1u : 0;
    device->asked = now;
    if (device->asks < ASKS_BEFORE_SLEEP) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_nsec += SLEEP_NS;
    if (time.tv_nsec >= 1000000000) {
        time.tv_nsec -= 1000000000;
        time.tv_sec++;
    }
    pthread_mutex_lock(&lock);
    if (atomic_load(&read->status) == HAL_PENDING) {
        (void)pthread_cond_timedwait(&ended, &lock, &time);
    }
    pthread_mutex_unlock(&lock);
    clock_gettime(CLOCK_MONOTONIC, &time);
    device->asked = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static hal_status block_step(const void *config, void *state, uint32_t transfer)
{
    (void)config;
    const struct transfer *read = &transfers[transfer];
    if (atomic_load(&read->status) == HAL_PENDING) {
        rest(state, read);
    }
    return (hal_status)atomic_load(&read->status);
}

static uint32_t block_crc32(const void *config, const void *state, uint32_t transfer)
{
    (void)config;
    (void)state;
    return transfers[transfer].crc.crc;
}

static hal_status block_write(const void *config, void *state, uint64_t block, uint32_t count, const void *data)
{
    (void)config;
    if (!in_range(state, block, count)) {
        return HAL_E_RANGE;
    }
    const size_t bytes = (size_t)count * HAL_BLOCK;
    for (size_t done = 0; done < bytes;) {
        const ssize_t got =
            pwrite(cached_file, (const uint8_t *)data + done, bytes - done, (off_t)(block * HAL_BLOCK + done));
        if (got <= 0) {
            return HAL_E_IO;
        }
        done += (size_t)got;
    }
    return HAL_OK;
}

#define READING                                                                                                   \
    .init = block_init, .block_count = block_count, .depth = HOST_BLOCK_DEPTH, .start = block_start,              \
    .step = block_step, .crc32 = block_crc32

const struct hal_block_api host_block_api = {READING, .write = block_write};
const struct hal_block_api host_block_read_only_api = {READING};
