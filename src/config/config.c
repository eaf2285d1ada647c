/* config.c - defaults, then the config file, then flags.
 *
 * Both sources end in the same put_* functions, which check ranges and choices and write the member that the table
 * names.  A `source` says where a value comes from, so that every failure names its place, and which keys that place
 * has given already.  Numbers are read with base/text.h: no locale, no "nan", no trailing letters. */
#include "config/config.h"
#include "base/array.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "config/config_table.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

typedef struct {
    const char *place;  /* the file's path, or "command line" */
    const char *dashes; /* what stands before a key there */
    const char *folder; /* where relative paths begin; NULL: the working folder */
    failure_kind kind;
    const char **given; /* [settings] the name under which a key was given, or NULL */
} source;

typedef struct {
    config *c;
    arena *a;
    const source *from;
} reader;

static void *member(const config *c, const setting *s) { return (char *)(uintptr_t)c + s->offset; }

/* "PLACE: KEY: found X, expected Y" */
static bool refuse(const reader *r, const setting *s, failure *f, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static bool refuse(const reader *r, const setting *s, failure *f, const char *format, ...) {
    char found[256];
    va_list args;
    va_start(args, format);
    vsnprintf(found, sizeof found, format, args);
    va_end(args);
    text_buf expected = {0};
    setting_put_expected(s, &expected);
    fail(f, r->from->kind, "%s: %s%s: found %s, expected %s", r->from->place, r->from->dashes, s->key, found,
         expected.data);
    text_free(&expected);
    return false;
}

/* A name such as "org/name" or "auto": not a path that says where it begins. */
static bool looks_like_name(const char *text) {
    const char *slash = strchr(text, '/');
    return text[0] != '.' && (!slash || (slash[1] && !strchr(slash + 1, '/')));
}

/* A hub id in a config file must survive, so a name is joined to the file's folder only if that names something. */
static const char *resolve(const reader *r, const setting *s, const char *text) {
    const char *folder = r->from->folder;
    if (!folder || !text[0] || text[0] == '/' || strcmp(folder, ".") == 0) return arena_strdup(r->a, text);
    const char *joined = path_join(r->a, folder, text);
    if (s->kind == SETTING_PATH_OR_NAME && looks_like_name(text) && !file_exists(joined))
        return arena_strdup(r->a, text);
    return joined;
}

static bool is_choice(const setting *s, const char *text) {
    size_t n = strlen(text);
    if (strchr(text, '|')) return false;
    for (const char *at = s->choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, text, n) == 0 && (at[n] == '|' || at[n] == 0) && n) return true;
    return false;
}

static bool put_text(const reader *r, const setting *s, const char *text, failure *f) {
    const char **at = member(r->c, s);
    if (s->kind == SETTING_CHOICE) {
        const char *meant = setting_value(s, text);
        if (!is_choice(s, meant)) return refuse(r, s, f, "\"%.200s\"", text);
        *at = arena_strdup(r->a, meant);
    } else if (s->kind == SETTING_TEXT) *at = arena_strdup(r->a, text);
    else *at = resolve(r, s, text);
    return true;
}

static bool put_number(const reader *r, const setting *s, double x, failure *f) {
    if (s->kind == SETTING_INT && x != floor(x)) return refuse(r, s, f, "%.17g", x);
    if (!(x >= s->low && x <= s->high)) return refuse(r, s, f, s->kind == SETTING_INT ? "%.0f" : "%.17g", x);
    if (s->kind == SETTING_INT) *(int64_t *)member(r->c, s) = (int64_t)x;
    else *(double *)member(r->c, s) = x;
    return true;
}

/* Takes over an stb_ds array of items, which may be empty. */
static bool put_list(const reader *r, const setting *s, const char **items, failure *f) {
    size_t n = arrlenu(items);
    const char **out = arena_alloc(r->a, n * sizeof *out);
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        if (!items[i][0]) ok = refuse(r, s, f, "an empty entry");
        else out[i] = s->kind == SETTING_PATHS ? resolve(r, s, items[i]) : arena_strdup(r->a, items[i]);
    }
    if (ok) *(string_list *)member(r->c, s) = (string_list){out, (int)n};
    arrfree(items);
    return ok;
}

