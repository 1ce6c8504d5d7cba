/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c: see stream.h. What can't be shown yet is at most a stop string's beginning and a character's beginning. */
#include "stream.h"

#include "compare.h"
#include "utf8.h"

void col_stream_layout(struct col_stream *stream, struct col_arena *arena, uint32_t max_token_bytes)
{
    stream->capacity = max_token_bytes + COLIBRI_MAX_STOP_BYTES + 4u;
    stream->text = col_arena_claim(arena, stream->capacity, 1);
}

void col_stream_reset(struct col_stream *stream)
{
    stream->length = 0;
    stream->shown = 0;
    stream->begun = false;
}

/* Where the first stop string begins; the text's length when there is none. */
static uint32_t find_stop(const struct col_stream *stream, const struct colibri_request *request)
{
    for (uint32_t at = 0; at < stream->length; at++) {
        for (uint32_t s = 0; s < request->stop_count; s++) {
            const uint32_t bytes = request->stop_bytes[s];
            if (bytes <= stream->length - at && col_same_bytes(stream->text + at, request->stop[s], bytes)) {
                return at;
            }
        }
    }
    return stream->length;
}

/* Where the text's end could turn out to be a stop string's beginning; the text's length when it can't. */
static uint32_t find_beginning(const struct col_stream *stream, const struct colibri_request *request)
{
    for (uint32_t at = 0; at < stream->length; at++) {
        for (uint32_t s = 0; s < request->stop_count; s++) {
            const uint32_t rest = stream->length - at;
            if (rest < request->stop_bytes[s] && col_same_bytes(stream->text + at, request->stop[s], rest)) {
                return at;
            }
        }
    }
    return stream->length;
}

bool col_stream_add(struct col_stream *stream, const struct colibri_request *request, const uint8_t *text,
                    uint32_t bytes, bool last)
{
    for (uint32_t i = stream->shown; i < stream->length; i++) {
        stream->text[i - stream->shown] = stream->text[i];
    }
    stream->length -= stream->shown;
    for (uint32_t i = 0; i < bytes; i++) {
        stream->text[stream->length++] = (char)text[i];
    }
    stream->shown = find_stop(stream, request);
    if (stream->shown < stream->length) {
        return true;
    }
    if (!last) {
        stream->shown = find_beginning(stream, request);
        stream->shown = (uint32_t)col_utf8_complete((const uint8_t *)stream->text, stream->shown);
    }
    return false;
}
