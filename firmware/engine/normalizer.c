/* SPDX-License-Identifier: Apache-2.0
 *
 * normalizer.c: see normalizer.h. The text is read as a stream of decomposed code points. Marks (code points with a
 * combining class) between two others are put in order by reading them once for each class that occurs among them, of
 * which there are few; so nothing is sorted in memory and a text of nothing but marks takes linear time as well.
 */
#include "normalizer.h"

#include "detail.h"
#include "utf8.h"

#define BAD COLIBRI_E_IMAGE_TOKENIZER
#define NONE 0xffffffffu
#define RAW 0x80000000u /* with a byte that is no valid UTF-8: neither decomposed nor composed */

/* The Unicode Standard, 3.12, Conjoining Jamo Behavior. */
#define L_BASE 0x1100u
#define V_BASE 0x1161u
#define T_BASE 0x11a7u
#define S_BASE 0xac00u
#define L_COUNT 19u
#define V_COUNT 21u
#define T_COUNT 28u
#define S_COUNT (L_COUNT * V_COUNT * T_COUNT)

struct text {
    const struct col_normalizer *tables;
    const uint8_t *at;
    size_t bytes;
};

/* A place in the stream: the `part`-th code point of what stands for the character at byte `byte`. */
struct place {
    size_t byte;
    uint32_t part;
};

struct output {
    uint8_t *out;
    size_t capacity;
    size_t length; /* goes on past the capacity */
};

static bool is_scalar(uint32_t point)
{
    return point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
}

static bool composition_before(const struct col_composition *entry, uint32_t first, uint32_t second)
{
    return entry->first < first || (entry->first == first && entry->second < second);
}

colibri_status col_normalizer_check(const struct col_normalizer *normalizer, uint32_t point_count,
                                    struct colibri_detail *detail)
{
    for (uint32_t i = 0; i < normalizer->decomposition_count; i++) {
        const struct col_decomposition *entry = &normalizer->decompositions[i];
        if ((i > 0 && entry->point <= entry[-1].point) || entry->count == 0 ||
            (uint32_t)entry->first + entry->count > point_count) {
            return col_fail(BAD, detail, "tokenizer.decompositions", entry->point, i);
        }
    }
    for (uint32_t i = 0; i < normalizer->composition_count; i++) {
        const struct col_composition *entry = &normalizer->compositions[i];
        if ((i > 0 && !composition_before(entry - 1, entry->first, entry->second)) || !is_scalar(entry->composed)) {
            return col_fail(BAD, detail, "tokenizer.compositions", entry->composed, i);
        }
    }
    for (uint32_t i = 0; i < normalizer->order_count; i++) {
        uint32_t first = normalizer->orders[i] >> 8;
        if (i == 0 ? first != 0 : first <= normalizer->orders[i - 1] >> 8) {
            return col_fail(BAD, detail, "tokenizer.orders", normalizer->orders[i], i);
        }
    }
    for (uint32_t i = 0; i < point_count; i++) {
        if (!is_scalar(normalizer->points[i])) {
            return col_fail(BAD, detail, "tokenizer.points", normalizer->points[i], i);
        }
    }
    return COLIBRI_OK;
}

static uint32_t order_of(const struct col_normalizer *tables, uint32_t point)
{
    uint32_t low = 0;
    uint32_t high = tables->order_count;
    if (point < 0x80 || point >= RAW) {
        return 0;
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (tables->orders[middle] >> 8 <= point) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return tables->orders[low] & 0xffu;
}

static const struct col_decomposition *find_decomposition(const struct col_normalizer *tables, uint32_t point)
{
    uint32_t low = 0;
    uint32_t high = tables->decomposition_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tables->decompositions[middle].point < point) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const struct col_decomposition *entry = &tables->decompositions[low];
    return low < tables->decomposition_count && entry->point == point ? entry : NULL;
}

