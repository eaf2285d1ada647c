/* resume.c - finds a checkpoint and says what differs from it; see resume.h.
 *
 * Settings are compared as they stand in args.json.  Every key counts but those below, so that a new setting is safe
 * until someone says otherwise. */
#include "train/resume.h"
#include "base/array.h"
#include "base/fingerprint.h"
#include "base/log.h"

#include <math.h>
#include <string.h>

/* Without effect on the steps to come, ... */
static const char *const free_keys[] = {
    "config_file",
    "output_dir",
    "overwrite_output_dir",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "save_total_limit",
    "resume_from_checkpoint",
    "threads",
    "gpus",
    "ddp_backend",
    "zero_stage",
    "shard_base",
    "ddp_timeout",
    "ddp_bucket_cap_mb",
    "rank_logs",
    "gradient_checkpointing",
    "val_dataset",
    "max_skipped_steps",
    "strict",
    "per_device_eval_batch_size",
    /* ... of other commands, ... */
    "prompt",
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "exact_match",
    "dump",
    "bench_steps",
    "bench_mean_length",
    "bench_ops",
    "bench_paths",
    "explain",
    /* ... or compared by what they lead to: files by content, batches by their product, epochs by steps. */
    "model",
    "dataset",
    "adapter",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "max_steps",
};
/* The same run in other arithmetic: allowed, with a warning. */
static const char *const rounding_keys[] = {"device", "use_liger_kernel", "fuse_rules", "deterministic"};

#define IS_IN(key, list) is_in(key, list, sizeof(list) / sizeof *(list))
static bool is_in(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0) return true;
    return false;
}

/* ---- settings ---- */

static void put_both(text_buf *out, const char *key, const cJSON *then, const cJSON *now) {
    char *a = cJSON_PrintUnformatted(then), *b = cJSON_PrintUnformatted(now);
    text_printf(out, "\n  %s: %.200s in the checkpoint, %.200s now", key, a, b);
    cJSON_free(a);
    cJSON_free(b);
}

