/* decode.c - ByteLevel, Replace (of a plain string), ByteFallback, Fuse, Strip, Metaspace and Sequence of them.
 *
 * Each step reads a row of token texts and writes another, as in Hugging Face's library; the last row is joined.
 * Broken bytes: ByteLevel gives one U+FFFD for each broken sequence (Rust's lossy conversion), ByteFallback one for
 * each byte of a run that as a whole is not UTF-8. */
#include "text/decode.h"
#include "base/array.h"
#include "text/normalize.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

static bool read_text(char **out, const cJSON *object, const char *key, const char *place, failure *f) {
    const char *text = NULL;
    TRY(json_need(object, key, place, f));
    TRY(json_get_string(object, key, &text, place, f));
    *out = xstrdup(text);
    return true;
}

static bool one_character(const char *text) {
    uint32_t code;
    return *text && (size_t)utf8_next(text, strlen(text), &code) == strlen(text);
}

static bool read_step(decode_step *step, const cJSON *item, const char *type, failure *f) {
    static const char *const names[] = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"};
    int kind = 0;
    while (kind < 6 && strcmp(names[kind], type) != 0) kind++;
    if (kind == 6)
        return fail(f, FAIL_INPUT,
                    "decoder: the type \"%.100s\" is not supported (known: ByteLevel, Replace, ByteFallback, Fuse, "
                    "Strip, Metaspace, Sequence)",
                    type);
    step->kind = (decode_kind)kind;
    if (step->kind == DECODE_REPLACE) {
        const cJSON *source = json_find(item, "pattern");
        if (!cJSON_IsString(json_find(source, "String")))
            return fail(f, FAIL_INPUT, "decoder.Replace: only a pattern of the form {\"String\": text} is supported");
        TRY(read_text(&step->from, source, "String", "decoder.Replace.pattern", f));
        TRY(read_text(&step->to, item, "content", "decoder.Replace", f));
        if (!*step->from) return fail(f, FAIL_INPUT, "decoder.Replace.pattern: the string is empty");
    } else if (step->kind == DECODE_STRIP) {
        TRY(read_text(&step->from, item, "content", "decoder.Strip", f));
        if (!one_character(step->from)) return fail(f, FAIL_INPUT, "decoder.Strip.content: expected one character");
        TRY(json_get_int(item, "start", 0, INT32_MAX, &step->start, "decoder.Strip", f));
        TRY(json_get_int(item, "stop", 0, INT32_MAX, &step->stop, "decoder.Strip", f));
    } else if (step->kind == DECODE_METASPACE) {
        const char *replacement;
        bool split;
        TRY(metaspace_read(item, &replacement, &step->prepend, &split, "decoder.Metaspace", f));
        step->from = xstrdup(replacement);
    }
    return true;
}

static bool read_steps(decode_step **steps, const cJSON *item, int depth, failure *f) {
    if (!cJSON_IsObject(item)) return fail(f, FAIL_INPUT, "decoder: found %s, expected an object", json_kind(item));
    if (depth > SEQUENCE_DEPTH_MAX) return fail(f, FAIL_INPUT, "decoder: more than %d levels", SEQUENCE_DEPTH_MAX);
    const char *type = NULL;
    TRY(json_need(item, "type", "decoder", f));
    TRY(json_get_string(item, "type", &type, "decoder", f));
    if (strcmp(type, "Sequence") != 0) {
        if (arrlen(*steps) == STEPS_MAX) return fail(f, FAIL_INPUT, "decoder: more than %d steps", STEPS_MAX);
        arrput(*steps, (decode_step){0});
        return read_step(&arrlast(*steps), item, type, f);
    }
    const cJSON *list = json_find(item, "decoders");
    if (!cJSON_IsArray(list))
        return fail(f, FAIL_INPUT, "decoder.decoders: found %s, expected a list", json_kind(list));
    for (const cJSON *child = list->child; child; child = child->next) TRY(read_steps(steps, child, depth + 1, f));
    return true;
}

/* By how much all Replace steps together could lengthen a text. */
static double growth(const decode_step *steps) {
    double times = 1;
    for (ptrdiff_t i = 0; i < arrlen(steps); i++) {
        if (steps[i].kind != DECODE_REPLACE) continue;
        double step = (double)strlen(steps[i].to) / (double)strlen(steps[i].from);
        times *= step > 1 ? step : 1;
    }
    return times;
}

bool decoder_open(decode_step **steps, const cJSON *item, failure *f) {
    if (!item) return true;
    TRY(read_steps(steps, item, 0, f));
    return growth(*steps) <= GROWTH_MAX ||
           fail(f, FAIL_INPUT, "decoder: its Replace steps could make a text more than %d times as long", GROWTH_MAX);
}

void decoder_close(decode_step **steps) {
    for (ptrdiff_t i = 0; i < arrlen(*steps); i++) {
        free((*steps)[i].from);
        free((*steps)[i].to);
    }
    arrfree(*steps);
}

/* Bytes of the longest beginning of a UTF-8 sequence at s: what one U+FFFD stands for. At least 1. */
static size_t broken_size(const char *s, size_t n) {
    const uint8_t *u = (const uint8_t *)s;
    if (u[0] < 0xC2 || u[0] > 0xF4 || n < 2) return 1;
    uint8_t low = u[0] == 0xE0   ? 0xA0
                  : u[0] == 0xF0 ? 0x90
                                 : 0x80,
            high = u[0] == 0xED   ? 0x9F
                   : u[0] == 0xF4 ? 0x8F
                                  : 0xBF;
    if (u[1] < low || u[1] > high) return 1;
    size_t len = u[0] >= 0xF0 ? 4 : u[0] >= 0xE0 ? 3 : 2, i = 2;
    while (i < len && i < n && (u[i] & 0xC0) == 0x80) i++;
    return i;
}

