/* model_weights.c - matches params and stored tensors by name, once, and checks every shape.
 *
 * Params carry the names of Hugging Face's files (adapters those of PEFT's), so matching is a look-up.  Nothing may be
 * left over in silence: a bias that the program does not know of would change the result. */
#include "model/model_weights.h"
#include "base/array.h"
#include "base/log.h"
#include "base/text.h"

#include <stdio.h>

static const char adapter_prefix[] = "base_model.model.";
static const char head_name[] = "lm_head.weight", embedding_name[] = "model.embed_tokens.weight";

enum { MAX_NAMED = 8 }; /* names in a message */

static bool same_tensor(const st_tensor *a, const st_tensor *b) {
    if (a->type != b->type || a->n_dims != b->n_dims || memcmp(a->dim, b->dim, sizeof a->dim) != 0) return false;
    return memcmp(a->data, b->data, (size_t)a->count * dtype_size(a->type)) == 0;
}

bool model_weights_settle_head(model_config *m, const st_set *s, failure *f) {
    const st_tensor *head = st_find(s, head_name), *embedding = st_find(s, embedding_name);
    if (!head && !m->tied_head)
        return fail(f, FAIL_INPUT,
                    "%s is in none of the weight files, and config.json does not tie it to the embedding "
                    "(tie_word_embeddings is false or absent); set it to true if this model shares the two",
                    head_name);
    if (!head || !m->tied_head || (embedding && same_tensor(head, embedding))) return true;
    log_warning("%s: config.json ties the head to the embedding, but the stored %s differs from it; the stored one is "
                "used, untied",
                st_path(s, head), head_name);
    m->tied_head = false;
    return true;
}

dtype model_weights_stored(const char *name, void *set) {
    const st_tensor *t = st_find(set, name);
    return t && t->type != DTYPE_I32 ? t->type : DTYPE_F32;
}

static bool is_adapter_name(const char *name) { return strncmp(name, adapter_prefix, sizeof adapter_prefix - 1) == 0; }

static void print_shape(char *out, size_t room, const int64_t *dim, int n) {
    size_t used = (size_t)snprintf(out, room, "[");
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(out + used, room - used, "%s%lld", i ? ", " : "", (long long)dim[i]);
    snprintf(out + used, room - used, "]");
}

/* A vector's value has one column; its tensor has one dimension, except an adapter's B of rank 1. */
static bool fits(const graph_value *v, const st_tensor *t) {
    if (v->cols == 1 && t->n_dims == 1) return t->dim[0] == v->rows;
    return t->n_dims == 2 && t->dim[0] == v->rows && t->dim[1] == v->cols;
}

static bool check_tensor(const graph_value *v, const st_set *s, const st_tensor *t, const char *expects, failure *f) {
    if (t->type == DTYPE_I32)
        return fail(f, FAIL_INPUT, "%s: %s: type I32, expected F32, BF16 or F16", st_path(s, t), t->name);
    if (fits(v, t)) return true;
    char found[128], expected[128];
    print_shape(found, sizeof found, t->dim, t->n_dims);
    print_shape(expected, sizeof expected, (int64_t[]){v->rows, v->cols}, v->cols == 1 ? 1 : 2);
    return fail(f, FAIL_INPUT, "%s: %s: shape %s, %s expects %s", st_path(s, t), t->name, found, expects, expected);
}

typedef struct {
    char names[1024];
    size_t used;
    int n;
} name_list;

static void list_add(name_list *list, const char *name) {
    size_t room = sizeof list->names - list->used;
    if (list->n < MAX_NAMED && room > 120)
        list->used += (size_t)snprintf(list->names + list->used, room, "%s%.100s", list->n ? ", " : "", name);
    else if (list->n == MAX_NAMED) snprintf(list->names + list->used, room, ", ...");
    list->n++;
}

typedef struct {
    char *key;
    vid value;
} param_map; /* stb_ds: name -> value */

/* Params of the base model or of the adapter, by name; the caller frees it. */
static param_map *map_params(const graph *g, bool adapter) {
    param_map *map = NULL;
    for (vid v = 1; v < arrlen(g->values); v++) {
        const graph_value *value = &g->values[v];
        if (value->role == ROLE_PARAM && is_adapter_name(value->name) == adapter)
            shput(map, (char *)(uintptr_t)value->name, v);
    }
    return map;
}

static bool find_all(const graph *g, const param_map *map, const st_set *s, const char *expects,
                     const st_tensor **by_value, failure *f) {
    name_list missing = {0};
    bool short_names = false;
    for (ptrdiff_t i = 0; i < shlen(map); i++) {
        const char *name = map[i].key;
        const st_tensor *t = st_find(s, name);
        if (!t) {
            list_add(&missing, name);
            short_names = short_names || (strncmp(name, "model.", 6) == 0 && st_find(s, name + 6));
            continue;
        }
        TRY(check_tensor(&g->values[map[i].value], s, t, expects, f));
        by_value[map[i].value] = t;
    }
    if (!missing.n) return true;
    return fail(
        f, FAIL_INPUT, "%s: %d of %td tensors that %s asks for are missing: %s%s",
        st_count(s) ? st_path(s, st_at(s, 0)) : "the weight files", missing.n, shlen(map), expects, missing.names,
        short_names ? " (the files name some without \"model.\": a bare decoder, saved without its head?)" : "");
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Stored by older releases, made anew from config.json; and a tied head's second copy (see settle_head). */
static bool is_harmless(const char *name, const model_config *m) {
    return ends_with(name, ".rotary_emb.inv_freq") || (m->tied_head && strcmp(name, head_name) == 0);
}

bool model_weights_find(const graph *g, const st_set *s, const model_config *m, const st_tensor **by_value,
                        failure *f) {
    param_map *map = map_params(g, false);
    bool ok = find_all(g, map, s, "config.json", by_value, f);
    name_list unexpected = {0};
    for (int i = 0; ok && i < st_count(s); i++) {
        const char *name = st_at(s, i)->name;
        if (shgeti(map, name) < 0 && !is_harmless(name, m)) list_add(&unexpected, name);
    }
    shfree(map);
    if (unexpected.n)
        log_warning("%s: %d tensors are not part of a %s model as config.json describes it, and have no effect: %s",
                    st_path(s, st_at(s, 0)), unexpected.n, m->family, unexpected.names);
    return ok;
}

bool adapter_weights_find(const graph *g, const st_set *adapter, const st_tensor **by_value, failure *f) {
    param_map *map = map_params(g, true);
    bool ok = find_all(g, map, adapter, "adapter_config.json", by_value, f);
    name_list unexpected = {0};
    for (int i = 0; ok && i < st_count(adapter); i++)
        if (!map || shgeti(map, st_at(adapter, i)->name) < 0) list_add(&unexpected, st_at(adapter, i)->name);
    shfree(map);
    if (unexpected.n)
        ok = fail(f, FAIL_INPUT, "%s: %d tensors fit no layer that adapter_config.json targets: %s",
                  st_path(adapter, st_at(adapter, 0)), unexpected.n, unexpected.names);
    return ok;
}
