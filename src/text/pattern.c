/* pattern.c - compiles and runs patterns with PCRE2, compiled to machine code where PCRE2 can.
 *
 * A match stops after MATCH_LIMIT steps from one place; when the machine code's stack is full, the interpreter tries
 * again with the heap.  A harmless-looking expression ("a*b" in a text of a's) can take quadratic time without ever
 * reaching that limit, so a search looks at START_PLACES places at a time, with an eye on the clock between. The
 * classes \p{L}, \p{N} ... are those of the Unicode version that PCRE2 was built with (14 in Debian 12), which has not
 * yet some letters and digits of rare scripts that Hugging Face's library (16) knows. */
#include "text/pattern.h"
#include "base/text.h"
#include "text/pattern_translate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MATCH_LIMIT = 1000 * 1000, /* steps; less for short texts */
    HEAP_LIMIT_KIB = 20 * 1024,
    SOURCE_MAX = 16 * 1024,
    JIT_STACK_MAX = 4 * 1024 * 1024,
    START_PLACES = 4096,
    CLOCK_WORK = 256,
};

void pattern_close(pattern *p) {
    pcre2_code_free(p->code);
    free(p->literal);
    free(p->source);
    *p = (pattern){0};
}

bool pattern_open_literal(pattern *p, const char *literal, const char *place, failure *f) {
    if (!literal[0]) return fail(f, FAIL_INPUT, "%s: the pattern is an empty string", place);
    p->literal = xstrdup(literal);
    p->literal_size = strlen(literal);
    return true;
}

bool pattern_open_regex(pattern *p, const char *source, const char *place, failure *f) {
    if (!source[0]) return fail(f, FAIL_INPUT, "%s: the regular expression is empty", place);
    if (strlen(source) > SOURCE_MAX)
        return fail(f, FAIL_INPUT, "%s: the regular expression has %zu bytes, at most %d are read", place,
                    strlen(source), SOURCE_MAX);
    text_buf text = {0};
    bool ok = pattern_translate(source, &text, place, f);
    if (ok) {
        int error;
        size_t at;
        pcre2_compile_context *context = pcre2_compile_context_create(NULL);
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        p->code = pcre2_compile((PCRE2_SPTR)text.data, text.size,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error, &at,
                                context);
        pcre2_compile_context_free(context);
        if (!p->code) {
            PCRE2_UCHAR why[200] = "";
            pcre2_get_error_message(error, why, sizeof why);
            ok = fail(f, FAIL_INPUT, "%s: the regular expression \"%.300s\" does not compile: %s", place, source,
                      (const char *)why);
        }
    }
    text_free(&text);
    if (!ok) return false;
    p->source = xstrdup(source);
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    return true;
}

void pattern_scratch_init(pattern_scratch *s) {
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create((size_t)64 * 1024, JIT_STACK_MAX, NULL);
    pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    pattern_scratch_begin(s, 0);
}

void pattern_scratch_free(pattern_scratch *s) {
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    *s = (pattern_scratch){0};
}

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void pattern_scratch_begin(pattern_scratch *s, size_t n) {
    s->text_bytes = n;
    s->work = 0;
    s->wall = 0;
    pcre2_set_match_limit(s->context, n < MATCH_LIMIT / 64 ? 4096 + 64 * (uint32_t)n : MATCH_LIMIT);
}

/* Looks at the clock after a good many searches, or a few in a long text.  The coarse clock costs little.  What counts
 * is processor time, so that neither other work on the machine nor a stopped program changes what comes out; that is
 * asked for when as much time has passed as could have been used. */
static bool in_time(const pattern *p, pattern_scratch *s, size_t left, failure *f) {
    s->work += 1 + left / 64;
    if (s->work < CLOCK_WORK) return true;
    s->work = 0;
    double allowed = 1 + 4e-6 * (double)s->text_bytes, wall = seconds(CLOCK_MONOTONIC_COARSE);
    if (s->wall == 0) {
        s->wall = wall;
        s->used_up = seconds(CLOCK_THREAD_CPUTIME_ID) + allowed;
    }
    if (wall - s->wall < allowed || seconds(CLOCK_THREAD_CPUTIME_ID) < s->used_up) return true;
    return fail(f, FAIL_INPUT,
                "the tokenizer's regular expression \"%.300s\" took more than %.0f seconds on a text of %zu bytes",
                p->source, allowed, s->text_bytes);
}

static pattern_result search_literal(const pattern *p, const char *text, size_t n, size_t from, size_t *start,
                                     size_t *end) {
    if (from >= n) return PATTERN_NONE;
    const char *at = p->literal_size == 1 ? memchr(text + from, p->literal[0], n - from)
                                          : memmem(text + from, n - from, p->literal, p->literal_size);
    if (!at) return PATTERN_NONE;
    *start = (size_t)(at - text);
    *end = *start + p->literal_size;
    return PATTERN_FOUND;
}

/* The text was checked, so that no UTF check is needed here. */
static int match(const pattern *p, pattern_scratch *s, const char *text, size_t n, size_t from) {
    int rc = p->jit ? pcre2_jit_match(p->code, (PCRE2_SPTR)text, n, from, 0, s->data, s->context)
                    : pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, s->data, s->context);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    return pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->data, s->context);
}

static size_t next_char(const char *text, size_t n, size_t at) {
    do at++;
    while (at < n && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

/* One search from `from`. */
static pattern_result search(const pattern *p, pattern_scratch *s, const char *text, size_t n, size_t from,
                             size_t *start, size_t *end, failure *f) {
    if (p->literal) return search_literal(p, text, n, from, start, end);
    if (!in_time(p, s, n - from, f)) return PATTERN_FAILED;
    int rc = PCRE2_ERROR_NOMATCH;
    for (; n - from > START_PLACES && rc == PCRE2_ERROR_NOMATCH; from = next_char(text, n, from + START_PLACES)) {
        if (!in_time(p, s, n - from, f)) return PATTERN_FAILED;
        pcre2_set_offset_limit(s->context, from + START_PLACES);
        rc = match(p, s, text, n, from);
        pcre2_set_offset_limit(s->context, PCRE2_UNSET);
    }
    if (rc == PCRE2_ERROR_NOMATCH) rc = match(p, s, text, n, from);
    if (rc >= 0) {
        const size_t *at = pcre2_get_ovector_pointer(s->data);
        *start = at[0];
        *end = at[1];
        return PATTERN_FOUND;
    }
    if (rc == PCRE2_ERROR_NOMATCH) return PATTERN_NONE;
    PCRE2_UCHAR why[200] = "";
    pcre2_get_error_message(rc, why, sizeof why);
    fail(f, FAIL_INPUT, "the tokenizer's regular expression \"%.300s\" gave up on a text of %zu bytes: %s", p->source,
         n, (const char *)why);
    return PATTERN_FAILED;
}

pattern_result pattern_next(const pattern *p, pattern_scratch *s, const char *text, size_t n, pattern_walk *walk,
                            size_t *start, size_t *end, failure *f) {
    while (walk->from <= n) {
        pattern_result r = search(p, s, text, n, walk->from, start, end, f);
        if (r != PATTERN_FOUND) return r;
        if (*start == *end && walk->any && walk->last_end == *end) {
            walk->from = next_char(text, n, walk->from);
            continue;
        }
        walk->from = walk->last_end = *end;
        walk->any = true;
        return PATTERN_FOUND;
    }
    return PATTERN_NONE;
}
