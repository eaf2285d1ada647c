/* config_table.h - config.def as data, for the parser and the printers.  Only files in this folder include it. */
#ifndef CONFIG_CONFIG_TABLE_H
#define CONFIG_CONFIG_TABLE_H
#include "config/config.h"
#include <stddef.h>

typedef enum {
    SETTING_SECTION, /* no key: a heading */
    SETTING_TEXT,
    SETTING_PATH,
    SETTING_PATH_OR_NAME,
    SETTING_LIST,
    SETTING_PATHS,
    SETTING_CHOICE,
    SETTING_INT,
    SETTING_NUMBER,
    SETTING_FLAG,
} setting_kind;

typedef struct {
    setting_kind kind;
    const char *key;          /* of a section: its title */
    size_t offset;            /* of the member in config */
    const char *text;         /* default of strings and of lists (with commas) */
    const char *choices;      /* "a|b|c" */
    double number, low, high; /* default and range of numbers; integers stay below 2^53; flags: 0 or 1 */
    const char *sentence;
} setting;

/* Another tool's name for a key. */
typedef struct {
    const char *name, *key, *from;
} setting_alias;

/* Another spelling of a value: true and false for a CHOICE that other tools know as a flag. */
typedef struct {
    const char *key, *found, *meant;
} value_alias;

int setting_count(void); /* sections included */
const setting *setting_at(int i);
const setting_alias *setting_aliases(int *n);
const value_alias *setting_value_aliases(int *n);

int setting_find(const char *name);            /* index by key or alias; -1 when there is none */
const char *setting_nearest(const char *name); /* the key nearest to a misspelt name, or NULL */
/* What the setting takes, in words: "an integer from 1 to 4096". */
void setting_put_expected(const setting *s, text_buf *out);
/* The meant value for `found`, or `found` itself. */
const char *setting_value(const setting *s, const char *found);
bool setting_takes_true(const setting *s); /* `--key` alone means true */
bool setting_is_list(const setting *s);
#endif
