/* config.h - the settings of a run: defaults, then a config file, then flags.
 *
 * Every key stands once, in config.def.  A string is never NULL: "" means "not given".  Paths from a config file come
 * out joined to its folder, paths from flags as they were typed. */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H
#include "base/failure.h"
#include "base/memory.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    const char *const *items;
    int n;
} string_list;

typedef struct {
#define SECTION(title)
#define TEXT(key, ...)         const char *key;
#define PATH(key, ...)         const char *key;
#define PATH_OR_NAME(key, ...) const char *key;
#define LIST(key, ...)         string_list key;
#define PATHS(key, ...)        string_list key;
#define CHOICE(key, ...)       const char *key;
#define INT(key, ...)          int64_t key;
#define NUMBER(key, ...)       double key;
#define FLAG(key, ...)         bool key;
#include "config/config.def"
#undef SECTION
#undef TEXT
#undef PATH
#undef PATH_OR_NAME
#undef LIST
#undef PATHS
#undef CHOICE
#undef INT
#undef NUMBER
#undef FLAG
    const char *config_file; /* --config; "" when none was given */
    bool fixed_accumulation; /* gradient_accumulation_steps was given */
} config;

/* Reads flags (argv past the command's name) and the file that --config names; flags win. An unknown, duplicate,
 * mistyped or out-of-range key is a failure that names the key, the place, both sides and the nearest known key: the
 * user's input when it stands in the file, usage when it stands on the command line. Settings that follow from others
 * (learning_rate 0, gradient_accumulation_steps 0) come out filled in. Strings live in a. */
bool config_read(config *c, int argc, char **argv, arena *a, failure *f);
/* For one of `ranks` ranks: gradient_accumulation_steps anew, unless it was given. */
void config_spread(config *c, int ranks);
/* A usage failure when the key was not given: a command calls it for what it cannot do without. */
bool config_need(const config *c, const char *key, failure *f);
/* The resolved settings as one JSON object (for summary.json), two blanks deep. */
void config_put_json(const config *c, text_buf *out);
void config_print_help(FILE *out);     /* the table for --help */
void config_print_markdown(FILE *out); /* docs/config.md; `make docs` writes it, a test compares */
#endif
