/* save.c - writes what was trained; see save.h. Files appear whole or not at all (base/file.h). */
#include "train/save.h"
#include "base/array.h"
#include "base/json.h"
#include "weights/model_folder.h"

#include <string.h>

static bool is_full(const config *c) { return strcmp(c->tuner_type, "full") == 0; }

bool save_check_folder(const session *s, failure *f) {
    const config *c = s->c;
    static const char *const results[] = {"adapter_config.json", "adapter_model.safetensors", "model.safetensors",
                                          "model.safetensors.index.json", "metrics.jsonl"};
    arena a = {0};
    bool ok = true;
    if (is_full(c)) ok = model_folder_check(c->output_dir, s->folder, true, f);
    else if (file_exists(path_join(&a, c->output_dir, "config.json")))
        ok = fail(f, FAIL_INPUT,
                  "output_dir: %s holds a model, to which loaders would apply this adapter; choose another folder",
                  c->output_dir);
    for (size_t i = 0; ok && !c->overwrite_output_dir && i < sizeof results / sizeof *results; i++)
        if (file_exists(path_join(&a, c->output_dir, results[i])))
            ok = fail(f, FAIL_INPUT,
                      "output_dir: %s already holds %s; name another folder, or give --overwrite_output_dir",
                      c->output_dir, results[i]);
    arena_free(&a);
    return ok;
}

/* Trained param v in host memory, converted to the type it is stored in; NULL on failure. */
static void *download_param(session *s, vid v, dtype stored, failure *f) {
    int64_t n = value_count(&s->g.values[v]);
    float *w = xmalloc((size_t)n * sizeof *w);
    if (!executor_download(s->x, v, w, n, f)) {
        free(w);
        return NULL;
    }
    if (stored == DTYPE_F32) return w;
    void *out = xmalloc((size_t)n * dtype_size(stored));
    dtype_from_f32(out, stored, w, (size_t)n);
    free(w);
    return out;
}

static int by_name(const void *a, const void *b) {
    const st_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static bool save_adapter(session *s, failure *f) {
    st_entry *entries = NULL;
    bool ok = true;
    for (vid v = 1; v < arrlen(s->g.values) && ok; v++) {
        const graph_value *value = &s->g.values[v];
        if (value->role != ROLE_PARAM || !value->trainable) continue;
        st_entry e = {value->name, DTYPE_F32, 2, {value->rows, value->cols, 1, 1}, NULL};
        e.data = download_param(s, v, DTYPE_F32, f);
        ok = e.data != NULL;
        arrput(entries, e);
    }
    qsort(entries, (size_t)arrlen(entries), sizeof *entries, by_name);
    const char *path = path_join(&s->memory, s->c->output_dir, "adapter_model.safetensors");
    ok = ok && st_write(path, entries, (int)arrlen(entries), f) && adapter_config_write(&s->lora, s->c->output_dir, f);
    for (int i = 0; i < arrlen(entries); i++) free((void *)(uintptr_t)entries[i].data);
    arrfree(entries);
    return ok;
}

/* Tensor i of the model's files: as trained, or (one that the program does not use) as it was. */
static bool write_tensor(void *context, st_writer *w, int i, failure *f) {
    session *s = context;
    const st_tensor *t = st_at(s->weights, i);
    size_t bytes = (size_t)t->count * dtype_size(t->type);
    vid v = graph_find(&s->g, t->name);
    if (!v) return st_writer_add(w, t->data, bytes, f);
    void *data = download_param(s, v, t->type, f);
    bool ok = data && st_writer_add(w, data, bytes, f);
    free(data);
    return ok;
}

/* config.json with tie_word_embeddings false, so that loaders take the head that was trained. */
static bool write_untied_config(session *s, failure *f) {
    cJSON *root;
    TRY(json_read(&root, path_join(&s->memory, s->folder, "config.json"), f));
    cJSON_DeleteItemFromObjectCaseSensitive(root, "tie_word_embeddings");
    cJSON_AddBoolToObject(root, "tie_word_embeddings", false);
    char *text = cJSON_Print(root);
    bool ok = file_write(path_join(&s->memory, s->c->output_dir, "config.json"), text, strlen(text), f);
    cJSON_free(text);
    cJSON_Delete(root);
    return ok;
}

bool save_result(session *s, failure *f) {
    model_folder_size size;
    if (!is_full(s->c)) return save_adapter(s, f);
    return model_folder_write(s->c->output_dir, s->weights, MODEL_FOLDER_SHARD_BYTES, write_tensor, s, &size, f) &&
           model_folder_copy_others(s->c->output_dir, s->folder, f) &&
           (!s->untied_by_file || write_untied_config(s, f));
}
