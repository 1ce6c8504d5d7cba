/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h: what must be true of a disk after something went wrong with it. */
#ifndef POWERCUT_CHECK_H
#define POWERCUT_CHECK_H

#include "scenario.h"

#define BOOTS (TRIES + 2u) /* until a trial has ended, and one more */

#define SWITCHING 12u      /* writes at the end of a step that are looked at one by one */

/* What a device's next boots compute. */
struct future {
    uint8_t hash[BOOTS][HASH_BYTES];
};

struct campaign {
    struct images images;
    uint64_t memory_bytes;
    uint32_t every;  /* and sample: see main.c */
    uint32_t sample;
    bool reordered;
    uint64_t cuts;
    uint64_t updates; /* that were tried after a cut */
    uint64_t failures;
    uint32_t shown;   /* of these, in this scenario */
    uint64_t faults;  /* of writes */
    uint64_t bad_reads;
    uint64_t lost_states;
    uint8_t new_hash[HASH_BYTES]; /* of the new image as packed */
};

/* Boots a device on the disk, which this changes. */
struct future look_ahead(const struct campaign *campaign, const struct scenario *scenario, struct disk *disk);
bool same_future(const struct future *a, const struct future *b);
/* Whether a model runs at each boot. */
bool computes(const struct future *future);

/* After all boots: one more expert, and with a volume one more model, each to its end. */
bool takes_updates(const struct campaign *campaign, const struct scenario *scenario, struct disk *disk);

/* faults.c: each write of each step of a scenario fails, is not what was written, or can't be read back; the device must
 * notice, go on as before, and take the same update afterwards. Each read of each start fails once, which must be no reason to
 * start nothing, or something else from then on. And one of the two boot states is lost behind each step that leaves none on
 * trial. */
void run_faults(struct campaign *campaign, const struct scenario *scenario);

#endif
