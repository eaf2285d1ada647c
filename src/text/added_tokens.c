/* added_tokens.c - reading, and the search: leftmost, then longest, as Hugging Face's library does it.
 *
 * A found token that is refused (single_word inside a word, special while specials stay text) is not searched again
 * inside: the search goes on behind it.  lstrip and rstrip widen the stretch over white space.
 * Tokens with `normalized` are looked for in the normalised text, by their own normalised text. */
#include "text/added_tokens.h"
#include "base/array.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>

enum { ADDED_TEXT_MAX = 1024 }; /* bounds the search at each byte */

static void trie_put(trie *t, const char *text, size_t n, int32_t token) {
    if (!t->nodes) arrput(t->nodes, (trie_node){0});
    int32_t *link = &t->root[(uint8_t)text[0]], at = *link;
    for (size_t i = 0;;) {
        while (at && t->nodes[at].byte != (uint8_t)text[i]) at = t->nodes[at].sibling;
        if (!at) {
            at = (int32_t)arrlen(t->nodes);
            int32_t first = *link;
            *link = at;
            arrput(t->nodes, ((trie_node){.sibling = first, .token = -1, .byte = (uint8_t)text[i]}));
        }
        if (++i == n) break;
        link = &t->nodes[at].child;
        at = *link;
    }
    if (t->nodes[at].token < 0) t->nodes[at].token = token; /* of equal texts the first counts */
}

/* The longest token at text[0], -1; *size gets its bytes. */
static int32_t trie_longest(const trie *t, const char *text, size_t n, size_t *size) {
    int32_t at = t->root[(uint8_t)text[0]], found = -1;
    for (size_t i = 1; at; i++) {
        if (t->nodes[at].token >= 0) found = t->nodes[at].token, *size = i;
        if (i == n) break;
        at = t->nodes[at].child;
        while (at && t->nodes[at].byte != (uint8_t)text[i]) at = t->nodes[at].sibling;
    }
    return found;
}

static bool read_token(added_token *k, const cJSON *item, int64_t *id, const char **text, const char *place,
                       failure *f) {
    if (!cJSON_IsObject(item)) return fail(f, FAIL_INPUT, "%s: found %s, expected an object", place, json_kind(item));
    TRY(json_need(item, "id", place, f));
    TRY(json_get_int(item, "id", 0, (1 << TOKEN_ID_BITS) - 1, id, place, f));
    TRY(json_need(item, "content", place, f));
    TRY(json_get_string(item, "content", text, place, f));
    TRY(json_get_bool(item, "special", &k->special, place, f));
    k->normalized = !k->special;
    TRY(json_get_bool(item, "normalized", &k->normalized, place, f));
    TRY(json_get_bool(item, "single_word", &k->single_word, place, f));
    TRY(json_get_bool(item, "lstrip", &k->lstrip, place, f));
    TRY(json_get_bool(item, "rstrip", &k->rstrip, place, f));
    k->size = strlen(*text);
    if (!k->size || k->size > ADDED_TEXT_MAX)
        return fail(f, FAIL_INPUT, "%s: content: %zu bytes, expected 1 to %d", place, k->size, ADDED_TEXT_MAX);
    return true;
}

/* Hugging Face's library ignores the id of the file: a text of the vocabulary keeps the vocabulary's id, another gets
 * the next id behind all. A file that says otherwise would mean different ids here and there, so it is refused. */
static bool check_id(const vocab *tokens, int32_t model_count, int32_t largest, const char *text, size_t n, int32_t id,
                     const char *place, failure *f) {
    int32_t expected = vocab_find(tokens, text, n);
    if (expected < 0) expected = largest >= model_count ? largest + 1 : model_count;
    else if (id == expected) return true;
    if (id != expected)
        return fail(f, FAIL_INPUT, "%s: \"%.100s\" has the id %d, but Hugging Face's library would give it %d", place,
                    text, id, expected);
    const char *other = vocab_text(tokens, id, NULL);
    return !other || fail(f, FAIL_INPUT, "%s: \"%.100s\" and \"%.100s\" have the same id %d", place, other, text, id);
}

/* check_id does not see this: an added text is not found in the vocabulary. */
static bool check_twice(const added_tokens *a, const vocab *tokens, failure *f) {
    const char **texts = NULL;
    for (ptrdiff_t i = 0; i < arrlen(a->list); i++) arrput(texts, vocab_text(tokens, a->list[i].id, NULL));
    const char *twice = text_twice(texts, arrlenu(texts));
    arrfree(texts);
    return !twice || fail(f, FAIL_INPUT, "added_tokens: \"%.100s\" stands twice", twice);
}

