/* hub_cache.c - finds a model folder by path or by hub id in the local caches.
 *
 * Hugging Face: CACHE/models--ORG--NAME/refs/main names a snapshot, CACHE/models--ORG--NAME/snapshots/REVISION is the
 * folder.  CACHE is HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub (with
 * XDG_CACHE_HOME in place of ~/.cache).  ModelScope: ORG/NAME below MODELSCOPE_CACHE or ~/.cache/modelscope, in one of
 * its releases' sub-folders, dots of the name written as "___" by some.  A folder counts when it has a config.json.
 * This is the one file that reads the environment. */
#include "weights/hub_cache.h"
#include "base/file.h"
#include "base/text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *model;
    const char **folder;
    arena *a;
    text_buf looked; /* one place a line */
} search;

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static bool is_model_folder(search *s, const char *path) { return file_exists(path_join(s->a, path, "config.json")); }

static bool try_folder(search *s, const char *path) {
    if (is_model_folder(s, path)) return *s->folder = path, true;
    text_printf(&s->looked, "\n  %.300s: %s", path,
                file_is_folder(path) ? "no config.json in it (download not finished?)" : "no such folder");
    return false;
}

/* At most two parts, no part that climbs: "name" or "org/name". */
static bool is_hub_id(const char *model) {
    const char *slash = strchr(model, '/');
    return model[0] && model[0] != '/' && model[0] != '.' && model[0] != '~' && !strstr(model, "..") &&
           (!slash || (slash[1] && slash[1] != '.' && !strchr(slash + 1, '/')));
}

static bool is_plain_name(const char *name) { return name[0] && name[0] != '.' && !strchr(name, '/'); }

/* The revision that refs/main names, or the only snapshot there is; NULL when neither. */
static const char *find_revision(search *s, const char *repository) {
    char *text;
    size_t n;
    failure ignored = {0};
    const char *ref = path_join(s->a, repository, "refs/main");
    if (file_read(&text, &n, 256, ref, &ignored)) {
        while (n && strchr(" \r\n\t", text[n - 1])) n--;
        const char *revision = arena_strndup(s->a, text, n);
        free(text);
        return is_plain_name(revision) ? revision : NULL;
    }
    const char *only = NULL;
    int count = 0;
    DIR *dir = opendir(path_join(s->a, repository, "snapshots"));
    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.' && count++ == 0) only = arena_strdup(s->a, e->d_name);
    if (dir) closedir(dir);
    return count == 1 ? only : NULL;
}

static const char *hugging_face_cache(arena *a) {
    if (variable("HF_HUB_CACHE")) return variable("HF_HUB_CACHE");
    if (variable("HUGGINGFACE_HUB_CACHE")) return variable("HUGGINGFACE_HUB_CACHE");
    if (variable("HF_HOME")) return path_join(a, variable("HF_HOME"), "hub");
    if (variable("XDG_CACHE_HOME")) return path_join(a, variable("XDG_CACHE_HOME"), "huggingface/hub");
    return variable("HOME") ? path_join(a, variable("HOME"), ".cache/huggingface/hub") : NULL;
}

static bool search_hugging_face(search *s) {
    const char *cache = hugging_face_cache(s->a);
    if (!cache) return false;
    const char *slash = strchr(s->model, '/');
    const char *name = slash ? arena_printf(s->a, "models--%.*s--%s", (int)(slash - s->model), s->model, slash + 1)
                             : arena_printf(s->a, "models--%s", s->model);
    const char *repository = path_join(s->a, cache, name);
    const char *revision = find_revision(s, repository);
    if (revision) return try_folder(s, arena_printf(s->a, "%s/snapshots/%s", repository, revision));
    text_printf(&s->looked, "\n  %.300s: %s", repository,
                file_is_folder(repository) ? "neither refs/main nor a single snapshot in it" : "no such folder");
    return false;
}

/* ModelScope's older releases write the dots of a name as "___". */
static const char *without_dots(arena *a, const char *name) {
    text_buf out = {0};
    for (; *name; name++) {
        if (*name == '.') text_puts(&out, "___");
        else text_add(&out, name, 1);
    }
    const char *copy = arena_strdup(a, out.data ? out.data : "");
    text_free(&out);
    return copy;
}

static bool search_modelscope(search *s) {
    static const char *const below[] = {"models", "hub/models", "hub", ""};
    const char *cache = variable("MODELSCOPE_CACHE");
    if (!cache && variable("HOME")) cache = path_join(s->a, variable("HOME"), ".cache/modelscope");
    if (!cache) return false;
    const char *names[] = {s->model, without_dots(s->a, s->model)};
    int n_names = strcmp(names[0], names[1]) ? 2 : 1;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < n_names; k++) {
            const char *folder = below[i][0] ? path_join(s->a, cache, below[i]) : cache;
            if (try_folder(s, path_join(s->a, folder, names[k]))) return true;
        }
    return false;
}

bool hub_find_model(const char **folder, const char *model, arena *a, failure *f) {
    search s = {.model = model, .folder = folder, .a = a};
    if (!model[0]) return fail(f, FAIL_USAGE, "model: no model is given; it is a folder or a hub id");
    bool found = try_folder(&s, arena_strdup(a, model));
    if (!found && is_hub_id(model) && !file_is_folder(model)) found = search_hugging_face(&s) || search_modelscope(&s);
    if (!found) {
        fail(f, FAIL_INPUT, "model: \"%.200s\" is not on this machine; looked at%.1500s\n%s", model, s.looked.data,
             "nothing is downloaded: fetch it first (`hf download` or `modelscope download`), or name a folder");
    }
    text_free(&s.looked);
    return found;
}

const char *hub_own_cache(arena *a) {
    if (variable("XDG_CACHE_HOME")) return path_join(a, variable("XDG_CACHE_HOME"), "liger-sft");
    return variable("HOME") ? path_join(a, variable("HOME"), ".cache/liger-sft") : NULL;
}
