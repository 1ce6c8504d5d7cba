/* SPDX-License-Identifier: Apache-2.0
 *
 * boot.c: the boot state on the medium and the choice of a slot, see boot.h.
 *
 * Two sectors hold a state each. A change is written to the one that does not count, so that a power cut in the middle
 * of the write leaves the other. When nothing is on trial any more, the other one is brought up to date as well. */
#include "boot.h"

#include "../engine/detail.h"
#include "bytes.h"

/* The alignment that drivers need, and that the struct has. */
_Static_assert(_Alignof(struct col_boot_state) >= 4, "sectors are read into the struct");

static bool is_valid(const struct col_boot_state *state)
{
    return col_same_bytes(state->magic, COL_BOOT_MAGIC, sizeof state->magic) &&
           state->crc32 == colibri_crc32(0, state, offsetof(struct col_boot_state, crc32)) && state->sequence != 0 &&
           state->active < COL_SLOTS && state->trial <= COL_SLOTS && state->trial != state->active + 1u;
}

static colibri_status read_state(struct boot *boot, uint32_t copy, struct col_boot_state *state,
                                 struct colibri_detail *detail)
{
    const struct medium *medium = boot->medium;
    uint64_t block = boot->volume.state_block[copy];
    hal_status status = medium_read(medium, block, 1, state);
    return status == HAL_OK ? COLIBRI_OK : col_fail(COLIBRI_E_STORAGE, detail, medium_failure(status), block, 0);
}

