/* adapter.c - adapter_config.json as PEFT writes and reads it.
 *
 * Written is the set of keys that PEFT releases of the last years know: newer keys have defaults there, but older
 * releases stop at a key they do not know.  Read is every release's file: settings that change the result and are not
 * run here are refused by name, others are passed over. */
#include "weights/adapter.h"
#include "base/json.h"
#include "base/log.h"

#include <math.h>
#include <stdlib.h>

/* The release whose keys are written. */
static const char peft_version[] = "0.17.1";

/* Settings that would change what the adapter computes, unless they are empty: null, false, [] or {}. */
static const char *const not_supported[] = {
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "exclude_modules",
    "layer_replication",
    "target_parameters",
    "megatron_config",
    "arrow_config",
    "monteclora_config",
    "trainable_token_indices",
    "kasa_config",
    "alora_invocation_tokens",
};
/* Read below, or without effect on a finished adapter. */
static const char *const known[] = {
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "init_lora_weights",
    "peft_type",
    "peft_version",
    "r",
    "runtime_config",
    "qalora_group_size",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
    "velora_config",
};
/* No model here has more layers, and none needs more names of modules. */
enum { LIST_MAX = 4096 };

static bool check_length(const cJSON *list, const char *key, const char *place, failure *f) {
    int n = cJSON_GetArraySize(list);
    return n <= LIST_MAX || fail(f, FAIL_INPUT, "%s: %s: %d entries, at most %d are read", place, key, n, LIST_MAX);
}

enum { N_NOT_SUPPORTED = sizeof not_supported / sizeof *not_supported, N_KNOWN = sizeof known / sizeof *known };

static bool is_in(const char *word, const char *const *list, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(word, list[i]) == 0) return true;
    return false;
}

static bool is_empty(const cJSON *item) {
    return cJSON_IsNull(item) || cJSON_IsFalse(item) || ((cJSON_IsArray(item) || cJSON_IsObject(item)) && !item->child);
}

static bool check_keys(const cJSON *root, const char *place, failure *f) {
    for (const cJSON *item = root->child; item; item = item->next) {
        if (is_empty(item)) continue;
        if (is_in(item->string, not_supported, N_NOT_SUPPORTED))
            return fail(f, FAIL_INPUT, "%s: %s is set, which is not supported", place, item->string);
        if (!is_in(item->string, known, N_KNOWN))
            log_warning("%s: the key \"%.100s\" is not known here and has no effect", place, item->string);
    }
    return true;
}

static bool check_text(const cJSON *root, const char *key, const char *expected, bool needed, const char *place,
                       failure *f) {
    const char *found = NULL;
    if (needed) TRY(json_need(root, key, place, f));
    TRY(json_get_string(root, key, &found, place, f));
    if (!found || strcmp(found, expected) == 0) return true;
    return fail(f, FAIL_INPUT, "%s: %s: found \"%.60s\", only \"%s\" is supported", place, key, found, expected);
}

/* Methods that start by changing the base weights leave an adapter that does not fit the unchanged base. */
static bool check_init(const cJSON *root, const char *place, failure *f) {
    static const char *const harmless[] = {"gaussian", "orthogonal", "eva", "mini_init"};
    const cJSON *init = json_find(root, "init_lora_weights");
    if (!init || cJSON_IsBool(init)) return true;
    const char *name = cJSON_IsString(init) ? init->valuestring : json_kind(init);
    if (is_in(name, harmless, sizeof harmless / sizeof *harmless)) return true;
    return fail(f, FAIL_INPUT,
                "%s: init_lora_weights: \"%.60s\" changes the base weights, so the adapter does not fit them; save it "
                "again as a plain LoRA",
                place, name);
}

static bool read_numbers(adapter_config *c, const cJSON *root, const char *place, failure *f) {
    int64_t rank = 0;
    TRY(json_need(root, "r", place, f));
    TRY(json_get_int(root, "r", 1, 65536, &rank, place, f));
    c->rank = (int)rank;
    TRY(json_need(root, "lora_alpha", place, f));
    TRY(json_get_double(root, "lora_alpha", &c->alpha, place, f));
    TRY(json_get_double(root, "lora_dropout", &c->dropout, place, f));
    if (!(c->alpha >= 0 && c->alpha <= 1e9))
        return fail(f, FAIL_INPUT, "%s: lora_alpha: found %g, expected 0 to 1e9", place, c->alpha);
    if (!(c->dropout >= 0 && c->dropout < 1))
        return fail(f, FAIL_INPUT, "%s: lora_dropout: found %g, expected 0 up to but not 1", place, c->dropout);
    return json_get_bool(root, "use_rslora", &c->use_rslora, place, f);
}

