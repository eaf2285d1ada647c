/* unicode_form.c - characters are taken apart and put together by utf8proc; marks are put in order here.
 *
 * utf8proc_map does all three, but orders marks by exchanging neighbours: a text of half a million accents in the wrong
 * order would take it hours. */
#include "text/unicode_form.h"
#include "base/array.h"
#include "text/unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <utf8proc.h>

static int mark_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* Class, place, character in one number, so that equal classes keep their order. */
enum { CODE_BITS = 21, PLACE_BITS = 32 };

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* A run of marks, none of class 0, in the order of their classes. */
static void sort_marks(int32_t *code, size_t n) {
    uint64_t *key = xmalloc(n * sizeof *key);
    for (size_t i = 0; i < n; i++)
        key[i] =
            (uint64_t)mark_class(code[i]) << (CODE_BITS + PLACE_BITS) | (uint64_t)i << CODE_BITS | (uint32_t)code[i];
    qsort(key, n, sizeof *key, by_value);
    for (size_t i = 0; i < n; i++) code[i] = (int32_t)(key[i] & ((1u << CODE_BITS) - 1));
    free(key);
}

static void order_marks(int32_t *code, size_t n) {
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        int last = mark_class(code[i]);
        bool ordered = true;
        for (int next; last && end < n && (next = mark_class(code[end])); last = next, end++)
            ordered = ordered && last <= next;
        if (!ordered) sort_marks(code + i, end - i);
    }
}

static int32_t *decompose(const char *text, size_t n, utf8proc_option_t options) {
    enum { LONGEST = 32 }; /* one character gives 18 at most */
    int32_t *codes = NULL, part[LONGEST];
    for (size_t i = 0; i < n;) {
        int len, bound = UTF8PROC_BOUNDCLASS_START;
        int32_t c = (int32_t)utf8_read(text + i, &len);
        utf8proc_ssize_t count = utf8proc_decompose_char(c, part, LONGEST, options, &bound);
        assert(count >= 0 && count <= LONGEST);
        memcpy(arraddnptr(codes, (size_t)count), part, (size_t)count * sizeof *part);
        i += (size_t)len;
    }
    return codes;
}

void unicode_form(text_buf *out, const char *text, size_t n, bool compose, bool compatible) {
    utf8proc_option_t options = UTF8PROC_STABLE;
    options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (compatible) options |= UTF8PROC_COMPAT;
    int32_t *codes = decompose(text, n, options);
    order_marks(codes, arrlenu(codes));
    utf8proc_ssize_t count = arrlen(codes);
    if (count) count = utf8proc_normalize_utf32(codes, count, options);
    assert(count >= 0);
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char bytes[4];
        text_add(out, bytes, (size_t)utf8_put(bytes, (uint32_t)codes[i]));
    }
    arrfree(codes);
}
