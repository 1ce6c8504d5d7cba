/* SPDX-License-Identifier: Apache-2.0
 *
 * disk.h: a disk in memory that remembers what was written to it, sector by sector, so that any moment between can be
 * brought back. */
#ifndef POWERCUT_DISK_H
#define POWERCUT_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../firmware/runtime/medium.h"

struct disk_write {
    uint64_t block;
    uint32_t behind; /* sectors that follow it in the same write, and in the log */
    uint8_t data[HAL_BLOCK];
};

/* How the write of a sector goes wrong. */
enum disk_fault {
    DISK_FAULT_FAILS,      /* it fails and stores nothing */
    DISK_FAULT_LIES,       /* it stores something else and says nothing */
    DISK_FAULT_UNREADABLE, /* it is right, but all reads fail from then on */
    DISK_FAULTS
};

struct disk {
    uint8_t *data; /* [blocks][HAL_BLOCK] */
    uint64_t blocks;
    bool recording;
    size_t fault_in; /* counts down: the write of a sector that makes it 0 goes wrong. 0: none does */
    enum disk_fault fault;
    bool read_fails; /* each */
    size_t reads;        /* since recording began */
    size_t bad_read;     /* counts down: the read that makes it 0 fails. 0: none does */
    struct disk_write *log; /* [log_count], of the writes since recording began */
    size_t log_count;
    size_t log_capacity;
};

/* What is left of the sector whose write is cut. */
enum disk_cut {
    DISK_CUT_BEFORE,  /* the old one */
    DISK_CUT_HALF,    /* half of it new, half old */
    DISK_CUT_GARBAGE, /* half of it new, half neither */
    DISK_CUT_ORDER,   /* the old one, but what follows in the same write is there: the medium began with that */
    DISK_CUTS
};

struct disk disk_new(uint64_t blocks);
void disk_free(struct disk *disk);
/* Contents only; both have the same size. */
void disk_copy(struct disk *to, const struct disk *from);
struct medium disk_medium(struct disk *disk);

/* Applies a write whole, or cut; it lies in the log. */
void disk_apply(struct disk *disk, const struct disk_write *write);
void disk_apply_cut(struct disk *disk, const struct disk_write *write, enum disk_cut cut);

#endif
