/* SPDX-License-Identifier: Apache-2.0
 *
 * setup.h: from a medium, or a mapped image, to an engine: what of the image is loaded, where the arena lies, and how
 * many experts fit into it.
 *
 *     hal_board.memory | image, its front, or nothing | arena | canary | prompt ids | free | self-test scratch |
 */
#ifndef COLIBRI_SETUP_H
#define COLIBRI_SETUP_H

#include "service.h"

/* Brings up the storage, chooses the image, loads it as runtime_options say and builds the engine; a model on trial
 * that does not start gives way to the active one. The service is ready afterwards, or knows why there is no model. */
void setup_start(struct service *service);

/* The request CONFIGURE: the same image anew, in another way. */
void setup_configure(struct service *service, struct request *request);

#endif
