/* SPDX-License-Identifier: Apache-2.0
 *
 * update_requests.h: the requests 11 to 19 (PROTOCOL.md), as entries of the service's table. */
#ifndef COLIBRI_UPDATE_REQUESTS_H
#define COLIBRI_UPDATE_REQUESTS_H

#include "service.h"

void update_answer_status(struct service *service, struct request *request);
void update_answer_begin(struct service *service, struct request *request);
void update_answer_data(struct service *service, struct request *request);
void update_answer_commit(struct service *service, struct request *request);
void update_answer_confirm(struct service *service, struct request *request);
void update_answer_rollback(struct service *service, struct request *request);
void update_answer_directory(struct service *service, struct request *request);
void update_answer_copy(struct service *service, struct request *request);
void update_answer_crc(struct service *service, struct request *request);

/* Moves on the COMMIT, COPY or CRC at work, and answers it when it is done. Not to be called while a message is built. */
void update_requests_poll(struct service *service);

#endif
