/* SPDX-License-Identifier: Apache-2.0
 *
 * sign.h: signs what a device with a key takes, with the private half of the key that powercut-keyed is built with. A
 * device without a key needs no signatures, and gets none. */
#ifndef POWERCUT_SIGN_H
#define POWERCUT_SIGN_H

#include "device.h"

/* In place, for any board. */
void sign_image(const struct image_file *file, uint64_t counter);
void sign_update(struct col_update *update, uint64_t counter);

#endif
