/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.h: the generated text on its way to the caller: whole characters only, and nothing of a stop string. */
#ifndef COLIBRI_STREAM_H
#define COLIBRI_STREAM_H

#include "arena.h"
#include "colibri.h"

struct col_stream {
    char *text;        /* [capacity]: bytes not yet shown */
    uint32_t capacity;
    uint32_t length;
    uint32_t shown;    /* of `length`, given to the caller by the last call */
    bool begun;        /* for col_tokenizer_next_text */
};

/* Room for tokens of up to `max_token_bytes`. */
void col_stream_layout(struct col_stream *stream, struct col_arena *arena, uint32_t max_token_bytes);

void col_stream_reset(struct col_stream *stream);

/* Adds a token's bytes. Afterwards text[0 .. shown) may be shown; it stays valid until the next call. With `last`,
 * nothing is held back. True when a stop string of the request appeared; the text then ends before it. */
bool col_stream_add(struct col_stream *stream, const struct colibri_request *request, const uint8_t *text,
                    uint32_t bytes, bool last);

#endif
