/* chat.c - choosing a chat format, checking the tokenizer against it, and encoding a conversation.
 *
 * `auto` recognises a model's own chat template by the strings that only that format has.  A template that matches no
 * line of the table is refused: training in a format that is merely alike gives a model that never stops or answers
 * under the wrong headers. */
#include "text/chat.h"
#include "base/array.h"
#include "base/file.h"
#include "base/json.h"
#include "text/chat_writer.h"

#include <string.h>

/* The first line all of whose `has` and none of whose `lacks` stand in the template. What a look-alike would do
 * otherwise (no trimming, another default system message, no line end at the end) is among them. */
enum { MOST_MARKS = 6 };
static const struct {
    const char *format, *has[MOST_MARKS], *lacks[MOST_MARKS];
} marks[] = {
    {"llama3.1",
     {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date: December 2023", "Today Date: ", "trim"},
     {NULL}},
    {"llama3",
     {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "trim", "bos_token"},
     {"Cutting Knowledge", "<|eom_id|>"}},
    {"gemma", {"<start_of_turn>", "<end_of_turn>", "model", "trim", "bos_token"}, {NULL}},
    {"smollm2",
     {"<|im_start|>", "<|im_end|>", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
     {"<think>", "loop.last", "trim", "strip("}},
    {"qwen3", {"<|im_start|>", "last_query_index", "enable_thinking", "<tool_response>"}, {"<|im_start|>system\\nYou"}},
    {"qwen",
     {"<|im_start|>", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", "<tool_response>"},
     {"<think>", "trim", "strip("}},
    {"qwen2",
     {"<|im_start|>", "You are a helpful assistant.<|im_end|>"},
     {"<think>", "<tool_response>", "loop.last", "trim", "strip("}},
    {"chatml",
     {"<|im_start|>", "<|im_end|>"},
     {"<think>", "<tool_response>", "<|im_start|>system", "loop.last", "trim", "strip("}},
    {"mistral-v0.1", {"\" [INST] \"", "\" [/INST]\"", "\" \" + message[\"content\"] + eos_token"}, {"<<SYS>>"}},
    {"mistral-v0.1", {"' [INST] '", "' [/INST]'", "' ' + message['content'] + eos_token"}, {"<<SYS>>"}},
    {"mistral-v0.3",
     {"\"[INST] \"", "\"[/INST]\"", "\" \" + message[\"content\"]|trim + eos_token",
      "loop.last and system_message is defined"},
     {"<<SYS>>"}},
};

static const char *const names[] = {"auto",  "llama3",  "llama3.1",     "chatml",       "smollm2", "qwen2", "qwen",
                                    "qwen3", "mistral", "mistral-v0.1", "mistral-v0.3", "gemma",   "alpaca"};
enum { N_NAMES = sizeof names / sizeof names[0] };

const char *const *chat_format_names(int *n) {
    *n = N_NAMES - 1; /* without auto */
    return names + 1;
}

static bool fail_with_names(failure *f, const char *what) {
    text_buf t = {0};
    for (int i = 1; i < N_NAMES; i++) text_printf(&t, "%s%s", i > 1 ? ", " : "", names[i]);
    fail(f, FAIL_INPUT, "%s; template may be auto or one of: %s", what, t.data);
    text_free(&t);
    return false;
}

static const chat_spec *find_spec(const char *name) {
    for (int i = 0; i < chat_n_specs; i++)
        if (strcmp(chat_specs[i].name, name) == 0) return &chat_specs[i];
    return NULL;
}

/* tokenizer_config.json, NULL when the folder has none. The caller deletes it. */
static bool read_tokenizer_config(cJSON **out, const char *folder, failure *f) {
    arena a = {0};
    const char *path = path_join(&a, folder, "tokenizer_config.json");
    *out = NULL;
    bool ok = !file_exists(path) || json_read(out, path, f);
    if (ok && *out && !cJSON_IsObject(*out)) {
        ok = fail(f, FAIL_INPUT, "%s: found %s, expected an object", path, json_kind(*out));
        cJSON_Delete(*out);
    }
    arena_free(&a);
    return ok;
}

/* A string, or a list of named templates of which "default" counts. */
static const char *template_in(const cJSON *config) {
    const cJSON *item = config ? json_find(config, "chat_template") : NULL;
    if (cJSON_IsString(item)) return item->valuestring;
    for (const cJSON *t = cJSON_IsArray(item) ? item->child : NULL; t; t = t->next) {
        const cJSON *name = json_find(t, "name"), *text = json_find(t, "template");
        if (cJSON_IsString(name) && cJSON_IsString(text) && strcmp(name->valuestring, "default") == 0)
            return text->valuestring;
    }
    return NULL;
}

static bool recognise(const chat_spec **spec, const char *text, const char *folder, failure *f) {
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        bool fits = true;
        for (int k = 0; k < MOST_MARKS; k++) {
            if (marks[i].has[k] && !strstr(text, marks[i].has[k])) fits = false;
            if (marks[i].lacks[k] && strstr(text, marks[i].lacks[k])) fits = false;
        }
        if (fits) return *spec = find_spec(marks[i].format), true;
    }
    arena a = {0};
    fail_with_names(f, arena_printf(&a, "%s: its chat template is none that is known", folder));
    arena_free(&a);
    return false;
}

static bool find_own_format(const chat_spec **spec, const char *folder, const cJSON *config, failure *f) {
    arena a = {0};
    const char *path = path_join(&a, folder, "chat_template.jinja");
    char *file = NULL;
    size_t n;
    bool ok = !file_exists(path) || file_read(&file, &n, 1 << 20, path, f);
    const char *text = file ? file : template_in(config);
    if (ok && !text) ok = fail_with_names(f, arena_printf(&a, "%s: the model has no chat template of its own", folder));
    if (ok) ok = recognise(spec, text, folder, f);
    free(file);
    arena_free(&a);
    return ok;
}

static bool choose(const chat_spec **spec, const char *name, const char *folder, const tokenizer *t,
                   const cJSON *config, failure *f) {
    if (strcmp(name, "auto") == 0) return find_own_format(spec, folder, config, f);
    if (strcmp(name, "mistral") == 0) name = tokenizer_id(t, "[INST]") >= 0 ? "mistral-v0.3" : "mistral-v0.1";
    *spec = find_spec(name);
    if (*spec) return true;
    arena a = {0};
    const char *near = text_nearest(name, names, N_NAMES);
    fail_with_names(f, near ? arena_printf(&a, "template: found \"%.60s\", did you mean \"%s\"?", name, near)
                            : arena_printf(&a, "template: found \"%.60s\"", name));
    arena_free(&a);
    return false;
}

/* -1 when the folder does not say. */
static int32_t find_eos(const tokenizer *t, const cJSON *config) {
    const cJSON *item = config ? json_find(config, "eos_token") : NULL;
    if (cJSON_IsObject(item)) item = json_find(item, "content");
    return cJSON_IsString(item) ? tokenizer_id(t, item->valuestring) : -1;
}

static bool find_controls(chat_format *c, const char *folder, int32_t eos, failure *f) {
    for (int i = 0; i < CHAT_CONTROLS; i++) {
        const char *token = c->spec->control[i];
        c->control[i] = token ? tokenizer_id(c->t, token) : -1;
        if (token && c->control[i] < 0)
            return fail(f, FAIL_INPUT, "%s: its tokenizer has no token \"%s\", which the chat format %s needs", folder,
                        token, c->spec->name);
    }
    if (!c->spec->control[CHAT_END]) c->control[CHAT_END] = eos;
    if (c->control[CHAT_END] < 0)
        return fail(f, FAIL_INPUT, "%s: tokenizer_config.json names no eos_token, which the chat format %s needs",
                    folder, c->spec->name);
    c->stop[c->n_stop++] = c->control[CHAT_END];
    if (eos >= 0 && eos != c->stop[0]) c->stop[c->n_stop++] = eos;
    return true;
}

static bool begins_with_blank(const tokenizer *t, int32_t id) {
    const char *token = tokenizer_token(t, id);
    return token && (strncmp(token, "\xE2\x96\x81", 3) == 0 || strncmp(token, "\xC4\xA0", 2) == 0);
}

/* What the post-processor puts in front of a text: the ids before those of the text alone. */
static void find_before(chat_format *c, const int32_t *alone, int32_t *added) {
    int64_t n = arrlen(alone), at = 0;
    if (!n) return; /* "a" is in no token */
    while (at + n <= arrlen(added) && memcmp(added + at, alone, (size_t)n * sizeof *alone) != 0) at++;
    for (int64_t i = 0; i < at && at + n <= arrlen(added); i++) arrput(c->before, added[i]);
}

/* How this tokenizer treats the beginning of a text (chat_writer.c says what for). */
static bool probe(chat_format *c, failure *f) {
    tokenizer_scratch *s = tokenizer_scratch_new(c->t);
    int32_t *alone = NULL, *added = NULL, *after = NULL;
    const char *control = tokenizer_token(c->t, c->control[CHAT_END]);
    text_buf text = {0};
    text_printf(&text, "%sa", control ? control : "");
    bool ok = tokenizer_encode(c->t, s, "\n", 1, ENCODE_PLAIN, &c->line, f) &&
              tokenizer_encode(c->t, s, "a", 1, ENCODE_PLAIN, &alone, f) &&
              tokenizer_encode(c->t, s, "a", 1, ENCODE_ADD_SPECIAL, &added, f) &&
              tokenizer_encode(c->t, s, text.data, text.size, ENCODE_MATCH_SPECIAL, &after, f);
    if (ok) {
        c->prefixes = arrlen(alone) && begins_with_blank(c->t, alone[0]);
        c->prefixes_segment = arrlen(after) > 1 && begins_with_blank(c->t, after[1]);
        find_before(c, alone, added);
    }
    text_free(&text);
    arrfree(alone);
    arrfree(added);
    arrfree(after);
    tokenizer_scratch_free(s);
    return ok;
}

bool chat_format_open(chat_format **out, const char *name, const char *model_folder, const tokenizer *t, failure *f) {
    cJSON *config;
    TRY(read_tokenizer_config(&config, model_folder, f));
    chat_format *c = xcalloc(1, sizeof *c);
    c->t = t;
    bool ok = choose(&c->spec, name, model_folder, t, config, f) &&
              find_controls(c, model_folder, find_eos(t, config), f) && probe(c, f);
    cJSON_Delete(config);
    if (!ok) {
        chat_format_close(c);
        return false;
    }
    *out = c;
    return true;
}

void chat_format_close(chat_format *c) {
    if (!c) return;
    arrfree(c->before);
    arrfree(c->line);
    free(c);
}

const char *chat_format_name(const chat_format *c) { return c->spec->name; }
int chat_format_n_stop(const chat_format *c) { return c->n_stop; }
const int32_t *chat_format_stop(const chat_format *c) { return c->stop; }

static bool check_messages(const chat_spec *spec, const chat_message *m, int n, failure *f) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    int first = n > 0 && m[0].role == CHAT_SYSTEM;
    if (n <= first) return fail(f, FAIL_INPUT, "the conversation has no turn");
    for (int i = 0; i < n; i++) {
        if (!(spec->roles >> m[i].role & 1) || (i > 0 && m[i].role == CHAT_SYSTEM))
            return fail(f, FAIL_INPUT, "the chat format %s has no place for turn %d, the %s's", spec->name, i + 1,
                        roles[m[i].role]);
        if (spec->alternate && i >= first && (m[i].role == CHAT_USER) != ((i - first) % 2 == 0))
            return fail(f, FAIL_INPUT, "the chat format %s needs user and assistant in turn; turn %d is the %s's",
                        spec->name, i + 1, roles[m[i].role]);
    }
    return true;
}

bool chat_encode(const chat_format *c, tokenizer_scratch *s, const chat_message *messages, int n, bool prompt,
                 int32_t **ids, uint8_t **labels, failure *f) {
    TRY(check_messages(c->spec, messages, n, f));
    chat_writer w = {.c = c, .s = s, .ids = ids, .labels = labels};
    bool ok = c->spec->encode(&w, messages, n, prompt, f) && chat_flush(&w, false, f);
    text_free(&w.text);
    text_free(&w.longer);
    return ok;
}
