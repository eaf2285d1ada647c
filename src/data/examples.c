/* examples.c - parses one row, picks its layout by its keys, and checks the conversation.
 *
 * A new layout is a line in the table below and a reader in a file of its own.  cJSON is lenient where it hurts (bad
 * \u digits become NUL, a lone surrogate stops it, raw line ends pass), so a row's bytes are checked before. */
#include "data/examples.h"
#include "base/array.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ROW_LIMIT = 256 << 20 };

static bool read_messages(example *e, const cJSON *row, failure *f) {
    return example_read_turns(e, row, "messages", f);
}
static bool read_sharegpt(example *e, const cJSON *row, failure *f) {
    return example_read_turns(e, row, "conversations", f);
}

/* The first line whose key a row has (other than as null) reads it. */
static const struct {
    const char *key;
    bool (*read)(example *e, const cJSON *row, failure *f);
} layouts[] = {
    {"messages", read_messages},
    {"conversations", read_sharegpt},
    {"instruction", example_read_alpaca},
    {"output", example_read_alpaca},
};

const char *example_note_text(int bit) {
    static const char *const texts[NOTE_COUNT] = {
        "half a surrogate pair (\\ud800-\\udfff) replaced by U+FFFD",
        "a number, true or false taken as its JSON text",
        "a list of tools left out of the prompt",
        "an answer marked as bad (\"label\": false), learnt like any other",
    };
    return texts[bit];
}

bool example_bad(example *e, failure *f, const char *reason, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    e->reason = reason;
    return fail(f, FAIL_INPUT, "%s", text);
}

