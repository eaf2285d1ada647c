/* normalize.c - NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence.
 *
 * Most text is already in its Unicode form, and making it is slow, so only the stretches around a character that may
 * change are given to unicode_form(): a stretch begins one character before the first such character (which may compose
 * with it) and ends at the next that surely is a starter of its own. */
#include "text/normalize.h"
#include "base/array.h"
#include "text/unicode.h"
#include "text/unicode_form.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool pattern_read(pattern *p, const cJSON *item, const char *place, failure *f) {
    const char *string = NULL, *regex = NULL;
    if (cJSON_IsObject(item)) {
        TRY(json_get_string(item, "String", &string, place, f));
        TRY(json_get_string(item, "Regex", &regex, place, f));
    }
    if (string && !regex) return pattern_open_literal(p, string, place, f);
    if (regex && !string) return pattern_open_regex(p, regex, place, f);
    return fail(f, FAIL_INPUT, "%s: pattern: expected {\"String\": text} or {\"Regex\": text}", place);
}

static const struct {
    const char *name;
    normalize_kind kind;
} kinds[] = {
    {"NFC", NORMALIZE_NFC},         {"NFD", NORMALIZE_NFD},         {"NFKC", NORMALIZE_NFKC},
    {"NFKD", NORMALIZE_NFKD},       {"Strip", NORMALIZE_STRIP},     {"Lowercase", NORMALIZE_LOWERCASE},
    {"Prepend", NORMALIZE_PREPEND}, {"Replace", NORMALIZE_REPLACE},
};

static bool read_step(normalize_step *step, const cJSON *item, const char *type, failure *f) {
    const char *content = NULL, *key = NULL;
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    while (i < n && strcmp(kinds[i].name, type) != 0) i++;
    if (i == n)
        return fail(
            f, FAIL_INPUT,
            "normalizer: the type \"%.100s\" is not supported (known: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, "
            "Replace, Strip, Sequence)",
            type);
    step->kind = kinds[i].kind;
    if (step->kind == NORMALIZE_REPLACE) {
        TRY(pattern_read(&step->pattern, json_find(item, "pattern"), "normalizer.Replace", f));
        key = "content";
    }
    if (step->kind == NORMALIZE_PREPEND) key = "prepend";
    if (key) {
        TRY(json_need(item, key, "normalizer", f));
        TRY(json_get_string(item, key, &content, "normalizer", f));
        step->content = xstrdup(content);
    }
    step->left = step->right = true;
    TRY(json_get_bool(item, "strip_left", &step->left, "normalizer", f));
    return json_get_bool(item, "strip_right", &step->right, "normalizer", f);
}

static bool read_steps(normalize_step **steps, const cJSON *item, int depth, failure *f) {
    if (!cJSON_IsObject(item)) return fail(f, FAIL_INPUT, "normalizer: found %s, expected an object", json_kind(item));
    if (depth > SEQUENCE_DEPTH_MAX) return fail(f, FAIL_INPUT, "normalizer: more than %d levels", SEQUENCE_DEPTH_MAX);
    const char *type = NULL;
    TRY(json_need(item, "type", "normalizer", f));
    TRY(json_get_string(item, "type", &type, "normalizer", f));
    if (strcmp(type, "Sequence") != 0) {
        if (arrlen(*steps) == STEPS_MAX) return fail(f, FAIL_INPUT, "normalizer: more than %d steps", STEPS_MAX);
        arrput(*steps, (normalize_step){0});
        return read_step(&arrlast(*steps), item, type, f);
    }
    const cJSON *list = json_find(item, "normalizers");
    if (!cJSON_IsArray(list))
        return fail(f, FAIL_INPUT, "normalizer.normalizers: found %s, expected a list", json_kind(list));
    for (const cJSON *child = list->child; child; child = child->next) TRY(read_steps(steps, child, depth + 1, f));
    return true;
}

bool normalizer_open(normalize_step **steps, const cJSON *item, failure *f) {
    return !item || read_steps(steps, item, 0, f);
}

void normalizer_close(normalize_step **steps) {
    for (ptrdiff_t i = 0; i < arrlen(*steps); i++) {
        free((*steps)[i].content);
        pattern_close(&(*steps)[i].pattern);
    }
    arrfree(*steps);
}

void normalize_scratch_free(normalize_scratch *s) {
    text_free(&s->text[0]);
    text_free(&s->text[1]);
}

