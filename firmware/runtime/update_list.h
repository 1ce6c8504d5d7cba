/* SPDX-License-Identifier: Apache-2.0
 *
 * update_list.h: the running image's list of replaced experts, in memory and on the medium.
 *
 * In memory an entry never moves, for the engine keeps pointers to digests. Entries that were there when the image was
 * loaded stay where they lie; later ones go to the memory of the copy that did not count then. Of two entries of an
 * expert the one with the higher generation counts.
 */
#ifndef COLIBRI_UPDATE_LIST_H
#define COLIBRI_UPDATE_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "../engine/image_view.h"
#include "medium.h"

struct update_list {
    const struct col_image *image;
    uint64_t copy_bytes;
    struct col_update *added; /* [added_slots]; generation 0: free */
    uint32_t added_slots;
    uint32_t count;           /* experts that are replaced */
    uint32_t capacity;
    uint32_t copy;            /* that counts on the medium */
    uint64_t sequence;
    uint64_t counter;         /* the highest security counter of all entries that count */
    uint32_t free_places;     /* spare ones, and those of packed experts that are replaced */
};

/* Takes the list of an opened image with experts. The image lies in memory that may be written. */
void update_list_init(struct update_list *list, const struct col_image *image);

/* The entry that counts for an expert; NULL: it is as packed. */
const struct col_update *update_list_find(const struct update_list *list, uint32_t layer, uint32_t expert);
/* The entry that counts for the expert after `last` (NULL: the first), by layer, then by expert; NULL: no more. */
const struct col_update *update_list_next(const struct update_list *list, const struct col_update *last);

/* The directory's entry of an expert; NULL: the image has no such one. */
const struct col_expert *update_list_packed(const struct update_list *list, uint32_t layer, uint32_t expert);
/* The shortest free place of at least `bytes` bytes, and of equals the first: its offset in the experts section. */
bool update_list_free_place(const struct update_list *list, uint64_t bytes, uint64_t *offset);

/* Forgets entries that count no more. The engine must not use them any more either. */
void update_list_forget(struct update_list *list);

/* Adds an entry in memory, after it counts on the medium. Returns where it stays. */
const struct col_update *update_list_add(struct update_list *list, const struct col_update *entry);

/* Writing the copy that does not count, with one more entry, in steps of a page. */
enum update_list_phase { UPDATE_LIST_ENTRIES, UPDATE_LIST_CHECK, UPDATE_LIST_HEAD };
struct update_list_write {
    enum update_list_phase phase;
    uint32_t done;        /* entries, in this phase */
    uint32_t count;       /* entries in all */
    const struct col_update *last;
    uint32_t crc;         /* of the entries written */
    uint32_t crc_back;    /* of the entries read back */
};

/* One step; `first`: the image's first block. `buffer`: COL_PAGE bytes, aligned to 8. COLIBRI_PENDING; COLIBRI_OK: the copy
 * counts on the medium. COLIBRI_E_STORAGE; *flipped then tells that the head may have been written. */
COLIBRI_MUST_CHECK colibri_status update_list_step(const struct update_list *list, struct update_list_write *write,
                                                   const struct col_update *entry, const struct medium *medium,
                                                   uint64_t first, uint8_t *buffer, bool *flipped,
                                                   struct colibri_detail *detail);

#endif
