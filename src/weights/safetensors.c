/* safetensors.c - the tensors of one file or of a model folder, found by name.
 *
 * Files stay mapped as long as the set is open: opening reads headers only, and weights come from the page cache when
 * they are used.  With model.safetensors.index.json exactly the files it lists are opened, and index and files must
 * agree. */
#include "weights/safetensors.h"
#include "base/array.h"
#include "base/log.h"
#include "weights/st_header.h"

#include <dirent.h>
#include <stdio.h>

typedef struct {
    file_map map;
    const char *path;
    int first; /* index of its first tensor */
} st_file;

struct st_set {
    arena strings;
    st_file *files;            /* stb_ds arrays */
    st_tensor *tensors;        /* in the order of the files */
    const st_tensor **by_name; /* sorted; when all files are open */
    st_meta *metadata;
};

/* A file that the index names. */
typedef struct {
    const char *name;
    int file;
} shard;

static int file_of(const st_set *s, ptrdiff_t tensor) {
    int low = 0, high = (int)arrlen(s->files) - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (s->files[middle].first <= tensor) low = middle;
        else high = middle - 1;
    }
    return low;
}

static bool add_file(st_set *s, const char *path, failure *f) {
    st_file file = {.path = arena_strdup(&s->strings, path), .first = (int)arrlen(s->tensors)};
    TRY(file_map_open(&file.map, path, f));
    arrput(s->files, file); /* closed with the set from here on */
    return st_header_read(&file.map, file.path, &s->strings, &s->tensors, &s->metadata, f);
}

/* Of two with one name the one in the earlier file comes first. */
static int by_name(const void *a, const void *b) {
    const st_tensor *x = *(const st_tensor *const *)a, *y = *(const st_tensor *const *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x > y) - (x < y);
}

/* Sorted, not hashed: whoever writes a file could choose names that all fall into one place of a hash table. */
static bool sort_names(st_set *s, failure *f) {
    ptrdiff_t n = arrlen(s->tensors);
    for (ptrdiff_t i = 0; i < n; i++) arrput(s->by_name, &s->tensors[i]);
    if (n) qsort(s->by_name, (size_t)n, sizeof *s->by_name, by_name);
    for (ptrdiff_t i = 1; i < n; i++) {
        const st_tensor *t = s->by_name[i], *before = s->by_name[i - 1];
        if (strcmp(t->name, before->name) == 0)
            return st_fail(f, st_path(s, t), t->name, "also stands in %s", st_path(s, before));
    }
    return true;
}

bool st_open_file(st_set **out, const char *path, failure *f) {
    st_set *s = xcalloc(1, sizeof *s);
    if (add_file(s, path, f) && sort_names(s, f)) {
        *out = s;
        return true;
    }
    st_close(s);
    return false;
}

/* A shard is a plain name inside the folder. */
static bool is_plain_name(const char *name) {
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int by_shard_name(const void *a, const void *b) {
    return strcmp(((const shard *)a)->name, ((const shard *)b)->name);
}

static const shard *find_shard(const shard *shards, const char *name) {
    shard key = {.name = name};
    return shards ? bsearch(&key, shards, arrlenu(shards), sizeof key, by_shard_name) : NULL;
}

/* Shards of the weight map (their names stay there), each once, sorted by name. */
static bool list_shards(const cJSON *map, const char *index_path, shard **shards, failure *f) {
    for (const cJSON *item = map->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return st_fail(f, index_path, item->string, "found %s, expected a file name", json_kind(item));
        if (!is_plain_name(item->valuestring))
            return st_fail(f, index_path, item->string, "the file \"%.200s\" is not a plain name in this folder",
                           item->valuestring);
        arrput(*shards, ((shard){.name = item->valuestring}));
    }
    if (!arrlen(*shards)) return fail(f, FAIL_INPUT, "%s: weight_map is empty", index_path);
    qsort(*shards, arrlenu(*shards), sizeof **shards, by_shard_name);
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < arrlen(*shards); i++)
        if (i == 0 || strcmp((*shards)[i].name, (*shards)[n - 1].name) != 0) (*shards)[n++] = (*shards)[i];
    arrsetlen(*shards, n);
    return true;
}

static bool check_shards_exist(const char *folder, const char *index_path, const shard *shards, failure *f) {
    arena a = {0};
    text_buf missing = {0};
    int n = 0;
    for (ptrdiff_t i = 0; i < arrlen(shards); i++) {
        if (file_exists(path_join(&a, folder, shards[i].name))) continue;
        text_printf(&missing, "%s%s", n++ ? ", " : "", shards[i].name);
    }
    if (n)
        fail(f, FAIL_INPUT, "%s: %d of its %td files are missing in the folder: %.1200s", index_path, n, arrlen(shards),
             missing.data);
    text_free(&missing);
    arena_free(&a);
    return n == 0;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Names of the folder's other START*.safetensors files, with commas between; returns how many. */
static int list_other_files(const char *folder, const char *start, const shard *shards, text_buf *names) {
    DIR *dir = opendir(folder);
    int n = 0;
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        if (!ends_with(e->d_name, ".safetensors") || strncmp(e->d_name, start, strlen(start)) != 0) continue;
        if (find_shard(shards, e->d_name)) continue;
        text_printf(names, "%s%s", n++ ? ", " : "", e->d_name);
    }
    if (dir) closedir(dir);
    return n;
}

