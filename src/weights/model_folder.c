/* model_folder.c - see model_folder.h. An older index goes first and older weight files last, so that a folder written
 * half is never taken for a model. */
#include "weights/model_folder.h"
#include "base/array.h"
#include "base/folder_lock.h"
#include "base/json.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char index_name[] = "model.safetensors.index.json", single_name[] = "model.safetensors";

typedef struct {
    int *file_of; /* [tensors]: which file each goes to */
    const char **names;
    int n_files;
    int64_t bytes;
} layout;

static bool has_content(const char *folder) {
    DIR *dir = opendir(folder);
    bool found = false;
    for (const struct dirent *e; dir && !found && (e = readdir(dir));)
        found = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && strcmp(e->d_name, FOLDER_LOCK_NAME) != 0;
    if (dir) closedir(dir);
    return found;
}

bool model_folder_check(const char *output, const char *model, bool overwrite, failure *f) {
    if (!file_check_folder(output, f)) return fail_in(f, "output_dir");
    if (file_is_same(output, model)) return fail(f, FAIL_INPUT, "output_dir: %s is the model's own folder", output);
    arena a = {0};
    bool adapter = file_exists(path_join(&a, output, "adapter_config.json"));
    arena_free(&a);
    if (adapter)
        return fail(f, FAIL_INPUT,
                    "output_dir: %s holds an adapter, which loaders would apply to the new weights once more; choose "
                    "another folder",
                    output);
    if (overwrite || !has_content(output)) return true;
    return fail(f, FAIL_INPUT, "output_dir: %s is not empty; choose another folder or set overwrite_output_dir",
                output);
}

static int64_t tensor_bytes(const st_tensor *t) { return t->count * (int64_t)dtype_size(t->type); }

/* Lives in a. */
static void make_layout(layout *l, const st_set *s, int64_t shard_bytes, arena *a) {
    *l = (layout){.file_of = arena_alloc(a, (size_t)st_count(s) * sizeof *l->file_of), .n_files = 1};
    int64_t in_file = 0;
    for (int i = 0; i < st_count(s); i++) {
        int64_t bytes = tensor_bytes(st_at(s, i));
        if (in_file && in_file + bytes > shard_bytes) l->n_files++, in_file = 0;
        l->file_of[i] = l->n_files - 1;
        in_file += bytes;
        l->bytes += bytes;
    }
    l->names = arena_alloc(a, (size_t)l->n_files * sizeof *l->names);
    for (int i = 0; i < l->n_files; i++)
        l->names[i] =
            l->n_files == 1 ? single_name : arena_printf(a, "model-%05d-of-%05d.safetensors", i + 1, l->n_files);
}

