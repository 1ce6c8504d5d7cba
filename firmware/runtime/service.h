/* SPDX-License-Identifier: Apache-2.0
 *
 * service.h: what the device does for its host: takes requests from the link, runs them on the engine, answers.
 * One request runs at a time; service_poll, called from inside it, keeps the link alive and answers what can be
 * answered meanwhile (PROTOCOL.md, section 4).
 */
#ifndef COLIBRI_SERVICE_H
#define COLIBRI_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../engine/colibri.h"
#include "boot.h"
#include "link.h"
#include "log.h"
#include "messages.h"
#include "update.h"
#include "runtime.h"
#include "storage.h"

#define FIRMWARE_VERSION "0.2.0"

/* A request, or the start of a model on trial, that does not poll for so long hangs. The longest stretch without a poll
 * is a self-test or the check of an image, seconds on a slow board. */
#define SERVICE_WATCHDOG_MS 30000u

/* ROUTE events are collected up to about a frame. */
#define SERVICE_ROUTE_BYTES (FRAME_PAYLOAD - MESSAGE_HEADER)

/* Bytes behind the arena that must never change. */
#define SERVICE_CANARY_BYTES 64u

/* The request that runs; `type` 0: none. */
struct running {
    uint16_t type;
    uint32_t request;
    uint32_t epoch; /* of the link, when it came */
    bool cancel;
    bool trace_routing;
    bool trace_logits;
};

/* The model and its memory, set by setup.c; engine NULL: there is none. */
struct model {
    struct colibri *engine;
    struct colibri_info info;
    uint8_t mode;          /* enum store_mode, never STORE_AUTO */
    bool prefetch;
    uint32_t cache_slots;  /* experts that each layer keeps; 0: all experts are addressable */
    uint64_t slot_bytes;   /* all slots */
    const uint8_t *image;  /* loaded_bytes of it: the whole, or its front */
    uint64_t loaded_bytes;
    uint64_t image_bytes;  /* the whole */
    uint64_t kept_bytes;   /* of hal_board.memory, that hold the image's beginning */
    uint64_t arena_bytes;
    uint8_t *canary;      /* SERVICE_CANARY_BYTES behind the arena */
    uint32_t *ids;        /* [ids_capacity]: the prompt of the running request */
    uint32_t ids_capacity; /* the context */
};

/* A request as its handler sees it. */
struct request {
    uint16_t type;
    uint32_t number;
    uint32_t epoch;
    struct reader body;
};

struct service {
    struct link link;
    struct log log;
    uint8_t state;         /* enum device_state */
    colibri_status status; /* why there is no model */
    struct colibri_detail detail;
    uint64_t loaded; /* bytes of the image */
    uint64_t total;
    uint64_t started;  /* ticks */
    uint64_t polled;   /* ticks of the last poll from inside the engine */
    uint64_t poll_gap; /* ticks between two that do something */
    struct storage storage;
    struct medium medium; /* the storage, for those who are not the engine */
    struct boot boot;     /* `chosen` is false while nothing on the medium was started */
    struct store_options store; /* as the model was set up */
    struct model model;
    uint8_t *scratch; /* COLIBRI_SELFTEST_BYTES for the self-test, NULL when the board has not even that */
    struct update update;
    struct request waiting; /* to be answered when the update's job is done */
    struct running running;
    bool watched; /* between service_watch and service_unwatch */
    bool holding; /* a message of the link is being read */
    struct writer route;
    uint8_t route_bytes[SERVICE_ROUTE_BYTES];
};

/* Brings up the link of hal_board; the state is DEVICE_LOADING until service_ready or service_no_model. */
void service_init(struct service *service);
void service_ready(struct service *service);
void service_no_model(struct service *service, colibri_status status, const struct colibri_detail *detail);

/* Waits for input a little, takes one request if there is one, and runs it to its end. */
void service_step(struct service *service);

/* Pumps the link and answers what can be answered now. True when the running request is to stop. */
bool service_poll(struct service *service);

/* The same at a bounded rate, and the other hooks, for colibri_config; `user` is the service. */
struct colibri_hooks service_hooks(struct service *service);

/* Between these two, who does not poll for SERVICE_WATCHDOG_MS ends in a fault (fault.h). */
void service_watch(struct service *service);
void service_unwatch(struct service *service);

/* The pattern behind the arena. */
void service_paint_canary(uint8_t *canary);
bool service_canary_intact(const uint8_t *canary);

/* ---- for the handlers of requests (generation.c, update_requests.c) */

/* Gives the message back: call it when nothing of the body is needed any more. */
void service_release(struct service *service);
/* Between these two the request counts as running, and is watched. */
void service_begin(struct service *service, const struct request *request);
void service_end(struct service *service);
void service_result(struct service *service, const struct request *request, const void *data, size_t bytes);
/* `detail` may be NULL. */
void service_error(struct service *service, const struct request *request, colibri_status status,
                   const struct colibri_detail *detail);
/* COLIBRI_E_REQUEST: the body is not what PROTOCOL.md says, in `where`. */
void service_malformed(struct service *service, const struct request *request, const char *where);

#endif
