/* test_model_config.c - config.json in its spellings: cases M02-M06, real models' values, and what is refused. */
#include "unit/scratch.h"

#include "model/model_config.h"

#include <math.h>

#define SIZES                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"vocab_size\":100"
#define LLAMA "{\"model_type\":\"llama\"," SIZES ",\"num_key_value_heads\":2"
#define QWEN2 "{\"model_type\":\"qwen2\"," SIZES ",\"num_key_value_heads\":2"

static model_config m;
static arena strings;

static bool read_text(void **state, const char *text, failure *f) {
    arena_free(&strings);
    scratch_puts(state, "config.json", text);
    return model_config_read(&m, scratch_folder(state), &strings, f);
}

static void accept(void **state, const char *text) {
    failure f = {0};
    if (!read_text(state, text, &f)) test_fail("%s: %s", text, f.text);
}

static void refuse(void **state, const char *text, const char *reason) {
    failure f = {0};
    if (read_text(state, text, &f)) test_fail("accepted: %s", text);
    assert_int_equal(f.kind, FAIL_INPUT);
    if (!strstr(f.text, reason)) test_fail("\"%s\" does not say \"%s\"", f.text, reason);
    if (!strstr(f.text, "config.json")) test_fail("\"%s\" does not name the file", f.text);
}

static void assert_frequencies(int n, const int *index, const double *value) {
    float *table = calloc(m.head_dim / 2, sizeof *table);
    model_rope_frequencies(&m, table);
    for (int i = 0; i < n; i++)
        if (fabs(table[index[i]] / value[i] - 1) > 2e-7 * (value[i] < 1e-4 ? 2 : 1))
            test_fail("frequency %d: %.9g, expected %.9g", index[i], table[index[i]], value[i]);
    free(table);
}

static void test_llama3_8b(void **state) {
    accept(state, "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
                  "\"bos_token_id\":128000,\"eos_token_id\":128001,\"hidden_act\":\"silu\",\"hidden_size\":4096,"
                  "\"intermediate_size\":14336,\"max_position_embeddings\":8192,\"model_type\":\"llama\","
                  "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"pretraining_tp\":1,"
                  "\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":500000.0,\"tie_word_embeddings\":false,"
                  "\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"vocab_size\":128256}");
    assert_string_equal(m.family, "llama");
    assert_true(m.d_model == 4096 && m.d_ff == 14336 && m.n_layer == 32 && m.n_head == 32 && m.n_kv_head == 8);
    assert_true(m.head_dim == 128 && m.vocab == 128256 && m.max_position == 8192 && m.stored == DTYPE_BF16);
    assert_true(m.rms_eps == 1e-5f && m.rope.kind == ROPE_DEFAULT && m.rope.theta == 500000);
    assert_true(!m.qkv_bias && !m.o_bias && !m.mlp_bias && !m.qk_norm && !m.tied_head && m.glu == GLU_SILU);
    assert_true(m.bos == 128000 && m.pad == -1 && m.n_eos == 1 && m.eos[0] == 128001);
    for (int l = 0; l < 32; l++) assert_int_equal(m.window[l], 0);
}

static void test_head_dim(void **state) { /* M02 */
    accept(state, LLAMA "}");
    assert_int_equal(m.head_dim, 16);
    accept(state, LLAMA ",\"head_dim\":null}");
    assert_int_equal(m.head_dim, 16);
    accept(state, "{\"model_type\":\"mistral\",\"hidden_size\":40,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                  "\"head_dim\":8,\"intermediate_size\":9,\"num_hidden_layers\":1,\"vocab_size\":5}");
    assert_int_equal(m.head_dim, 8);
    accept(state, "{\"model_type\":\"qwen3\"," SIZES ",\"num_key_value_heads\":4}");
    assert_int_equal(m.head_dim, 128);
    assert_true(m.qk_norm && !m.qkv_bias && !m.o_bias);
    accept(state, "{\"model_type\":\"llama\"," SIZES "}");
    assert_int_equal(m.n_kv_head, 4);
    refuse(state, LLAMA ",\"head_dim\":15}", "even width");
    refuse(state, "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1025}",
           "num_hidden_layers: found 1025, expected 1 to 1024");
    refuse(state, LLAMA ",\"head_dim\":4096}", "head_dim: found 4096, expected 1 to 1024");
    refuse(state, "{\"model_type\":\"llama\"," SIZES ",\"num_key_value_heads\":3}", "cannot share 3");
    refuse(state,
           "{\"model_type\":\"llama\",\"hidden_size\":65,\"intermediate_size\":96,\"num_hidden_layers\":4,"
           "\"num_attention_heads\":4,\"vocab_size\":100}",
           "no multiple");
}

