/* SPDX-License-Identifier: Apache-2.0
 *
 * block.c: a file as the board's block device. Each read that may be under way has a thread of its own, which reads
 * past the page cache where the file system allows it, and computes the CRC-32 of a piece while the device reads for
 * the other threads. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "../../firmware/engine/colibri.h"
#include "host_board.h"

#define READERS HOST_BLOCK_DEPTH
/* Reading past the page cache needs this alignment of place, length and memory; what has less goes through it. */
#define DIRECT_ALIGN 4096u
#define PIECE_BYTES (1u << 20)
/* Somebody who does nothing but ask again is put to sleep for so long, or until a read ends. */
#define ASKS_BEFORE_SLEEP 64u
#define ASKING_NS 20000u
#define SLEEP_NS 200000u

struct reader {
    pthread_t thread;
    bool has_job;  /* under the lock */
    atomic_int status; /* hal_status of the job */
    uint64_t at;   /* bytes */
    size_t bytes;
    uint8_t *to;
    uint32_t crc;
    enum host_read_fault fault; /* on purpose */
};

static struct reader readers[READERS];
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

static hal_status read_all(struct reader *reader)
{
    reader->crc = 0;
    if (reader->fault == HOST_READ_ERROR) {
        return HAL_E_IO;
    }
    for (size_t done = 0; done < reader->bytes;) {
        const size_t left = reader->bytes - done;
        const ssize_t got = read_some(reader->to + done, left < PIECE_BYTES ? left : PIECE_BYTES, reader->at + done);
        if (got <= 0 || reader->fault == HOST_READ_SHORT) {
            return HAL_E_IO;
        }
        if (reader->fault == HOST_READ_CORRUPT) {
            reader->to[done + (size_t)got / 2u] ^= 0x10u;
        }
        reader->crc = colibri_crc32(reader->crc, reader->to + done, (size_t)got);
        done += (size_t)got;
    }
    return HAL_OK;
}

static void *run_reader(void *user)
{
    struct reader *reader = user;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!reader->has_job) {
            pthread_cond_wait(&work, &lock);
        }
        pthread_mutex_unlock(&lock);
        const hal_status status = read_all(reader);
        pthread_mutex_lock(&lock);
        reader->has_job = false;
        atomic_store(&reader->status, status);
        pthread_cond_signal(&ended);
        pthread_mutex_unlock(&lock);
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
    for (size_t i = 0; i < READERS && started; i++) {
        started = pthread_create(&readers[i].thread, NULL, run_reader, &readers[i]) == 0;
    }
    return pthread_sigmask(SIG_SETMASK, &before, NULL) == 0 && started;
}

static hal_status block_init(const void *config, void *state)
{
    const struct host_block_config *block = config;
    struct host_block_state *device = state;
    if (cached_file >= 0) {
        return HAL_OK; /* brought up before */
    }
    cached_file = open(block->path, O_RDWR | O_CLOEXEC);
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
    struct reader *reader = &readers[transfer];
    if (!in_range(state, block, count)) {
        return HAL_E_RANGE;
    }
    pthread_mutex_lock(&lock);
    reader->at = block * HAL_BLOCK;
    reader->bytes = (size_t)count * HAL_BLOCK;
    reader->to = data;
    reader->fault = host_fault_of_read();
    atomic_store(&reader->status, HAL_PENDING);
    reader->has_job = true;
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
    return HAL_OK;
}

/* A caller that has nothing else to do would take the readers' processor. One that computes between its looks is not
 * delayed: it asks seldom. */
static void rest(struct host_block_state *device, const struct reader *reader)
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
    if (atomic_load(&reader->status) == HAL_PENDING) {
        (void)pthread_cond_timedwait(&ended, &lock, &time);
    }
    pthread_mutex_unlock(&lock);
    clock_gettime(CLOCK_MONOTONIC, &time);
    device->asked = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static hal_status block_step(const void *config, void *state, uint32_t transfer)
{
    (void)config;
    const struct reader *reader = &readers[transfer];
    if (atomic_load(&reader->status) == HAL_PENDING) {
        rest(state, reader);
    }
    return (hal_status)atomic_load(&reader->status);
}

static uint32_t block_crc32(const void *config, const void *state, uint32_t transfer)
{
    (void)config;
    (void)state;
    return readers[transfer].crc;
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
    .init = block_init, .block_count = block_count, .depth = READERS, .start = block_start, .step = block_step,    \
    .crc32 = block_crc32

const struct hal_block_api host_block_api = {READING, .write = block_write};
const struct hal_block_api host_block_read_only_api = {READING};
