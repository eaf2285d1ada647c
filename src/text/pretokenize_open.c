/* pretokenize_open.c - reads Split, ByteLevel, Metaspace, Digits, Whitespace, WhitespaceSplit, Punctuation, Sequence.
 */
#include "base/array.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

#define BYTE_LEVEL_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static bool read_behavior(split_behavior *out, const cJSON *item, const char *place, failure *f) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    TRY(json_get_string(item, "behavior", &name, place, f));
    if (!name) return true;
    for (int i = 0; i < 5; i++)
        if (strcmp(name, names[i]) == 0) return *out = (split_behavior)i, true;
    return fail(
        f, FAIL_INPUT,
        "%s.behavior: \"%.100s\" is not known (Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous)",
        place, name);
}

static bool read_split(pretokenize_step *step, const cJSON *item, failure *f) {
    const char *place = "pre_tokenizer.Split";
    step->kind = STEP_SPLIT;
    TRY(pattern_read(&step->pattern, json_find(item, "pattern"), place, f));
    TRY(json_need(item, "behavior", place, f));
    TRY(read_behavior(&step->behavior, item, place, f));
    return json_get_bool(item, "invert", &step->invert, place, f);
}

static bool read_byte_level(pretokenize_step *step, const cJSON *item, failure *f) {
    const char *place = "pre_tokenizer.ByteLevel";
    step->kind = STEP_BYTE_LEVEL;
    step->add_prefix_space = step->use_regex = step->map_bytes = true;
    TRY(json_get_bool(item, "add_prefix_space", &step->add_prefix_space, place, f));
    TRY(json_get_bool(item, "use_regex", &step->use_regex, place, f));
    return !step->use_regex || pattern_open_regex(&step->pattern, BYTE_LEVEL_WORDS, place, f);
}

bool metaspace_read(const cJSON *item, const char **replacement, prepend_scheme *prepend, bool *split,
                    const char *place, failure *f) {
    const char *scheme = NULL;
    bool prefix = true;
    uint32_t code;
    *replacement = "\xE2\x96\x81";
    *prepend = PREPEND_ALWAYS;
    *split = true;
    TRY(json_get_string(item, "replacement", replacement, place, f));
    size_t n = strlen(*replacement);
    if (!n || (size_t)utf8_next(*replacement, n, &code) != n)
        return fail(f, FAIL_INPUT, "%s.replacement: \"%.100s\" is not one character", place, *replacement);
    TRY(json_get_bool(item, "split", split, place, f));
    TRY(json_get_bool(item, "add_prefix_space", &prefix, place, f));
    TRY(json_get_string(item, "prepend_scheme", &scheme, place, f));
    if (!prefix) *prepend = PREPEND_NEVER;
    if (!scheme) return true;
    if (strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 && strcmp(scheme, "never") != 0)
        return fail(f, FAIL_INPUT, "%s.prepend_scheme: \"%.100s\" is not known (always, first, never)", place, scheme);
    if (!prefix && scheme[0] != 'n')
        return fail(f, FAIL_INPUT, "%s: add_prefix_space false contradicts prepend_scheme \"%s\"", place, scheme);
    *prepend = scheme[0] == 'a' ? PREPEND_ALWAYS : scheme[0] == 'f' ? PREPEND_FIRST : PREPEND_NEVER;
    return true;
}

static bool read_metaspace(pretokenize_step *step, const cJSON *item, failure *f) {
    const char *place = "pre_tokenizer.Metaspace", *replacement;
    step->kind = STEP_METASPACE;
    step->behavior = SPLIT_MERGED_WITH_NEXT;
    TRY(metaspace_read(item, &replacement, &step->prepend, &step->split, place, f));
    return pattern_open_literal(&step->pattern, replacement, place, f);
}

static bool read_digits(pretokenize_step *step, const cJSON *item, failure *f) {
    bool individual = false;
    step->kind = STEP_CHARS;
    step->is_delimiter = unicode_is_numeric;
    TRY(json_get_bool(item, "individual_digits", &individual, "pre_tokenizer.Digits", f));
    step->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return true;
}