static void test_llama3_rope(void **state) { /* M03 */
    accept(state, LLAMA ",\"head_dim\":16,\"max_position_embeddings\":256,\"rope_theta\":1e4,\"rope_scaling\":{"
                        "\"rope_type\":\"llama3\",\"factor\":4,\"low_freq_factor\":1,\"high_freq_factor\":4,"
                        "\"original_max_position_embeddings\":64}}");
    assert_frequencies(
        8, (int[]){0, 1, 2, 3, 4, 5, 6, 7},
        (double[]){1, .254647909, .0254647909, .00790569415, .0025, .000790569415, .00025, 7.90569415e-05});
    accept(state, LLAMA ",\"head_dim\":64,\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":32.0,"
                        "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,"
                        "\"rope_type\":\"llama3\"}}");
    double expected[32];
    int index[32];
    for (int i = 0; i < 32; i++) {
        index[i] = i;
        expected[i] = pow(500000, -i / 32.0) / (i >= 18 ? 32 : 1);
    }
    expected[15] = 0.00129054793, expected[16] = 0.000429556797, expected[17] = 9.7082878e-05;
    assert_frequencies(32, index, expected);
    assert_frequencies(1, (int[]){31}, (double[]){9.41830673e-08});
    accept(state, LLAMA ",\"head_dim\":128,\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":8.0,"
                        "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,"
                        "\"type\":\"llama3\"}}");
    assert_frequencies(4, (int[]){28, 29, 34, 35},
                       (double[]){pow(500000, -28 / 64.0), 0.00216657076, 0.000178507813, pow(500000, -35 / 64.0) / 8});
}

static void test_rope_spellings(void **state) { /* M04 */
    static const char *const same[] = {
        LLAMA ",\"rope_theta\":1000000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}",
        LLAMA ",\"rope_theta\":1000000.0,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4.0}}",
        LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":1e6}}",
        LLAMA ",\"rope_theta\":1e6,\"rope_parameters\":{\"type\":\"linear\",\"rope_type\":\"linear\",\"factor\":4.0}}",
        LLAMA ",\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},"
              "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":1e6}}",
    };
    float first[8], table[8];
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        accept(state, same[i]);
        model_rope_frequencies(&m, i ? table : first);
        if (i) assert_memory_equal(table, first, sizeof first);
    }
    assert_true(first[0] == 0.25f);
    accept(state, LLAMA "}");
    assert_true(m.rope.theta == 10000);
    accept(state, LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_theta\":5e5}");
    assert_true(m.rope.kind == ROPE_DEFAULT && m.rope.theta == 500000);
    refuse(state, LLAMA ",\"rope_scaling\":{\"rope_type\":\"foo\"}}", "\"foo\" is not supported");
    refuse(state, LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", "\"dynamic\" is not supported");
    refuse(state, LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}", "\"yarn\" is not supported");
    refuse(state, LLAMA ",\"rope_parameters\":{\"rope_type\":\"longrope\"}}", "\"longrope\" is not supported");
    refuse(state, LLAMA ",\"rope_scaling\":{\"factor\":2}}", "no rope_type");
    refuse(state, LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"llama3\",\"factor\":2}}", "which one");
    refuse(state, LLAMA ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":1e6}}", "which one");
    refuse(state,
           LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_theta\":1e6}}",
           "different things");
    refuse(state, LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", "rope_scaling: the key \"factor\" is missing");
    refuse(state, LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "more than 0");
    refuse(state,
           LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":2,\"low_freq_factor\":4,"
                 "\"high_freq_factor\":4}}",
           "is not above");
    refuse(state, LLAMA ",\"rope_scaling\":3}", "found number, expected an object");
    refuse(state, LLAMA ",\"rope_theta\":-1}", "more than 0");
    refuse(state, LLAMA ",\"rope_theta\":\"1e6\"}", "found string");
    refuse(state, LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6}}}", "each kind of layer");
    refuse(state, LLAMA ",\"rope_parameters\":{\"rope_theta\":1e6,\"partial_rotary_factor\":0.5}}", "partial_rotary");
}

static void assert_windows(int a, int b, int c, int d) {
    assert_true(m.window[0] == a && m.window[1] == b && m.window[2] == c && m.window[3] == d);
}

static void test_sliding_windows(void **state) { /* M05 */
    accept(state, QWEN2 ",\"sliding_window\":16,\"max_window_layers\":2,\"use_sliding_window\":false}");
    assert_windows(0, 0, 0, 0);
    accept(state, QWEN2 ",\"sliding_window\":16,\"max_window_layers\":2}");
    assert_windows(0, 0, 0, 0);
    accept(state, QWEN2 ",\"sliding_window\":16,\"max_window_layers\":2,\"use_sliding_window\":true}");
    assert_windows(0, 0, 16, 16);
    accept(state, QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":0}");
    assert_windows(4096, 4096, 4096, 4096);
    accept(state, QWEN2 ",\"use_sliding_window\":true}");
    assert_windows(0, 0, 0, 0); /* max_window_layers is 28 by default */
    accept(state, QWEN2 ",\"sliding_window\":16,\"max_window_layers\":2,\"use_sliding_window\":true,\"layer_types\":["
                        "\"sliding_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"]}");
    assert_windows(16, 0, 0, 16);