static void add_lossy(text_buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t good = utf8_check(s + i, n - i);
        text_add(out, s + i, good);
        i += good;
        if (i == n) break;
        text_puts(out, REPLACEMENT);
        i += broken_size(s + i, n - i);
    }
}

/* A token with a character outside the byte alphabet (an added token) stands for its own text. */
static void add_bytes(text_buf *out, const char *s, size_t n) {
    size_t mark = out->size;
    for (size_t i = 0; i < n;) {
        int len, byte = byte_from_char(utf8_read(s + i, &len));
        if (byte < 0) {
            out->size = mark;
            text_add(out, s, n);
            return;
        }
        char c = (char)byte;
        text_add(out, &c, 1);
        i += (size_t)len;
    }
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* <0xNN> -> NN, else -1. */
static int byte_of_token(const char *s, size_t n) {
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int high = s[3] == '+' ? 0 : hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static void row_end(decode_row *to) { arrput(to->end, to->text.size); }

static void flush_bytes(decode_row *to, text_buf *bytes) {
    if (!bytes->size) return;
    bool whole = utf8_check(bytes->data, bytes->size) == bytes->size;
    if (whole) text_add(&to->text, bytes->data, bytes->size), row_end(to);
    for (size_t i = 0; i < bytes->size && !whole; i++) text_puts(&to->text, REPLACEMENT), row_end(to);
    text_clear(bytes);
}

static void replace(const decode_step *step, text_buf *out, const char *s, size_t n) {
    size_t n_from = strlen(step->from), n_to = strlen(step->to);
    for (const char *at; (at = memmem(s, n, step->from, n_from));) {
        text_add(out, s, (size_t)(at - s));
        text_add(out, step->to, n_to);
        n -= (size_t)(at - s) + n_from;
        s = at + n_from;
    }
    text_add(out, s, n);
}

static void strip(const decode_step *step, text_buf *out, const char *s, size_t n) {
    size_t n_mark = strlen(step->from);
    for (int64_t i = 0; i < step->start && n >= n_mark && memcmp(s, step->from, n_mark) == 0; i++)
        s += n_mark, n -= n_mark;
    for (int64_t i = 0; i < step->stop && n >= n_mark && memcmp(s + n - n_mark, step->from, n_mark) == 0; i++)
        n -= n_mark;
    text_add(out, s, n);
}

/* The mark becomes a blank; in the first token it is only the mark of a beginning. */
static void metaspace(const decode_step *step, text_buf *out, const char *s, size_t n, bool first) {
    decode_step blank = {.from = step->from, .to = first && step->prepend != PREPEND_NEVER ? "" : " "};
    replace(&blank, out, s, n);
}

static void run_step(const decode_step *step, const decode_row *from, decode_row *to) {
    text_buf bytes = {0};
    for (ptrdiff_t i = 0; i < arrlen(from->end); i++) {
        size_t start = i ? from->end[i - 1] : 0, n = from->end[i] - start;
        const char *s = from->text.data + start;
        int byte = step->kind == DECODE_BYTE_FALLBACK ? byte_of_token(s, n) : -1;
        if (byte >= 0) {
            char c = (char)byte;
            text_add(&bytes, &c, 1);
            continue;
        }
        flush_bytes(to, &bytes);
        switch (step->kind) {
        case DECODE_REPLACE: replace(step, &to->text, s, n); break;
        case DECODE_STRIP: strip(step, &to->text, s, n); break;
        case DECODE_METASPACE: metaspace(step, &to->text, s, n, i == 0); break;
        case DECODE_BYTE_LEVEL: break; /* run_byte_level */
        case DECODE_BYTE_FALLBACK:
        case DECODE_FUSE: text_add(&to->text, s, n); break;
        }
        if (step->kind != DECODE_FUSE) row_end(to);
    }
    flush_bytes(to, &bytes);
    if (step->kind == DECODE_FUSE) row_end(to);
    text_free(&bytes);
}

/* All tokens' bytes in one, since a character may lie across tokens. */
static void run_byte_level(const decode_row *from, decode_row *to) {
    text_buf bytes = {0};
    for (ptrdiff_t i = 0; i < arrlen(from->end); i++) {
        size_t start = i ? from->end[i - 1] : 0;
        add_bytes(&bytes, from->text.data + start, from->end[i] - start);
    }
    add_lossy(&to->text, bytes.data, bytes.size);
    row_end(to);
    text_free(&bytes);
}

void decoder_run(const decode_step *steps, decode_row *row, text_buf *out) {
    if (!arrlen(row->end)) return;
    for (ptrdiff_t i = 0; i < arrlen(steps); i++) {
        decode_row to = {0};
        text_add(&to.text, "", 0); /* never without memory */
        if (steps[i].kind == DECODE_BYTE_LEVEL) run_byte_level(row, &to);
        else run_step(&steps[i], row, &to);
        text_free(&row->text);
        arrfree(row->end);
        *row = to;
    }
    for (ptrdiff_t i = 0; i < arrlen(row->end); i++) {
        size_t start = i ? row->end[i - 1] : 0;
        if (i && !steps) text_puts(out, " ");
        text_add(out, row->text.data + start, row->end[i] - start);
    }
}
