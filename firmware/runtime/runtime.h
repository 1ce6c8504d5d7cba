/* SPDX-License-Identifier: Apache-2.0
 *
 * runtime.h: what a board may ask of the runtime beyond hal.h. */
#ifndef COLIBRI_RUNTIME_H
#define COLIBRI_RUNTIME_H

#include <stdint.h>

/* Zeros are the defaults. A board that wants others sets them before runtime_main. */
struct runtime_options {
    uint32_t context;    /* positions; 0: the image's maximum */
    const char *kernels; /* name of the kernel set; NULL: the best */
};
extern struct runtime_options runtime_options;

#endif
