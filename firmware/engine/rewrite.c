/* SPDX-License-Identifier: Apache-2.0
 *
 * rewrite.c: see rewrite.h. The text is taken apart from left to right into what rules are for and characters that no
 * rule is for; each place takes at most COL_MAX_RULE_BYTES look-ups.
 */
#include "rewrite.h"

#include "detail.h"
#include "utf8.h"
#include "vocabulary.h"

#define BAD COLIBRI_E_IMAGE_TOKENIZER
#define ALL (COL_REWRITE_PREFIX * 2u - 1u)
#define SPACE_MARK 0x2581u /* which SentencePiece writes for a space */

struct rewriting {
    const struct col_tokenizer_view *view;
    uint32_t how;      /* COL_REWRITE_* */
    bool behind_space; /* what was put last ended with a space */
    uint8_t *out;
    size_t capacity;
    size_t length;     /* goes on past the capacity */
};

colibri_status col_rewrite_check(const struct col_tokenizer_view *view, struct colibri_detail *detail)
{
    const struct col_tokenizer *head = view->head;
    const uint32_t how = head->rewrite;
    if (how == 0 ? head->rule_count != 0 || head->rule_bytes != 0
                 : (how & ~ALL) != 0 || (how & COL_REWRITE_RULES) == 0 || head->decomposition_count != 0 ||
                       head->kind == COL_TOKENIZER_BYTE_BPE) {
        return col_fail(BAD, detail, "tokenizer.rewrite", how, ALL);
    }
    if ((how & COL_REWRITE_CLUSTERS) != 0 && view->clusters == NULL) {
        return col_fail(BAD, detail, "tokenizer.split_count", head->split_count, 1);
    }
    /* Every text that a rule stands for ends. The trie needs no check: a walk looks where it steps, see find_rule. */
    if ((head->rule_count == 0) != (head->rule_bytes == 0) ||
        (head->rule_bytes != 0 && view->rule_text[head->rule_bytes - 1] != 0)) {
        return col_fail(BAD, detail, "tokenizer.rule_text", head->rule_bytes, head->rule_count);
    }
    return COLIBRI_OK;
}

/* What stands for the beginning of the text, or NULL where no rule is for it; *taken is the length of that beginning:
 * the longest that a rule is for, or with clusters the shortest. */
static const uint8_t *find_rule(const struct col_tokenizer_view *view, const uint8_t *text, size_t bytes,
                                size_t *taken)
{
    const uint32_t count = view->head->rule_count;
    const uint8_t *found = NULL;
    uint32_t at = count == 0 ? 0 : col_rule_offset(view->rules[0]);
    for (size_t i = 0; i < bytes && i < COL_MAX_RULE_BYTES && text[i] != 0; i++) {
        at ^= text[i];
        if (at >= count || col_rule_label(view->rules[at]) != text[i]) {
            break;
        }
        const uint32_t unit = view->rules[at];
        at ^= col_rule_offset(unit);
        if (!col_rule_has_leaf(unit)) {
            continue;
        }
        const uint32_t value = at < count ? view->rules[at] & COL_RULE_VALUE : COL_RULE_VALUE;
        if (value >= view->head->rule_bytes) {
            break;
        }
        found = view->rule_text + value;
        *taken = i + 1;
        if ((view->head->rewrite & COL_REWRITE_CLUSTERS) != 0) {
            break;
        }
    }
    return found;
}

static void put(struct rewriting *to, const uint8_t *text, size_t bytes)
{
    while (to->behind_space && bytes > 0 && *text == ' ') {
        text++;
        bytes--;
    }
    for (size_t i = 0; i < bytes;) {
        uint32_t length;
        bool mark = col_utf8_decode(text + i, bytes - i, &length) == SPACE_MARK &&
                    (to->how & COL_REWRITE_KEEP) != 0;
        for (uint32_t k = 0; k < (mark ? 1 : length); k++, to->length++) {
            if (to->length < to->capacity) {
                to->out[to->length] = mark ? ' ' : text[i + k];
            }
        }
        i += length;
    }
    if (bytes > 0) {
        to->behind_space = (to->how & COL_REWRITE_COLLAPSE) != 0 && text[bytes - 1] == ' ';
    }
}

static void put_rule(struct rewriting *to, const uint8_t *text)
{
    size_t bytes = 0;
    while (text[bytes] != 0) {
        bytes++;
    }
    put(to, text, bytes);
}

static void trim_end(struct rewriting *to)
{
    while ((to->how & (COL_REWRITE_TRIM | COL_REWRITE_TRIM_END)) != 0 && to->length > 0) {
        uint32_t length;
        uint32_t point = col_utf8_last(to->out, to->length, &length);
        if (point != ' ' && ((to->how & COL_REWRITE_TRIM) != 0 || !col_is_space(&to->view->classes, point))) {
            break;
        }
        to->length -= length;
    }
}

colibri_status col_rewrite(const struct col_tokenizer_view *view, bool first, const uint8_t *text, size_t bytes,
                           uint8_t *out, size_t capacity, size_t *length)
{
    const uint32_t how = view->head->rewrite;
    struct rewriting to = {view, how, false, out, capacity, 0};
    size_t cluster_end = 0;
    if (first && (how & COL_REWRITE_PREFIX) != 0) {
        put(&to, (const uint8_t *)" ", 1);
    }
    to.behind_space = (how & COL_REWRITE_TRIM) != 0;
    for (size_t at = 0; at < bytes;) {
        const uint8_t *from = text + at;
        size_t rest = bytes - at;
        uint32_t character;
        size_t taken;
        (void)col_utf8_decode(from, rest, &character);
        if ((how & COL_REWRITE_KEEP) != 0 &&
            col_longest_token(view, view->late, view->head->late_count, from, rest, &taken) != COL_NO_TOKEN) {
            put(&to, from, taken);
            at += taken;
            continue;
        }
        if ((how & COL_REWRITE_CLUSTERS) != 0) {
            size_t whole = 0;
            if (at >= cluster_end) {
                whole = col_match(&view->classes, view->clusters, from, rest);
                cluster_end = at + whole;
            }
            rest = whole > character && whole < COL_SHORT_CLUSTER ? whole : character;
        }
        const uint8_t *rule = find_rule(view, from, rest, &taken);
        if (rule != NULL) {
            put_rule(&to, rule);
            at += (how & COL_REWRITE_CLUSTERS) != 0 ? rest : taken;
        } else {
            put(&to, from, character);
            at += character;
        }
    }
    *length = to.length;
    if (to.length > capacity) {
        return COLIBRI_E_TEXT_SIZE;
    }
    trim_end(&to);
    *length = to.length;
    return COLIBRI_OK;
}
