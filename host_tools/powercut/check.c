/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c: see check.h. */
#include "check.h"

#include <string.h>

struct future look_ahead(const struct campaign *campaign, const struct scenario *scenario, struct disk *disk)
{
    struct future future;
    struct device device = device_new(disk, scenario->front_only, campaign->memory_bytes);
    for (uint32_t i = 0; i < BOOTS; i++) {
        (void)device_boot(&device);
        device_hash(&device, future.hash[i]);
    }
    device_free(&device);
    return future;
}

bool same_future(const struct future *a, const struct future *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

bool computes(const struct future *future)
{
    static const uint8_t nothing[HASH_BYTES];
    for (uint32_t i = 0; i < BOOTS; i++) {
        if (memcmp(future->hash[i], nothing, HASH_BYTES) == 0) {
            return false;
        }
    }
    return true;
}

bool takes_updates(const struct campaign *campaign, const struct scenario *scenario, struct disk *disk)
{
    uint8_t live[HASH_BYTES], booted[HASH_BYTES];
    struct device device = device_new(disk, scenario->front_only, campaign->memory_bytes);
    bool ok = device_boot(&device) &&
              device_update_expert(&device, &campaign->images.new, 1, 1, 0) == COLIBRI_OK;
    device_hash(&device, live);
    ok = ok && device_boot(&device);
    device_hash(&device, booted);
    ok = ok && memcmp(live, booted, sizeof live) == 0;
    if (ok && scenario->volume) {
        ok = device_update_model(&device, &campaign->images.new, TRIES) == COLIBRI_OK && device_boot(&device) &&
             update_confirm(&device.update, NULL) == COLIBRI_OK && device_boot(&device);
        device_hash(&device, booted);
        ok = ok && memcmp(campaign->new_hash, booted, sizeof booted) == 0;
    }
    device_free(&device);
    return ok;
}
