/* rows.c - cuts a mapped JSON list or JSONL file into rows.
 *
 * The scanner knows only strings, escapes and bracket depth, so it runs at memory speed and holds one row at a time.
 * A row that is no JSON inside is found when it is parsed; here it only has to end. */
#include "data/rows.h"
#include "base/file.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

struct row_reader {
    file_map map;
    char *path;
    const char *data;
    size_t size, at;
    int64_t limit, number;
    bool list, ended;
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static void skip_blanks(row_reader *r) {
    while (r->at < r->size && is_blank(r->data[r->at])) r->at++;
}

/* Takes "#N" off the end of path; -1 when there is none. */
static bool split_limit(char *path, int64_t *limit, failure *f) {
    *limit = -1;
    char *mark = strrchr(path, '#');
    if (!mark || file_exists(path) || !mark[1] || strspn(mark + 1, "0123456789") != strlen(mark + 1)) return true;
    if (!text_to_int(mark + 1, limit) || *limit < 1)
        return fail(f, FAIL_INPUT, "%s: found \"%s\", expected # and a count of rows, at least 1", path, mark);
    *mark = 0;
    return true;
}

static bool check_start(row_reader *r, failure *f) {
    const uint8_t *b = r->map.data;
    if (r->size >= 2 && ((b[0] == 0xFF && b[1] == 0xFE) || (b[0] == 0xFE && b[1] == 0xFF)))
        return fail(f, FAIL_INPUT, "%s: found UTF-16, expected UTF-8; save the file as UTF-8", r->path);
    if (r->size >= 3 && memcmp(b, "\xEF\xBB\xBF", 3) == 0) r->at = 3;
    skip_blanks(r);
    if (r->at == r->size) return fail(f, FAIL_INPUT, "%s: the file is empty, expected rows", r->path);
    r->list = r->data[r->at] == '[';
    if (r->list) r->at++;
    return true;
}

bool row_reader_open(row_reader **out, const char *name, failure *f) {
    row_reader *r = xcalloc(1, sizeof *r);
    r->path = xstrdup(name);
    if (!split_limit(r->path, &r->limit, f) || !file_map_open(&r->map, r->path, f)) {
        row_reader_close(r);
        return false;
    }
    r->data = (const char *)r->map.data;
    r->size = r->map.size;
    if (!check_start(r, f)) {
        row_reader_close(r);
        return false;
    }
    *out = r;
    return true;
}

const char *row_reader_path(const row_reader *r) { return r->path; }

void row_reader_close(row_reader *r) {
    if (!r) return;
    file_map_close(&r->map);
    free(r->path);
    free(r);
}

static bool next_line(row_reader *r, data_row *row) {
    skip_blanks(r); /* also the blank lines between rows */
    if (r->at == r->size) return r->ended = true;
    const char *from = r->data + r->at, *end = memchr(from, '\n', r->size - r->at);
    size_t n = end ? (size_t)(end - from) : r->size - r->at;
    size_t text = n;
    while (is_blank(from[text - 1])) text--;
    *row = (data_row){from, text, ++r->number, r->at};
    r->at += n;
    return true;
}

/* Offset just past the JSON value at `at`, 0 when the file ends inside it. */
static size_t value_end(const char *s, size_t n, size_t at) {
    int64_t depth = 0;
    bool quoted = false;
    for (size_t i = at; i < n; i++) {
        char c = s[i];
        if (quoted) {
            if (c == '\\') i++;
            else if (c == '"') quoted = false;
            if (quoted || depth) continue;
            return i + 1 <= n ? i + 1 : 0;
        }
        if (c == '"') quoted = true;
        else if (c == '{' || c == '[') depth++;
        else if (c == '}' || c == ']') {
            if (depth == 0) return i; /* the end of the list after a bare number or word */
            if (--depth == 0) return i + 1;
        } else if (depth == 0 && (c == ',' || is_blank(c))) return i;
    }
    return 0;
}

static bool list_broken(const row_reader *r, failure *f, const char *what) {
    return fail(f, FAIL_INPUT, "%s: row %lld, byte %zu: %s", r->path, (long long)r->number + 1, r->at, what);
}

static bool end_list(row_reader *r, failure *f) {
    r->at++;
    skip_blanks(r);
    if (r->at < r->size)
        return fail(f, FAIL_INPUT, "%s: byte %zu: found text after the list's closing \"]\", expected the end", r->path,
                    r->at);
    return r->ended = true;
}

static bool next_element(row_reader *r, data_row *row, failure *f) {
    skip_blanks(r);
    if (r->at == r->size) return list_broken(r, f, "the file ends inside the list, expected \",\" or \"]\"");
    if (r->data[r->at] == ']') return end_list(r, f);
    if (r->number > 0) {
        if (r->data[r->at] != ',') return list_broken(r, f, "expected \",\" or \"]\" after a row");
        r->at++;
        skip_blanks(r);
        if (r->at == r->size) return list_broken(r, f, "the file ends after a comma, expected a row");
        if (r->data[r->at] == ']') return list_broken(r, f, "found \"]\" after a comma, expected a row; take it out");
    }
    if (r->data[r->at] == ',') return list_broken(r, f, "found a comma, expected a row");
    size_t end = value_end(r->data, r->size, r->at);
    if (end == 0) return list_broken(r, f, "the row that begins here never ends: a quote or a bracket is not closed");
    if (end == r->at) return list_broken(r, f, "found a closing bracket, expected a row");
    *row = (data_row){r->data + r->at, end - r->at, ++r->number, r->at};
    r->at = end;
    return true;
}

bool row_reader_next(row_reader *r, data_row *row, failure *f) {
    *row = (data_row){0};
    if (r->ended || (r->limit >= 0 && r->number >= r->limit)) return true;
    return r->list ? next_element(r, row, f) : next_line(r, row);
}
