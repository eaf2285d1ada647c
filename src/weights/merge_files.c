/* merge_files.c - names, index and side files of a merged model folder, laid out as transformers does:
 * model.safetensors, or model-00001-of-0000N.safetensors with model.safetensors.index.json. */
#include "weights/merge_files.h"
#include "base/array.h"
#include "base/json.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char index_name[] = "model.safetensors.index.json", single_name[] = "model.safetensors";

static bool has_content(const char *folder) {
    DIR *dir = opendir(folder);
    bool found = false;
    for (const struct dirent *e; dir && !found && (e = readdir(dir));)
        found = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (dir) closedir(dir);
    return found;
}

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool merge_check_output(const merge_options *o, failure *f) {
    if (same_folder(o->output, o->model))
        return fail(f, FAIL_INPUT, "output_dir: %s is the model's own folder", o->output);
    arena a = {0};
    bool adapter = file_exists(path_join(&a, o->output, "adapter_config.json"));
    arena_free(&a);
    if (adapter)
        return fail(
            f, FAIL_INPUT,
            "output_dir: %s holds an adapter, which loaders would apply to the merged weights once more; choose "
            "another folder",
            o->output);
    if (o->overwrite || !has_content(o->output)) return true;
    return fail(f, FAIL_INPUT, "output_dir: %s is not empty; choose another folder or set overwrite_output_dir",
                o->output);
}

static int64_t tensor_bytes(const st_tensor *t) { return t->count * (int64_t)dtype_size(t->type); }

void merge_layout_make(merge_layout *l, const st_set *s, int64_t shard_bytes, arena *a) {
    *l = (merge_layout){.file_of = arena_alloc(a, (size_t)st_count(s) * sizeof *l->file_of), .n_files = 1};
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

bool merge_folder_prepare(const char *output, failure *f) {
    TRY(file_make_folders(output, f));
    return remove_file(output, index_name, f);
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool is_in_layout(const merge_layout *l, const char *name) {
    for (int i = 0; i < l->n_files; i++)
        if (strcmp(l->names[i], name) == 0) return true;
    return false;
}

static bool remove_old_weights(const merge_layout *l, const char *output, failure *f) {
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

static bool write_index(const merge_layout *l, const st_set *s, const char *output, failure *f) {
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

bool merge_folder_finish(const merge_layout *l, const st_set *s, const char *output, failure *f) {
    TRY(remove_old_weights(l, output, f));
    return l->n_files == 1 || write_index(l, s, output, f);
}

/* Weights in any form, hidden files, and the card that describes the model as it was. */
static bool is_left_behind(const char *name) {
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",     ".pt", ".pth",
                                       ".gguf",        ".h5",         ".msgpack", ".ot", ".onnx"};
    if (name[0] == '.' || strcmp(name, "README.md") == 0) return true;
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

bool merge_copy_others(const char *model, const char *output, failure *f) {
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
