/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h: a device without a link on a disk: it boots, computes, and takes updates, by the firmware's own code. */
#ifndef POWERCUT_DEVICE_H
#define POWERCUT_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "../../firmware/engine/image_view.h"
#include "../../firmware/runtime/update.h"
#include "disk.h"

#define HASH_BYTES 32u

/* An image file, whole in memory. */
struct image_file {
    uint8_t *data;
    uint64_t bytes;
    struct col_image image;
};
struct image_file image_file_read(const char *path);

struct device {
    struct disk *disk;
    bool front_only; /* experts are read from the disk while the engine computes */
    struct medium medium;
    struct boot boot;
    struct update update;
    uint8_t *image;
    uint8_t *arena;
    uint64_t memory_bytes; /* of each of the two */
    struct colibri *engine; /* NULL: no model */
    uint32_t read_crc;
};

/* `front_only`: experts from the device's disk, by one slot for each layer. */
struct colibri_config device_config(struct device *device, bool front_only);

struct device device_new(struct disk *disk, bool front_only, uint64_t memory_bytes);
void device_free(struct device *device);

/* From reset to a running model, with the memory full of what was there before. False: no model runs. */
bool device_boot(struct device *device);

/* SHA-256 over the logits of a few tokens: the model's fingerprint. Zeros without a model. */
void device_hash(struct device *device, uint8_t hash[HASH_BYTES]);

/* Whole updates, as a host would send them. COLIBRI_OK, or what the device said. With a key they are signed, with the
 * device's own security counter; that of an expert's is `ahead` more. */
colibri_status device_update_expert(struct device *device, const struct image_file *donor, uint32_t layer,
                                    uint32_t expert, uint64_t ahead);
colibri_status device_update_model(struct device *device, const struct image_file *model, uint32_t tries);

#endif
