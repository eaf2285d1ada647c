/* model_config.c - config.json into model_config.
 *
 * Every number is checked against a range, so that products of sizes fit 64 bits later.  What would change the result
 * and is not run exactly (dropout in attention, quantised weights, other activations) is refused; keys without effect
 * on training are not read. */
#include "model/model_config.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/family.h"
#include "model/model_rope.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const cJSON *root;
    const family *family;
    model_config *m;
    arena *a;
    const char *place; /* the file */
    failure *f;
} reader;

/* Such files have a few KB. */
static bool read_json(cJSON **out, const char *path, failure *f) {
    char *text;
    size_t n;
    TRY(file_read(&text, &n, (size_t)1 << 24, path, f));
    bool ok = json_parse(out, text, n, path, f);
    free(text);
    return ok;
}

static bool has_key(const reader *r, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(r->root, key) != NULL; /* null counts */
}

static bool read_size(reader *r, const char *key, int high, int *out) {
    int64_t value = *out;
    TRY(json_get_int(r->root, key, 1, high, &value, r->place, r->f));
    *out = (int)value;
    return true;
}

static bool need_size(reader *r, const char *key, int high, int *out) {
    return json_need(r->root, key, r->place, r->f) && read_size(r, key, high, out);
}

static bool read_sizes(reader *r) {
    model_config *m = r->m;
    TRY(need_size(r, "hidden_size", 1 << 17, &m->d_model));
    TRY(need_size(r, "intermediate_size", 1 << 20, &m->d_ff));
    TRY(need_size(r, "num_hidden_layers", 1024, &m->n_layer)); /* plan_make takes seconds for so many */
    TRY(need_size(r, "num_attention_heads", 4096, &m->n_head));
    TRY(need_size(r, "vocab_size", 1 << 24, &m->vocab));
    m->n_kv_head = has_key(r, "num_key_value_heads") || !r->family->n_kv_head ? m->n_head : r->family->n_kv_head;
    TRY(read_size(r, "num_key_value_heads", 4096, &m->n_kv_head));
    if (m->n_head % m->n_kv_head)
        return fail(r->f, FAIL_INPUT, "%s: %d query heads cannot share %d key/value heads evenly", r->place, m->n_head,
                    m->n_kv_head);
    bool implicit = !json_find(r->root, "head_dim") && !r->family->head_dim;
    if (implicit && m->d_model % m->n_head)
        return fail(r->f, FAIL_INPUT, "%s: no head_dim, and hidden_size %d is no multiple of num_attention_heads %d",
                    r->place, m->d_model, m->n_head);
    m->head_dim = implicit ? m->d_model / m->n_head : r->family->head_dim;
    TRY(read_size(r, "head_dim", 1024, &m->head_dim));
    if (m->head_dim % 2 || m->head_dim > 1024)
        return fail(r->f, FAIL_INPUT, "%s: heads %d wide, expected an even width up to 1024", r->place, m->head_dim);
    m->max_position = 2048;
    return read_size(r, "max_position_embeddings", 1 << 30, &m->max_position);
}

static bool read_activation(reader *r) {
    const char *name = "silu";
    TRY(json_get_string(r->root, "hidden_act", &name, r->place, r->f));
    r->m->glu = GLU_SILU;
    if (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0) return true;
    r->m->glu = GLU_GELU_TANH;
    if (strcmp(name, "gelu_pytorch_tanh") == 0 || strcmp(name, "gelu_new") == 0) return true;
    return fail(r->f, FAIL_INPUT, "%s: hidden_act: \"%.60s\" is not supported; silu and gelu_pytorch_tanh are",
                r->place, name);
}

static bool read_numerics(reader *r) {
    model_config *m = r->m;
    double eps = 1e-6, dropout = 0;
    TRY(json_get_double(r->root, "rms_norm_eps", &eps, r->place, r->f));
    if (!(eps > 0 && eps < 1))
        return fail(r->f, FAIL_INPUT, "%s: rms_norm_eps: found %g, expected more than 0 and less than 1", r->place,
                    eps);
    m->rms_eps = (float)eps;
    TRY(json_get_double(r->root, "attention_dropout", &dropout, r->place, r->f));
    if (dropout != 0)
        return fail(r->f, FAIL_INPUT, "%s: attention_dropout: found %g, only 0 is supported", r->place, dropout);
    TRY(json_get_bool(r->root, "tie_word_embeddings", &m->tied_head, r->place, r->f));
    TRY(read_activation(r));
    return model_rope_read(r->root, &m->rope, m->max_position, r->place, r->f);
}

