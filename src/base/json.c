/* json.c - checks around cJSON, which by itself takes duplicate keys, NULs and bytes that are not UTF-8.
 *
 * Numbers are written with as few digits as read back to the same double. */
#include "base/json.h"
#include "base/array.h"
#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void line_column(const char *text, const char *at, int *line, int *column) {
    *line = 1;
    *column = 1;
    for (const char *p = text; p < at; p++) {
        if (*p == '\n') ++*line, *column = 1;
        else ++*column;
    }
}

/* Walks without recursion: cJSON's tree may be 1,000 levels deep. */
static const char *duplicate_key(const cJSON *root) {
    const cJSON **stack = NULL;
    const char **keys = NULL, *found = NULL;
    arrput(stack, root);
    while (arrlen(stack) && !found) {
        const cJSON *item = arrpop(stack);
        for (const cJSON *child = item->child; child; child = child->next)
            if (child->child) arrput(stack, child);
        if (!cJSON_IsObject(item)) continue;
        arrsetlen(keys, 0);
        for (const cJSON *child = item->child; child; child = child->next) arrput(keys, child->string);
        found = text_twice(keys, arrlenu(keys));
    }
    arrfree(keys);
    arrfree(stack);
    return found;
}

/* cJSON cuts a string at \u0000 without a word, so it is refused before. */
static const char *find_nul(const char *text, size_t n) {
    const char *raw = memchr(text, 0, n);
    if (raw) return raw;
    for (const char *at = strstr(text, "\\u0000"); at; at = strstr(at + 1, "\\u0000")) {
        size_t slashes = 1;
        while (at - slashes >= text && at[-(ptrdiff_t)slashes] == '\\') slashes++;
        if (slashes % 2) return at;
    }
    return NULL;
}

/* Values but for one: each has a comma or an opening bracket before it, outside strings. */
static size_t count_values(const char *text, size_t n) {
    size_t values = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (quoted && c == '\\') i++;
        else if (c == '"') quoted = !quoted;
        else if (!quoted) values += c == ',' || c == '[' || c == '{';
    }
    return values;
}

void json_check_memory(void) { cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = xmalloc, .free_fn = free}); }

bool json_parse(cJSON **out, const char *text, size_t n, const char *place, failure *f) {
    int line, column;
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) text += 3, n -= 3;
    const char *bad = find_nul(text, n);
    if (bad) {
        line_column(text, bad, &line, &column);
        return fail(f, FAIL_INPUT, "%s:%d:%d: a NUL character in JSON", place, line, column);
    }
    size_t invalid = utf8_check(text, n);
    if (invalid < n) {
        line_column(text, text + invalid, &line, &column);
        return fail(f, FAIL_INPUT, "%s:%d:%d: not UTF-8 (byte 0x%02X at offset %zu)", place, line, column,
                    (unsigned char)text[invalid], invalid);
    }
    size_t values = count_values(text, n);
    if (values > JSON_MAX_VALUES)
        return fail(f, FAIL_INPUT, "%s: %zu values in the JSON text, at most %d are read", place, values,
                    JSON_MAX_VALUES);
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, n + 1, &end, true);
    if (!root) {
        line_column(text, end ? end : text, &line, &column);
        return fail(f, FAIL_INPUT, "%s:%d:%d: not JSON: %s", place, line, column,
                    n == 0 ? "the text is empty" : "a value, a comma, a quote or a bracket is wrong here");
    }
    const char *twice = duplicate_key(root);
    if (twice) {
        text_buf key = {0};
        json_put_string(&key, twice, strlen(twice));
        fail(f, FAIL_INPUT, "%s: the key %.200s stands twice in one object", place, key.data);
        text_free(&key);
        cJSON_Delete(root);
        return false;
    }
    *out = root;
    return true;
}

bool json_read(cJSON **out, const char *path, failure *f) {
    char *text;
    size_t n;
    TRY(file_read(&text, &n, JSON_MAX_BYTES, path, f));
    bool ok = json_parse(out, text, n, path, f);
    free(text);
    return ok;
}

const char *json_kind(const cJSON *item) {
    return !item                  ? "nothing"
           : cJSON_IsNull(item)   ? "null"
           : cJSON_IsBool(item)   ? "true or false"
           : cJSON_IsNumber(item) ? "number"
           : cJSON_IsString(item) ? "string"
           : cJSON_IsArray(item)  ? "list"
                                  : "object";
}

const cJSON *json_find(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

static bool wrong_kind(failure *f, const char *place, const char *key, const cJSON *item, const char *expected) {
    return fail(f, FAIL_INPUT, "%s: %s: found %s, expected %s", place, key, json_kind(item), expected);
}

bool json_get_int(const cJSON *object, const char *key, int64_t low, int64_t high, int64_t *out, const char *place,
                  failure *f) {
    const cJSON *item = json_find(object, key);
    if (!item) return true;
    if (!cJSON_IsNumber(item)) return wrong_kind(f, place, key, item, "an integer");
    double x = item->valuedouble;
    if (x != floor(x) || !(fabs(x) <= 0x1p53))
        return fail(f, FAIL_INPUT, "%s: %s: found %.17g, expected an integer", place, key, x);
    if (x < (double)low || x > (double)high)
        return fail(f, FAIL_INPUT, "%s: %s: found %.0f, expected %lld to %lld", place, key, x, (long long)low,
                    (long long)high);
    *out = (int64_t)x;
    return true;
}

bool json_get_double(const cJSON *object, const char *key, double *out, const char *place, failure *f) {
    const cJSON *item = json_find(object, key);
    if (!item) return true;
    if (!cJSON_IsNumber(item)) return wrong_kind(f, place, key, item, "a number");
    if (!isfinite(item->valuedouble)) return fail(f, FAIL_INPUT, "%s: %s: the number is too large", place, key);
    *out = item->valuedouble;
    return true;
}

bool json_get_bool(const cJSON *object, const char *key, bool *out, const char *place, failure *f) {
    const cJSON *item = json_find(object, key);
    if (!item) return true;
    if (!cJSON_IsBool(item)) return wrong_kind(f, place, key, item, "true or false");
    *out = cJSON_IsTrue(item);
    return true;
}

bool json_get_string(const cJSON *object, const char *key, const char **out, const char *place, failure *f) {
    const cJSON *item = json_find(object, key);
    if (!item) return true;
    if (!cJSON_IsString(item)) return wrong_kind(f, place, key, item, "a string");
    *out = item->valuestring;
    return true;
}

bool json_need(const cJSON *object, const char *key, const char *place, failure *f) {
    if (json_find(object, key)) return true;
    return fail(f, FAIL_INPUT, "%s: the key \"%s\" is missing", place, key);
}

void json_put_string(text_buf *t, const char *s, size_t n) {
    text_puts(t, "\"");
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) continue;
        text_add(t, s + from, i - from);
        from = i + 1;
        if (c == '"' || c == '\\') text_printf(t, "\\%c", c);
        else if (c == '\n') text_puts(t, "\\n");
        else if (c == '\t') text_puts(t, "\\t");
        else if (c == '\r') text_puts(t, "\\r");
        else text_printf(t, "\\u%04x", c);
    }
    text_add(t, s + from, n - from);
    text_puts(t, "\"");
}

void json_put_double(text_buf *t, double x) {
    if (!isfinite(x)) {
        text_puts(t, "null");
        return;
    }
    char out[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, sizeof out, "%.*g", digits, x);
        char *comma = strchr(out, ','); /* the locale's decimal point */
        if (comma) *comma = '.';
        double back;
        if (text_to_double(out, &back) && back == x) break;
    }
    text_puts(t, out);
}
