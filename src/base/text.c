/* text.c - the growing string, UTF-8 by the table of the standard, strict numbers, the nearest name. */
#include "base/text.h"
#include "base/memory.h"

#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reserve(text_buf *t, size_t more) {
    if (t->size + more + 1 <= t->room) return;
    t->room = (t->size + more + 1) * 2;
    t->data = xrealloc(t->data, t->room);
}

void text_add(text_buf *t, const char *bytes, size_t n) {
    reserve(t, n);
    if (n) memcpy(t->data + t->size, bytes, n);
    t->size += n;
    t->data[t->size] = 0;
}

void text_puts(text_buf *t, const char *s) { text_add(t, s, strlen(s)); }

void text_printf(text_buf *t, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    reserve(t, (size_t)n);
    vsnprintf(t->data + t->size, (size_t)n + 1, format, again);
    t->size += (size_t)n;
    va_end(again);
    va_end(args);
}

void text_clear(text_buf *t) {
    t->size = 0;
    if (t->data) t->data[0] = 0;
}

void text_free(text_buf *t) {
    free(t->data);
    *t = (text_buf){0};
}

int utf8_next(const char *s, size_t n, uint32_t *code) {
    const uint8_t *u = (const uint8_t *)s;
    if (n == 0) return 0;
    if (u[0] < 0x80) return *code = u[0], 1;
    int len = u[0] >= 0xF0 ? 4 : u[0] >= 0xE0 ? 3 : 2;
    if (u[0] < 0xC2 || u[0] > 0xF4 || n < (size_t)len) return 0;
    uint32_t c = u[0] & (0xFFu >> (len + 1));
    for (int i = 1; i < len; i++) {
        if ((u[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (u[i] & 0x3Fu);
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF) || (len == 3 && c < 0x800) || (len == 4 && c < 0x10000)) return 0;
    return *code = c, len;
}

int utf8_put(char out[4], uint32_t c) {
    if (c < 0x80) return out[0] = (char)c, 1;
    int len = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((len == 2 ? 0xC0 : len == 3 ? 0xE0 : 0xF0) | c);
    return len;
}

size_t utf8_check(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint32_t code;
        int len = utf8_next(s + i, n - i, &code);
        if (!len) break;
        i += (size_t)len;
    }
    return i;
}

bool text_to_double(const char *s, double *out) {
    if (!s[0] || strspn(s, "0123456789+-.eE") != strlen(s)) return false; /* no blanks, hex, nan, inf */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char *end;
    errno = 0;
    *out = strtod_l(s, &end, c);
    freelocale(c);
    return *end == 0 && isfinite(*out);
}

bool text_to_int(const char *s, int64_t *out) {
    if (!s[0] || strspn(s, "0123456789+-") != strlen(s)) return false;
    char *end;
    errno = 0;
    *out = strtoll(s, &end, 10);
    return *end == 0 && errno == 0;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

const char *text_twice(const char **names, size_t n) {
    if (n < 2) return NULL;
    qsort(names, n, sizeof *names, by_bytes);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0) return names[i];
    return NULL;
}

static int edit_distance(const char *a, const char *b) {
    enum { LONGEST = 64 };
    int n = (int)strlen(a), m = (int)strlen(b), row[LONGEST + 1];
    if (n > LONGEST || m > LONGEST) return INT_MAX; /* no key is that long */
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[m];
}

const char *text_nearest(const char *word, const char *const *names, int n) {
    const char *best = NULL;
    int least = (int)strlen(word) / 3 + 2;
    for (int i = 0; i < n; i++) {
        int d = edit_distance(word, names[i]);
        if (d < least) least = d, best = names[i];
    }
    return best;
}
