/* test_model_weights.c - params against stored tensors on the fixture models: every one found, nothing left over in
 * silence (M06), the four cases of a tied head (M07), vocabulary rows (M08), adapter names (A03). */
#include "unit/scratch.h"

#include "base/array.h"
#include "model/model_weights.h"
#include "pass/pass.h"
#include "weights/adapter.h"

#include <fcntl.h>

#define MODELS TEST_DIR "/fixtures/models/"

typedef struct {
    arena memory;
    model_config m;
    st_set *set;
    graph g;
    const st_tensor **by_value;
    failure f;
} fixture;

static void open_model(fixture *x, const char *name) {
    *x = (fixture){0};
    assert_done(model_config_read(&x->m, arena_printf(&x->memory, MODELS "%s", name), &x->memory, &x->f), &x->f);
    assert_done(st_open_folder(&x->set, arena_printf(&x->memory, MODELS "%s", name), &x->f), &x->f);
}

static void build(fixture *x) {
    graph_init(&x->g, DTYPE_F32);
    model_build(&x->g, &x->m, 8, model_weights_stored, x->set);
    x->by_value = arena_alloc(&x->memory, arrlen(x->g.values) * sizeof *x->by_value);
}

static void close_model(fixture *x) {
    if (x->g.values) graph_free(&x->g);
    st_close(x->set);
    arena_free(&x->memory);
}

/* The set's tensors in a new file, one of them left out, some added. */
static void rewrite(fixture *x, const char *path, const char *without, const st_entry *more, int n_more) {
    st_entry *entries = NULL;
    for (int i = 0; i < st_count(x->set); i++) {
        const st_tensor *t = st_at(x->set, i);
        if (without && strcmp(t->name, without) == 0) continue;
        st_entry e = {t->name, t->type, t->n_dims, {t->dim[0], t->dim[1], t->dim[2], t->dim[3]}, t->data};
        arrput(entries, e);
    }
    for (int i = 0; i < n_more; i++) arrput(entries, more[i]);
    assert_done(st_write(path, entries, (int)arrlen(entries), &x->f), &x->f);
    arrfree(entries);
    st_set *changed;
    assert_done(st_open_file(&changed, path, &x->f), &x->f);
    st_close(x->set);
    x->set = changed;
}

static void test_every_family(void **state) {
    (void)state;
    static const char *const names[] = {"llama",   "llama-bias", "llama-tied",   "llama3-rope",
                                        "mistral", "qwen2",      "qwen2-window", "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fixture x;
        open_model(&x, names[i]);
        bool tied = x.m.tied_head;
        assert_done(model_weights_settle_head(&x.m, x.set, &x.f), &x.f);
        assert_int_equal(x.m.tied_head, tied);
        build(&x);
        assert_done(model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f), &x.f);
        int found = 0;
        for (vid v = 0; v < arrlen(x.g.values); v++) {
            const graph_value *p = &x.g.values[v];
            bool is_param = v && p->role == ROLE_PARAM;
            assert_ptr_equal(x.by_value[v], is_param ? st_find(x.set, p->name) : NULL);
            if (!is_param) continue;
            assert_non_null(x.by_value[v]);
            assert_int_equal(x.by_value[v]->type, p->type); /* the stored type */
            assert_int_equal(x.by_value[v]->count, value_count(p));
            found++;
        }
        assert_int_equal(found, st_count(x.set)); /* each tensor once */
        close_model(&x);
    }
}

/* What the call writes to standard error. */
static void capture(int *saved, const char *path) {
    fflush(stderr);
    *saved = dup(2);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, 2);
    close(fd);
}
static void captured(int saved, const char *path, char **text) {
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    failure f = {0};
    size_t n;
    assert_done(file_read(text, &n, 1 << 20, path, &f), &f);
}

