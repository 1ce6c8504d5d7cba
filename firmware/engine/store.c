/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c: where experts come from. The whole image can be addressed, so an expert is a pointer into it: no copy. */
#include "engine.h"

colibri_status col_store_expert(const struct colibri *engine, uint32_t layer, uint32_t expert, const uint8_t **blob)
{
    const struct col_layer *l = &engine->image.layer[layer];
    if (expert >= l->router.experts) {
        return COLIBRI_E_INTERNAL;
    }
    *blob = engine->image.blobs + engine->image.expert[l->first_expert + expert].offset;
    return COLIBRI_OK;
}