static bool remove_file(const char *folder, const char *name, failure *f) {
    arena a = {0};
    const char *path = path_join(&a, folder, name);
    bool ok = !file_exists(path) || unlink(path) == 0 || fail_errno(f, FAIL_MACHINE, "%s: cannot remove", path);
    arena_free(&a);
    return ok;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool is_in_layout(const layout *l, const char *name) {
    for (int i = 0; i < l->n_files; i++)
        if (strcmp(l->names[i], name) == 0) return true;
    return false;
}

static bool remove_old_weights(const layout *l, const char *output, failure *f) {
    DIR *dir = opendir(output);
    if (!dir) return fail_errno(f, FAIL_MACHINE, "%s", output);
    bool ok = true;
    for (const struct dirent *e; ok && (e = readdir(dir));)
        if (strncmp(e->d_name, "model", 5) == 0 && ends_with(e->d_name, ".safetensors") && !is_in_layout(l, e->d_name))
            ok = remove_file(output, e->d_name, f);
    closedir(dir);
    return ok;
}

typedef struct {
    const char *name, *file;
} index_row;

static int by_name(const void *a, const void *b) {
    return strcmp(((const index_row *)a)->name, ((const index_row *)b)->name);
}

static bool write_index(const layout *l, const st_set *s, const char *output, failure *f) {
    int n = st_count(s);
    index_row *rows = xcalloc((size_t)n, sizeof *rows);
    int64_t parameters = 0;
    for (int i = 0; i < n; i++) {
        rows[i] = (index_row){st_at(s, i)->name, l->names[l->file_of[i]]};
        parameters += st_at(s, i)->count;
    }
    qsort(rows, (size_t)n, sizeof *rows, by_name);
    text_buf t = {0};
    text_printf(&t, "{\n  \"metadata\": {\n    \"total_parameters\": %lld,\n    \"total_size\": %lld\n  },\n",
                (long long)parameters, (long long)l->bytes);
    text_puts(&t, "  \"weight_map\": {");
    for (int i = 0; i < n; i++) {
        text_puts(&t, i ? ",\n    " : "\n    ");
        json_put_string(&t, rows[i].name, strlen(rows[i].name));
        text_printf(&t, ": \"%s\"", rows[i].file);
    }
    text_puts(&t, "\n  }\n}\n");
    arena a = {0};
    bool ok = file_write(path_join(&a, output, index_name), t.data, t.size, f);
    arena_free(&a);
    text_free(&t);
    free(rows);
    return ok;
}

/* The tensors of one file. */
static bool write_weights(const layout *l, int file, const char *path, const st_set *like, tensor_source source,
                          void *context, failure *f) {
    st_entry *entries = NULL;
    for (int i = 0; i < st_count(like); i++) {
        const st_tensor *t = st_at(like, i);
        st_entry e = {t->name, t->type, t->n_dims, {t->dim[0], t->dim[1], t->dim[2], t->dim[3]}, NULL};
        if (l->file_of[i] == file) arrput(entries, e);
    }
    st_writer *w = NULL;
    bool ok = st_writer_open(&w, path, entries, (int)arrlen(entries), f);
    for (int i = 0; ok && i < st_count(like); i++)
        if (l->file_of[i] == file) ok = source(context, w, i, f);
    arrfree(entries);
    if (ok) return st_writer_commit(w, f);
    st_writer_abort(w);
    return false;
}

bool model_folder_write(const char *output, const st_set *like, int64_t shard_bytes, tensor_source source,
                        void *context, model_folder_size *size, failure *f) {
    arena a = {0};
    layout l;
    make_layout(&l, like, shard_bytes, &a);
    bool ok = file_make_folders(output, f) && remove_file(output, index_name, f);
    for (int i = 0; ok && i < l.n_files; i++)
        ok = write_weights(&l, i, path_join(&a, output, l.names[i]), like, source, context, f);
    ok = ok && remove_old_weights(&l, output, f) && (l.n_files == 1 || write_index(&l, like, output, f));
    *size = (model_folder_size){l.n_files, l.bytes};
    arena_free(&a);
    return ok;
}

/* Weights in any form, hidden files, the card that describes the model as it was, and what training runs left. */
static bool is_left_behind(const char *name) {
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",     ".pt", ".pth",
                                       ".gguf",        ".h5",         ".msgpack", ".ot", ".onnx"};
    static const char *const names[] = {"README.md", "trainer_state.json", "run_state.json", "args.json"};
    if (name[0] == '.') return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i])) return true;
    return false;
}

static bool copy_file(const char *from, const char *to, failure *f) {
    file_map map;
    TRY(file_map_open(&map, from, f));
    bool ok = file_write(to, map.data, map.size, f);
    file_map_close(&map);
    return ok;
}

bool model_folder_copy_others(const char *output, const char *model, failure *f) {
    DIR *dir = opendir(model);
    if (!dir) return fail_errno(f, FAIL_INPUT, "%s", model);
    arena a = {0};
    bool ok = true;
    for (const struct dirent *e; ok && (e = readdir(dir));) {
        struct stat st;
        const char *from = path_join(&a, model, e->d_name);
        if (is_left_behind(e->d_name) || stat(from, &st) != 0 || !S_ISREG(st.st_mode)) continue;
        ok = copy_file(from, path_join(&a, output, e->d_name), f);
    }
    closedir(dir);
    arena_free(&a);
    return ok;
}