static bool read_biases(reader *r) {
    const family *row = r->family;
    bool attention = false, mlp = false;
    TRY(json_get_bool(r->root, "attention_bias", &attention, r->place, r->f));
    TRY(json_get_bool(r->root, "mlp_bias", &mlp, r->place, r->f));
    r->m->o_bias = row->reads_attention_bias && attention;
    r->m->qkv_bias = row->qkv_bias || r->m->o_bias;
    r->m->mlp_bias = row->reads_mlp_bias && mlp;
    r->m->qk_norm = row->qk_norm;
    return true;
}

static bool read_stored(reader *r) {
    const char *old = NULL, *name = NULL;
    TRY(json_get_string(r->root, "torch_dtype", &old, r->place, r->f));
    TRY(json_get_string(r->root, "dtype", &name, r->place, r->f));
    dtype other;
    r->m->stored = other = DTYPE_F32; /* transformers' default */
    if (name && (!dtype_parse(name, &r->m->stored) || r->m->stored == DTYPE_I32))
        return fail(r->f, FAIL_INPUT, "%s: dtype: \"%.60s\" is not supported; bfloat16, float16 and float32 are",
                    r->place, name);
    if (old && (!dtype_parse(old, &other) || other == DTYPE_I32))
        return fail(r->f, FAIL_INPUT, "%s: torch_dtype: \"%.60s\" is not supported; bfloat16, float16 and float32 are",
                    r->place, old);
    if (name && old && r->m->stored != other)
        return fail(r->f, FAIL_INPUT, "%s: dtype is \"%.60s\", torch_dtype is \"%.60s\": which one holds?", r->place,
                    name, old);
    if (!name) r->m->stored = other;
    return true;
}

/* What each layer is by layer_types; *given says whether the file has the list. */
static bool read_layer_types(reader *r, bool *sliding, bool *given) {
    const cJSON *list = json_find(r->root, "layer_types");
    *given = list != NULL;
    if (!list) return true;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != r->m->n_layer)
        return fail(r->f, FAIL_INPUT, "%s: layer_types: found %s of %d, expected a list of %d", r->place,
                    json_kind(list), cJSON_GetArraySize(list), r->m->n_layer);
    int l = 0;
    for (const cJSON *item = list->child; item; item = item->next, l++) {
        const char *name = cJSON_IsString(item) ? item->valuestring : json_kind(item);
        sliding[l] = strcmp(name, "sliding_attention") == 0;
        if (!sliding[l] && strcmp(name, "full_attention") != 0)
            return fail(r->f, FAIL_INPUT,
                        "%s: layer_types: layer %d is \"%.60s\"; full_attention and sliding_attention are supported",
                        r->place, l, name);
    }
    return true;
}

/* The width of the window, 0 when it is switched off. transformers' default is 4096; an explicit null means none. */
static bool read_window_width(reader *r, int *width) {
    bool on = r->family->window == WINDOW_ALL;
    if (r->family->window == WINDOW_GATED) TRY(json_get_bool(r->root, "use_sliding_window", &on, r->place, r->f));
    *width = on && !has_key(r, "sliding_window") ? 4096 : 0;
    int found = 0;
    TRY(read_size(r, "sliding_window", 1 << 30, &found));
    if (on && found) *width = found;
    if (found && r->family->window == WINDOW_NONE)
        log_warning("%s: sliding_window %d has no effect on %s models", r->place, found, r->m->family);
    return true;
}

static bool read_windows(reader *r) {
    model_config *m = r->m;
    int width = 0, first = r->family->window == WINDOW_GATED ? 28 : 0;
    TRY(read_window_width(r, &width));
    int64_t max_window_layers = first;
    TRY(json_get_int(r->root, "max_window_layers", 0, 1 << 20, &max_window_layers, r->place, r->f));
    if (r->family->window == WINDOW_GATED) first = (int)max_window_layers;
    bool *sliding = arena_alloc(r->a, (size_t)m->n_layer * sizeof *sliding), given;
    TRY(read_layer_types(r, sliding, &given));
    m->window = arena_alloc(r->a, (size_t)m->n_layer * sizeof *m->window);
    for (int l = 0; l < m->n_layer; l++) {
        if (!given) sliding[l] = width && l >= first;
        else if (sliding[l] && !width)
            return fail(r->f, FAIL_INPUT, "%s: layer_types: layer %d slides, but there is no sliding window%s",
                        r->place, l, r->family->window == WINDOW_GATED ? " (use_sliding_window is not true)" : "");
        m->window[l] = sliding[l] ? width : 0;
    }
    return true;
}