/* Appends the parts of a text with commas; blanks around a part are dropped. An empty text has no parts. */
static const char **split_commas(const char **items, arena *a, const char *text) {
    while (*text) {
        size_t n = strcspn(text, ","), from = strspn(text, " "), to = n;
        while (to > from && text[to - 1] == ' ') to--;
        arrput(items, from < to ? arena_strndup(a, text + from, to - from) : "");
        if (text[n] && !text[n + 1]) arrput(items, "");
        text += n + (text[n] == ',');
    }
    return items;
}

static void put_default(const reader *r, const setting *s) {
    failure none;
    bool ok = true;
    if (s->kind == SETTING_FLAG) *(bool *)member(r->c, s) = s->number != 0;
    else if (s->kind == SETTING_INT || s->kind == SETTING_NUMBER) ok = put_number(r, s, s->number, &none);
    else if (setting_is_list(s)) ok = put_list(r, s, split_commas(NULL, r->a, s->text), &none);
    else if (s->kind != SETTING_SECTION) ok = put_text(r, s, s->text, &none);
    assert(ok && "config.def: a default is outside its own range");
}

/* Finds the key and marks it as given; *index is its place in the table. */
static bool take_key(const reader *r, const char *name, int *index, failure *f) {
    const source *from = r->from;
    int i = setting_find(name);
    if (i < 0) {
        const char *near = setting_nearest(name);
        return fail(f, from->kind, "%s: unknown key %s%.200s%s%s%s", from->place, from->dashes, name,
                    near ? "; the nearest known key is " : "; liger-sft --help lists the keys",
                    near ? from->dashes : "", near ? near : "");
    }
    const char *before = from->given[i];
    if (before && strcmp(before, name) == 0)
        return fail(f, from->kind, "%s: %s%s stands twice, expected once", from->place, from->dashes, name);
    if (before)
        return fail(f, from->kind, "%s: %s%s and %s%s are one setting, expected only one of them", from->place,
                    from->dashes, before, from->dashes, name);
    from->given[i] = arena_strdup(r->a, name);
    *index = i;
    return true;
}

static bool list_from_json(const reader *r, const setting *s, const cJSON *item, failure *f) {
    const char **items = NULL;
    if (cJSON_IsString(item)) return put_list(r, s, split_commas(NULL, r->a, item->valuestring), f);
    if (!cJSON_IsArray(item)) return refuse(r, s, f, "%s", json_kind(item));
    for (const cJSON *child = item->child; child; child = child->next) {
        double x = child->valuedouble;
        if (cJSON_IsString(child)) arrput(items, child->valuestring);
        else if (cJSON_IsNumber(child) && x == floor(x) && fabs(x) < 1e15) /* layer numbers */
            arrput(items, arena_printf(r->a, "%.0f", x));
        else {
            arrfree(items);
            return refuse(r, s, f, "a list with %s in it", json_kind(child));
        }
    }
    return put_list(r, s, items, f);
}

static bool put_json(const reader *r, const setting *s, const cJSON *item, failure *f) {
    if (cJSON_IsNull(item)) return true; /* the default stays */
    switch (s->kind) {
    case SETTING_SECTION: return true;
    case SETTING_LIST:
    case SETTING_PATHS: return list_from_json(r, s, item, f);
    case SETTING_INT:
    case SETTING_NUMBER:
        if (cJSON_IsNumber(item)) return put_number(r, s, item->valuedouble, f);
        break;
    case SETTING_FLAG:
        if (!cJSON_IsBool(item)) break;
        *(bool *)member(r->c, s) = cJSON_IsTrue(item);
        return true;
    case SETTING_CHOICE:
        if (cJSON_IsBool(item)) return put_text(r, s, cJSON_IsTrue(item) ? "true" : "false", f);
        if (cJSON_IsString(item)) return put_text(r, s, item->valuestring, f);
        break;
    case SETTING_TEXT:
    case SETTING_PATH:
    case SETTING_PATH_OR_NAME:
        if (cJSON_IsString(item)) return put_text(r, s, item->valuestring, f);
    }
    if (cJSON_IsString(item)) return refuse(r, s, f, "the text \"%.200s\"", item->valuestring);
    return refuse(r, s, f, "%s", json_kind(item));
}