static void copy_names(adapter_config *c, const char *const *names, int n, arena *a) {
    c->targets = arena_alloc(a, (size_t)n * sizeof *c->targets);
    for (int i = 0; i < n; i++) c->targets[i] = arena_strdup(a, names[i]);
    c->n_targets = n;
}

/* PEFT lets a list entry be the end of a module path ("layers.0.mlp.up_proj"). A list with such entries becomes the
 * regular expression that means the same over whole paths. */
static void join_paths(adapter_config *c, arena *a) {
    bool dotted = false;
    for (int i = 0; i < c->n_targets; i++) dotted = dotted || strchr(c->targets[i], '.');
    if (!dotted) return;
    text_buf t = {0};
    text_puts(&t, "(?:.*\\.)?(?:");
    for (int i = 0; i < c->n_targets; i++) {
        text_puts(&t, i ? "|" : "");
        for (const char *p = c->targets[i]; *p; p++) {
            bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                         *p == '_' || (unsigned char)*p >= 0x80;
            if (!plain) text_puts(&t, "\\");
            text_add(&t, p, 1);
        }
    }
    text_puts(&t, ")");
    c->targets[0] = arena_strdup(a, t.data);
    c->n_targets = 1;
    c->regex = true;
    text_free(&t);
}

/* What "all-linear" stands for. PEFT knows that word in a config it trains with, not in one it loads. */
static const char *const all_linear[] = {"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"};

static bool read_targets(adapter_config *c, const cJSON *root, const char *place, arena *a, failure *f) {
    const cJSON *targets = json_find(root, "target_modules");
    if (cJSON_IsString(targets)) {
        if (strcmp(targets->valuestring, "all-linear") == 0) return copy_names(c, all_linear, 7, a), true;
        const char *pattern = targets->valuestring;
        c->regex = true;
        return copy_names(c, &pattern, 1, a), true;
    }
    if (!cJSON_IsArray(targets) || !targets->child)
        return fail(f, FAIL_INPUT, "%s: target_modules: found %s, expected a list of names or a regular expression",
                    place, cJSON_IsArray(targets) ? "an empty list" : json_kind(targets));
    TRY(check_length(targets, "target_modules", place, f));
    c->targets = arena_alloc(a, (size_t)cJSON_GetArraySize(targets) * sizeof *c->targets);
    for (const cJSON *item = targets->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return fail(f, FAIL_INPUT, "%s: target_modules: found %s, expected a name", place, json_kind(item));
        c->targets[c->n_targets++] = arena_strdup(a, item->valuestring);
    }
    join_paths(c, a);
    return true;
}

static bool add_layer(adapter_config *c, const cJSON *item, const char *place, failure *f) {
    double x = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(x >= 0 && x < 65536 && x == (double)(int)x))
        return fail(f, FAIL_INPUT, "%s: layers_to_transform: expected layer numbers from 0 up", place);
    c->layers[c->n_layers++] = (int)x;
    return true;
}

static bool read_layers(adapter_config *c, const cJSON *root, const char *place, arena *a, failure *f) {
    const cJSON *layers = json_find(root, "layers_to_transform");
    if (!layers || is_empty(layers)) return true;
    const cJSON *pattern = json_find(root, "layers_pattern");
    if (cJSON_IsArray(pattern)) pattern = pattern->child; /* only "layers" names the layers of these families */
    if (pattern && !(cJSON_IsString(pattern) && !pattern->next && strcmp(pattern->valuestring, "layers") == 0))
        return fail(f, FAIL_INPUT, "%s: layers_pattern: only \"layers\" is supported", place);
    TRY(check_length(layers, "layers_to_transform", place, f));
    int n = cJSON_IsArray(layers) ? cJSON_GetArraySize(layers) : 1;
    c->layers = arena_alloc(a, (size_t)n * sizeof *c->layers);
    if (!cJSON_IsArray(layers)) return add_layer(c, layers, place, f);
    for (const cJSON *item = layers->child; item; item = item->next) TRY(add_layer(c, item, place, f));
    return true;
}

static bool read_config(adapter_config *c, const cJSON *root, const char *place, arena *a, failure *f) {
    if (!cJSON_IsObject(root)) return fail(f, FAIL_INPUT, "%s: found %s, expected an object", place, json_kind(root));
    TRY(check_text(root, "peft_type", "LORA", true, place, f));
    TRY(check_text(root, "bias", "none", false, place, f));
    TRY(check_text(root, "task_type", "CAUSAL_LM", false, place, f));
    TRY(check_keys(root, place, f));
    TRY(check_init(root, place, f));
    const char *base = "";
    TRY(json_get_string(root, "base_model_name_or_path", &base, place, f));
    c->base_model = arena_strdup(a, base);
    TRY(read_numbers(c, root, place, f));
    TRY(read_targets(c, root, place, a, f));
    return read_layers(c, root, place, a, f);
}