static int hex4(const char *s, size_t n) {
    int value = 0;
    if (n < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = s[i], digit = c >= '0' && c <= '9'                 ? c - '0'
                              : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                                   : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* s[n] begins with \u. Returns the bytes it takes, 0 when its digits are wrong; half a pair becomes \ufffd. */
static size_t check_unicode_escape(char *s, size_t n, unsigned *notes) {
    int code = hex4(s + 2, n - 2);
    if (code < 0) return 0;
    if (code < 0xD800 || code > 0xDFFF) return 6;
    bool pair = code < 0xDC00 && n >= 12 && s[6] == '\\' && s[7] == 'u';
    int low = pair ? hex4(s + 8, n - 8) : -1;
    if (low >= 0xDC00 && low <= 0xDFFF) return 12;
    memcpy(s + 2, "fffd", 4);
    *notes |= NOTE_SURROGATE;
    return 6;
}

/* Checks strings and escapes of e->row in place. `base` is the row's offset in the file. */
static bool check_strings(example *e, size_t base, failure *f) {
    char *s = e->row.data;
    size_t n = e->row.size;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (!quoted) {
            quoted = c == '"';
        } else if (c == '"') {
            quoted = false;
        } else if (c < 0x20) {
            return example_bad(e, f, "not valid JSON", "byte %zu: a raw control character 0x%02X in a string", base + i,
                               c);
        } else if (c == '\\' && i + 1 < n && s[i + 1] == 'u') {
            size_t taken = check_unicode_escape(s + i, n - i, &e->notes);
            if (!taken)
                return example_bad(e, f, "not valid JSON", "byte %zu: \\u needs four hexadecimal digits", base + i);
            i += taken - 1;
        } else if (c == '\\') {
            i++;
        }
    }
    return true;
}

static bool parse_row(example *e, const data_row *row, failure *f) {
    if (row->size > ROW_LIMIT)
        return example_bad(e, f, "longer than 256 MiB", "%zu bytes, at most %d are read", row->size, (int)ROW_LIMIT);
    size_t valid = utf8_check(row->text, row->size);
    if (valid < row->size)
        return example_bad(e, f, "not UTF-8", "byte %zu: 0x%02X is not UTF-8", row->offset + valid,
                           (unsigned char)row->text[valid]);
    text_clear(&e->row);
    text_add(&e->row, row->text, row->size);
    TRY(check_strings(e, row->offset, f));
    if (json_parse(&e->root, e->row.data, e->row.size, "line:column of the row", f)) return true;
    e->reason = "not valid JSON";
    return false;
}

const char *example_text(example *e, const cJSON *item, const char *key, bool *ok, failure *f) {
    *ok = true;
    if (!item || cJSON_IsNull(item)) return NULL;
    if (cJSON_IsString(item)) return item->valuestring;
    if (cJSON_IsBool(item)) {
        e->notes |= NOTE_NUMBER;
        return cJSON_IsTrue(item) ? "true" : "false";
    }
    double x = item->valuedouble;
    if (cJSON_IsNumber(item) && isfinite(x) && fabs(x) < 0x1p53) {
        e->notes |= NOTE_NUMBER;
        if (x == rint(x)) return arena_printf(&e->texts, "%.0f", x + 0.0);
        text_buf t = {0};
        json_put_double(&t, x);
        const char *text = arena_strndup(&e->texts, t.data, t.size);
        text_free(&t);
        return text;
    }
    *ok = false;
    if (cJSON_IsNumber(item))
        example_bad(e, f, "a number too large to keep exactly", "%s: %g; write it as a string", key, x);
    else
        example_bad(e, f, "a list or object where text is expected", "%s: found %s, expected text", key,
                    json_kind(item));
    return NULL;
}

void example_add(example *e, chat_role role, const char *content, bool train) {
    chat_message m = {role, content, strlen(content), train && role == CHAT_ASSISTANT};
    arrput(e->messages, m);
}

/* [system] user answer (tool.. answer)* user ... answer */
static bool check_order(example *e, failure *f) {
    static const char *const names[] = {"system", "user", "assistant", "tool"};
    int n = (int)arrlen(e->messages), first = n && e->messages[0].role == CHAT_SYSTEM;
    if (n == first) return example_bad(e, f, "no turns", "the conversation has no turn");
    if (e->messages[first].role != CHAT_USER)
        return example_bad(e, f, "the first turn is not the user's", "the first turn is the %s's",
                           names[e->messages[first].role]);
    for (int i = first + 1; i < n; i++) {
        chat_role before = e->messages[i - 1].role, role = e->messages[i].role;
        if (role == CHAT_SYSTEM)
            return example_bad(e, f, "a system message after the first turn", "turn %d is a system message", i + 1);
        bool fits = role == CHAT_USER   ? before == CHAT_ASSISTANT
                    : role == CHAT_TOOL ? before == CHAT_ASSISTANT || before == CHAT_TOOL
                                        : before == CHAT_USER || before == CHAT_TOOL;
        if (!fits)
            return example_bad(e, f, "turns do not alternate", "turn %d (%s) follows one of the %s", i + 1, names[role],
                               names[before]);
    }
    if (e->messages[n - 1].role != CHAT_ASSISTANT)
        return example_bad(e, f, "the last turn is no answer", "the last turn is the %s's",
                           names[e->messages[n - 1].role]);
    return true;
}

static bool check_answers(example *e, failure *f) {
    bool any = false;
    for (int i = 0; i < (int)arrlen(e->messages); i++) {
        const chat_message *m = &e->messages[i];
        if (m->role != CHAT_ASSISTANT) continue;
        any |= m->train;
        if (m->size == 0) return example_bad(e, f, "an answer is empty", "turn %d is an empty answer", i + 1);
    }
    return any || example_bad(e, f, "no answer is to be trained", "every answer has loss false or weight 0");
}

static bool read_layout(example *e, failure *f) {
    if (!cJSON_IsObject(e->root))
        return example_bad(e, f, "not an object", "found %s, expected an object", json_kind(e->root));
    if (json_find(e->root, "chosen") && json_find(e->root, "rejected"))
        return example_bad(e, f, "chosen and rejected answers, for preference training",
                           "preference training is not in this version");
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (json_find(e->root, layouts[i].key)) return layouts[i].read(e, e->root, f);
    if (json_find(e->root, "input") || cJSON_GetObjectItemCaseSensitive(e->root, "output"))
        return example_bad(e, f, "the output is missing", "output: found nothing, expected text");
    const cJSON *first = e->root->child;
    return example_bad(
        e, f, "an unknown layout",
        "expected messages, conversations, or instruction and output among the keys; the first key is %.100s",
        first ? first->string : "missing");
}

bool example_read(example *e, const data_row *row, const char *system, failure *f) {
    cJSON_Delete(e->root);
    e->root = NULL;
    arena_free(&e->texts);
    e->texts = (arena){0};
    arrsetlen(e->messages, 0);
    e->notes = 0;
    e->reason = NULL;
    TRY(parse_row(e, row, f));
    TRY(read_layout(e, f));
    TRY(check_order(e, f));
    TRY(check_answers(e, f));
    const cJSON *tools = json_find(e->root, "tools");
    bool none = !tools ||
                (cJSON_IsString(tools) && (!tools->valuestring[0] || strcmp(tools->valuestring, "[]") == 0)) ||
                (cJSON_IsArray(tools) && !tools->child);
    if (!none) e->notes |= NOTE_TOOLS;
    if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(e->root, "label"))) e->notes |= NOTE_LABEL;
    if (system && e->messages[0].role != CHAT_SYSTEM)
        arrins(e->messages, 0, ((chat_message){CHAT_SYSTEM, system, strlen(system), false}));
    return true;
}

void example_free(example *e) {
    cJSON_Delete(e->root);
    arena_free(&e->texts);
    arrfree(e->messages);
    text_free(&e->row);
    *e = (example){0};
}
