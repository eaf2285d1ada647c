/* test_adapter.c - adapter_config.json: PEFT's files read, ours written (A01, A03), and what is refused. */
#include "unit/scratch.h"

#include "base/log.h"
#include "weights/adapter.h"

#include <math.h>

static arena strings;

static bool read_text(void **state, const char *text, adapter_config *c, failure *f) {
    arena_free(&strings);
    scratch_puts(state, "adapter_config.json", text);
    return adapter_config_read(c, scratch_folder(state), &strings, f);
}

static void refuse(void **state, const char *more, const char *reason) {
    char text[1000];
    snprintf(text, sizeof text,
             "{\"peft_type\":\"LORA\",\"target_modules\":[\"q_proj\"],\"r\":8,\"lora_alpha\":16%s%s}",
             more[0] ? "," : "", more);
    failure f = {0};
    adapter_config c;
    if (read_text(state, text, &c, &f)) test_fail("accepted: %s", text);
    assert_int_equal(f.kind, FAIL_INPUT);
    if (!strstr(f.text, reason)) test_fail("\"%s\" does not say \"%s\"", f.text, reason);
    if (!strstr(f.text, "adapter_config.json")) test_fail("\"%s\" does not name the file", f.text);
}

static adapter_config accept(void **state, const char *text) {
    failure f = {0};
    adapter_config c;
    assert_done(read_text(state, text, &c, &f), &f);
    return c;
}

#define LORA "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16,\"target_modules\":"

static void test_read(void **state) {
    adapter_config c = accept(state, LORA "[\"q_proj\",\"v_proj\"]}");
    assert_true(c.rank == 8 && c.alpha == 16 && c.dropout == 0 && !c.use_rslora && !c.regex && !c.layers);
    assert_int_equal(c.n_targets, 2);
    assert_string_equal(c.targets[1], "v_proj");
    assert_string_equal(c.base_model, "");
    c = accept(state, LORA "\".*layers\\\\.1\\\\..*q_proj\",\"lora_dropout\":0.05,\"use_rslora\":true,"
                           "\"layers_to_transform\":3,\"base_model_name_or_path\":\"org/name\"}");
    assert_true(c.regex && c.n_targets == 1 && c.dropout == 0.05 && c.use_rslora && c.n_layers == 1 &&
                c.layers[0] == 3);
    assert_string_equal(c.targets[0], ".*layers\\.1\\..*q_proj");
    assert_string_equal(c.base_model, "org/name");
    c = accept(state, LORA "\"all-linear\",\"layers_to_transform\":[2,0],\"layers_pattern\":[\"layers\"]}");
    assert_true(!c.regex && c.n_targets == 7 && c.n_layers == 2 && c.layers[0] == 2 && c.layers[1] == 0);
    c = accept(state, LORA "[\"layers.0.mlp.up_proj\",\"q_proj\"]}");
    assert_true(c.regex && c.n_targets == 1);
    assert_string_equal(c.targets[0], "(?:.*\\.)?(?:layers\\.0\\.mlp\\.up_proj|q_proj)");
}

static void test_scale(void **state) { /* A01 */
    (void)state;
    static const struct {
        int rank;
        double plain, stable;
    } rows[] = {{8, 2, 5.656854}, {16, 1, 4}, {64, .25, 2}};
    for (int i = 0; i < 3; i++) {
        adapter_config c = {.rank = rows[i].rank, .alpha = 16};
        assert_true(adapter_scale(&c) == rows[i].plain);
        c.use_rslora = true;
        assert_true(fabs(adapter_scale(&c) - rows[i].stable) < 5e-7);
    }
}