/* The code point at the place, which moves on. The text does not end there. */
static uint32_t read(const struct text *text, struct place *place)
{
    uint32_t length;
    uint32_t point = col_utf8_decode(text->at + place->byte, text->bytes - place->byte, &length);
    uint32_t count = 1;
    uint32_t part = place->part;
    if (point == COL_UTF8_INVALID) {
        point = RAW | text->at[place->byte];
    } else if (point - S_BASE < S_COUNT) {
        uint32_t syllable = point - S_BASE;
        uint32_t jamo[3] = {L_BASE + syllable / (V_COUNT * T_COUNT), V_BASE + syllable / T_COUNT % V_COUNT,
                            T_BASE + syllable % T_COUNT};
        count = syllable % T_COUNT == 0 ? 2 : 3;
        point = jamo[part];
    } else if (point >= 0x80) {
        const struct col_decomposition *entry = find_decomposition(text->tables, point);
        if (entry != NULL) {
            count = entry->count;
            point = text->tables->points[entry->first + part];
        }
    }
    place->part++;
    if (place->part == count) {
        place->part = 0;
        place->byte += length;
    }
    return point;
}

/* What the two code points compose to, or NONE. */
static uint32_t compose(const struct col_normalizer *tables, uint32_t first, uint32_t second)
{
    if (tables->composition_count == 0) {
        return NONE;
    }
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT) {
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    }
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second - T_BASE - 1 < T_COUNT - 1) {
        return first + (second - T_BASE);
    }
    uint32_t low = 0;
    uint32_t high = tables->composition_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (composition_before(&tables->compositions[middle], first, second)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const struct col_composition *entry = &tables->compositions[low];
    return low < tables->composition_count && entry->first == first && entry->second == second ? entry->composed : NONE;
}

static void write(struct output *to, uint32_t point)
{
    uint8_t bytes[4] = {(uint8_t)point};
    uint32_t length = (point & RAW) != 0 ? 1 : col_utf8_encode(point, bytes);
    for (uint32_t i = 0; i < length; i++, to->length++) {
        if (to->length < to->capacity) {
            to->out[to->length] = bytes[i];
        }
    }
}

/* A run of marks, by ascending class. Those that compose with *starter change it; the others go to `to`, if it is not
 * NULL. Returns the number of the others. */
static size_t marks(const struct text *text, struct place begin, struct place end, uint32_t *starter, struct output *to)
{
    size_t others = 0;
    uint32_t last = 0; /* class of the last one that did not compose; one of the same class behind it must not */
    for (uint32_t class = 0;;) {
        uint32_t next = NONE;
        for (struct place place = begin; place.byte != end.byte || place.part != end.part;) {
            uint32_t point = read(text, &place);
            uint32_t order = order_of(text->tables, point);
            if (order > class && order < next) {
                next = order;
            }
            if (order != class) {
                continue;
            }
            uint32_t composed = *starter != NONE && last != class ? compose(text->tables, *starter, point) : NONE;
            if (composed != NONE) {
                *starter = composed;
                continue;
            }
            last = class;
            others++;
            if (to != NULL) {
                write(to, point);
            }
        }
        if (next == NONE) {
            return others;
        }
        class = next;
    }
}

colibri_status col_normalize(const struct col_normalizer *normalizer, const uint8_t *text, size_t bytes, uint8_t *out,
                             size_t capacity, size_t *length)
{
    struct text from = {normalizer, text, bytes};
    struct output to = {out, capacity, 0};
    struct place place = {0, 0};
    uint32_t starter = NONE; /* read, and not yet written because it may compose with what follows */
    while (place.byte < bytes) {
        struct place begin = place;
        uint32_t point = read(&from, &place);
        if (order_of(normalizer, point) == 0) {
            uint32_t composed = starter != NONE ? compose(normalizer, starter, point) : NONE;
            if (composed == NONE && starter != NONE) {
                write(&to, starter);
            }
            starter = composed == NONE ? point : composed;
            continue;
        }
        struct place end = place;
        while (place.byte < bytes && order_of(normalizer, read(&from, &place)) != 0) {
            end = place;
        }
        place = end;
        uint32_t composed = starter;
        if (marks(&from, begin, end, &composed, NULL) == 0) {
            starter = composed;
            continue;
        }
        if (composed != NONE) {
            write(&to, composed);
        }
        (void)marks(&from, begin, end, &starter, &to);
        starter = NONE; /* what follows the marks does not compose with what is before them */
    }
    if (starter != NONE) {
        write(&to, starter);
    }
    *length = to.length;
    return to.length <= capacity ? COLIBRI_OK : COLIBRI_E_TEXT_SIZE;
}
