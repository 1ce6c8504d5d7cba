/* SPDX-License-Identifier: Apache-2.0
 *
 * boot.h: which image on a medium starts, see volume.h for what lies there.
 *
 *     status = boot_open(&boot, &medium, page, &detail);
 *     if (status == COLIBRI_OK) {
 *         do {
 *             boot_next(&boot);
 *             status = ... load what lies at boot_extent(&boot), start it, check it ...
 *         } while (status != COLIBRI_OK && boot_failed(&boot, status));
 *     }
 */
#ifndef COLIBRI_BOOT_H
#define COLIBRI_BOOT_H

#include <stdbool.h>
#include <stdint.h>

#include "../engine/colibri.h"
#include "medium.h"
#include "volume.h"

struct extent {
    uint64_t first; /* block of the medium */
    uint64_t count; /* blocks */
};

struct volume {
    uint32_t slots;                /* COL_SLOTS; 1: no volume but an image, in `slot[0]`; 0: nothing was found */
    struct extent slot[COL_SLOTS];
    uint64_t state_block[2];       /* with slots: where the two boot states are */
};

/* Finds a volume or an image at block 0 or in a partition of a master boot record. `page`: COL_PAGE bytes, aligned to 4,
 * that are overwritten. COLIBRI_E_STORAGE (got: the block), COLIBRI_E_STORAGE_EMPTY, COLIBRI_E_IMAGE_CHECKSUM and
 * COLIBRI_E_IMAGE_SECTION ("volume"). */
COLIBRI_MUST_CHECK colibri_status volume_find(const struct medium *medium, uint8_t *page, struct volume *volume,
                                              struct colibri_detail *detail);

/* What is known of a boot. Read-only for others. */
struct boot {
    const struct medium *medium;
    struct volume volume;
    struct col_boot_state state; /* as on the medium; without a volume, and as long as none is valid, a blank one */
    uint32_t copy;               /* which of the two sectors `state` came from */
    bool lost;                   /* neither was valid */
    bool doubtful;               /* a change failed, and it may be what the next boot finds */
    uint32_t running;            /* the slot that was chosen */
    bool chosen;
    bool on_trial;               /* it was started as the one on trial */
    struct col_boot_state next;  /* being written */
    struct col_boot_state back;  /* read back */
};

/* Finds what there is and reads the boot state. Statuses as volume_find's. */
COLIBRI_MUST_CHECK colibri_status boot_open(struct boot *boot, const struct medium *medium, uint8_t *page,
                                            struct colibri_detail *detail);

/* Chooses the slot to start: that on trial while tries are left, after this one has been counted on the medium, else the
 * active one. A medium that can't be written starts no trial. */
void boot_next(struct boot *boot);
struct extent boot_extent(const struct boot *boot);
/* The slot that starts without a trial; where neither boot state was valid, the chosen one. */
uint32_t boot_active(const struct boot *boot);

/* The chosen slot did not start, for that reason. True: there is another one for boot_next. A trial is over then, and the
 * boot state says why. */
COLIBRI_MUST_CHECK bool boot_failed(struct boot *boot, colibri_status why);

/* Whether a model on trial computes at all: one position, which is forgotten again. */
COLIBRI_MUST_CHECK colibri_status boot_check(struct colibri *engine);

/* Where neither boot state was valid, has both name the chosen slot, with that security counter: before the other slot
 * changes, which a start without a boot state would try as well. */
COLIBRI_MUST_CHECK colibri_status boot_settle(struct boot *boot, uint64_t counter, struct colibri_detail *detail);
/* Puts the image in a slot on trial. */
COLIBRI_MUST_CHECK colibri_status boot_try(struct boot *boot, uint32_t slot, uint32_t tries,
                                           struct colibri_detail *detail);
/* Makes the image on trial, which is running, the active one, and raises the security counter to `counter`. */
COLIBRI_MUST_CHECK colibri_status boot_confirm(struct boot *boot, uint64_t counter, struct colibri_detail *detail);
/* Ends a trial on the host's word. */
COLIBRI_MUST_CHECK colibri_status boot_withdraw(struct boot *boot, struct colibri_detail *detail);

#endif