static bool read_file(const reader *r, failure *f) {
    cJSON *root;
    TRY(json_read(&root, r->c->config_file, f));
    bool ok = cJSON_IsObject(root);
    if (!ok) fail(f, FAIL_INPUT, "%s: found %s, expected an object of settings", r->c->config_file, json_kind(root));
    for (const cJSON *item = ok ? root->child : NULL; item && ok; item = item->next) {
        int i;
        ok = take_key(r, item->string, &i, f) && put_json(r, setting_at(i), item, f);
    }
    cJSON_Delete(root);
    return ok;
}

static bool put_words(const reader *r, const setting *s, const char *const *words, int n, failure *f) {
    double x;
    int64_t whole;
    for (int i = 0; i < n; i++)
        if (utf8_check(words[i], strlen(words[i])) < strlen(words[i]))
            return refuse(r, s, f, "bytes that are not UTF-8");
    if (setting_is_list(s)) {
        const char **items = NULL;
        for (int i = 0; i < n; i++) items = split_commas(items, r->a, words[i]);
        return put_list(r, s, items, f);
    }
    const char *word = words[0];
    if (s->kind == SETTING_INT) {
        if (!text_to_int(word, &whole)) return refuse(r, s, f, "\"%.200s\"", word);
        return put_number(r, s, (double)whole, f);
    }
    if (s->kind == SETTING_NUMBER) {
        if (!text_to_double(word, &x)) return refuse(r, s, f, "\"%.200s\"", word);
        return put_number(r, s, x, f);
    }
    if (s->kind != SETTING_FLAG) return put_text(r, s, word, f);
    bool yes = strcmp(word, "true") == 0 || strcmp(word, "True") == 0;
    if (!yes && strcmp(word, "false") != 0 && strcmp(word, "False") != 0) return refuse(r, s, f, "\"%.200s\"", word);
    *(bool *)member(r->c, s) = yes;
    return true;
}

typedef struct {
    int index;                /* in the table; -1 for --config */
    const char *const *words; /* the values behind the key */
    int n;
} flag;

/* Names the key of argv[i] in *name, underscores for dashes, and the text behind "=" in *value. */
static bool split_flag(const char *arg, char **name, const char **value, arena *a, failure *f) {
    if (strncmp(arg, "--", 2) != 0 || !arg[2])
        return fail(f, FAIL_USAGE, "command line: found \"%.200s\", expected --key value or --key=value", arg);
    size_t n = strcspn(arg + 2, "=");
    *name = arena_strndup(a, arg + 2, n);
    *value = arg[2 + n] == '=' ? arg + 3 + n : NULL;
    for (char *at = *name; *at; at++)
        if (*at == '-') *at = '_';
    return true;
}

/* Reads the flag at argv[*i] and moves *i past it and its values. */
static bool next_flag(const reader *r, int argc, char **argv, int *i, flag *out, failure *f) {
    char *name = NULL;
    const char *value = NULL;
    TRY(split_flag(argv[(*i)++], &name, &value, r->a, f));
    bool is_config = strcmp(name, "config") == 0;
    if (is_config && r->c->config_file[0])
        return fail(f, FAIL_USAGE, "command line: --config stands twice, expected once");
    *out = (flag){.index = -1};
    if (!is_config) TRY(take_key(r, name, &out->index, f));
    const setting *s = is_config ? NULL : setting_at(out->index);
    const char **words = arena_alloc(r->a, (size_t)(argc + 1) * sizeof *words);
    int most = s && setting_is_list(s) ? argc : 1;
    if (value) words[out->n++] = value;
    else
        while (out->n < most && *i < argc && strncmp(argv[*i], "--", 2) != 0) words[out->n++] = argv[(*i)++];
    if (out->n == 0 && s && setting_takes_true(s)) words[out->n++] = "true";
    out->words = words;
    if (out->n == 0)
        return fail(
            f, FAIL_USAGE,
            "command line: --%s: found nothing behind it, expected a value (--%s=VALUE when the value begins with --)",
            name, name);
    if (is_config && !words[0][0]) return fail(f, FAIL_USAGE, "command line: --config: found \"\", expected a path");
    if (is_config) r->c->config_file = arena_strdup(r->a, words[0]);
    return true;
}