/* Surely unchanged by the form, and surely no part of a composition with what stands before. */
static bool is_stable(uint32_t c, normalize_kind kind) {
    if (c < 0x80 || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF)) return true;
    if (c == 0x11A7) return true; /* no trailing consonant, but utf8proc before 2.9 composes it away */
    if (kind != NORMALIZE_NFC) return false;
    return c < 0x300 || (c >= 0x400 && c < 0x483) || (c >= 0x2010 && c <= 0x2027) || (c >= 0x3000 && c <= 0x3029) ||
           (c >= 0x3041 && c <= 0x3098) || (c >= 0x309D && c <= 0x30FF) || (c >= 0xAC00 && c <= 0xD7A3) ||
           (c >= 0xFF00 && c <= 0xFFEF) || (c >= 0x1F300 && c <= 0x1FAFF);
}

/* Characters of text[n] that are stable, in bytes. */
static size_t stable_prefix(const char *text, size_t n, normalize_kind kind) {
    size_t i = 0;
    while (i < n) {
        int len;
        if (!is_stable(utf8_read(text + i, &len), kind)) break;
        i += (size_t)len;
    }
    return i;
}

static void form(text_buf *out, const char *text, size_t n, normalize_kind kind) {
    bool compose = kind == NORMALIZE_NFC || kind == NORMALIZE_NFKC;
    bool compatible = kind == NORMALIZE_NFKC || kind == NORMALIZE_NFKD;
    for (size_t i = 0; i < n;) {
        int len;
        size_t stable = stable_prefix(text + i, n - i, kind), end = i + stable, keep = stable;
        if (end < n && stable) utf8_last(text + i, stable, &len), keep -= (size_t)len;
        text_add(out, text + i, keep);
        if (end == n) break;
        size_t start = i + keep;
        while (end < n && !is_stable(utf8_read(text + end, &len), kind)) end += (size_t)len;
        unicode_form(out, text + start, end - start, compose, compatible);
        i = end;
    }
}

/* Rust's to_lowercase of a single character: the simple mapping, and one character that becomes two. */
static void lower(text_buf *out, const char *text, size_t n) {
    for (size_t i = 0; i < n;) {
        int len;
        char bytes[4];
        uint32_t c = utf8_read(text + i, &len);
        i += (size_t)len;
        if (c == 0x130) text_puts(out, "i\xCC\x87");
        else text_add(out, bytes, (size_t)utf8_put(bytes, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c)));
    }
}

/* Stops when `out` has more than `most` bytes; the caller says so. */
static bool replace(const normalize_step *step, pattern_scratch *p, text_buf *out, const char *text, size_t n,
                    size_t most, failure *f) {
    pattern_walk walk = {0};
    size_t done = 0, start, end, n_content = strlen(step->content);
    pattern_result r = PATTERN_NONE;
    while (out->size <= most &&
           (r = pattern_next(&step->pattern, p, text, n, &walk, &start, &end, f)) == PATTERN_FOUND) {
        text_add(out, text + done, start - done);
        text_add(out, step->content, n_content);
        done = end;
    }
    text_add(out, text + done, n - done);
    return r != PATTERN_FAILED;
}

static void strip(const normalize_step *step, const char **text, size_t *n) {
    int len;
    while (step->left && *n && unicode_is_space(utf8_read(*text, &len))) *text += len, *n -= (size_t)len;
    while (step->right && *n && unicode_is_space(utf8_last(*text, *n, &len))) *n -= (size_t)len;
}

static bool run_step(const normalize_step *step, pattern_scratch *p, text_buf *out, const char *text, size_t n,
                     size_t most, failure *f) {
    switch (step->kind) {
    case NORMALIZE_NFC:
    case NORMALIZE_NFD:
    case NORMALIZE_NFKC:
    case NORMALIZE_NFKD: return form(out, text, n, step->kind), true;
    case NORMALIZE_LOWERCASE: return lower(out, text, n), true;
    case NORMALIZE_PREPEND:
        if (n) text_puts(out, step->content);
        text_add(out, text, n);
        return true;
    case NORMALIZE_REPLACE: return replace(step, p, out, text, n, most, f);
    case NORMALIZE_STRIP: break;
    }
    return true;
}

bool normalize(const normalize_step *steps, normalize_scratch *s, pattern_scratch *p, const char *text, size_t n,
               const char **out, size_t *n_out, failure *f) {
    int turn = 0;
    size_t most = growth_limit(n);
    for (ptrdiff_t i = 0; i < arrlen(steps); i++) {
        const normalize_step *step = &steps[i];
        if (step->kind == NORMALIZE_STRIP) {
            strip(step, &text, &n);
            continue;
        }
        if (step->kind <= NORMALIZE_NFKD && stable_prefix(text, n, step->kind) == n) continue;
        text_buf *to = &s->text[turn];
        text_clear(to);
        TRY(run_step(step, p, to, text, n, most, f));
        if (to->size > most)
            return fail(f, FAIL_INPUT, "normalisation blew a text up to more than %d times its size", GROWTH_MAX);
        text = to->size ? to->data : "";
        n = to->size;
        turn = 1 - turn;
    }
    *out = text;
    *n_out = n;
    return true;
}
