/* config_table.c - config.def, and the names that other tools have for its keys, as tables. */
#include "config/config_table.h"

#include <string.h>

#define SECTION(title_)        {.kind = SETTING_SECTION, .key = title_},
#define STRING(kind_, k, d, s) {.kind = kind_, .key = #k, .offset = offsetof(config, k), .text = d, .sentence = s},
#define TEXT(k, d, s)          STRING(SETTING_TEXT, k, d, s)
#define PATH(k, d, s)          STRING(SETTING_PATH, k, d, s)
#define PATH_OR_NAME(k, d, s)  STRING(SETTING_PATH_OR_NAME, k, d, s)
#define LIST(k, d, s)          STRING(SETTING_LIST, k, d, s)
#define PATHS(k, d, s)         STRING(SETTING_PATHS, k, d, s)
#define CHOICE(k, d, c, s)                                                                                             \
    {.kind = SETTING_CHOICE, .key = #k, .offset = offsetof(config, k), .text = d, .choices = c, .sentence = s},
#define RANGE(kind_, k, d, l, h, s)                                                                                    \
    {.kind = kind_, .key = #k, .offset = offsetof(config, k), .number = d, .low = l, .high = h, .sentence = s},
#define INT(k, d, l, h, s)    RANGE(SETTING_INT, k, d, l, h, s)
#define NUMBER(k, d, l, h, s) RANGE(SETTING_NUMBER, k, d, l, h, s)
#define FLAG(k, d, s)         RANGE(SETTING_FLAG, k, d, 0, 1, s)

static const setting table[] = {
#include "config/config.def"
};
enum { SETTINGS = sizeof table / sizeof *table };

/* Only names that mean exactly the same thing. */
static const setting_alias aliases[] = {
    {"train_type", "tuner_type", "ms-swift 3"},
    {"sft_type", "tuner_type", "ms-swift 2"},
    {"finetuning_type", "tuner_type", "LLaMA-Factory"},
    {"model_name_or_path", "model", "transformers, LLaMA-Factory"},
    {"model_id_or_path", "model", "ms-swift 2"},
    {"adapter_name_or_path", "adapter", "LLaMA-Factory"},
    {"dtype", "torch_dtype", "transformers 5"},
    {"use_liger", "use_liger_kernel", "ms-swift 2"},
    {"full_determinism", "deterministic", "transformers"},
    {"lora_dropout_p", "lora_dropout", "ms-swift 2"},
    {"cutoff_len", "max_length", "LLaMA-Factory"},
    {"max_seq_length", "max_length", "TRL"},
};
enum { ALIASES = sizeof aliases / sizeof *aliases };

static const value_alias values[] = {
    {"gradient_checkpointing", "true", "full"},
    {"gradient_checkpointing", "false", "none"},
};
enum { VALUES = sizeof values / sizeof *values };

int setting_count(void) { return SETTINGS; }
const setting *setting_at(int i) { return &table[i]; }
const setting_alias *setting_aliases(int *n) { return *n = ALIASES, aliases; }
const value_alias *setting_value_aliases(int *n) { return *n = VALUES, values; }

int setting_find(const char *name) {
    for (int i = 0; i < ALIASES; i++)
        if (strcmp(name, aliases[i].name) == 0) name = aliases[i].key;
    for (int i = 0; i < SETTINGS; i++)
        if (table[i].kind != SETTING_SECTION && strcmp(name, table[i].key) == 0) return i;
    return -1;
}

const char *setting_nearest(const char *name) {
    const char *names[SETTINGS + ALIASES + 1];
    int n = 0;
    for (int i = 0; i < SETTINGS; i++)
        if (table[i].kind != SETTING_SECTION) names[n++] = table[i].key;
    for (int i = 0; i < ALIASES; i++) names[n++] = aliases[i].name;
    names[n++] = "config";
    return text_nearest(name, names, n);
}

void setting_put_expected(const setting *s, text_buf *out) {
    switch (s->kind) {
    case SETTING_SECTION: break;
    case SETTING_TEXT: text_puts(out, "text"); break;
    case SETTING_PATH: text_puts(out, "a path"); break;
    case SETTING_PATH_OR_NAME: text_puts(out, "a path or a name"); break;
    case SETTING_LIST: text_puts(out, "a list of names"); break;
    case SETTING_PATHS: text_puts(out, "a list of paths"); break;
    case SETTING_FLAG: text_puts(out, "true or false"); break;
    case SETTING_INT: text_printf(out, "an integer from %.0f to %.0f", s->low, s->high); break;
    case SETTING_NUMBER: text_printf(out, "a number from %.15g to %.15g", s->low, s->high); break;
    case SETTING_CHOICE:
        text_puts(out, "one of ");
        for (const char *at = s->choices; *at; at++) text_printf(out, *at == '|' ? ", " : "%c", *at);
    }
}

const char *setting_value(const setting *s, const char *found) {
    for (int i = 0; i < VALUES; i++)
        if (strcmp(values[i].key, s->key) == 0 && strcmp(values[i].found, found) == 0) return values[i].meant;
    return found;
}

bool setting_takes_true(const setting *s) {
    return s->kind == SETTING_FLAG || (s->kind == SETTING_CHOICE && strcmp(setting_value(s, "true"), "true") != 0);
}

bool setting_is_list(const setting *s) { return s->kind == SETTING_LIST || s->kind == SETTING_PATHS; }
