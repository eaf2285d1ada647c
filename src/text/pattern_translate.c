/* pattern_translate.c - one pass over the expression, copying what both libraries read alike.
 *
 * Rewritten: \s \S (PCRE2 adds U+180E), \w (Oniguruma: letters, marks, numbers, connectors), \h (a hex digit there),
 * \v (U+000B there), \uHHHH, \xHH, ^ and $ (always at lines there), {,n}, \p{^X}, and \p{Script} (PCRE2 would take
 * script extensions).  Refused: nested and intersected character classes, POSIX brackets, options other than i, back
 * references, \b and the rarer escapes, possessive or lazy {n,m}, which mean something else there. */
#include "text/pattern_translate.h"

#include <stdio.h>
#include <string.h>

#define SPACE_SET                                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACE_SET                                                                                                  \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD_SET                                                                                                       \
    "\\p{L}\\p{M}\\p{N}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

typedef struct {
    const char *at;
    text_buf *out;
    const char *place, *source;
    failure *f;
} translator;

static bool refuse(const translator *t, const char *what) {
    return fail(t->f, FAIL_INPUT, "%s: the regular expression \"%.300s\" holds %s at byte %zu, which is not supported",
                t->place, t->source, what, (size_t)(t->at - t->source));
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_hex(char c) { return is_digit(c) || (c && strchr("abcdefABCDEF", c)); }

/* \p{X}, \P{X}, \p{^X}: t->at stands on the p. Categories have one or two letters, all else is a script. */
static bool put_property(translator *t) {
    bool negative = *t->at == 'P';
    if (t->at[1] != '{') return refuse(t, "\\p without {}");
    const char *name = t->at + 2;
    if (*name == '^') negative = !negative, name++;
    size_t n = 0;
    while (is_letter(name[n]) || name[n] == '_') n++;
    if (!n || name[n] != '}' || n > 40) return refuse(t, "a property name that is no word");
    text_printf(t->out, "\\%c{%s%.*s}", negative ? 'P' : 'p', n > 2 ? "sc:" : "", (int)n, name);
    t->at = name + n + 1;
    return true;
}

static bool put_hex4(translator *t) {
    for (int i = 1; i <= 4; i++)
        if (!is_hex(t->at[i])) return refuse(t, "\\u without four hexadecimal digits");
    text_printf(t->out, "\\x{%.4s}", t->at + 1);
    t->at += 5;
    return true;
}

/* \x{H...}: a character; \xHH: a byte there, which is a character only below 80. t->at stands on the x. */
static bool put_hex(translator *t) {
    bool braces = t->at[1] == '{';
    const char *digits = t->at + 1 + braces;
    size_t n = 0;
    while (is_hex(digits[n]) && (braces || n < 2)) n++;
    if (!n || n > 8 || (braces && digits[n] != '}') || (!braces && n == 2 && digits[0] >= '8'))
        return refuse(t, "\\x without the digits of a character");
    text_printf(t->out, "\\x{%.*s}", (int)n, digits);
    t->at = digits + n + braces;
    return true;
}

/* t->at stands behind the backslash. */
static bool put_escape(translator *t, bool in_class) {
    char c = *t->at;
    const char *set = NULL, *open = in_class ? "" : "[", *close = in_class ? "" : "]";
    switch (c) {
    case 0: return refuse(t, "a backslash at the end");
    case 'p':
    case 'P': return put_property(t);
    case 'u': return put_hex4(t);
    case 'x': return put_hex(t);
    case 's': set = SPACE_SET; break;
    case 'S': set = NOT_SPACE_SET; break;
    case 'w': set = WORD_SET; break;
    case 'h': set = "0-9a-fA-F"; break;
    case 'v': set = "\\x{b}"; break;
    case 'W':
    case 'H':
        if (in_class) return refuse(t, "\\W or \\H inside a class");
        open = "[^", set = c == 'W' ? WORD_SET : "0-9a-fA-F";
        break;
    default: break;
    }
    if (set) {
        text_printf(t->out, "%s%s%s", open, set, close);
    } else {
        bool known = strchr("rntfaedD", c) || (!in_class && strchr("Az", c));
        if (is_digit(c) || (is_letter(c) && !known)) return refuse(t, "this escape");
        text_printf(t->out, "\\%c", c);
    }
    t->at++;
    return true;
}

/* t->at stands on the opening bracket. */
static bool put_class(translator *t) {
    text_puts(t->out, "[");
    if (*++t->at == '^') text_puts(t->out, "^"), t->at++;
    if (*t->at == ']') return refuse(t, "an empty class");
    while (*t->at != ']') {
        if (*t->at == 0) return refuse(t, "a class without an end");
        if (*t->at == '[') return refuse(t, "a class inside a class");
        if (t->at[0] == '&' && t->at[1] == '&') return refuse(t, "an intersection of classes");
        if (*t->at == '\\') {
            t->at++;
            TRY(put_escape(t, true));
        } else {
            text_add(t->out, t->at++, 1);
        }
    }
    text_puts(t->out, "]");
    t->at++;
    return true;
}

/* t->at stands on the opening parenthesis. */
static bool put_group(translator *t) {
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (t->at[1] != '?') return text_puts(t->out, "("), t->at++, true;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        size_t n = strlen(same[i]);
        if (strncmp(t->at, same[i], n)) continue;
        text_puts(t->out, same[i]);
        t->at += n;
        return true;
    }
    /* (?i) further on means something else in each library. */
    if (t->at == t->source && strncmp(t->at, "(?i)", 4) == 0) return text_puts(t->out, "(?i)"), t->at += 4, true;
    return refuse(t, "this kind of group");
}

/* t->at stands on an opening brace: {n}, {n,}, {n,m}, {,m}, else a plain brace. */
static bool put_repeat(translator *t) {
    const char *p = t->at + 1, *low = p;
    while (is_digit(*p)) p++;
    size_t n_low = (size_t)(p - low), n_high = 0;
    bool comma = *p == ',';
    const char *high = p;
    if (comma) {
        high = ++p;
        while (is_digit(*p)) p++;
        n_high = (size_t)(p - high);
    }
    if (*p != '}' || n_low + n_high == 0) return text_puts(t->out, "\\{"), t->at++, true;
    if (n_low > 5 || n_high > 5) return refuse(t, "a repeat of more than 99999");
    if (p[1] == '+' || p[1] == '?') return refuse(t, "+ or ? behind {}");
    text_printf(t->out, "{%.*s%s%.*s}", (int)(n_low ? n_low : 1), n_low ? low : "0", comma ? "," : "", (int)n_high,
                high);
    t->at = p + 1;
    return true;
}

bool pattern_translate(const char *source, text_buf *out, const char *place, failure *f) {
    translator t = {.at = source, .out = out, .place = place, .source = source, .f = f};
    while (*t.at) {
        switch (*t.at) {
        case '\\':
            t.at++;
            TRY(put_escape(&t, false));
            break;
        case '[': TRY(put_class(&t)); break;
        case '(': TRY(put_group(&t)); break;
        case '{': TRY(put_repeat(&t)); break;
        case '^': text_puts(out, "(?m:^)"), t.at++; break;
        case '$': text_puts(out, "(?m:$)"), t.at++; break;
        default: text_add(out, t.at++, 1);
        }
    }
    return true;
}