static void test_refused(void **state) {
    static const char *const rows[][2] = {
        {"\"use_dora\":true", "use_dora is set"},
        {"\"bias\":\"all\"", "bias: found \"all\", only \"none\""},
        {"\"modules_to_save\":[\"lm_head\"]", "modules_to_save is set"},
        {"\"rank_pattern\":{\"q_proj\":4}", "rank_pattern is set"},
        {"\"alpha_pattern\":{\"q_proj\":4}", "alpha_pattern is set"},
        {"\"fan_in_fan_out\":true", "fan_in_fan_out is set"},
        {"\"lora_bias\":true", "lora_bias is set"},
        {"\"layer_replication\":[[0,2]]", "layer_replication is set"},
        {"\"trainable_token_indices\":[1]", "trainable_token_indices is set"},
        {"\"exclude_modules\":[\"k_proj\"]", "exclude_modules is set"},
        {"\"init_lora_weights\":\"pissa\"", "\"pissa\" changes the base weights"},
        {"\"init_lora_weights\":\"loftq\"", "\"loftq\" changes the base weights"},
        {"\"task_type\":\"SEQ_CLS\"", "task_type: found \"SEQ_CLS\""},
        {"\"lora_dropout\":1", "lora_dropout: found 1"},
        {"\"layers_to_transform\":[-1]", "layers_to_transform"},
        {"\"layers_to_transform\":[0],\"layers_pattern\":\"blocks\"", "layers_pattern"},
        {"\"use_rslora\":1", "use_rslora: found number"},
        {"\"r\":9", "stands twice"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) refuse(state, rows[i][0], rows[i][1]);
    static const char *const texts[][2] = {
        {"{\"peft_type\":\"IA3\"}", "peft_type: found \"IA3\", only \"LORA\""},
        {"{\"r\":8}", "\"peft_type\" is missing"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":16,\"target_modules\":[\"q\"]}", "\"r\" is missing"},
        {"{\"peft_type\":\"LORA\",\"r\":8,\"target_modules\":[\"q\"]}", "\"lora_alpha\" is missing"},
        {LORA "[]}", "an empty list"},
        {LORA "null}", "target_modules: found nothing"},
        {LORA "[1]}", "target_modules: found number"},
        {"{\"peft_type\":\"LORA\",\"r\":0,\"lora_alpha\":16,\"target_modules\":[\"q\"]}", "r: found 0"},
        {"{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":-1,\"target_modules\":[\"q\"]}", "lora_alpha: found -1"},
        {"[]", "found list"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        failure f = {0};
        adapter_config c;
        if (read_text(state, texts[i][0], &c, &f)) test_fail("accepted: %s", texts[i][0]);
        if (!strstr(f.text, texts[i][1])) test_fail("\"%s\" does not say \"%s\"", f.text, texts[i][1]);
    }
}

/* The text was compared with PEFT's: json.dumps(indent=2, sort_keys=True) of a LoraConfig with these settings gives
 * the same values for the same keys. */
static const char golden[] = "{\n"
                             "  \"alpha_pattern\": {},\n"
                             "  \"auto_mapping\": null,\n"
                             "  \"base_model_name_or_path\": \"org/a \\\"b\\\"\",\n"
                             "  \"bias\": \"none\",\n"
                             "  \"corda_config\": null,\n"
                             "  \"eva_config\": null,\n"
                             "  \"exclude_modules\": null,\n"
                             "  \"fan_in_fan_out\": false,\n"
                             "  \"inference_mode\": true,\n"
                             "  \"init_lora_weights\": true,\n"
                             "  \"layer_replication\": null,\n"
                             "  \"layers_pattern\": null,\n"
                             "  \"layers_to_transform\": [\n    1,\n    0\n  ],\n"
                             "  \"loftq_config\": {},\n"
                             "  \"lora_alpha\": 32,\n"
                             "  \"lora_bias\": false,\n"
                             "  \"lora_dropout\": 0.05,\n"
                             "  \"megatron_config\": null,\n"
                             "  \"megatron_core\": \"megatron.core\",\n"
                             "  \"modules_to_save\": null,\n"
                             "  \"peft_type\": \"LORA\",\n"
                             "  \"peft_version\": \"0.17.1\",\n"
                             "  \"qalora_group_size\": 16,\n"
                             "  \"r\": 8,\n"
                             "  \"rank_pattern\": {},\n"
                             "  \"revision\": null,\n"
                             "  \"target_modules\": [\n    \"q_proj\",\n    \"v_proj\"\n  ],\n"
                             "  \"target_parameters\": null,\n"
                             "  \"task_type\": \"CAUSAL_LM\",\n"
                             "  \"trainable_token_indices\": null,\n"
                             "  \"use_dora\": false,\n"
                             "  \"use_qalora\": false,\n"
                             "  \"use_rslora\": true\n"
                             "}\n";

static void test_write(void **state) {
    const char *targets[] = {"v_proj", "q_proj"};
    int layers[] = {1, 0};
    adapter_config c = {.base_model = "org/a \"b\"",
                        .rank = 8,
                        .alpha = 32,
                        .dropout = 0.05,
                        .use_rslora = true,
                        .targets = targets,
                        .n_targets = 2,
                        .layers = layers,
                        .n_layers = 2};
    failure f = {0};
    assert_done(adapter_config_write(&c, scratch_folder(state), &f), &f);
    char *text;
    size_t n;
    assert_done(file_read(&text, &n, 1 << 20, scratch_path(state, "adapter_config.json"), &f), &f);
    assert_string_equal(text, golden);
    free(text);
    adapter_config back;
    assert_done(adapter_config_read(&back, scratch_folder(state), &strings, &f), &f);
    assert_string_equal(back.base_model, c.base_model);
    assert_true(back.rank == 8 && back.alpha == 32 && back.dropout == 0.05 && back.use_rslora && !back.regex);
    assert_true(back.n_targets == 2 && back.n_layers == 2 && back.layers[0] == 1);
    assert_string_equal(back.targets[0], "q_proj");
    const char *pattern = ".*\\.q_proj";
    adapter_config r = {.base_model = "", .rank = 1, .alpha = 0.5, .targets = &pattern, .n_targets = 1, .regex = true};
    assert_done(adapter_config_write(&r, scratch_folder(state), &f), &f);
    assert_done(adapter_config_read(&back, scratch_folder(state), &strings, &f), &f);
    assert_true(back.regex && back.alpha == 0.5 && !back.use_rslora && !back.layers);
    assert_string_equal(back.targets[0], pattern);
    const char *all = "all-linear"; /* PEFT refuses a list that holds this word */
    adapter_config w = {.base_model = "", .rank = 1, .alpha = 1, .targets = &all, .n_targets = 1};
    assert_done(adapter_config_write(&w, scratch_folder(state), &f), &f);
    assert_done(adapter_config_read(&back, scratch_folder(state), &strings, &f), &f);
    const char *seven[] = {"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"};
    assert_int_equal(back.n_targets, 7);
    for (int i = 0; i < 7; i++) assert_string_equal(back.targets[i], seven[i]);
}

static void test_open(void **state) {
    failure f = {0};
    st_set *s;
    assert_false(adapter_open(&s, scratch_folder(state), &f));
    assert_non_null(strstr(f.text, "adapter_model.safetensors"));
    scratch_puts(state, "adapter_model.bin", "x");
    assert_false(adapter_open(&s, scratch_folder(state), &f));
    assert_non_null(strstr(f.text, "pickle"));
    assert_done(adapter_open(&s, TEST_DIR "/fixtures/models/qwen2/adapter", &f), &f); /* PEFT wrote it */
    const st_tensor *A = st_find(s, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    assert_non_null(A);
    adapter_config c;
    arena_free(&strings);
    assert_done(adapter_config_read(&c, TEST_DIR "/fixtures/models/qwen2/adapter", &strings, &f), &f);
    assert_int_equal(A->dim[0], c.rank);
    st_close(s);
}

static void test_mutations(void **state) { /* PEFT's own file, damaged */
    rng r = {.key = 13};
    int accepted = 0;
    log_quiet(true);
    for (int round = 0; round < 500; round++) {
        arena_free(&strings);
        failure f = {0};
        char *text;
        size_t n;
        assert_done(file_read(&text, &n, 1 << 20, TEST_DIR "/fixtures/models/qwen3/adapter/adapter_config.json", &f),
                    &f);
        n = scratch_mutate(text, n, &r);
        scratch_write(scratch_path(state, "adapter_config.json"), text, n);
        free(text);
        adapter_config c;
        if (!adapter_config_read(&c, scratch_folder(state), &strings, &f)) {
            assert_true(f.kind == FAIL_INPUT && f.text[0]);
            continue;
        }
        accepted++;
        assert_true(c.rank > 0 && c.alpha >= 0 && c.dropout >= 0 && c.dropout < 1 && c.n_targets > 0);
        assert_true(isfinite(adapter_scale(&c)));
    }
    assert_in_range(accepted, 1, 499);
}

static int free_strings(void **state) {
    (void)state;
    arena_free(&strings);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_read),  cmocka_unit_test(test_scale), SCRATCH_TEST(test_refused),
        SCRATCH_TEST(test_write), SCRATCH_TEST(test_open),      SCRATCH_TEST(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, free_strings);
}