/* Makes boot->next the state that counts. On failure the old one still does, or the medium is broken. */
static colibri_status write_next(struct boot *boot, struct colibri_detail *detail)
{
    const struct medium *medium = boot->medium;
    struct col_boot_state *next = &boot->next;
    if (!medium->writable) {
        return col_fail(COLIBRI_E_READ_ONLY, detail, "boot state", 0, 0);
    }
    *next = (struct col_boot_state){.sequence = boot->state.sequence + 1u,
                                    .active = next->active,
                                    .trial = next->trial,
                                    .tries_left = next->tries_left,
                                    .tries = next->tries,
                                    .counter = next->counter,
                                    .last_result = next->last_result,
                                    .last_status = next->last_status};
    bytes_copy(next->magic, COL_BOOT_MAGIC, sizeof next->magic);
    next->crc32 = colibri_crc32(0, next, offsetof(struct col_boot_state, crc32));
    uint32_t copy = 1u - boot->copy;
    uint64_t block = boot->volume.state_block[copy];
    boot->doubtful = true; /* a write that fails, or can't be read back, may have landed all the same */
    hal_status written = medium->write(medium->user, block, 1, next);
    if (written != HAL_OK) {
        return col_fail(COLIBRI_E_STORAGE, detail, medium_failure(written), block, 0);
    }
    colibri_status status = read_state(boot, copy, &boot->back, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (!is_valid(&boot->back) || boot->back.crc32 != next->crc32) {
        return col_fail(COLIBRI_E_STORAGE, detail, "boot state", boot->back.crc32, next->crc32);
    }
    boot->state = *next;
    boot->copy = copy;
    boot->lost = false;
    boot->doubtful = false;
    return COLIBRI_OK;
}

colibri_status boot_open(struct boot *boot, const struct medium *medium, uint8_t *page, struct colibri_detail *detail)
{
    *boot = (struct boot){.medium = medium};
    colibri_status status = volume_find(medium, page, &boot->volume, detail);
    if (status != COLIBRI_OK || boot->volume.slots != COL_SLOTS) {
        return status;
    }
    boot->lost = true;
    uint32_t unreadable = 0;
    for (uint32_t copy = 0; copy < 2; copy++) {
        /* A sector whose write was cut may be one that the medium can't read; the other one is there for that. But that one
         * is older, and would undo what was confirmed if this one could be read after all: it is not given up at once. */
        status = read_state(boot, copy, &boot->next, detail);
        if (status != COLIBRI_OK) {
            unreadable++;
            continue;
        }
        if (is_valid(&boot->next) && (boot->lost || boot->next.sequence > boot->state.sequence)) {
            boot->state = boot->next;
            boot->copy = copy;
            boot->lost = false;
        }
    }
    return unreadable < 2 ? COLIBRI_OK : status;
}

struct extent boot_extent(const struct boot *boot)
{
    return boot->volume.slot[boot->running];
}

uint32_t boot_active(const struct boot *boot)
{
    return boot->lost ? boot->running : boot->state.active;
}

/* Begins a change of the state: boot->next. */
static void copy_state(struct boot *boot)
{
    boot->next = boot->state;
    boot->next.active = boot_active(boot);
}

/* Nothing is on trial in boot->next: makes it count by both sectors, so that what starts does not hang on one of them. The
 * first write decides; the other sector, which was older before, may fail. */
static colibri_status write_both(struct boot *boot, struct colibri_detail *detail)
{
    const colibri_status status = write_next(boot, detail);
    if (status != COLIBRI_OK) {
        return status;
    }
    copy_state(boot);
    colibri_status ignored = write_next(boot, NULL);
    (void)ignored;
    boot->doubtful = false; /* both say the same */
    return COLIBRI_OK;
}

/* Of the change that was begun: with it, nothing is on trial any more. */
static colibri_status write_end(struct boot *boot, uint32_t result, colibri_status why, struct colibri_detail *detail)
{
    boot->next.trial = 0;
    boot->next.tries_left = 0;
    boot->next.last_result = result;
    boot->next.last_status = why;
    return write_both(boot, detail);
}

static colibri_status end_trial(struct boot *boot, uint32_t result, colibri_status why, struct colibri_detail *detail)
{
    copy_state(boot);
    return write_end(boot, result, why, detail);
}

void boot_next(struct boot *boot)
{
    const bool first = !boot->chosen;
    boot->chosen = true;
    boot->on_trial = false;
    boot->running = first || !boot->lost ? boot->state.active : 1u - boot->state.active;
    if (boot->state.trial == 0 || !boot->medium->writable) {
        return;
    }
    if (boot->state.tries_left == 0) {
        /* Should this not be written, the next boot finds the same and comes to the same end. */
        colibri_status ignored = end_trial(boot, COL_BOOT_TRIES_USED, COLIBRI_OK, NULL);
        (void)ignored;
        return;
    }
    boot->next = boot->state;
    boot->next.tries_left--;
    if (write_next(boot, NULL) == COLIBRI_OK) {
        boot->running = boot->state.trial - 1u;
        boot->on_trial = true;
    }
}

bool boot_failed(struct boot *boot, colibri_status why)
{
    if (boot->on_trial) {
        /* Should the write fail, the tries still run out. */
        colibri_status ignored = end_trial(boot, COL_BOOT_INVALID, why, NULL);
        (void)ignored;
        boot->state.trial = 0;
        return true;
    }
    /* Without a boot state nobody knows which slot was active: B is tried behind A. */
    return boot->lost && boot->running == boot->state.active && boot->volume.slots == COL_SLOTS;
}

colibri_status boot_check(struct colibri *engine)
{
    const float *logits;
    colibri_reset(engine);
    colibri_status status = colibri_forward(engine, 0, &logits);
    colibri_reset(engine);
    colibri_clear_stats(engine);
    return status;
}

colibri_status boot_settle(struct boot *boot, uint64_t counter, struct colibri_detail *detail)
{
    if (!boot->lost) {
        return COLIBRI_OK;
    }
    copy_state(boot);
    boot->next.counter = counter;
    return write_both(boot, detail);
}

colibri_status boot_try(struct boot *boot, uint32_t slot, uint32_t tries, struct colibri_detail *detail)
{
    copy_state(boot);
    boot->next.trial = slot + 1u;
    boot->next.tries = tries;
    boot->next.tries_left = tries;
    boot->next.last_result = COL_BOOT_ON_TRIAL;
    boot->next.last_status = COLIBRI_OK;
    return write_next(boot, detail);
}

colibri_status boot_confirm(struct boot *boot, uint64_t counter, struct colibri_detail *detail)
{
    copy_state(boot);
    boot->next.active = boot->running;
    boot->next.counter = counter > boot->state.counter ? counter : boot->state.counter;
    return write_end(boot, COL_BOOT_CONFIRMED, COLIBRI_OK, detail);
}

colibri_status boot_withdraw(struct boot *boot, struct colibri_detail *detail)
{
    return end_trial(boot, COL_BOOT_WITHDRAWN, COLIBRI_OK, detail);
}