#define MISTRAL "{\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":2"
    accept(state, MISTRAL ",\"sliding_window\":7}");
    assert_windows(7, 7, 7, 7);
    accept(state, MISTRAL ",\"sliding_window\":null}");
    assert_windows(0, 0, 0, 0);
    accept(state, MISTRAL "}");
    assert_windows(4096, 4096, 4096, 4096);
    accept(state, LLAMA ",\"sliding_window\":7}"); /* with a warning, as transformers does nothing with it */
    assert_windows(0, 0, 0, 0);
    refuse(state, QWEN2 ",\"layer_types\":[\"full_attention\"]}", "layer_types: found list of 1, expected a list of 4");
    refuse(state, QWEN2 ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"chunked\"]}",
           "layer 3 is \"chunked\"");
    refuse(state,
           QWEN2 ",\"sliding_window\":16,\"layer_types\":[\"sliding_attention\",\"full_attention\","
                 "\"full_attention\",\"full_attention\"]}",
           "use_sliding_window is not true");
    refuse(state, MISTRAL ",\"sliding_window\":-4}", "sliding_window: found -4");
}

static void test_biases(void **state) { /* M06 */
    accept(state, QWEN2 "}");
    assert_true(m.qkv_bias && !m.o_bias && !m.mlp_bias);
    accept(state, LLAMA ",\"attention_bias\":true}");
    assert_true(m.qkv_bias && m.o_bias && !m.mlp_bias);
    accept(state, LLAMA ",\"mlp_bias\":true}");
    assert_true(!m.qkv_bias && !m.o_bias && m.mlp_bias);
    accept(state, "{\"model_type\":\"qwen3\"," SIZES ",\"num_key_value_heads\":2,\"attention_bias\":true}");
    assert_true(m.qkv_bias && m.o_bias && m.qk_norm);
}

static void test_stored_types_and_tokens(void **state) {
    accept(state, LLAMA ",\"torch_dtype\":\"float16\",\"tie_word_embeddings\":true,\"eos_token_id\":[7,9],"
                        "\"pad_token_id\":0,\"bos_token_id\":null}");
    assert_true(m.stored == DTYPE_F16 && m.tied_head && m.n_eos == 2 && m.eos[1] == 9 && m.pad == 0 && m.bos == -1);
    accept(state, LLAMA ",\"dtype\":\"bfloat16\",\"hidden_act\":\"gelu_pytorch_tanh\"}");
    assert_true(m.stored == DTYPE_BF16 && m.glu == GLU_GELU_TANH && m.n_eos == 0);
    accept(state, LLAMA "}");
    assert_true(m.stored == DTYPE_F32);
    refuse(state, LLAMA ",\"dtype\":\"bfloat16\",\"torch_dtype\":\"float16\"}", "which one holds");
    refuse(state, LLAMA ",\"dtype\":\"float8_e4m3fn\"}", "float8_e4m3fn");
    refuse(state, LLAMA ",\"torch_dtype\":\"int32\"}", "int32");
    refuse(state, LLAMA ",\"eos_token_id\":\"2\"}", "eos_token_id");
    refuse(state, LLAMA ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "more than 8");
    scratch_puts(state, "generation_config.json", "{\"eos_token_id\":[128001,9]}");
    accept(state, LLAMA ",\"eos_token_id\":9}");
    assert_true(m.n_eos == 2 && m.eos[0] == 9 && m.eos[1] == 128001);
    scratch_puts(state, "generation_config.json", "{");
    refuse(state, LLAMA "}", "generation_config.json");
}