/* Only what would mislead: a setting that was asked for and that another one switches off. */
static void warn_unused(const config *c, const char *const *file, const char *const *flags) {
    static const char *const adapter_only[] = {"lora_rank", "lora_alpha",     "lora_dropout", "use_rslora",
                                               "use_dora",  "target_modules", "target_regex", "layers_to_transform"};
#define GIVEN(key) (file[setting_find(key)] || flags[setting_find(key)])
    for (size_t i = 0; i < sizeof adapter_only / sizeof *adapter_only; i++)
        if (strcmp(c->tuner_type, "full") == 0 && GIVEN(adapter_only[i]))
            log_warning("%s has no effect: tuner_type is full", adapter_only[i]);
    if (!c->use_liger_kernel && GIVEN("fuse_rules")) log_warning("fuse_rules has no effect: use_liger_kernel is false");
    if (c->val_dataset.n && c->split_dataset_ratio > 0)
        log_warning("split_dataset_ratio has no effect: val_dataset is given");
#undef GIVEN
}

static void fill_in(config *c) {
    if (c->learning_rate == 0) c->learning_rate = strcmp(c->tuner_type, "full") == 0 ? 1e-5 : 1e-4;
    c->fixed_accumulation = c->gradient_accumulation_steps != 0;
    config_spread(c, 1);
}

void config_spread(config *c, int ranks) {
    int64_t rows = c->per_device_train_batch_size * ranks;
    if (!c->fixed_accumulation) c->gradient_accumulation_steps = (16 + rows - 1) / rows;
}

/* Rows of the program count in 32 bits. */
static bool check_slots(const config *c, failure *f) {
    const struct {
        const char *key;
        int64_t rows;
    } batches[] = {{"per_device_train_batch_size", c->per_device_train_batch_size},
                   {"per_device_eval_batch_size", c->per_device_eval_batch_size}};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        if (batches[i].rows * c->max_length >= INT32_MAX)
            return fail(f, FAIL_INPUT, "%s %lld times max_length %lld is %lld tokens, expected less than %d",
                        batches[i].key, (long long)batches[i].rows, (long long)c->max_length,
                        (long long)(batches[i].rows * c->max_length), INT32_MAX);
    return true;
}

static bool read_flags(const reader *r, int argc, char **argv, flag **flags, failure *f) {
    for (int i = 0; i < argc;) {
        flag one;
        TRY(next_flag(r, argc, argv, &i, &one, f));
        if (one.index >= 0) arrput(*flags, one);
    }
    return true;
}

bool config_read(config *c, int argc, char **argv, arena *a, failure *f) {
    size_t names = (size_t)setting_count() * sizeof(const char *);
    source line = {"command line", "--", NULL, FAIL_USAGE, arena_alloc(a, names)};
    source file = {"", "", NULL, FAIL_INPUT, arena_alloc(a, names)};
    reader from_line = {c, a, &line}, from_file = {c, a, &file};
    flag *flags = NULL;
    *c = (config){.config_file = ""};
    for (int i = 0; i < setting_count(); i++) put_default(&from_line, setting_at(i));

    bool ok = read_flags(&from_line, argc, argv, &flags, f);
    if (ok && c->config_file[0]) {
        file.place = c->config_file;
        file.folder = path_folder(a, c->config_file);
        ok = read_file(&from_file, f);
    }
    for (size_t i = 0; i < arrlenu(flags) && ok; i++)
        ok = put_words(&from_line, setting_at(flags[i].index), flags[i].words, flags[i].n, f);
    arrfree(flags);
    if (!ok) return false;
    warn_unused(c, file.given, line.given);
    fill_in(c);
    return check_slots(c, f);
}

bool config_need(const config *c, const char *key, failure *f) {
    int i = setting_find(key);
    assert(i >= 0);
    const setting *s = setting_at(i);
    bool there =
        setting_is_list(s) ? ((const string_list *)member(c, s))->n > 0 : **(const char *const *)member(c, s) != 0;
    if (there) return true;
    return fail(f, FAIL_USAGE, "%s is needed: %s Give it as --%s%s.", key, s->sentence, key,
                c->config_file[0] ? ", or in the config file" : ", or in a file named by --config");
}
