/* SPDX-License-Identifier: Apache-2.0
 *
 * update.h: replaces experts of the running image, and whole models in a volume's other slot (docs/field-update.md).
 *
 * A state machine without a link: what PROTOCOL.md calls UPDATE_BEGIN, _DATA and so on are its functions. Those that
 * would take long are begun and then moved on by update_step, a page at a time, so that the caller can do all else in
 * between; the engine may compute meanwhile. Nothing is written before everything that can be checked has been, and
 * what is on the medium at any moment starts the old model or the new one, whole.
 */
#ifndef COLIBRI_UPDATE_H
#define COLIBRI_UPDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "../engine/colibri.h"
#include "../engine/image_view.h"
#include "boot.h"
#include "medium.h"
#include "messages.h"
#include "trust.h"
#include "update_list.h"

/* What runs. */
struct update_setup {
    const struct medium *medium; /* NULL: there is none */
    struct boot *boot;           /* NULL: nothing was found on it, or the model is used where it is mapped */
    const char *board;           /* its name */
    struct colibri *engine;      /* NULL: no model runs */
    /* The running image as the engine was given it, whole or its front, in memory that may be written; its updates
     * section is used for other things from now on. NULL with an engine: it can't be written. */
    uint8_t *image;
    uint64_t image_bytes;
    /* update_own_counter and update_counter of what ran before it was set up anew: they do not fall when nothing runs. */
    uint64_t own_counter;
    uint64_t counter;
};

enum update_job_kind {
    UPDATE_NO_JOB,
    UPDATE_JOB_COPY,
    UPDATE_JOB_CRC,
    UPDATE_JOB_EXPERT, /* COMMIT of an expert */
    UPDATE_JOB_MODEL   /* COMMIT of a model */
};

struct update_job {
    enum update_job_kind kind;
    uint64_t done;     /* bytes of `total` */
    uint64_t total;
    uint64_t from;     /* COPY, CRC: block */
    uint64_t to;       /* COPY: block */
    uint32_t crc;      /* of the stretch at work */
    struct trust_digest digest; /* likewise */
    /* UPDATE_JOB_EXPERT, after the blob has been checked */
    bool listing;
    struct update_list_write list;
    /* UPDATE_JOB_MODEL */
    uint32_t section;  /* index in the directory of the section at work */
    bool packed;       /* one of the lists of replaced experts was found, and empty */
    uint32_t expert;   /* index in the directory of the expert at work */
    uint64_t expert_done; /* bytes of it */
    struct col_expert entry; /* of it */
    struct trust_digest image_digest; /* of what is signed */
};

struct update {
    struct update_setup setup;
    struct col_image image;  /* the running one; base NULL: none whose experts can be replaced */
    struct update_list list; /* of that */
    bool broken;             /* nobody knows which list counts on the medium: restart */
    uint32_t kind;           /* enum update_kind of the open update; 0: none */
    uint64_t first;          /* block of its target */
    uint64_t target_bytes;
    struct col_update expert;
    struct col_signature signature;
    struct col_image model;  /* the new image as far as its first page tells */
    uint32_t tries;
    uint32_t slot;           /* that the model goes to */
    struct update_job job;
    _Alignas(COLIBRI_ARENA_ALIGN) uint8_t page[COL_PAGE];   /* the new image's first page */
    _Alignas(COLIBRI_ARENA_ALIGN) uint8_t buffer[COL_PAGE]; /* of one step */
};

/* Starts, with no update open. */
void update_init(struct update *update, const struct update_setup *setup);

/* ---- statuses are those of PROTOCOL.md's table under UPDATE_BEGIN, and what is said beside each */

struct update_begun {
    uint64_t target_bytes;
    uint64_t offset; /* an expert's place, from the image's start */
    bool resumed;
};

/* `computing`: the engine is at work at this moment (and this is its poll hook). */
COLIBRI_MUST_CHECK colibri_status update_begin_expert(struct update *update, const struct col_update *expert,
                                                      bool computing, struct update_begun *begun,
                                                      struct colibri_detail *detail);