static bool read_punctuation(pretokenize_step *step, const cJSON *item, failure *f) {
    step->kind = STEP_CHARS;
    step->is_delimiter = unicode_is_punct;
    return read_behavior(&step->behavior, item, "pre_tokenizer.Punctuation", f);
}

static bool read_whitespace_split(pretokenize_step *step, const cJSON *item, failure *f) {
    (void)item, (void)f;
    step->kind = STEP_CHARS;
    step->is_delimiter = unicode_is_space;
    step->behavior = SPLIT_REMOVED;
    return true;
}

/* Rust's \w, which has the join controls and leaves other numbers out, so it is spelled out. */
static bool read_whitespace(pretokenize_step *step, const cJSON *item, failure *f) {
#define RUST_WORD                                                                                                      \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}" \
    "\\x{1f170}-\\x{1f189}"
    (void)item;
    step->kind = STEP_SPLIT;
    step->behavior = SPLIT_REMOVED;
    step->invert = true;
    return pattern_open_regex(&step->pattern, "[" RUST_WORD "]+|[^" RUST_WORD "\\s]+", "pre_tokenizer.Whitespace", f);
}

static bool read_step(pretokenize_step *step, const cJSON *item, const char *type, failure *f) {
    static const struct {
        const char *name;
        bool (*read)(pretokenize_step *, const cJSON *, failure *);
    } kinds[] = {
        {"Split", read_split},
        {"ByteLevel", read_byte_level},
        {"Metaspace", read_metaspace},
        {"Digits", read_digits},
        {"Whitespace", read_whitespace},
        {"WhitespaceSplit", read_whitespace_split},
        {"Punctuation", read_punctuation},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, type) == 0) return kinds[i].read(step, item, f);
    return fail(f, FAIL_INPUT,
                "pre_tokenizer: the type \"%.100s\" is not supported (known: Split, ByteLevel, Metaspace, Digits, "
                "Whitespace, WhitespaceSplit, Punctuation, Sequence)",
                type);
}

static bool read_steps(pretokenize_step **steps, const cJSON *item, int depth, failure *f) {
    if (!cJSON_IsObject(item))
        return fail(f, FAIL_INPUT, "pre_tokenizer: found %s, expected an object", json_kind(item));
    if (depth > SEQUENCE_DEPTH_MAX)
        return fail(f, FAIL_INPUT, "pre_tokenizer: more than %d levels", SEQUENCE_DEPTH_MAX);
    const char *type = NULL;
    TRY(json_need(item, "type", "pre_tokenizer", f));
    TRY(json_get_string(item, "type", &type, "pre_tokenizer", f));
    if (strcmp(type, "Sequence") != 0) {
        if (arrlen(*steps) == STEPS_MAX) return fail(f, FAIL_INPUT, "pre_tokenizer: more than %d steps", STEPS_MAX);
        arrput(*steps, (pretokenize_step){0});
        return read_step(&arrlast(*steps), item, type, f);
    }
    const cJSON *list = json_find(item, "pretokenizers");
    if (!cJSON_IsArray(list))
        return fail(f, FAIL_INPUT, "pre_tokenizer.pretokenizers: found %s, expected a list", json_kind(list));
    for (const cJSON *child = list->child; child; child = child->next) TRY(read_steps(steps, child, depth + 1, f));
    return true;
}

bool pretokenizer_open(pretokenize_step **steps, bool *raw, const cJSON *item, failure *f) {
    *raw = false;
    if (!item) return true;
    TRY(read_steps(steps, item, 0, f));
    int mapped = 0;
    for (ptrdiff_t i = 0; i < arrlen(*steps); i++) mapped += (*steps)[i].kind == STEP_BYTE_LEVEL;
    if (mapped != 1 || arrlast(*steps).kind != STEP_BYTE_LEVEL) return true;
    arrlast(*steps).map_bytes = false;
    *raw = true;
    return true;
}

void pretokenizer_close(pretokenize_step **steps) {
    for (ptrdiff_t i = 0; i < arrlen(*steps); i++) pattern_close(&(*steps)[i].pattern);
    arrfree(*steps);
}
