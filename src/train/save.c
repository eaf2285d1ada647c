#include "train/save.h"
#include "base/array.h"

#include <string.h>
#include <unistd.h>

static bool is_full(const config *c) { return strcmp(c->tuner_type, "full") == 0; }

bool save_check_folder(const config *c, failure *f) {
    static const char *const results[] = {"adapter_model.safetensors", "model.safetensors",
                                          "model.safetensors.index.json", "metrics.jsonl"};
    arena a = {0};
    bool ok = file_make_folders(c->output_dir, f);
    for (size_t i = 0; ok && !c->overwrite_output_dir && i < sizeof results / sizeof *results; i++)
        if (file_exists(path_join(&a, c->output_dir, results[i])))
            ok = fail(f, FAIL_INPUT,
                      "output_dir: %s already holds %s; name another folder, or give --overwrite_output_dir",
                      c->output_dir, results[i]);
    if (ok && access(c->output_dir, W_OK) != 0) ok = fail_errno(f, FAIL_MACHINE, "output_dir: %s", c->output_dir);
    arena_free(&a);
    return ok;
}

/* A trained param in host memory, converted to the type it is stored in. */
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

/* Downloads all trained params as entries (stb_ds), in the order of their names. */
static bool collect(session *s, st_entry **entries, failure *f) {
    for (vid v = 1; v < arrlen(s->g.values); v++) {
        const graph_value *value = &s->g.values[v];
        if (value->role != ROLE_PARAM || !value->trainable) continue;
        const st_tensor *from = s->weights ? st_find(s->weights, value->name) : NULL;
        st_entry e = {.name = value->name,
                      .type = from ? from->type : DTYPE_F32,
                      .n_dims = from ? from->n_dims : 2,
                      .dim = {value->rows, value->cols, 1, 1}};
        e.data = download_param(s, v, e.type, f);
        if (!e.data) return false;
        arrput(*entries, e);
    }
    qsort(*entries, (size_t)arrlen(*entries), sizeof **entries, by_name);
    return true;
}

bool save_result(session *s, failure *f) {
    st_entry *entries = NULL;
    const char *folder = s->c->output_dir;
    bool ok = collect(s, &entries, f);
    if (ok && is_full(s->c)) {
        ok = fail(f, FAIL_INPUT, "full");
    } else if (ok) {
        char *path = path_join(&s->memory, folder, "adapter_model.safetensors");
        ok = st_write(path, entries, (int)arrlen(entries), f) && adapter_config_write(&s->lora, folder, f);
    }
    for (int i = 0; i < arrlen(entries); i++) free((void *)(uintptr_t)entries[i].data);
    arrfree(entries);
    return ok;
}
