/* SPDX-License-Identifier: Apache-2.0
 *
 * status.c: one sentence per status code. The device sends only the number; both sides look the sentence up here. */
#include "colibri.h"

const char *colibri_status_text(colibri_status status)
{
    switch (status) {
    case COLIBRI_OK: return "success";
    case COLIBRI_E_INTERNAL: return "an internal invariant does not hold";
    case COLIBRI_E_ARGUMENT: return "a parameter is out of its documented range";
    case COLIBRI_E_ARENA_SIZE: return "the arena is smaller than the plan requires";
    case COLIBRI_E_ARENA_ALIGN: return "the arena or the image is not aligned to 64 bytes";
    case COLIBRI_E_IMAGE_SIZE: return "the image is shorter or longer than its header says";
    case COLIBRI_E_IMAGE_MAGIC: return "this is not a Colibri image";
    case COLIBRI_E_IMAGE_VERSION: return "the image was made for another format or numeric version";
    case COLIBRI_E_IMAGE_CHECKSUM: return "a checksum of the image does not match its contents";
    case COLIBRI_E_IMAGE_SECTION: return "a section of the image is missing, doubled, misplaced or overlaps another";
    case COLIBRI_E_IMAGE_DIMENSION: return "a dimension in the image is zero, too large or contradicts another";
    case COLIBRI_E_IMAGE_NUMBER: return "a scale or a weight in the image is not a finite number";
    case COLIBRI_E_IMAGE_EXPERT: return "an entry of the image's expert directory is wrong";
    case COLIBRI_E_IMAGE_TOKENIZER: return "the image's tokenizer or chat template is inconsistent";
    case COLIBRI_E_IMAGE_UNSUPPORTED: return "the image needs something that this build does not support";
    case COLIBRI_E_CONTEXT_FULL: return "the context is full";
    case COLIBRI_E_TOKEN_RANGE: return "a token id is not in the vocabulary";
    case COLIBRI_E_TEXT_SIZE: return "the text is longer than this engine was planned for";
    case COLIBRI_E_NUMERIC: return "a result was not a finite number";
    case COLIBRI_E_CANCELLED: return "the request was cancelled";
    case COLIBRI_E_KERNELS_UNKNOWN: return "this build or processor has no kernel set of that name";
    case COLIBRI_E_KERNELS_WRONG: return "a kernel set disagrees with the scalar reference";
    case COLIBRI_E_BUFFER_SIZE: return "the output buffer is too small";
    case COLIBRI_E_NO_PROMPT: return "there is no token to continue from";
    case COLIBRI_E_NO_MODEL: return "no model is loaded";
    case COLIBRI_E_MODEL_TOO_LARGE: return "the model and its arena do not fit the board's memory";
    case COLIBRI_E_STORAGE: return "the storage device failed or is absent";
    case COLIBRI_E_STORAGE_EMPTY: return "there is no model on the storage device";
    case COLIBRI_E_BUSY: return "another request is running";
    case COLIBRI_E_REQUEST: return "the request is malformed";
    case COLIBRI_E_REQUEST_UNKNOWN: return "this firmware does not know the request";
    case COLIBRI_E_LINK_VERSION: return "the two sides speak different protocol versions";
    case COLIBRI_E_TRAP: return "the processor trapped";
    case COLIBRI_E_WATCHDOG: return "the device made no progress in time";
    case COLIBRI_E_LOADING: return "the model is still being loaded";
    case COLIBRI_E_EXPERT_CHECKSUM: return "an expert does not match its checksum";
    case COLIBRI_E_SIGNATURE: return "the signature is missing, of another key, or does not fit what was signed";
    case COLIBRI_E_COUNTER: return "this is older than what the device has accepted before";
    case COLIBRI_E_OTHER_BOARD: return "this was signed for another board";
    case COLIBRI_E_UPDATE_STATE: return "no such update is under way";
    case COLIBRI_E_UPDATE_PLACE: return "there is no free place for the update";
    case COLIBRI_E_UPDATE_BASE: return "the update was made for another image";
    case COLIBRI_E_READ_ONLY: return "the storage cannot be written";
    }
    return "unknown status";
}
