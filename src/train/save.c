/* save.c - writes what was trained; see save.h. Files appear whole or not at all (base/file.h). */
#include "train/save.h"
#include "base/array.h"
#include "base/json.h"
#include "train/checkpoint.h"
#include "weights/model_folder.h"

#include <string.h>

bool save_is_full(const config *c) { return strcmp(c->tuner_type, "full") == 0; }

bool save_check_folder(const session *s, bool goes_on, failure *f) {
    const config *c = s->c;
    static const char *const results[] = {"adapter_config.json", "adapter_model.safetensors", "model.safetensors",
                                          "model.safetensors.index.json", "metrics.jsonl"};
    arena a = {0};
    bool ok = true;
    if (save_is_full(c)) ok = model_folder_check(c->output_dir, s->folder, true, f);
    else if (file_exists(path_join(&a, c->output_dir, "config.json")))
        ok = fail(f, FAIL_INPUT,
                  "output_dir: %s holds a model, to which loaders would apply this adapter; choose another folder",
                  c->output_dir);
    int64_t *steps = checkpoint_list(c->output_dir);
    if (ok && !goes_on && !c->overwrite_output_dir && arrlen(steps))
        ok =
            fail(f, FAIL_INPUT,
                 "output_dir: %s already holds checkpoint-%lld: go on with --resume_from_checkpoint auto, name another "
                 "folder, or give --overwrite_output_dir, which removes it",
                 c->output_dir, (long long)arrlast(steps));
    arrfree(steps);
    for (size_t i = 0; ok && !goes_on && !c->overwrite_output_dir && i < sizeof results / sizeof *results; i++)
        if (file_exists(path_join(&a, c->output_dir, results[i])))
            ok = fail(f, FAIL_INPUT,
                      "output_dir: %s already holds %s; name another folder, or give --overwrite_output_dir",
                      c->output_dir, results[i]);
    arena_free(&a);
    return ok;
}

static int by_name(const void *a, const void *b) {
    const st_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static bool write_adapter(snapshot *p, const char *path, failure *f) {
    st_entry *entries = NULL;
    for (int i = 0; i < arrlen(p->params); i++) {
        const graph_value *value = &p->s->g.values[p->params[i]];
        st_entry e = {value->name, DTYPE_F32, 2, {value->rows, value->cols, 1, 1}, NULL};
        arrput(entries, e);
    }
    qsort(entries, arrlenu(entries), sizeof *entries, by_name);
    st_writer *w = NULL;
    bool ok = st_writer_open(&w, path, entries, (int)arrlen(entries), f);
    for (int i = 0; ok && i < arrlen(entries); i++) {
        const float *data = snapshot_tensor(p, snapshot_find(p, entries[i].name), OPTIMIZER_WEIGHT, f);
        size_t bytes = (size_t)(entries[i].dim[0] * entries[i].dim[1]) * sizeof *data;
        ok = data && st_writer_add(w, data, bytes, f);
    }
    arrfree(entries);
    if (ok) return st_writer_commit(w, f);
    st_writer_abort(w);
    return false;
}

/* Tensor i of the model's files: as trained, or (one that the program does not use) as it was. */
static bool write_tensor(void *context, st_writer *w, int i, failure *f) {
    snapshot *p = context;
    const st_tensor *t = st_at(p->s->weights, i);
    size_t bytes = (size_t)t->count * dtype_size(t->type);
    int trained = snapshot_find(p, t->name);
    if (trained < 0) return st_writer_add(w, t->data, bytes, f);
    const float *data = snapshot_tensor(p, trained, OPTIMIZER_WEIGHT, f);
    if (!data || t->type == DTYPE_F32) return data && st_writer_add(w, data, bytes, f);
    void *stored = xmalloc(bytes);
    dtype_from_f32(stored, t->type, data, (size_t)t->count);
    bool ok = st_writer_add(w, stored, bytes, f);
    free(stored);
    return ok;
}

/* config.json with tie_word_embeddings false, so that loaders take the head that was trained. */
static bool write_untied_config(const session *s, const char *folder, failure *f) {
    cJSON *root;
    arena a = {0};
    bool ok = json_read(&root, path_join(&a, s->folder, "config.json"), f);
    if (ok) {
        cJSON_DeleteItemFromObjectCaseSensitive(root, "tie_word_embeddings");
        cJSON_AddBoolToObject(root, "tie_word_embeddings", false);
        char *text = cJSON_Print(root);
        ok = file_write(path_join(&a, folder, "config.json"), text, strlen(text), f);
        cJSON_free(text);
        cJSON_Delete(root);
    }
    arena_free(&a);
    return ok;
}

static bool save_model(snapshot *p, const char *folder, failure *f) {
    const session *s = p->s;
    model_folder_size size;
    return model_folder_write(folder, s->weights, MODEL_FOLDER_SHARD_BYTES, write_tensor, p, &size, f) &&
           model_folder_copy_others(folder, s->folder, f) && (!s->untied_by_file || write_untied_config(s, folder, f));
}

bool save_weights(snapshot *p, const char *folder, failure *f) {
    if (save_is_full(p->s->c)) return save_model(p, folder, f);
    arena a = {0};
    bool ok = write_adapter(p, path_join(&a, folder, "adapter_model.safetensors"), f) &&
              adapter_config_write(&p->s->lora, folder, f);
    arena_free(&a);
    return ok;
}

bool save_result(const session *s, const optimizer *o, failure *f) {
    snapshot p;
    TRY(snapshot_open(&p, s, NULL, false, f));
    p.pieces = o;
    bool ok = save_weights(&p, s->c->output_dir, f);
    snapshot_close(&p);
    return ok;
}