/* `page`: COL_PAGE bytes. `tries` 0: COL_BOOT_TRIES. */
COLIBRI_MUST_CHECK colibri_status update_begin_model(struct update *update, const uint8_t *page,
                                                     const struct col_signature *signature, uint32_t tries,
                                                     struct update_begun *begun, struct colibri_detail *detail);
/* Writes into the target. `data` of any alignment. */
COLIBRI_MUST_CHECK colibri_status update_data(struct update *update, uint64_t offset, const uint8_t *data,
                                              uint64_t bytes, struct colibri_detail *detail);

/* These begin a job: COLIBRI_OK means that update_step is to be called until it returns something else than
 * COLIBRI_PENDING. */
COLIBRI_MUST_CHECK colibri_status update_copy(struct update *update, uint64_t from, uint64_t to, uint64_t bytes,
                                              struct colibri_detail *detail);
COLIBRI_MUST_CHECK colibri_status update_crc(struct update *update, enum update_where where, uint64_t offset,
                                             uint64_t bytes, struct colibri_detail *detail);
COLIBRI_MUST_CHECK colibri_status update_commit(struct update *update, struct colibri_detail *detail);

/* Moves the job on. On COLIBRI_OK *result is its answer: a CRC-32, or a sequence. */
COLIBRI_MUST_CHECK colibri_status update_step(struct update *update, uint64_t *result, struct colibri_detail *detail);
bool update_is_working(const struct update *update);
/* Gives up a job, not the update. */
void update_stop(struct update *update);

COLIBRI_MUST_CHECK colibri_status update_confirm(struct update *update, struct colibri_detail *detail);

struct update_undone {
    bool update;  /* one was given up */
    bool trial;   /* a model that is on trial, or may be on the medium, was withdrawn */
    bool restart; /* what runs is not what starts next */
};
COLIBRI_MUST_CHECK colibri_status update_rollback(struct update *update, struct update_undone *undone,
                                                  struct colibri_detail *detail);

/* ---- what there is */

/* The security counter: the highest of the boot state's and of what the running image and its updates were signed with, or
 * the image that ran before. 0 on a board without a key. */
uint64_t update_counter(const struct update *update);
/* Only the running image's, which a boot state may hold: those of its replaced experts can be higher, and it must start
 * again. */
uint64_t update_own_counter(const struct update *update);
/* Slot + 1; 0: no volume. */
uint32_t update_running_slot(const struct update *update);
uint32_t update_trial_slot(const struct update *update);
uint64_t update_sequence(const struct update *update); /* of the list of replaced experts; 0 without experts */
bool update_writable(const struct update *update);
/* Where the next model goes. COLIBRI_E_UPDATE_PLACE, COLIBRI_E_UPDATE_STATE. */
COLIBRI_MUST_CHECK colibri_status update_next_slot(const struct update *update, uint32_t *slot,
                                                   struct colibri_detail *detail);
/* The id of the image in a slot, zeros without one. Uses the buffer, as a step does. */
void update_slot_id(struct update *update, uint32_t slot, uint8_t id[16]);

uint32_t update_expert_count(const struct update *update);
/* Entry `index` of the expert directory, and what is in effect on the medium. */
void update_effective(const struct update *update, uint32_t index, const struct col_expert **packed,
                      struct col_place *place);

/* ---- for update_expert.c and update_model.c */

COLIBRI_MUST_CHECK colibri_status update_read(struct update *update, uint64_t block, uint32_t blocks, void *data,
                                              struct colibri_detail *detail);
COLIBRI_MUST_CHECK colibri_status update_write(struct update *update, uint64_t block, uint32_t blocks, const void *data,
                                               struct colibri_detail *detail);
COLIBRI_MUST_CHECK colibri_status update_may_begin(const struct update *update, struct colibri_detail *detail);
void update_commit_expert(struct update *update);
void update_commit_model(struct update *update);
COLIBRI_MUST_CHECK colibri_status update_step_expert(struct update *update, uint64_t *result,
                                                     struct colibri_detail *detail);
COLIBRI_MUST_CHECK colibri_status update_step_model(struct update *update, uint64_t *result,
                                                    struct colibri_detail *detail);

#endif