static void test_refused_models(void **state) {
    static const char *const texts[][2] = {
        {"{\"model_type\":\"falcon\"}", "\"falcon\" models cannot be run exactly: it uses LayerNorm"},
        {"{\"model_type\":\"gemma2\"}", "norms multiply by 1 + weight"},
        {"{\"model_type\":\"mixtral\"}", "mixtures of experts"},
        {"{\"model_type\":\"qwen2_moe\"}", "mixtures of experts"},
        {"{\"model_type\":\"deepseek_v3\"}", "latent"},
        {"{\"model_type\":\"phi3\"}", "fused"},
        {"{\"model_type\":\"gpt2\"}", "learned positions"},
        {"{\"model_type\":\"frob\"}", "found \"frob\", supported are llama, qwen2, qwen3, mistral"},
        {"{\"model_type\":7}", "model_type: found number"},
        {"{}", "the key \"model_type\" is missing"},
        {"[]", "found list, expected an object"},
        {"{\"model_type\":\"llama\"", "not JSON"},
        {LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"]}", "no causal language model"},
        {LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", "quantised (gptq)"},
        {LLAMA ",\"hidden_act\":\"gelu\"}", "hidden_act: \"gelu\""},
        {LLAMA ",\"attention_dropout\":0.1}", "attention_dropout: found 0.1"},
        {LLAMA ",\"rms_norm_eps\":0}", "rms_norm_eps"},
        {LLAMA ",\"rms_norm_eps\":1e999}", "rms_norm_eps"},
        {"{\"model_type\":\"llama\",\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
         "\"vocab_size\":100}",
         "\"hidden_size\" is missing"},
        {"{\"model_type\":\"llama\",\"hidden_size\":4611686018427387904}", "hidden_size: found"},
        {"{\"model_type\":\"llama\",\"hidden_size\":64.5}", "expected an integer"},
        {"{\"model_type\":\"llama\",\"hidden_size\":0}", "expected 1 to 131072"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) refuse(state, texts[i][0], texts[i][1]);
    failure f = {0};
    assert_false(model_config_read(&m, "/nowhere/at/all", &strings, &f));
    assert_non_null(strstr(f.text, "no such model folder"));
}

static void read_fixture(const char *name) {
    arena_free(&strings);
    failure f = {0};
    char folder[512];
    snprintf(folder, sizeof folder, TEST_DIR "/fixtures/models/%s", name);
    assert_done(model_config_read(&m, folder, &strings, &f), &f);
}

static void test_fixtures(void **state) { /* files that transformers wrote, old and new */
    (void)state;
    read_fixture("llama-bias");
    assert_true(m.qkv_bias && m.o_bias && m.mlp_bias && !m.tied_head && m.head_dim == 8);
    read_fixture("llama-tied");
    assert_true(m.tied_head && !m.o_bias);
    read_fixture("llama3-rope");
    assert_true(m.rope.kind == ROPE_LLAMA3 && m.rope.original_max_position == 64 && m.head_dim == 16);
    read_fixture("mistral");
    assert_true(m.window[0] == 4 && m.window[1] == 4 && m.stored == DTYPE_F16);
    read_fixture("qwen2");
    assert_true(m.qkv_bias && !m.o_bias && m.window[0] == 0);
    read_fixture("qwen2-window");
    assert_true(m.qkv_bias && m.window[0] == 0 && m.window[m.n_layer - 1] > 0);
    read_fixture("qwen3");
    assert_true(m.qk_norm && !m.qkv_bias);
}

/* Damaged files, the same every time: read with every size inside its range, or refused. */
static void test_mutations(void **state) {
    const char *path = scratch_path(state, "config.json");
    static const char *const names[] = {"llama-bias", "llama3-rope", "qwen2-window", "qwen3"};
    rng r = {.key = 11};
    int accepted = 0;
    for (int round = 0; round < 4000; round++) {
        arena_free(&strings);
        failure f = {0};
        char *text;
        size_t n;
        char from[512];
        snprintf(from, sizeof from, TEST_DIR "/fixtures/models/%s/config.json", names[round % 4]);
        assert_done(file_read(&text, &n, 1 << 20, from, &f), &f);
        n = scratch_mutate(text, n, &r);
        scratch_write(path, text, n);
        free(text);
        if (!model_config_read(&m, scratch_folder(state), &strings, &f)) {
            assert_true(f.kind == FAIL_INPUT && f.text[0]);
            continue;
        }
        accepted++;
        assert_true(m.n_layer > 0 && m.d_model > 0 && m.head_dim % 2 == 0 && m.n_head % m.n_kv_head == 0);
        assert_true(m.rms_eps > 0 && m.rope.theta > 0 && m.n_eos <= 8);
        for (int l = 0; l < m.n_layer; l++) assert_true(m.window[l] >= 0);
        float *table = calloc(m.head_dim / 2, sizeof *table);
        model_rope_frequencies(&m, table);
        for (int i = 0; i < m.head_dim / 2; i++) assert_true(table[i] >= 0 && !isnan(table[i]));
        free(table);
    }
    assert_in_range(accepted, 1, 3999);
}

static int free_strings(void **state) {
    (void)state;
    arena_free(&strings);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_llama3_8b),
        SCRATCH_TEST(test_head_dim),
        SCRATCH_TEST(test_llama3_rope),
        SCRATCH_TEST(test_rope_spellings),
        SCRATCH_TEST(test_sliding_windows),
        SCRATCH_TEST(test_biases),
        SCRATCH_TEST(test_stored_types_and_tokens),
        SCRATCH_TEST(test_refused_models),
        cmocka_unit_test(test_fixtures),
        SCRATCH_TEST(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, free_strings);
}
