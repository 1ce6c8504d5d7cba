/* SPDX-License-Identifier: Apache-2.0
 *
 * generate.c: prompt in, tokens out, one callback for each. */
#include "engine.h"
#include "sha256.h"

static bool is_eos(const struct col_model *model, uint32_t id)
{
    for (uint32_t i = 0; i < model->eos_count; i++) {
        if (model->eos[i] == id) {
            return true;
        }
    }
    return false;
}

static colibri_status check_request(const struct colibri_request *request)
{
    if (request->stop_count > COLIBRI_MAX_STOPS || (request->prompt == NULL && request->prompt_count > 0u)) {
        return COLIBRI_E_ARGUMENT;
    }
    for (uint32_t i = 0; i < request->stop_count; i++) {
        if (request->stop[i] == NULL || request->stop_bytes[i] == 0u ||
            request->stop_bytes[i] > COLIBRI_MAX_STOP_BYTES) {
            return COLIBRI_E_ARGUMENT;
        }
    }
    return col_sampling_check(&request->sampling);
}

/* Chooses one token, shows it to the caller, and says in *finish whether it is the last (0: it is not). */
static void emit(struct colibri *engine, const struct colibri_request *request, const float *logits,
                 struct colibri_result *result, uint32_t *id, uint32_t *finish)
{
    const struct col_model *model = engine->image.model;
    const uint64_t start = col_now(engine);
    struct colibri_token token = {.index = result->generated_tokens, .position = engine->position, .logits = logits};
    token.id = col_sample(&engine->sampler, &request->sampling, engine->compute.kernels, logits, model->vocab,
                          engine->history, engine->position);
    engine->sampler_ticks += col_now(engine) - start;
    *id = token.id;
    result->generated_tokens++;
    *finish = 0;
    if (is_eos(model, token.id) && !request->ignore_eos) {
        *finish = COLIBRI_FINISH_EOS;
    } else if (request->max_tokens != 0u && result->generated_tokens >= request->max_tokens) {
        *finish = COLIBRI_FINISH_LENGTH;
    } else if (engine->position >= engine->context && !request->slide) {
        *finish = COLIBRI_FINISH_CONTEXT;
    }
    if (engine->image.has_tokenizer) {
        const uint8_t *text = NULL;
        uint32_t bytes = 0;
        col_tokenizer_next_text(&engine->image.tokenizer, token.id, &engine->stream.begun, &text, &bytes);
        if (col_stream_add(&engine->stream, request, text, bytes, *finish != 0u)) {
            *finish = COLIBRI_FINISH_STOP;
        }
        token.text = engine->stream.text;
        token.text_bytes = engine->stream.shown;
    }
    if (request->on_token != NULL && !request->on_token(request->user, &token) && *finish == 0u) {
        *finish = COLIBRI_FINISH_CANCELLED;
    }
}

/* Makes room in a full context: of what lies behind the first `keep` tokens, the newer half stays. The tokens that stay
 * are computed anew at their new positions, so the result is that of a prompt which never had the others. */
static colibri_status slide(struct colibri *engine, uint32_t keep)
{
    const uint32_t forgotten = (engine->position - keep + 1u) / 2u;
    const uint32_t left = engine->position - forgotten;
    for (uint32_t i = keep; i < left; i++) {
        engine->history[i] = engine->history[i + forgotten];
    }
    engine->position = 0;
    const float *logits = NULL;
    return left == 0u ? COLIBRI_OK : colibri_prefill(engine, engine->history, left, &logits);
}

static colibri_status run(struct colibri *engine, const struct colibri_request *request, struct colibri_result *result,
                          struct col_sha256 *hash)
{
    const float *logits = engine->buffers.logits;
    const uint64_t start = col_now(engine);
    uint64_t first = start;
    colibri_status status = COLIBRI_OK;
    if (request->prompt_count > 0u) {
        status = colibri_prefill(engine, request->prompt, request->prompt_count, &logits);
        first = col_now(engine);
        result->prefill_ticks = first - start;
    }
    uint32_t finish = 0;
    while (status == COLIBRI_OK) {
        uint32_t id = 0;
        col_sha256_update(hash, logits, (size_t)engine->image.model->vocab * sizeof *logits);
        emit(engine, request, logits, result, &id, &finish);
        if (finish != 0u) {
            break;
        }
        if (engine->position >= engine->context) {
            status = slide(engine, request->slide_keep);
        }
        if (status == COLIBRI_OK) {
            status = colibri_forward(engine, id, &logits);
        }
    }
    result->decode_ticks = col_now(engine) - first;
    if (status == COLIBRI_E_CANCELLED) {
        finish = COLIBRI_FINISH_CANCELLED;
        status = COLIBRI_OK;
    }
    if (status == COLIBRI_OK) {
        result->finish = (enum colibri_finish)finish;
    }
    return status;
}

colibri_status colibri_generate(struct colibri *engine, const struct colibri_request *request,
                                struct colibri_result *result)
{
    *result = (struct colibri_result){.prompt_tokens = (uint32_t)request->prompt_count};
    const colibri_status status = check_request(request);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (request->slide && request->slide_keep >= engine->context) {
        return COLIBRI_E_ARGUMENT;
    }
    if (!request->keep_context) {
        colibri_reset(engine);
    }
    if (request->prompt_count == 0u && !engine->has_logits) {
        return COLIBRI_E_NO_PROMPT;
    }
    col_sampler_seed(&engine->sampler, request->sampling.seed);
    col_stream_reset(&engine->stream);
    struct col_sha256 hash;
    col_sha256_init(&hash);
    const colibri_status outcome = run(engine, request, result, &hash);
    col_sha256_final(&hash, result->logits_sha256);
    return outcome;
}
