/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: from reset to the loop. */
#include "../hal/hal.h"
#include "runtime.h"
#include "service.h"
#include "setup.h"

struct runtime_options runtime_options;

/* The runtime's whole state: the link's buffers, mostly. In one place, without a heap. */
static struct service service;

int runtime_main(void)
{
    service_init(&service);
    setup_start(&service);
    for (;;) {
        service_step(&service);
    }
}