/* Files named like weights of this model; adapters and the like may lie there without a word. */
static void note_other_files(const char *folder, const shard *shards) {
    text_buf names = {0};
    if (list_other_files(folder, "model", shards, &names))
        log_info("note: %s: not read, not part of the model: %.1000s", folder, names.data);
    text_free(&names);
}

/* Every tensor of the index lies in the file that the index names for it. */
static bool check_index(const st_set *s, const cJSON *map, const shard *shards, const char *index_path, failure *f) {
    for (const cJSON *item = map->child; item; item = item->next) {
        const st_tensor *t = st_find(s, item->string);
        if (!t)
            return st_fail(f, index_path, item->string, "listed in %.200s, but that file has no such tensor",
                           item->valuestring);
        int found = file_of(s, t - s->tensors);
        if (found != find_shard(shards, item->valuestring)->file)
            return st_fail(f, index_path, item->string, "listed in %.200s, found in %.200s", item->valuestring,
                           s->files[found].path);
    }
    return true;
}

static bool open_shards(st_set *s, const char *folder, const cJSON *map, shard **shards, const char *index_path,
                        failure *f) {
    TRY(list_shards(map, index_path, shards, f));
    TRY(check_shards_exist(folder, index_path, *shards, f));
    for (ptrdiff_t i = 0; i < arrlen(*shards); i++) {
        const char *path = path_join(&s->strings, folder, (*shards)[i].name);
        (*shards)[i].file = (int)arrlen(s->files);
        TRY(add_file(s, path, f));
    }
    TRY(sort_names(s, f));
    TRY(check_index(s, map, *shards, index_path, f));
    note_other_files(folder, *shards);
    return true;
}

static bool open_index(st_set *s, const char *folder, const char *index_path, failure *f) {
    char *text;
    size_t n;
    TRY(file_read(&text, &n, ST_MAX_HEADER, index_path, f));
    cJSON *root = NULL;
    bool ok = json_parse(&root, text, n, index_path, f);
    free(text);
    const cJSON *map = ok ? json_find(root, "weight_map") : NULL;
    if (ok && !cJSON_IsObject(map))
        ok = fail(f, FAIL_INPUT, "%s: weight_map: found %s, expected an object", index_path, json_kind(map));
    shard *shards = NULL;
    if (ok) ok = open_shards(s, folder, map, &shards, index_path, f);
    arrfree(shards);
    cJSON_Delete(root);
    return ok;
}

static bool no_weights(const char *folder, failure *f) {
    if (!file_is_folder(folder)) return fail(f, FAIL_INPUT, "%s: no such folder", folder);
    text_buf names = {0};
    int n = list_other_files(folder, "", NULL, &names);
    if (n)
        fail(f, FAIL_INPUT,
             "%s: neither model.safetensors nor model.safetensors.index.json, and %d other file%s: %.1000s; which "
             "of them make the model cannot be known without an index",
             folder, n, n == 1 ? "" : "s", names.data);
    else
        fail(f, FAIL_INPUT,
             "%s: no weights here: neither model.safetensors nor model.safetensors.index.json (pytorch_model.bin "
             "and other forms must be converted to safetensors first)",
             folder);
    text_free(&names);
    return false;
}

static bool open_folder(st_set *s, const char *folder, failure *f) {
    const char *index_path = path_join(&s->strings, folder, "model.safetensors.index.json");
    if (file_exists(index_path)) return open_index(s, folder, index_path, f);
    const char *single = path_join(&s->strings, folder, "model.safetensors");
    if (!file_exists(single)) return no_weights(folder, f);
    TRY(add_file(s, single, f));
    TRY(sort_names(s, f));
    shard *known = NULL;
    arrput(known, ((shard){.name = "model.safetensors"}));
    note_other_files(folder, known);
    arrfree(known);
    return true;
}

bool st_open_folder(st_set **out, const char *folder, failure *f) {
    st_set *s = xcalloc(1, sizeof *s);
    if (open_folder(s, folder, f)) {
        *out = s;
        return true;
    }
    st_close(s);
    return false;
}

void st_close(st_set *s) {
    if (!s) return;
    for (ptrdiff_t i = 0; i < arrlen(s->files); i++) file_map_close(&s->files[i].map);
    arrfree(s->files);
    arrfree(s->tensors);
    arrfree(s->by_name);
    arrfree(s->metadata);
    arena_free(&s->strings);
    free(s);
}

int st_count(const st_set *s) { return (int)arrlen(s->tensors); }
const st_tensor *st_at(const st_set *s, int i) { return &s->tensors[i]; }

const st_tensor *st_find(const st_set *s, const char *name) {
    ptrdiff_t low = 0, high = arrlen(s->by_name);
    while (low < high) {
        ptrdiff_t middle = (low + high) / 2;
        int order = strcmp(name, s->by_name[middle]->name);
        if (order == 0) return s->by_name[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

const char *st_metadata(const st_set *s, const char *key) {
    ptrdiff_t n = arrlen(s->metadata); /* a handful */
    for (ptrdiff_t i = 0; i < n; i++)
        if (strcmp(s->metadata[i].key, key) == 0) return s->metadata[i].value;
    return NULL;
}

const char *st_path(const st_set *s, const st_tensor *t) { return s->files[file_of(s, t - s->tensors)].path; }