static bool read_token_id(reader *r, const char *key, int *out) {
    int64_t id = -1;
    TRY(json_get_int(r->root, key, -1, INT32_MAX, &id, r->place, r->f));
    *out = (int)id;
    return true;
}

static bool add_eos(const cJSON *item, model_config *m, const char *place, failure *f) {
    double x = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(x >= 0 && x <= INT32_MAX && x == (double)(int)x))
        return fail(f, FAIL_INPUT, "%s: eos_token_id: expected token ids from 0 up, a number or a list", place);
    for (int i = 0; i < m->n_eos; i++)
        if (m->eos[i] == (int)x) return true;
    if (m->n_eos == sizeof m->eos / sizeof *m->eos)
        return fail(f, FAIL_INPUT, "%s: eos_token_id: more than %d ids", place, m->n_eos);
    m->eos[m->n_eos++] = (int)x;
    return true;
}

static bool add_eos_ids(const cJSON *root, model_config *m, const char *place, failure *f) {
    const cJSON *ids = json_find(root, "eos_token_id");
    if (!ids) return true;
    if (!cJSON_IsArray(ids)) return add_eos(ids, m, place, f);
    for (const cJSON *item = ids->child; item; item = item->next) TRY(add_eos(item, m, place, f));
    return true;
}

/* Instruct models often list their end-of-turn token there only. */
static bool read_generation_config(reader *r, const char *folder) {
    const char *path = path_join(r->a, folder, "generation_config.json");
    if (!file_exists(path)) return true;
    cJSON *root;
    TRY(read_json(&root, path, r->f));
    bool ok = add_eos_ids(root, r->m, path, r->f);
    cJSON_Delete(root);
    return ok;
}

/* A classifier or an embedding model of the same family has no head to train. */
static bool check_architecture(reader *r) {
    const cJSON *list = json_find(r->root, "architectures");
    for (const cJSON *item = cJSON_IsArray(list) ? list->child : NULL; item; item = item->next) {
        const char *end = cJSON_IsString(item) ? strstr(item->valuestring, "ForCausalLM") : NULL;
        if (!end || end[strlen("ForCausalLM")])
            return fail(r->f, FAIL_INPUT, "%s: architectures: \"%.100s\" is no causal language model", r->place,
                        cJSON_IsString(item) ? item->valuestring : json_kind(item));
    }
    const cJSON *quantised = json_find(r->root, "quantization_config");
    if (!quantised) return true;
    const char *method = "unknown";
    TRY(json_get_string(quantised, "quant_method", &method, r->place, r->f));
    return fail(r->f, FAIL_INPUT,
                "%s: quantization_config: the weights are quantised (%.60s), which is not supported; take the original "
                "BF16, F16 or F32 model",
                r->place, method);
}

static bool read_config(reader *r) {
    const char *model_type = NULL;
    if (!cJSON_IsObject(r->root))
        return fail(r->f, FAIL_INPUT, "%s: found %s, expected an object", r->place, json_kind(r->root));
    TRY(json_need(r->root, "model_type", r->place, r->f));
    TRY(json_get_string(r->root, "model_type", &model_type, r->place, r->f));
    TRY(family_find(&r->family, model_type, r->place, r->f));
    r->m->family = r->family->model_type;
    TRY(check_architecture(r));
    TRY(read_sizes(r));
    TRY(read_numerics(r));
    TRY(read_biases(r));
    TRY(read_windows(r));
    TRY(read_stored(r));
    TRY(read_token_id(r, "bos_token_id", &r->m->bos));
    TRY(read_token_id(r, "pad_token_id", &r->m->pad));
    return add_eos_ids(r->root, r->m, r->place, r->f);
}

bool model_config_read(model_config *m, const char *folder, arena *a, failure *f) {
    if (!file_is_folder(folder)) return fail(f, FAIL_INPUT, "%s: no such model folder", folder);
    *m = (model_config){0};
    reader r = {.m = m, .a = a, .place = path_join(a, folder, "config.json"), .f = f};
    cJSON *root;
    TRY(read_json(&root, r.place, f));
    r.root = root;
    bool ok = read_config(&r) && read_generation_config(&r, folder);
    cJSON_Delete(root);
    return ok;
}