static double number_of(const cJSON *args, const char *key) {
    const cJSON *item = json_find(args, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* The rows of a step may be dealt in another way, but not be more or fewer. */
static void compare_batches(text_buf *out, const cJSON *then, double rows_then, const cJSON *now, double rows_now,
                            const char *folder) {
    static const char *const keys[] = {"per_device_train_batch_size", "gradient_accumulation_steps"};
    double was = number_of(then, keys[0]), is = number_of(now, keys[0]);
    if (rows_then != rows_now) {
        text_printf(out, "\n  rows of a step: %.0f in the checkpoint, %.0f now (%s %.0f, %s %.0f)", rows_then, rows_now,
                    keys[0], is, keys[1], number_of(now, keys[1]));
    } else if (was != is || number_of(then, keys[1]) != number_of(now, keys[1])) {
        log_info("%s: its steps of %.0f rows were dealt as %.0f x %.0f, now as %.0f x %.0f: the same rows in the same "
                 "order",
                 folder, rows_now, was, rows_then / was, is, rows_now / is);
    }
}

/* Lists are sets: names in another order. */
static bool same_value(const cJSON *a, const cJSON *b) {
    if (!cJSON_IsArray(a) || !cJSON_IsArray(b)) return cJSON_Compare(a, b, true);
    bool same = cJSON_GetArraySize(a) == cJSON_GetArraySize(b);
    for (const cJSON *x = a->child; x && same; x = x->next) {
        same = false;
        for (const cJSON *y = b->child; y && !same; y = y->next) same = cJSON_Compare(x, y, true);
    }
    return same;
}

/* Everything that differs, a line each. */
static void compare(text_buf *out, const cJSON *then, const cJSON *now, const char *folder) {
    for (const cJSON *item = now->child; item; item = item->next) {
        const cJSON *old = cJSON_GetObjectItemCaseSensitive(then, item->string);
        if (!old || IS_IN(item->string, free_keys) || same_value(old, item)) continue;
        if (!IS_IN(item->string, rounding_keys)) {
            put_both(out, item->string, old, item);
            continue;
        }
        text_buf both = {0};
        put_both(&both, item->string, old, item);
        log_warning("%s: the run goes on in other arithmetic, equal but for rounding:%s", folder, both.data);
        text_free(&both);
    }
}

/* then, rows_then: settings and rows of a step of what `folder` holds. */
static bool same_settings(const cJSON *then, double rows_then, const config *c, int ranks, const char *folder,
                          failure *f) {
    double rows = (double)(c->per_device_train_batch_size * c->gradient_accumulation_steps * ranks);
    text_buf text = {0}, differences = {0};
    cJSON *now;
    config_put_json(c, &text);
    bool ok = json_parse(&now, text.data, text.size, "the settings", f);
    if (ok) compare(&differences, then, now, folder);
    if (ok) compare_batches(&differences, then, rows_then, now, rows, folder);
    if (ok) cJSON_Delete(now);
    if (ok && differences.size)
        ok =
            fail(f, FAIL_INPUT,
                 "resume_from_checkpoint: %s is of another run:%s\nSet these as they were, or start a new run from its "
                 "weights (--adapter, or --model after full tuning) in another output_dir",
                 folder, differences.data);
    text_free(&text);
    text_free(&differences);
    return ok;
}

/* ---- finding ---- */

/* output_dir holds a whole result: summary.json is written last. */
static bool find_finished(resume *r, const config *c, int ranks, failure *f) {
    arena a = {0};
    cJSON *root = NULL;
    const char *path = path_join(&a, c->output_dir, "summary.json");
    bool ok = true, there = file_exists(path);
    if (there) {
        ok = json_read(&root, path, f);
        const cJSON *args = ok ? json_find(root, "config") : NULL;
        if (ok && cJSON_IsObject(args))
            ok = same_settings(args, number_of(root, "step_rows"), c, ranks, c->output_dir, f);
        if (ok) r->kind = RESUME_FINISHED;
    }
    if (ok && there)
        log_info("nothing to do: %s holds the result of this run, finished after %.0f steps", c->output_dir,
                 number_of(root, "steps"));
    cJSON_Delete(root);
    arena_free(&a);
    return ok;
}

/* The newest checkpoint of a folder that can be read; one that cannot (cut off while copied, ...) is said and passed
 * over. */
static bool find_newest(resume *r, const char *folder) {
    int64_t *steps = checkpoint_list(folder);
    arena a = {0};
    for (int i = (int)arrlen(steps) - 1; i >= 0 && r->kind == RESUME_FRESH; i--) {
        failure why = {0};
        const char *path = checkpoint_path(&a, folder, steps[i]);
        if (checkpoint_open(&r->from, path, &why)) r->kind = RESUME_BEHIND;
        else log_warning("%s is passed over: %s", path, why.text);
    }
    arrfree(steps);
    arena_free(&a);
    return r->kind == RESUME_BEHIND;
}

static bool is_in_output(const config *c, const char *name) {
    arena a = {0};
    bool there = file_exists(path_join(&a, c->output_dir, name));
    arena_free(&a);
    return there;
}

static bool find_auto(resume *r, const config *c, int ranks, failure *f) {
    TRY(find_finished(r, c, ranks, f));
    if (r->kind == RESUME_FINISHED || find_newest(r, c->output_dir)) return r->goes_on = true;
    r->goes_on = is_in_output(c, "metrics.jsonl"); /* of a run that was broken off early */
    log_info("resume_from_checkpoint: %s has no whole checkpoint, the run starts at its first step", c->output_dir);
    return true;
}

static bool find_path(resume *r, const config *c, failure *f) {
    const char *path = c->resume_from_checkpoint;
    arena a = {0};
    bool ok = true, own = file_exists(path_join(&a, path, "run_state.json"));
    if (!file_is_folder(path))
        ok = fail(f, FAIL_INPUT, "resume_from_checkpoint: %s: no such folder; expected auto or a checkpoint folder",
                  path);
    else if (own) ok = checkpoint_open(&r->from, path, f) || fail_in(f, "resume_from_checkpoint");
    else if (!find_newest(r, path))
        ok = fail(f, FAIL_INPUT,
                  "resume_from_checkpoint: %s is no checkpoint of this program (no run_state.json) and holds none",
                  path);
    arena_free(&a);
    TRY(ok);
    const char *parent = path_join(&r->from.memory, r->from.folder, "..");
    r->kind = RESUME_BEHIND;
    r->goes_on = file_is_same(parent, c->output_dir) && (c->overwrite_output_dir || !is_in_output(c, "summary.json"));
    return true;
}

static void say_where(const resume *r) {
    const run_state *s = &r->from.state;
    log_info("resuming %s: step %lld of %lld done, %.4g epochs, next sample %lld of %lld", r->from.folder,
             (long long)s->step, (long long)s->steps, s->epoch, (long long)s->row, (long long)s->rows);
}

bool resume_find(resume *r, const config *c, int ranks, failure *f) {
    const char *from = c->resume_from_checkpoint;
    *r = (resume){0};
    if (!from[0]) return true;
    TRY(strcmp(from, "auto") == 0 ? find_auto(r, c, ranks, f) : find_path(r, c, f));
    if (r->kind != RESUME_BEHIND) return true;
    const run_state *state = &r->from.state;
    TRY(same_settings(r->from.args, (double)state->sum.step_rows, c, ranks, r->from.folder, f));
    if (state->step == state->steps && !r->goes_on) TRY(find_finished(r, c, ranks, f));
    if (r->kind == RESUME_BEHIND) say_where(r);
    return true;
}

void resume_close(resume *r) { checkpoint_close(&r->from); }

/* ---- what is learnt from ---- */

/* Names, types and shapes, and of each tensor three pieces: enough to tell two models or two states of one apart, in
 * a few page reads. */
static uint64_t model_mark(const st_set *weights) {
    enum { PIECE = 256 };
    uint64_t mark = 0;
    for (int i = 0; weights && i < st_count(weights); i++) {
        const st_tensor *t = st_at(weights, i);
        size_t bytes = (size_t)t->count * dtype_size(t->type), n = bytes < PIECE ? bytes : PIECE;
        int64_t shape[5] = {(int64_t)t->type, t->dim[0], t->dim[1], t->dim[2], t->dim[3]};
        uint64_t own = fingerprint(fingerprint(0, t->name, strlen(t->name)), shape, sizeof shape);
        const char *data = t->data;
        for (size_t k = 0; k < 3; k++) own = fingerprint(own, data + (bytes - n) * k / 2, n);
        mark += own; /* the order of shards does not count */
    }
    return mark;
}

run_source resume_source(const session *s, const dataset *data) {
    return (run_source){.examples = dataset_count(data),
                        .tokens = arrlen(data->tokens),
                        .data = dataset_fingerprint(data),
                        .model = model_mark(s->weights)};
}

/* An adapter that the run started from brings its own scale, whatever the lora_* keys say. */
static bool same_adapter(const checkpoint *c, const session *s, failure *f) {
    adapter_config was;
    arena a = {0};
    bool ok = c->full || adapter_config_read(&was, c->folder, &a, f);
    if (ok && !c->full && (was.rank != s->lora.rank || adapter_scale(&was) != adapter_scale(&s->lora)))
        ok = fail(f, FAIL_INPUT,
                  "adapter, lora_rank, lora_alpha: rank %d with scale %g in %s, rank %d with scale %g now; name the "
                  "adapter that the run started from, if there was one",
                  was.rank, adapter_scale(&was), c->folder, s->lora.rank, adapter_scale(&s->lora));
    arena_free(&a);
    return ok;
}

bool resume_check(const resume *r, const session *s, const run_source *now, const loader *l, failure *f) {
    if (r->kind != RESUME_BEHIND) return true;
    const run_state *was = &r->from.state;
    const char *folder = r->from.folder;
    TRY(same_adapter(&r->from, s, f));
    if (was->source.model != now->model)
        return fail(f, FAIL_INPUT, "model: %s holds other weights than those that %s was made from", s->folder, folder);
    if (was->source.examples != now->examples || was->source.tokens != now->tokens)
        return fail(f, FAIL_INPUT,
                    "dataset: these files give %lld examples of %lld tokens, %s was made with %lld of %lld",
                    (long long)now->examples, (long long)now->tokens, folder, (long long)was->source.examples,
                    (long long)was->source.tokens);
    if (was->source.data != now->data)
        return fail(f, FAIL_INPUT,
                    "dataset: these files give as many examples and tokens as those that %s was made with, but others "
                    "(another order, text, template or labels)",
                    folder);
    if (was->steps != loader_steps(l))
        return fail(f, FAIL_INPUT,
                    "num_train_epochs, max_steps: this run has %lld steps, %s is of one of %lld, whose learning rates "
                    "differ; start a new run from its weights (--adapter, or --model after full tuning) to train on",
                    (long long)loader_steps(l), folder, (long long)was->steps);
    if (was->rows != loader_rows(l))
        return fail(f, FAIL_INPUT, "dataset: packed into %lld rows, %s was made with %lld", (long long)loader_rows(l),
                    folder, (long long)was->rows);
    return true;
}
