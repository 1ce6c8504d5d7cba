/* SPDX-License-Identifier: Apache-2.0
 *
 * generation.h: the requests that run the model: GENERATE, LOGITS and TOKENIZE. The service has made sure that there
 * is a model and that nothing else runs. */
#ifndef COLIBRI_GENERATION_H
#define COLIBRI_GENERATION_H

#include "service.h"

void generation_generate(struct service *service, struct request *request);
void generation_logits(struct service *service, struct request *request);
void generation_tokenize(struct service *service, struct request *request);

/* The engine's route hook; `user` is the service. */
void generation_on_route(void *user, uint32_t layer, uint32_t position, uint32_t count, const uint32_t *expert,
                         const float *weight);

#endif