static void test_missing_and_unexpected(void **state) { /* M06 */
    fixture x;
    open_model(&x, "qwen2");
    rewrite(&x, scratch_path(state, "m.safetensors"), "model.layers.1.self_attn.k_proj.bias", NULL, 0);
    build(&x);
    assert_false(model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f));
    assert_non_null(strstr(x.f.text, "1 of "));
    assert_non_null(strstr(x.f.text, "are missing: model.layers.1.self_attn.k_proj.bias"));
    close_model(&x);

    open_model(&x, "qwen2");
    const float zeros[16] = {0};
    const st_entry more[] = {{"foo.bias", DTYPE_F32, 1, {4}, zeros},
                             {"model.layers.0.self_attn.rotary_emb.inv_freq", DTYPE_F32, 1, {4}, zeros}};
    rewrite(&x, scratch_path(state, "n.safetensors"), NULL, more, 2);
    build(&x);
    int saved;
    char *said;
    capture(&saved, scratch_path(state, "stderr"));
    bool ok = model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f);
    captured(saved, scratch_path(state, "stderr"), &said);
    assert_true(ok);
    assert_non_null(strstr(said, "1 tensors are not part of a qwen2 model"));
    assert_non_null(strstr(said, "foo.bias"));
    assert_null(strstr(said, "inv_freq"));
    free(said);
    close_model(&x);
}

static void test_shapes(void **state) { /* also M08: the vocabulary's rows */
    fixture x;
    open_model(&x, "llama");
    x.m.vocab += 1;
    build(&x);
    assert_false(model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f));
    assert_non_null(strstr(x.f.text, "model.embed_tokens.weight: shape [67, 32], config.json expects [68, 32]"));
    assert_non_null(strstr(x.f.text, "llama/model.safetensors"));
    close_model(&x);
    open_model(&x, "llama");
    const float data[32 * 32] = {0};
    const st_entry flat = {"model.norm.weight", DTYPE_F32, 2, {1, 32}, data};
    rewrite(&x, scratch_path(state, "m.safetensors"), "model.norm.weight", &flat, 1);
    build(&x);
    assert_false(model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f));
    assert_non_null(strstr(x.f.text, "model.norm.weight: shape [1, 32], config.json expects [32]"));
    close_model(&x);
    open_model(&x, "llama");
    const st_entry whole = {"model.norm.weight", DTYPE_I32, 1, {32}, data};
    rewrite(&x, scratch_path(state, "n.safetensors"), "model.norm.weight", &whole, 1);
    build(&x);
    assert_false(model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f));
    assert_non_null(strstr(x.f.text, "model.norm.weight: type I32"));
    close_model(&x);
}

static st_entry head_like_embedding(fixture *x, bool changed) {
    const st_tensor *t = st_find(x->set, "model.embed_tokens.weight");
    size_t bytes = (size_t)t->count * dtype_size(t->type);
    uint8_t *copy = arena_alloc(&x->memory, bytes);
    memcpy(copy, t->data, bytes);
    if (changed) copy[bytes - 2] ^= 1;
    return (st_entry){"lm_head.weight", t->type, 2, {t->dim[0], t->dim[1]}, copy};
}

static void test_tied_heads(void **state) { /* M07 */
    fixture x;
    open_model(&x, "llama-tied"); /* tied and absent */
    assert_done(model_weights_settle_head(&x.m, x.set, &x.f), &x.f);
    assert_true(x.m.tied_head);
    close_model(&x);

    open_model(&x, "llama-tied"); /* tied, present, equal: one buffer, no word about it */
    st_entry head = head_like_embedding(&x, false);
    rewrite(&x, scratch_path(state, "equal.safetensors"), NULL, &head, 1);
    int saved;
    char *said;
    capture(&saved, scratch_path(state, "stderr"));
    bool ok = model_weights_settle_head(&x.m, x.set, &x.f);
    build(&x);
    ok = ok && model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f);
    captured(saved, scratch_path(state, "stderr"), &said);
    assert_true(ok && x.m.tied_head);
    assert_string_equal(said, "");
    free(said);
    assert_int_equal(graph_find(&x.g, "lm_head.weight"), 0);
    close_model(&x);

    open_model(&x, "llama-tied"); /* tied, present, different: the stored head is used, with a warning */
    head = head_like_embedding(&x, true);
    rewrite(&x, scratch_path(state, "different.safetensors"), NULL, &head, 1);
    capture(&saved, scratch_path(state, "stderr"));
    ok = model_weights_settle_head(&x.m, x.set, &x.f);
    captured(saved, scratch_path(state, "stderr"), &said);
    assert_true(ok && !x.m.tied_head);
    assert_non_null(strstr(said, "the stored one is used"));
    free(said);
    build(&x);
    assert_done(model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f), &x.f);
    assert_ptr_equal(x.by_value[graph_find(&x.g, "lm_head.weight")], st_find(x.set, "lm_head.weight"));
    close_model(&x);

    open_model(&x, "llama"); /* untied and absent */
    rewrite(&x, scratch_path(state, "absent.safetensors"), "lm_head.weight", NULL, 0);
    assert_false(model_weights_settle_head(&x.m, x.set, &x.f));
    assert_non_null(strstr(x.f.text, "lm_head.weight is in none of the weight files"));
    close_model(&x);
}