bool adapter_config_read(adapter_config *c, const char *folder, arena *a, failure *f) {
    if (!file_is_folder(folder)) return fail(f, FAIL_INPUT, "%s: no such adapter folder", folder);
    *c = (adapter_config){0};
    const char *path = path_join(a, folder, "adapter_config.json");
    char *text;
    size_t n;
    TRY(file_read(&text, &n, (size_t)1 << 24, path, f));
    cJSON *root = NULL;
    bool ok = json_parse(&root, text, n, path, f);
    free(text);
    if (ok) ok = read_config(c, root, path, a, f);
    cJSON_Delete(root);
    return ok;
}

double adapter_scale(const adapter_config *c) { return c->alpha / (c->use_rslora ? sqrt(c->rank) : c->rank); }

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static void put_targets(text_buf *t, const adapter_config *c) {
    if (c->regex) {
        json_put_string(t, c->targets[0], strlen(c->targets[0]));
        return;
    }
    const char *const *names = c->targets;
    int n = c->n_targets;
    for (int i = 0; i < c->n_targets; i++)
        if (strcmp(c->targets[i], "all-linear") == 0) names = all_linear, n = 7;
    const char **sorted = xcalloc((size_t)n, sizeof *sorted);
    for (int i = 0; i < n; i++) sorted[i] = names[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    text_puts(t, "[");
    for (int i = 0; i < n; i++) {
        text_puts(t, i ? ",\n    " : "\n    ");
        json_put_string(t, sorted[i], strlen(sorted[i]));
    }
    text_puts(t, "\n  ]");
    free(sorted);
}

static void put_layers(text_buf *t, const adapter_config *c) {
    if (!c->layers) {
        text_puts(t, "null");
        return;
    }
    text_puts(t, "[");
    for (int i = 0; i < c->n_layers; i++) text_printf(t, "%s%d", i ? ",\n    " : "\n    ", c->layers[i]);
    text_puts(t, "\n  ]");
}

/* Keys in alphabetical order, two blanks deep, as PEFT. */
static void put_config(text_buf *t, const adapter_config *c) {
    text_puts(t, "{\n  \"alpha_pattern\": {},\n  \"auto_mapping\": null,\n  \"base_model_name_or_path\": ");
    json_put_string(t, c->base_model, strlen(c->base_model));
    text_puts(t, ",\n  \"bias\": \"none\",\n  \"corda_config\": null,\n  \"eva_config\": null,\n"
                 "  \"exclude_modules\": null,\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n"
                 "  \"init_lora_weights\": true,\n  \"layer_replication\": null,\n  \"layers_pattern\": null,\n"
                 "  \"layers_to_transform\": ");
    put_layers(t, c);
    text_puts(t, ",\n  \"loftq_config\": {},\n  \"lora_alpha\": ");
    json_put_double(t, c->alpha);
    text_puts(t, ",\n  \"lora_bias\": false,\n  \"lora_dropout\": ");
    json_put_double(t, c->dropout);
    text_puts(t, ",\n  \"megatron_config\": null,\n  \"megatron_core\": \"megatron.core\",\n"
                 "  \"modules_to_save\": null,\n  \"peft_type\": \"LORA\",\n");
    text_printf(t, "  \"peft_version\": \"%s\",\n  \"qalora_group_size\": 16,\n  \"r\": %d,\n", peft_version, c->rank);
    text_puts(t, "  \"rank_pattern\": {},\n  \"revision\": null,\n  \"target_modules\": ");
    put_targets(t, c);
    text_printf(t,
                ",\n  \"target_parameters\": null,\n  \"task_type\": \"CAUSAL_LM\",\n"
                "  \"trainable_token_indices\": null,\n  \"use_dora\": false,\n  \"use_qalora\": false,\n"
                "  \"use_rslora\": %s\n}\n",
                c->use_rslora ? "true" : "false");
}

bool adapter_config_write(const adapter_config *c, const char *folder, failure *f) {
    arena a = {0};
    text_buf text = {0};
    put_config(&text, c);
    bool ok = file_write(path_join(&a, folder, "adapter_config.json"), text.data, text.size, f);
    text_free(&text);
    arena_free(&a);
    return ok;
}

bool adapter_open(st_set **out, const char *folder, failure *f) {
    arena a = {0};
    const char *path = path_join(&a, folder, "adapter_model.safetensors");
    bool ok = true;
    if (!file_exists(path) && file_exists(path_join(&a, folder, "adapter_model.bin")))
        ok = fail(f, FAIL_INPUT, "%s: adapter_model.bin is a pickle file, which is not read; save the adapter as %s",
                  folder, "adapter_model.safetensors");
    if (ok) ok = st_open_file(out, path, f);
    arena_free(&a);
    return ok;
}