static bool read_all(added_tokens *a, const cJSON *list, vocab *tokens, int32_t model_count, failure *f) {
    int32_t largest = -1;
    for (const cJSON *item = list->child; item; item = item->next) {
        char place[64];
        snprintf(place, sizeof place, "added_tokens[%d]", (int)arrlen(a->list));
        added_token k = {0};
        int64_t id = 0;
        const char *text = NULL;
        TRY(read_token(&k, item, &id, &text, place, f));
        k.id = (int32_t)id;
        TRY(check_id(tokens, model_count, largest, text, k.size, k.id, place, f));
        if (!vocab_text(tokens, k.id, NULL)) vocab_put(tokens, k.id, text, k.size, false);
        if (k.id > largest) largest = k.id;
        arrput(a->list, k);
    }
    return check_twice(a, tokens, f);
}

/* Special tokens first: of two with one text, the first put counts. */
static bool build_tries(added_tokens *a, const vocab *tokens, const normalize_step *steps, failure *f) {
    normalize_scratch s = {0};
    pattern_scratch p;
    pattern_scratch_init(&p);
    pattern_scratch_begin(&p, tokens->pool_size);
    bool ok = true;
    for (int special = 1; special >= 0; special--) {
        for (ptrdiff_t i = 0; i < arrlen(a->list) && ok; i++) {
            const added_token *k = &a->list[i];
            if (k->special != special) continue;
            const char *text = k->text;
            size_t n = k->size;
            if (k->normalized) ok = normalize(steps, &s, &p, k->text, k->size, &text, &n, f);
            if (ok && !n) ok = fail(f, FAIL_INPUT, "added_tokens: \"%.100s\" is nothing once normalised", k->text);
            if (ok) trie_put(k->normalized ? &a->normalized : &a->plain, text, n, (int32_t)i);
        }
    }
    pattern_scratch_free(&p);
    normalize_scratch_free(&s);
    return ok;
}

bool added_tokens_open(added_tokens *a, const cJSON *list, vocab *tokens, int32_t model_count,
                       const normalize_step *steps, failure *f) {
    if (list && !cJSON_IsArray(list))
        return fail(f, FAIL_INPUT, "added_tokens: found %s, expected a list", json_kind(list));
    if (list) TRY(read_all(a, list, tokens, model_count, f));
    a->n_ids = tokens->size;
    a->special = xcalloc((size_t)a->n_ids, 1);
    for (ptrdiff_t i = 0; i < arrlen(a->list); i++) {
        added_token *k = &a->list[i];
        k->text = vocab_text(tokens, k->id, NULL); /* the pool does not move any more */
        a->special[k->id] = k->special;
    }
    return build_tries(a, tokens, steps, f);
}

void added_tokens_close(added_tokens *a) {
    arrfree(a->list);
    arrfree(a->plain.nodes);
    arrfree(a->normalized.nodes);
    free(a->special);
    *a = (added_tokens){0};
}

static bool inside_word(const char *text, size_t n, size_t start, size_t end) {
    int len;
    return (start > 0 && unicode_is_word(utf8_last(text, start, &len))) ||
           (end < n && unicode_is_word(utf8_read(text + end, &len)));
}

void added_tokens_split(const added_tokens *a, const trie *t, const char *text, size_t n, bool match_special,
                        added_span **spans) {
    size_t done = 0; /* a stretch widened by rstrip may reach into the next match: then it goes backward, as there */
    size_t blank_end = 0; /* the white space that rstrip last ran over ends here */
    for (size_t i = 0; i < n && t->nodes;) {
        size_t size = 1;
        int32_t found = t->root[(uint8_t)text[i]] ? trie_longest(t, text + i, n - i, &size) : -1;
        size_t start = i, end = i + size;
        i = end;
        if (found < 0) continue;
        const added_token *k = &a->list[found];
        if (k->special && !match_special) continue;
        if (k->single_word && inside_word(text, n, start, end)) continue;
        int len;
        if (k->lstrip) {
            size_t to = start;
            while (to > done && unicode_is_space(utf8_last(text, to, &len))) to -= (size_t)len;
            start = to > done ? to : done;
        }
        if (k->rstrip) {
            if (end < blank_end) end = blank_end;
            while (end < n && unicode_is_space(utf8_read(text + end, &len))) end += (size_t)len;
            blank_end = end;
        }
        if (done < start) arrput(*spans, ((added_span){done, start, -1}));
        if (start < end)
            arrput(*spans, ((added_span){start, end, k->id})); /* an earlier rstrip may have eaten it all */
        done = end;
    }
    if (done < n) arrput(*spans, ((added_span){done, n, -1}));
}
