/* checkpoint.c - writing, listing, rotating and opening checkpoint folders; see checkpoint.h. */
#include "train/checkpoint.h"
#include "base/array.h"
#include "base/log.h"
#include "train/save.h"
#include "weights/adapter.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

static const char prefix[] = "checkpoint-", temporary[] = ".tmp";
static const char *const part_names[OPTIMIZER_PARTS] = {
    [OPTIMIZER_WEIGHT] = "master", [OPTIMIZER_MEAN] = "exp_avg", [OPTIMIZER_SQUARE] = "exp_avg_sq"};

const char *checkpoint_path(arena *a, const char *folder, int64_t step) {
    return path_join(a, folder, arena_printf(a, "%s%lld", prefix, (long long)step));
}

/* ---- names in a folder ---- */

/* The step that "checkpoint-N" names; 0 for any other name (also checkpoint-007). */
static int64_t step_of(const char *name) {
    size_t n = sizeof prefix - 1;
    int64_t step;
    if (strncmp(name, prefix, n) != 0 || name[n] < '1' || name[n] > '9') return 0;
    if (strspn(name + n, "0123456789") != strlen(name + n)) return 0;
    return text_to_int(name + n, &step) ? step : 0;
}

static bool is_temporary(const char *name) {
    size_t n = strlen(name), end = sizeof temporary - 1;
    return strncmp(name, prefix, sizeof prefix - 1) == 0 && n > end && strcmp(name + n - end, temporary) == 0;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int64_t *checkpoint_list(const char *folder) {
    int64_t *steps = NULL;
    DIR *dir = opendir(folder);
    arena a = {0};
    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (step_of(e->d_name) && file_is_folder(path_join(&a, folder, e->d_name))) arrput(steps, step_of(e->d_name));
    if (dir) closedir(dir);
    arena_free(&a);
    if (steps) qsort(steps, arrlenu(steps), sizeof *steps, ascending);
    return steps;
}

bool checkpoint_clean(const char *folder, failure *f) {
    DIR *dir = opendir(folder);
    if (!dir) return errno == ENOENT || fail_errno(f, FAIL_MACHINE, "%s", folder);
    arena a = {0};
    const char **names = NULL;
    for (const struct dirent *e; (e = readdir(dir));)
        if (is_temporary(e->d_name)) arrput(names, path_join(&a, folder, e->d_name));
    closedir(dir);
    bool ok = true;
    for (int i = 0; i < arrlen(names) && ok; i++) ok = file_remove(names[i], f);
    arrfree(names);
    arena_free(&a);
    return ok;
}

/* ---- writing ---- */

static const char *tensor_name(arena *a, optimizer_part part, const char *param) {
    return arena_printf(a, "%s.%s", part_names[part], param);
}

/* Masters are written where the weights' own files do not hold them in float32. */
static bool write_optimizer(snapshot *p, const char *folder, failure *f) {
    arena a = {0};
    st_entry *entries = NULL;
    int first = save_is_full(p->s->c) ? OPTIMIZER_WEIGHT : OPTIMIZER_MEAN;
    for (int i = 0; i < arrlen(p->params); i++)
        for (int part = first; part < OPTIMIZER_PARTS; part++) {
            const graph_value *value = &p->s->g.values[p->params[i]];
            st_entry e = {tensor_name(&a, (optimizer_part)part, value->name),
                          DTYPE_F32,
                          value->cols == 1 ? 1 : 2,
                          {value->rows, value->cols, 1, 1},
                          NULL};
            arrput(entries, e);
        }
    st_writer *w = NULL;
    bool ok = st_writer_open(&w, path_join(&a, folder, "optimizer.safetensors"), entries, (int)arrlen(entries), f);
    for (int i = 0, at = 0; ok && i < arrlen(p->params); i++)
        for (int part = first; ok && part < OPTIMIZER_PARTS; part++, at++) {
            const float *data = snapshot_tensor(p, i, (optimizer_part)part, f);
            ok = data && st_writer_add(w, data, (size_t)(entries[at].dim[0] * entries[at].dim[1]) * sizeof *data, f);
        }
    if (ok) ok = st_writer_commit(w, f);
    else st_writer_abort(w);
    arrfree(entries);
    arena_free(&a);
    return ok;
}

static bool write_text(const char *folder, const char *name, const text_buf *t, failure *f) {
    arena a = {0};
    bool ok = file_write(path_join(&a, folder, name), t->data, t->size, f);
    arena_free(&a);
    return ok;
}

static bool write_files(snapshot *p, const run_state *state, const char *folder, failure *f) {
    const config *c = p->s->c;
    text_buf t = {0};
    bool ok = file_make_folders(folder, f) && save_weights(p, folder, f) && write_optimizer(p, folder, f);
    run_state_put_trainer(&t, state, c);
    ok = ok && write_text(folder, "trainer_state.json", &t, f);
    text_clear(&t);
    config_put_json(c, &t);
    text_puts(&t, "\n");
    ok = ok && write_text(folder, "args.json", &t, f);
    text_clear(&t);
    run_state_put(&t, state, c);
    ok = ok && write_text(folder, "run_state.json", &t, f);
    text_free(&t);
    return ok;
}

bool checkpoint_remove(const char *folder, int64_t step, failure *f) {
    arena a = {0};
    const char *path = checkpoint_path(&a, folder, step), *gone = arena_printf(&a, "%s%s", path, temporary);
    bool ok = file_remove(gone, f) && file_rename(path, gone, f) && file_remove(gone, f);
    arena_free(&a);
    return ok;
}

/* A run that stops because its losses are not finite removes nothing: what it learnt last may be worth less. */
static bool stops_for_skipped(const config *c, const run_state *state) {
    return c->max_skipped_steps && state->sum.skipped_steps >= c->max_skipped_steps;
}

static bool rotate(const config *c, const run_state *state, failure *f) {
    if (!c->save_total_limit || stops_for_skipped(c, state)) return true;
    int64_t *steps = checkpoint_list(c->output_dir), n = arrlen(steps);
    bool ok = true;
    for (int64_t i = 0; i < arrlen(steps) && ok && n > c->save_total_limit; i++) {
        if (steps[i] == state->best_step || steps[i] >= state->step) continue;
        ok = checkpoint_remove(c->output_dir, steps[i], f);
        n--;
    }
    arrfree(steps);
    return ok;
}

/* An older folder of that name (of a run that went on from an earlier checkpoint) makes room first. */
static bool publish(const char *made, const char *path, failure *f) {
    arena a = {0};
    const char *old = arena_printf(&a, "%s.old%s", path, temporary);
    bool replaces = file_is_folder(path);
    bool ok = !replaces || (file_remove(old, f) && file_rename(path, old, f));
    ok = ok && file_rename(made, path, f) && (!replaces || file_remove(old, f));
    arena_free(&a);
    return ok;
}

/* Says which checkpoint is left to go on from. Returns false. */
static bool lost(const char *path, const char *folder, failure *f) {
    int64_t *steps = checkpoint_list(folder);
    failure why = *f;
    int left = (int)arrlen(steps);
    if (left)
        fail(f, why.kind, "%.1500s; %s%lld is whole: go on with --resume_from_checkpoint auto", why.text, prefix,
             (long long)steps[left - 1]);
    arrfree(steps);
    return fail_in(f, "saving %s", path);
}

bool checkpoint_write(snapshot *p, const run_state *state, failure *f) {
    const config *c = p->s->c;
    arena a = {0};
    const char *path = checkpoint_path(&a, c->output_dir, state->step),
               *made = arena_printf(&a, "%s%s", path, temporary);
    failure ignored = {0};
    bool ok = checkpoint_clean(c->output_dir, f) && write_files(p, state, made, f) && publish(made, path, f);
    if (!ok) file_remove(made, &ignored);
    ok = ok ? rotate(c, state, f) : lost(path, c->output_dir, f);
    arena_free(&a);
    return ok;
}

/* ---- reading ---- */

static bool open_files(checkpoint *c, failure *f) {
    const char *folder = c->folder;
    TRY(run_state_read(&c->state, folder, f));
    const char *path = path_join(&c->memory, folder, "args.json");
    TRY(json_read(&c->args, path, f));
    if (!cJSON_IsObject(c->args))
        return fail(f, FAIL_INPUT, "%s: found %s, expected an object", path, json_kind(c->args));
    const cJSON *tuner = json_find(c->args, "tuner_type");
    c->full = cJSON_IsString(tuner) && strcmp(tuner->valuestring, "full") == 0;
    TRY(st_open_file(&c->optimizer, path_join(&c->memory, folder, "optimizer.safetensors"), f));
    return c->full || adapter_open(&c->weights, folder, f);
}

bool checkpoint_open(checkpoint *c, const char *folder, failure *f) {
    *c = (checkpoint){0};
    c->folder = arena_strdup(&c->memory, folder);
    if (open_files(c, f)) return true;
    checkpoint_close(c);
    return false;
}

void checkpoint_close(checkpoint *c) {
    run_state_free(&c->state);
    cJSON_Delete(c->args);
    st_close(c->optimizer);
    st_close(c->weights);
    arena_free(&c->memory);
    *c = (checkpoint){0};
}

static bool restore_tensor(const st_set *set, const char *name, optimizer *o, int i, optimizer_part part,
                           const graph_value *value, const char *folder, failure *f) {
    const st_tensor *t = st_find(set, name);
    if (!t) return fail(f, FAIL_INPUT, "%s: %s is missing", folder, name);
    if (t->type != DTYPE_F32 || t->dim[0] != value->rows || t->dim[1] != value->cols || t->n_dims > 2)
        return fail(f, FAIL_INPUT, "%s: %s: %s [%lld,%lld], this run needs F32 [%lld,%lld]", st_path(set, t), name,
                    dtype_name(t->type), (long long)t->dim[0], (long long)t->dim[1], (long long)value->rows,
                    (long long)value->cols);
    return optimizer_write(o, i, part, t->data, f);
}

bool checkpoint_restore(const checkpoint *c, optimizer *o, const session *s, failure *f) {
    int tensors = 0;
    arena a = {0};
    bool ok = true;
    for (int i = 0; i < optimizer_count(o) && ok; i++) {
        const graph_value *value = &s->g.values[optimizer_param(o, i)];
        for (int part = 0; part < OPTIMIZER_PARTS && ok; part++) {
            bool adapter = part == OPTIMIZER_WEIGHT && !c->full;
            const char *name = adapter ? value->name : tensor_name(&a, (optimizer_part)part, value->name);
            ok = restore_tensor(adapter ? c->weights : c->optimizer, name, o, i, (optimizer_part)part, value, c->folder,
                                f);
            tensors++;
        }
    }
    int found = st_count(c->optimizer) + (c->full ? 0 : st_count(c->weights));
    if (ok && tensors != found)
        ok = fail(f, FAIL_INPUT, "%s: holds %d tensors, this run trains %d of them", c->folder, found, tensors);
    arena_free(&a);
    return ok && optimizer_restored(o, c->state.updates, f);
}