static void test_bare_decoder(void **state) { /* names without "model.": the message says so */
    fixture x;
    open_model(&x, "llama");
    const st_tensor *t = st_find(x.set, "model.norm.weight");
    const st_entry bare = {"norm.weight", t->type, 1, {t->dim[0]}, t->data};
    rewrite(&x, scratch_path(state, "m.safetensors"), "model.norm.weight", &bare, 1);
    build(&x);
    assert_false(model_weights_find(&x.g, x.set, &x.m, x.by_value, &x.f));
    assert_non_null(strstr(x.f.text, "without \"model.\""));
    close_model(&x);
}

static void open_adapter(fixture *x, const char *name, adapter_config *c) {
    open_model(x, name);
    build(x);
    const char *folder = arena_printf(&x->memory, MODELS "%s/adapter", name);
    assert_done(adapter_config_read(c, folder, &x->memory, &x->f), &x->f);
    st_close(x->set);
    assert_done(adapter_open(&x->set, folder, &x->f), &x->f);
    lora_options o = {.rank = c->rank,
                      .alpha = (float)c->alpha,
                      .use_rslora = c->use_rslora,
                      .targets = c->targets,
                      .n_targets = c->n_targets,
                      .regex = c->regex,
                      .layers = c->layers,
                      .n_layers = c->n_layers};
    assert_done(pass_lora(&x->g, &o, &x->f), &x->f);
    x->by_value = arena_alloc(&x->memory, arrlen(x->g.values) * sizeof *x->by_value);
}

static void test_adapters(void **state) { /* A03: files that PEFT wrote; "llama" targets whole module paths */
    static const char *const names[] = {"llama", "llama-bias",   "llama3-rope", "mistral",
                                        "qwen2", "qwen2-window", "qwen3"};
    adapter_config c;
    fixture x;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        open_adapter(&x, names[i], &c);
        assert_done(adapter_weights_find(&x.g, x.set, x.by_value, &x.f), &x.f);
        int found = 0;
        for (vid v = 1; v < arrlen(x.g.values); v++) found += x.by_value[v] != NULL;
        assert_int_equal(found, st_count(x.set));
        close_model(&x);
    }
    const char *name = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight";
    open_adapter(&x, "llama", &c);
    const st_tensor *A = st_find(x.set, name);
    st_entry renamed = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight",
                        A->type,
                        2,
                        {A->dim[0], A->dim[1]},
                        A->data};
    rewrite(&x, scratch_path(state, "m.safetensors"), name, &renamed, 1);
    assert_false(adapter_weights_find(&x.g, x.set, x.by_value, &x.f));
    assert_non_null(strstr(x.f.text, "are missing: base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"));
    close_model(&x);
    open_adapter(&x, "llama", &c);
    rewrite(&x, scratch_path(state, "n.safetensors"), NULL, &renamed, 1);
    assert_false(adapter_weights_find(&x.g, x.set, x.by_value, &x.f));
    assert_non_null(strstr(x.f.text, "lora_A.default.weight"));
    close_model(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family), SCRATCH_TEST(test_missing_and_unexpected), SCRATCH_TEST(test_shapes),
        SCRATCH_TEST(test_tied_heads),       SCRATCH_TEST(test_bare_decoder),           SCRATCH_TEST(test_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
