/* run_state.c - the state of a run as JSON and back; see run_state.h. Doubles are written so that they read back as the
 * same bits. */
#include "train/run_state.h"
#include "base/file.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, NEWEST = INT32_MAX };

void run_state_free(run_state *s) {
    text_free(&s->history);
    *s = (run_state){0};
}

void run_state_copy(run_state *to, const run_state *from) {
    text_buf history = {0};
    if (from->history.size) text_add(&history, from->history.data, from->history.size);
    *to = *from;
    to->history = history;
}

/* ---- run_state.json: one table for writing and reading ---- */

typedef struct {
    const char *key;
    size_t at;
    enum { COUNT, NUMBER, MARK } kind; /* int64_t; double, null for NAN; uint64_t as 16 digits */
} member;

static const member members[] = {
#define MEMBER(kind, name)                                                                                             \
    { #name, offsetof(run_state, name), kind }
#define INNER(kind, part, name)                                                                                        \
    { #part "_" #name, offsetof(run_state, part.name), kind }
    MEMBER(COUNT, step),
    MEMBER(COUNT, steps),
    MEMBER(NUMBER, epoch),
    MEMBER(COUNT, updates),
    MEMBER(COUNT, evaluated),
    MEMBER(COUNT, best_step),
    MEMBER(NUMBER, best_loss),
    MEMBER(NUMBER, busy),
    MEMBER(COUNT, row),
    MEMBER(COUNT, rows),
    INNER(COUNT, source, examples),
    INNER(COUNT, source, tokens),
    INNER(MARK, source, data),
    INNER(MARK, source, model),
    INNER(COUNT, sum, steps),
    INNER(COUNT, sum, step_rows),
    INNER(COUNT, sum, skipped_steps),
    INNER(NUMBER, sum, first_loss),
    INNER(NUMBER, sum, loss),
    INNER(COUNT, sum, tokens),
    INNER(COUNT, sum, label_tokens),
    INNER(COUNT, sum, slots),
    INNER(NUMBER, sum, eval_loss),
    INNER(NUMBER, sum, seconds),
    INNER(COUNT, sum, checkpoints),
    INNER(NUMBER, sum, save_seconds),
#undef MEMBER
#undef INNER
};
enum { MEMBERS = sizeof members / sizeof *members };

static void put_key(text_buf *out, const char *key) { text_printf(out, ",\n  \"%s\": ", key); }

void run_state_put(text_buf *out, const run_state *s, const config *c) {
    text_printf(out, "{\n  \"format\": %d,\n  \"written_by\": \"liger-sft " LIGER_VERSION "\"", FORMAT);
    for (int i = 0; i < MEMBERS; i++) {
        const void *at = (const char *)s + members[i].at;
        put_key(out, members[i].key);
        if (members[i].kind == COUNT) text_printf(out, "%lld", (long long)*(const int64_t *)at);
        else if (members[i].kind == NUMBER) json_put_double(out, *(const double *)at);
        else text_printf(out, "\"%016llx\"", (unsigned long long)*(const uint64_t *)at);
    }
    put_key(out, "rng");
    text_printf(out,
                "{\"seed\": %lld, \"is_a_function_of\": [\"seed\", \"epoch\", \"step\", \"micro_batch\", \"element\"]}",
                (long long)c->seed);
    text_puts(out, "\n}\n");
}

static bool read_mark(const cJSON *root, const char *key, uint64_t *out, const char *place, failure *f) {
    const char *text = "";
    TRY(json_get_string(root, key, &text, place, f));
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return fail(f, FAIL_INPUT, "%s: %s: found \"%.40s\", expected 16 hexadecimal digits", place, key, text);
    *out = strtoull(text, NULL, 16);
    return true;
}

static bool read_member(run_state *s, const member *m, const cJSON *root, const char *place, failure *f) {
    void *at = (char *)s + m->at;
    if (m->kind == NUMBER) {
        *(double *)at = NAN;
        return json_get_double(root, m->key, at, place, f);
    }
    TRY(json_need(root, m->key, place, f));
    if (m->kind == MARK) return read_mark(root, m->key, at, place, f);
    return json_get_int(root, m->key, 0, (int64_t)1 << 53, at, place, f);
}

static bool read_state(run_state *s, const cJSON *root, const char *place, failure *f) {
    int64_t format = 0;
    TRY(json_need(root, "format", place, f));
    TRY(json_get_int(root, "format", 0, NEWEST, &format, place, f));
    if (format != FORMAT)
        return fail(f, FAIL_INPUT, "%s: format %lld, this version reads %d; go on with the version that wrote it",
                    place, (long long)format, FORMAT);
    for (int i = 0; i < MEMBERS; i++) TRY(read_member(s, &members[i], root, place, f));
    if (s->step > 0 && s->step <= s->steps && s->updates <= s->step) return true;
    return fail(f, FAIL_INPUT, "%s: step %lld of %lld with %lld updates cannot be", place, (long long)s->step,
                (long long)s->steps, (long long)s->updates);
}

/* ---- trainer_state.json ---- */

static void put_number(text_buf *out, const char *before, const char *key, double x) {
    text_printf(out, "%s\"%s\": ", before, key);
    json_put_double(out, x);
}

static void begin_entry(run_state *s, double epoch) {
    text_puts(&s->history, s->history.size ? ",\n    {" : "\n    {");
    put_number(&s->history, "\n      ", "epoch", epoch);
}

static void end_entry(run_state *s, int64_t step) {
    text_printf(&s->history, ",\n      \"step\": %lld\n    }", (long long)step);
}

void run_state_log_step(run_state *s, const step_metrics *m) {
    const char *next = ",\n      ";
    begin_entry(s, m->epoch);
    put_number(&s->history, next, "grad_norm", m->grad_norm);
    put_number(&s->history, next, "learning_rate", m->learning_rate);
    put_number(&s->history, next, "loss", m->loss);
    end_entry(s, m->step);
}

void run_state_log_eval(run_state *s, double loss, double seconds) {
    begin_entry(s, s->epoch);
    put_number(&s->history, ",\n      ", "eval_loss", loss);
    put_number(&s->history, ",\n      ", "eval_runtime", seconds);
    end_entry(s, s->step);
}

/* The keys that transformers' TrainerState knows, and no others: it refuses those. */
void run_state_put_trainer(text_buf *out, const run_state *s, const config *c) {
    bool best = s->best_step > 0;
    text_puts(out, "{\n  \"best_global_step\": ");
    if (best) text_printf(out, "%lld", (long long)s->best_step);
    else text_puts(out, "null");
    text_puts(out, ",\n  \"best_metric\": ");
    json_put_double(out, best ? s->best_loss : NAN);
    text_puts(out, ",\n  \"best_model_checkpoint\": ");
    text_buf path = {0};
    text_printf(&path, "%s/checkpoint-%lld", c->output_dir, (long long)s->best_step);
    if (best) json_put_string(out, path.data, path.size);
    else text_puts(out, "null");
    text_free(&path);
    put_number(out, ",\n  ", "epoch", s->epoch);
    text_printf(out,
                ",\n  \"eval_steps\": %lld,\n  \"global_step\": %lld,\n  \"is_hyper_param_search\": false,\n"
                "  \"is_local_process_zero\": true,\n  \"is_world_process_zero\": true,\n  \"log_history\": [",
                (long long)c->eval_steps, (long long)s->step);
    if (s->history.size) text_add(out, s->history.data, s->history.size);
    text_printf(out,
                "%s],\n  \"logging_steps\": %lld,\n  \"max_steps\": %lld,\n  \"num_input_tokens_seen\": %lld,\n"
                "  \"num_train_epochs\": %.0f,\n  \"save_steps\": %lld,\n  \"stateful_callbacks\": {},\n"
                "  \"total_flos\": 0,\n  \"train_batch_size\": %lld,\n  \"trial_name\": null,\n"
                "  \"trial_params\": null\n}\n",
                s->history.size ? "\n  " : "", (long long)c->logging_steps, (long long)s->steps,
                (long long)s->sum.tokens, ceil(c->num_train_epochs), (long long)c->save_steps,
                (long long)c->per_device_train_batch_size);
}

static void put_entry(text_buf *out, const cJSON *entry) {
    const char *next = "\n      ";
    text_puts(out, "\n    {");
    for (const cJSON *x = entry->child; x; x = x->next) {
        if (!x->string || !cJSON_IsNumber(x) || !isfinite(x->valuedouble)) continue; /* null: a number that was not */
        text_puts(out, next);
        next = ",\n      ";
        json_put_string(out, x->string, strlen(x->string));
        text_puts(out, ": ");
        if (strcmp(x->string, "step") == 0) text_printf(out, "%.0f", x->valuedouble);
        else json_put_double(out, x->valuedouble);
    }
    text_puts(out, "\n    }");
}

static bool read_history(run_state *s, const cJSON *root, const char *place, failure *f) {
    const cJSON *list = json_find(root, "log_history");
    if (!cJSON_IsArray(list))
        return fail(f, FAIL_INPUT, "%s: log_history: found %s, expected a list", place, json_kind(list));
    for (const cJSON *entry = list->child; entry; entry = entry->next) {
        if (entry != list->child) text_puts(&s->history, ",");
        put_entry(&s->history, entry);
    }
    return true;
}

static bool read_file(run_state *s, const char *folder, const char *name,
                      bool (*read)(run_state *s, const cJSON *root, const char *place, failure *f), failure *f) {
    arena a = {0};
    cJSON *root = NULL;
    const char *path = path_join(&a, folder, name);
    bool ok = json_read(&root, path, f) && read(s, root, path, f);
    cJSON_Delete(root);
    arena_free(&a);
    return ok;
}

bool run_state_read(run_state *s, const char *folder, failure *f) {
    return read_file(s, folder, "run_state.json", read_state, f) &&
           read_file(s, folder, "trainer_state.json", read_history, f);
}
