/* config_print.c - the settings for people (--help, docs/config.md) and for summary.json. */
#include "base/json.h"
#include "config/config_table.h"

#include <string.h>

static void put_list(text_buf *out, const string_list *list) {
    text_puts(out, "[");
    for (int i = 0; i < list->n; i++) {
        if (i) text_puts(out, ", ");
        json_put_string(out, list->items[i], strlen(list->items[i]));
    }
    text_puts(out, "]");
}

static void put_value(text_buf *out, const config *c, const setting *s) {
    const void *at = (const char *)c + s->offset;
    switch (s->kind) {
    case SETTING_SECTION: break;
    case SETTING_INT: text_printf(out, "%lld", (long long)*(const int64_t *)at); break;
    case SETTING_NUMBER: json_put_double(out, *(const double *)at); break;
    case SETTING_FLAG: text_puts(out, *(const bool *)at ? "true" : "false"); break;
    case SETTING_LIST:
    case SETTING_PATHS: put_list(out, at); break;
    case SETTING_TEXT:
    case SETTING_PATH:
    case SETTING_PATH_OR_NAME:
    case SETTING_CHOICE: {
        const char *text = *(const char *const *)at;
        json_put_string(out, text, strlen(text));
    }
    }
}

void config_put_json(const config *c, text_buf *out) {
    text_puts(out, "{\n    \"config_file\": ");
    json_put_string(out, c->config_file, strlen(c->config_file));
    for (int i = 0; i < setting_count(); i++) {
        const setting *s = setting_at(i);
        if (s->kind == SETTING_SECTION) continue;
        text_printf(out, ",\n    \"%s\": ", s->key);
        put_value(out, c, s);
    }
    text_puts(out, "\n  }");
}

static void put_default(text_buf *out, const setting *s) {
    if (s->kind == SETTING_FLAG) text_puts(out, s->number != 0 ? "true" : "false");
    else if (s->kind == SETTING_INT) text_printf(out, "%.0f", s->number);
    else if (s->kind == SETTING_NUMBER) text_printf(out, "%.15g", s->number);
    else text_puts(out, s->text);
}

void config_print_help(FILE *out) {
    text_buf expected = {0}, value = {0};
    for (int i = 0; i < setting_count(); i++) {
        const setting *s = setting_at(i);
        if (s->kind == SETTING_SECTION) {
            fprintf(out, "\n%s\n", s->key);
            continue;
        }
        text_clear(&expected);
        text_clear(&value);
        setting_put_expected(s, &expected);
        put_default(&value, s);
        fprintf(out, "  --%s  %s", s->key, expected.data);
        if (value.size) fprintf(out, " (%s)", value.data);
        fprintf(out, "\n      %s\n", s->sentence);
    }
    text_free(&expected);
    text_free(&value);
}

static void print_tables(FILE *out) {
    text_buf expected = {0}, value = {0};
    for (int i = 0; i < setting_count(); i++) {
        const setting *s = setting_at(i);
        if (s->kind == SETTING_SECTION) {
            fprintf(out, "\n## %s\n\n| key | takes | default | meaning |\n|---|---|---|---|\n", s->key);
            continue;
        }
        text_clear(&expected);
        text_clear(&value);
        setting_put_expected(s, &expected);
        put_default(&value, s);
        fprintf(out, "| `%s` | %s | %s%s%s | %s |\n", s->key, expected.data, value.size ? "`" : "",
                value.size ? value.data : "", value.size ? "`" : "", s->sentence);
    }
    text_free(&expected);
    text_free(&value);
}

void config_print_markdown(FILE *out) {
    fputs(
        "# Settings\n\n"
        "`make docs` writes this page from `src/config/config.def`; edit that file, not this one.\n\n"
        "A setting stands in the JSON file that `--config` names, or on the command line as `--key value` or\n"
        "`--key=value`. Flags win over the file, the file over the defaults.\n\n"
        "- An unknown key, a key given twice in one place, a value of the wrong type or outside its range stops the\n"
        "  program, with the key, the place, what was found and what was expected.\n"
        "- In the file: numbers, `true`, `false`, text, lists of text; `null` means the default.\n"
        "- On the command line: a key that takes true or false means true when it stands alone. A list is given with\n"
        "  commas or blanks (`--dataset a.json b.json`). A value that begins with `--` needs the `=` form. Dashes in "
        "a\n"
        "  key count as underscores.\n"
        "- A path in the file is relative to the folder of that file; on the command line, to the working folder.\n"
        "- Where a path or a name is taken (`model`), a relative text with at most one `/` that names nothing beside\n"
        "  the config file is a name, such as a hub id, and stays as it is. Begin it with `./` to force a path.\n",
        out);
    print_tables(out);
    int n;
    const setting_alias *alias = setting_aliases(&n);
    fputs("\n## Other tools' names\n\nThese mean exactly the same, in the file and as flags.\n\n"
          "| name | here | used by |\n|---|---|---|\n",
          out);
    for (int i = 0; i < n; i++) fprintf(out, "| `%s` | `%s` | %s |\n", alias[i].name, alias[i].key, alias[i].from);
    const value_alias *value = setting_value_aliases(&n);
    fputs("\n| key | found | taken as |\n|---|---|---|\n", out);
    for (int i = 0; i < n; i++) fprintf(out, "| `%s` | `%s` | `%s` |\n", value[i].key, value[i].found, value[i].meant);
}
