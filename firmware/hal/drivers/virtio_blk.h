/* SPDX-License-Identifier: Apache-2.0
 *
 * virtio_blk.h: virtio block device over memory-mapped registers (Virtual I/O Device specification 1.1, 4.2 and 5.2).
 */
#ifndef COLIBRI_HAL_VIRTIO_BLK_H
#define COLIBRI_HAL_VIRTIO_BLK_H

#include "parts.h"

#define VIRTIO_BLK_QUEUE 4u /* a request takes three descriptors; sizes are powers of two */

struct virtio_blk_config {
    uint64_t base;   /* of the first slot */
    uint32_t stride; /* bytes from slot to slot */
    uint32_t slots;  /* the first one that holds a block device is used */
};

struct virtio_blk_descriptor { /* 2.6.5 */
    uint64_t address;
    uint32_t length;
    uint16_t flags;
    uint16_t next;
};

/* The layout that legacy devices demand (2.6.2): used ring on the next page. Modern ones accept it too. */
struct virtio_blk_state {
    _Alignas(4096) struct virtio_blk_descriptor descriptors[VIRTIO_BLK_QUEUE];
    struct {
        uint16_t flags;
        volatile uint16_t index;
        uint16_t ring[VIRTIO_BLK_QUEUE];
    } available;
    _Alignas(4096) struct {
        uint16_t flags;
        volatile uint16_t index;
        struct {
            uint32_t id;
            uint32_t length;
        } ring[VIRTIO_BLK_QUEUE];
    } used;
    struct { /* 5.2.6 */
        uint32_t type;
        uint32_t reserved;
        uint64_t sector;
    } header;
    volatile uint8_t status;
    uint64_t slot; /* base address; 0: none found */
    uint64_t blocks;
    struct {          /* the transfer under way */
        uint32_t type;
        uint32_t count; /* blocks that are still to be asked for */
        uint64_t block;
        const uint8_t *data;
        uint64_t deadline; /* of the request */
    } transfer;
};
extern const struct hal_block_api virtio_blk_api;

#endif
