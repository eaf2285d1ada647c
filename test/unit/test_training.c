/* test_training.c - whole runs of the trainer over rows of ids made here: what a step divides by, what is skipped, what
 * is counted, what moves (cases L01, L03, M04, M09, O01, O03, Z02).
 *
 * A run is a config, a session and train_run; its lines of metrics.jsonl are read back. */
#include "scratch.h"

#include "base/json.h"
#include "fixture_run.h"
#include "train/save.h"
#include "train/training_run.h"

typedef struct {
    arena memory;
    config c;
    session s;
    run_summary sum;
    double *loss, *norm; /* stb_ds, a step each */
    bool ok;
    failure f;
} training;

/* Starts a session on a model folder; the flags end in NULL. */
static void open_training(training *t, void **state, const char *model, const char *const *flags) {
    const char *all[48] = {
        "--model",   model,   "--device",          "cpu",  "--output_dir", scratch_path(state, "out"),
        "--packing", "false", "--dataset_shuffle", "false"};
    int n = 10;
    *t = (training){0};
    for (int i = 0; flags[i]; i++) all[n++] = flags[i];
    char **argv = arena_alloc(&t->memory, sizeof *argv * (size_t)(n + 1));
    for (int i = 0; i < n; i++) argv[i] = arena_strdup(&t->memory, all[i]);
    log_quiet(true);
    omp_set_num_threads(1);
    MUST(config_read(&t->c, n, argv, &t->memory, f));
    MUST(session_open_model(&t->s, &t->c, f) && session_open_weights(&t->s, f));
    MUST(train_build(&t->s, f) && session_start(&t->s, true, f));
}

static void read_steps(training *t, const char *path) {
    char *text;
    size_t n;
    MUST(file_read(&text, &n, 1 << 20, path, f));
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        cJSON *step = cJSON_ParseWithLength(line, (size_t)(end - line));
        if (!cJSON_HasObjectItem(step, "loss")) { /* a line about a skipped step */
            cJSON_Delete(step);
            continue;
        }
        const cJSON *loss = json_find(step, "loss"), *norm = json_find(step, "grad_norm");
        arrput(t->loss, cJSON_IsNumber(loss) ? loss->valuedouble : NAN);
        arrput(t->norm, cJSON_IsNumber(norm) ? norm->valuedouble : NAN);
        cJSON_Delete(step);
    }
    free(text);
}

static void run_training(training *t, void **state, const dataset *d) {
    report *r;
    run *steps;
    MUST(report_open(&r, &t->c, false, f));
    MUST(run_open(&steps, &t->s, d, NULL, f));
    int out = dup(1); /* the lines of progress are no test's output */
    fflush(stdout);
    assert_true(freopen("/dev/null", "w", stdout) != NULL);
    t->ok = run_train(steps, NULL, r, 0, &t->sum, &t->f);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    report_close(r);
    run_close(steps);
    read_steps(t, scratch_path(state, "out/metrics.jsonl"));
}

static void close_training(training *t) {
    session_close(&t->s);
    arrfree(t->loss);
    arrfree(t->norm);
    arena_free(&t->memory);
}

/* Trained weights, one after the other (stb_ds). */
static float *trained(const training *t) {
    float *all = NULL;
    for (vid v = 1; v < arrlen(t->s.g.values); v++) {
        const graph_value *value = &t->s.g.values[v];
        if (value->role != ROLE_PARAM || !value->trainable) continue;
        size_t n = (size_t)value_count(value);
        memcpy(arraddnptr(all, n), executor_data(t->s.x, v), n * sizeof *all);
    }
    return all;
}

/* Largest difference over the largest value. */
static double difference(const float *a, const float *b) {
    double most = 0, top = 0;
    assert_int_equal(arrlen(a), arrlen(b));
    for (int64_t i = 0; i < arrlen(a); i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]));
        most = fmax(most, fabs((double)a[i] - (double)b[i])), top = fmax(top, fabs((double)b[i]));
    }
    return most / top;
}

static void add_row(dataset *d, const int32_t *ids, int n, int labels) {
    if (!d->start) arrput(d->start, 0);
    for (int i = 0; i < n; i++) {
        arrput(d->tokens, ids[i]);
        arrput(d->labels, i > 0 && i >= n - labels);
    }
    arrput(d->start, arrlen(d->tokens));
    arrput(d->source, arrlen(d->start) - 1);
    arrput(d->path, 0);
}

/* n ids below `vocab` that depend on `key`. */
static void add_random(dataset *d, uint64_t key, int n, int labels, int vocab) {
    int32_t ids[64];
    rng r = {key, 0};
    for (int i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&r, (uint64_t)vocab);
    add_row(d, ids, n, labels);
}

#define FIXTURE(name) TEST_DIR "/fixtures/models/" name
#define FLAGS(...)    ((const char *const[]){__VA_ARGS__, NULL})

/* L01: 8 rows with 1 to 30 labels and one with none, dealt in three ways; SGD-like steps (see test_train.sh). The loss
 * is the sum over all rows divided once, as eight runs of one row say. */
static void rows_dealt_in_any_way(void **state) {
    static const int labels[8] = {1, 30, 2, 0, 17, 1, 5, 9};
    static const char *const deals[3][2] = {{"8", "1"}, {"1", "8"}, {"2", "4"}};
    dataset d = {0};
    for (int i = 0; i < 8; i++) add_random(&d, 70 + (uint64_t)i, labels[i] + 3, labels[i], 67);
    double sum = 0, first_loss = 0, first_norm = 0;
    float *first = NULL;
    for (int k = 0; k < 3; k++) {
        training t;
        open_training(&t, state, FIXTURE("llama"),
                      FLAGS("--per_device_train_batch_size", deals[k][0], "--gradient_accumulation_steps", deals[k][1],
                            "--max_length", "40", "--adapter", FIXTURE("llama/adapter"), "--adam_epsilon", "1",
                            "--learning_rate", "0.5", "--max_steps", "2"));
        for (int i = 0; i < 8 && k == 0; i++) {
            dataset row = {0};
            eval_result e;
            add_random(&row, 70 + (uint64_t)i, labels[i] + 3, labels[i], 67);
            MUST(train_evaluate(&t.s, &row, &e, f));
            assert_int_equal(e.label_tokens, labels[i]);
            sum += labels[i] ? e.loss * labels[i] : 0;
            dataset_free(&row);
        }
        run_training(&t, state, &d);
        assert_true(t.ok && arrlen(t.loss) == 2);
        assert_int_equal(t.sum.label_tokens, 2 * 65);
        float *weights = trained(&t);
        if (k == 0) first_loss = t.loss[0], first_norm = t.norm[0], first = weights;
        assert_true(fabs(t.loss[0] - sum / 65) <= 1e-6 * sum / 65);
        assert_true(fabs(t.loss[0] - first_loss) <= 1e-6 * first_loss);
        assert_true(fabs(t.norm[0] - first_norm) <= 1e-6 * first_norm);
        assert_true(difference(weights, first) <= 1e-6);
        if (k) arrfree(weights);
        close_training(&t);
    }
    arrfree(first);
    dataset_free(&d);
}

/* A model folder in the scratch folder: the fixture's config with `from` replaced by `to`, and its tensors, through
 * `edit` (may be NULL). */
static const char *write_variant(void **state, const char *fixture, const char *from, const char *to,
                                 void (*edit)(const char *name, float *w, int64_t n)) {
    failure f = {0};
    arena a = {0};
    st_set *set;
    char *text;
    size_t size;
    assert_done(file_read(&text, &size, 1 << 16, path_join(&a, fixture, "config.json"), &f), &f);
    char *at = strstr(text, from);
    assert_non_null(at);
    char *changed = arena_printf(&a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    scratch_puts(state, "model/config.json", changed);
    free(text);
    assert_done(st_open_folder(&set, fixture, &f), &f);
    st_entry *entries = NULL;
    for (int i = 0; i < st_count(set); i++) {
        const st_tensor *t = st_at(set, i);
        float *w = fixture_floats(t);
        if (edit) edit(t->name, w, t->count);
        arrput(entries, ((st_entry){t->name, DTYPE_F32, t->n_dims, {t->dim[0], t->dim[1]}, w}));
    }
    assert_done(st_write(scratch_path(state, "model/model.safetensors"), entries, (int)arrlen(entries), &f), &f);
    for (int i = 0; i < arrlen(entries); i++) free((void *)(uintptr_t)entries[i].data);
    arrfree(entries);
    st_close(set);
    arena_free(&a);
    return scratch_path(state, "model");
}

/* One layer that adds nothing to the embedding, one-hot embeddings, a head that puts 50 on the id after the input's. */
static const char *write_successor_model(void **state) {
    enum { D = 16 };
    static float zero[4 * D * D], one[D], table[D * D], head[D * D];
    for (int i = 0; i < D; i++) one[i] = table[i * D + i] = 1, head[(i + 1) % D * D + i] = 50 / 4.0f;
#define LAYER(part) "model.layers.0." part ".weight"
    const st_entry entries[] = {{"model.embed_tokens.weight", DTYPE_F32, 2, {D, D}, table},
                                {"lm_head.weight", DTYPE_F32, 2, {D, D}, head},
                                {"model.norm.weight", DTYPE_F32, 1, {D}, one},
                                {LAYER("input_layernorm"), DTYPE_F32, 1, {D}, one},
                                {LAYER("post_attention_layernorm"), DTYPE_F32, 1, {D}, one},
                                {LAYER("self_attn.q_proj"), DTYPE_F32, 2, {D, D}, zero},
                                {LAYER("self_attn.k_proj"), DTYPE_F32, 2, {D, D}, zero},
                                {LAYER("self_attn.v_proj"), DTYPE_F32, 2, {D, D}, zero},
                                {LAYER("self_attn.o_proj"), DTYPE_F32, 2, {D, D}, zero},
                                {LAYER("mlp.gate_proj"), DTYPE_F32, 2, {2 * D, D}, zero},
                                {LAYER("mlp.up_proj"), DTYPE_F32, 2, {2 * D, D}, zero},
                                {LAYER("mlp.down_proj"), DTYPE_F32, 2, {D, 2 * D}, zero}};
#undef LAYER
    scratch_puts(state, "model/config.json",
                 "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":16,"
                 "\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":16,"
                 "\"num_key_value_heads\":2,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"hidden_act\":"
                 "\"silu\",\"tie_word_embeddings\":false,\"rope_theta\":10000.0,\"torch_dtype\":\"float32\"}");
    MUST(st_write(scratch_path(state, "model/model.safetensors"), entries, sizeof entries / sizeof *entries, f));
    return scratch_path(state, "model");
}

/* L03: rows that count up by one are learnt already; by none (no shift) or by two (shifted twice) they are 50 off. */
static void labels_are_shifted_once(void **state) {
    const char *model = write_successor_model(state);
    for (int stride = 0; stride < 3; stride++) {
        dataset d = {0};
        for (int row = 0; row < 2; row++) {
            int32_t ids[12];
            for (int i = 0; i < 12; i++) ids[i] = (3 + 5 * row + stride * i) % 16;
            add_row(&d, ids, 12 - row, 9);
        }
        training t;
        open_training(&t, state, model,
                      FLAGS("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1", "--max_length",
                            "12", "--max_steps", "1"));
        run_training(&t, state, &d);
        assert_true(t.ok && arrlen(t.loss) == 1);
        assert_true(fabs(t.loss[0] - (stride == 1 ? 0 : 50)) < 1e-3);
        close_training(&t);
        dataset_free(&d);
    }
}

/* L03: what is in the second row of a micro-batch changes nothing in the first. */
static void rows_do_not_meet(void **state) {
    float nll[2][10];
    training t;
    open_training(&t, state, FIXTURE("llama"), FLAGS("--per_device_train_batch_size", "2", "--max_length", "12"));
    for (int k = 0; k < 2; k++) {
        dataset d = {0};
        loader *l;
        micro_batch b;
        int n;
        add_random(&d, 1, 10, 9, 67);
        add_random(&d, 2 + (uint64_t)k, 12, 11, 67);
        micro_batch_init(&b, 24);
        loader_options o = {.batch_size = 2, .max_length = 12, .grad_accumulation = 1, .epochs = 1, .max_steps = -1};
        MUST(loader_open(&l, &d, &o, f));
        assert_true(loader_next(l, &b, &n));
        assert_int_equal(b.info.rows, 22);
        MUST(executor_clear(t.s.x, ROLE_OUTPUT, f) && train_micro_batch(&t.s, &b, 1, false, f));
        MUST(executor_download(t.s.x, t.s.io.nll, nll[k], 10, f));
        loader_close(l);
        micro_batch_free(&b);
        dataset_free(&d);
    }
    assert_memory_equal(nll[0], nll[1], sizeof nll[0]);
    close_training(&t);
}

/* M04: three spellings of one config give the same first step to the last bit. */
static void config_spellings(void **state) {
    static const char *const spellings[] = {
        "\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
        "\"rope_theta\": 1e4, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4.0}",
        "\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 10000.0, \"factor\": 4.0}",
        "\"rope_theta\": 10000.0", /* another model: the scaling matters */
    };
    double loss[4], norm[4];
    for (int i = 0; i < 4; i++) {
        training t;
        dataset d = {0};
        const char *model = write_variant(state, FIXTURE("llama"), "\"rope_theta\": 10000.0,\n  \"rope_scaling\": null",
                                          spellings[i], NULL);
        add_random(&d, 8, 30, 25, 67);
        open_training(&t, state, model,
                      FLAGS("--adapter", FIXTURE("llama/adapter"), "--max_length", "30", "--max_steps", "1"));
        run_training(&t, state, &d);
        assert_true(t.ok);
        loss[i] = t.loss[0], norm[i] = t.norm[0];
        close_training(&t);
        dataset_free(&d);
    }
    assert_true(loss[0] == loss[1] && loss[0] == loss[2] && norm[0] == norm[1] && norm[0] == norm[2]);
    assert_true(fabs(loss[0] - loss[3]) > 1e-4);
}

static void spoil_token_5(const char *name, float *w, int64_t n) {
    if (strcmp(name, "model.embed_tokens.weight") == 0) w[5 * n / 67] = INFINITY;
}

static void has_line(void **state, const char *line, bool wanted) {
    char *text;
    size_t n;
    MUST(file_read(&text, &n, 1 << 20, scratch_path(state, "out/metrics.jsonl"), f));
    if ((strstr(text, line) != NULL) != wanted) test_fail("%s: %s", wanted ? "no line" : "a line", line);
    free(text);
}

/* O03: the one row with a token whose embedding is infinite makes its step void; the run is that without the row. */
static void step_that_is_not_finite(void **state) {
    const char *model = write_variant(state, FIXTURE("llama"), "{", "{", spoil_token_5);
    float *weights[2];
    for (int k = 0; k < 2; k++) {
        training t;
        dataset d = {0};
        for (int row = 0; row < 4; row++) {
            int32_t ids[10];
            for (int i = 0; i < 10; i++) ids[i] = 6 + (7 * row + 3 * i) % 60;
            if (row == 2) ids[4] = 5;
            if (row != 2 || k == 0) add_row(&d, ids, 10, 6);
        }
        open_training(&t, state, model,
                      FLAGS("--gradient_accumulation_steps", "1", "--num_train_epochs", "1", "--max_length", "10",
                            "--lr_scheduler_type", "constant", "--learning_rate", "1e-2", "--dataset", "/rows.json"));
        run_training(&t, state, &d);
        assert_true(t.ok);
        has_line(state, "{\"step\": 3, \"skipped_rows\": {\"/rows.json\": [3]}, \"bad_rows\": {\"/rows.json\": [3]}}\n",
                 k == 0);
        assert_int_equal(t.sum.steps, k ? 3 : 4);
        assert_int_equal(t.sum.skipped_steps, k ? 0 : 1);
        for (int i = 0; i < arrlen(t.loss); i++) {
            assert_int_equal(isfinite(t.loss[i]) && isfinite(t.norm[i]), k == 1 || i != 2);
        }
        weights[k] = trained(&t);
        close_training(&t);
        dataset_free(&d);
    }
    assert_true(difference(weights[0], weights[1]) == 0);
    arrfree(weights[0]);
    arrfree(weights[1]);
    training t;
    dataset d = {0};
    add_row(&d, (int32_t[]){5, 6, 7}, 3, 2);
    open_training(&t, state, model, FLAGS("--max_length", "3", "--max_steps", "2", "--dataset", "/rows.json"));
    run_training(&t, state, &d);
    assert_false(t.ok);
    assert_int_equal(t.f.kind, FAIL_INPUT);
    assert_string_equal(t.f.text, "every step had a loss or gradient that is not finite");
    close_training(&t);
    dataset_free(&d);
}

/* `rows` of ten tokens, the one numbered `bad` with token 5, which spoil_token_5 spoils. */
static void add_rows_one_bad(dataset *d, int rows, int bad) {
    for (int row = 0; row < rows; row++) {
        int32_t ids[10];
        for (int i = 0; i < 10; i++) ids[i] = 6 + (7 * row + 3 * i) % 60;
        if (row == bad) ids[4] = 5;
        add_row(d, ids, 10, 6);
    }
}

/* One bad row among eight, in two micro-batches: it alone is named, the step's rows are all listed. The run stops at
 * max_skipped_steps, and the weights stay as they were. */
static void row_to_blame(void **state) {
    const char *model = write_variant(state, FIXTURE("llama"), "{", "{", spoil_token_5);
    training t;
    dataset d = {0};
    add_rows_one_bad(&d, 8, 5);
    open_training(&t, state, model,
                  FLAGS("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--max_length",
                        "10", "--max_steps", "9", "--dataset", "/rows.json", "--max_skipped_steps", "3",
                        "--warmup_ratio", "0"));
    float *before = trained(&t);
    run_training(&t, state, &d);
    float *after = trained(&t);
    assert_false(t.ok);
    assert_int_equal(t.f.kind, FAIL_INPUT);
    if (!strstr(t.f.text, "step 3: 3 steps had a loss or gradient that is not finite (max_skipped_steps), the last not "
                          "finite by itself: /rows.json row 6; "))
        test_fail("%s", t.f.text);
    assert_int_equal(arrlen(t.loss), 3);
    has_line(state,
             "{\"step\": 3, \"skipped_rows\": {\"/rows.json\": [1, 2, 3, 4, 5, 6, 7, 8]}, \"bad_rows\": "
             "{\"/rows.json\": [6]}}\n",
             true);
    assert_true(difference(before, after) == 0);
    arrfree(before);
    arrfree(after);
    close_training(&t);
    dataset_free(&d);
}

/* What was learnt before a run stops at max_skipped_steps is saved, and no older checkpoint goes for it. */
static void stop_keeps_what_was_learnt(void **state) {
    const char *model = write_variant(state, FIXTURE("llama"), "{", "{", spoil_token_5);
    training t;
    dataset d = {0};
    add_rows_one_bad(&d, 4, 2);
    open_training(&t, state, model,
                  FLAGS("--gradient_accumulation_steps", "1", "--max_length", "10", "--dataset", "/rows.json",
                        "--max_skipped_steps", "1", "--save_steps", "2", "--save_total_limit", "1"));
    run_training(&t, state, &d);
    assert_false(t.ok);
    if (!strstr(t.f.text, "step 3: 1 steps had") || !strstr(t.f.text, "/out/checkpoint-3")) test_fail("%s", t.f.text);
    assert_true(file_exists(scratch_path(state, "out/checkpoint-2/adapter_model.safetensors")));
    assert_true(file_exists(scratch_path(state, "out/checkpoint-3/adapter_model.safetensors")));
    close_training(&t);
    dataset_free(&d);
}

/* Z02: lengths 3 and 6 with 2 and 4 labels are 12 slots, 9 tokens, 6 labels; packed 9, 9, 6. */
static void three_counters(void **state) {
    dataset d = {0};
    add_random(&d, 1, 3, 2, 67);
    add_random(&d, 2, 6, 4, 67);
    for (int packed = 0; packed < 2; packed++) {
        training t;
        arena a = {0};
        open_training(&t, state, FIXTURE("llama"),
                      FLAGS("--max_length", packed ? "9" : "6", "--per_device_train_batch_size", packed ? "1" : "2",
                            "--gradient_accumulation_steps", "1", "--max_steps", "2"));
        t.c.packing = packed;
        run_training(&t, state, &d);
        assert_true(t.ok);
        assert_int_equal(t.sum.slots, 2 * (packed ? 9 : 12));
        assert_int_equal(t.sum.tokens, 2 * 9);
        assert_int_equal(t.sum.label_tokens, 2 * 6);
        assert_true(t.sum.packing_efficiency == (packed ? 1 : 0.75));
        double ratio = t.sum.slots_per_second / t.sum.tokens_per_second;
        assert_true(fabs(ratio - (packed ? 1 : 12 / 9.0)) < 1e-9);
        ratio = t.sum.label_tokens_per_second / t.sum.tokens_per_second;
        assert_true(fabs(ratio - 6 / 9.0) < 1e-9);
        close_training(&t);
        arena_free(&a);
    }
    dataset_free(&d);
}

/* O01: 200 steps of 1e-5 over one row move the stored bfloat16 weights: the masters are float32. */
static void bfloat16_weights_move(void **state) {
    training t;
    dataset d = {0};
    st_set *before, *after;
    add_random(&d, 3, 30, 29, 67);
    open_training(&t, state, FIXTURE("qwen3"),
                  FLAGS("--tuner_type", "full", "--learning_rate", "1e-5", "--lr_scheduler_type", "constant",
                        "--max_length", "30", "--max_steps", "200", "--weight_decay", "0", "--max_grad_norm", "0"));
    run_training(&t, state, &d);
    assert_true(t.ok);
    assert_true(t.sum.loss < t.sum.first_loss);
    MUST(save_result(&t.s, NULL, f));
    MUST(st_open_folder(&before, FIXTURE("qwen3"), f) && st_open_folder(&after, scratch_path(state, "out"), f));
    int64_t moved = 0, count = 0;
    for (int i = 0; i < st_count(before); i++) {
        const st_tensor *a = st_at(before, i), *b = st_find(after, a->name);
        assert_true(b && a->type == b->type && a->count == b->count);
        if (a->type != DTYPE_BF16 || !strstr(a->name, "_proj")) continue; /* rows of unseen tokens have no gradient */
        const uint16_t *x = a->data, *y = b->data;
        for (int64_t k = 0; k < a->count; k++) moved += x[k] != y[k];
        count += a->count;
    }
    print_message("             %lld of %lld moved\n", (long long)moved, (long long)count);
    assert_true(count > 5000 && moved > 0.9 * (double)count);
    st_close(before);
    st_close(after);
    close_training(&t);
    dataset_free(&d);
}

/* X02 on one device: an adapter of the head stays in the loss when the head and the loss are one kernel. */
static void adapter_of_the_head(void **state) {
    dataset d = {0};
    float *weights[2];
    double loss[2][3];
    for (int i = 0; i < 3; i++) add_random(&d, 20 + (uint64_t)i, 15 + i, 9, 67);
    for (int fused = 0; fused < 2; fused++) {
        training t;
        open_training(&t, state, FIXTURE("llama"),
                      FLAGS("--target_modules", "q_proj,lm_head", "--use_liger_kernel", fused ? "true" : "false",
                            "--max_length", "20", "--max_steps", "3", "--learning_rate", "1e-2", "--adam_epsilon",
                            "1e-3"));
        run_training(&t, state, &d);
        assert_true(t.ok && arrlen(t.loss) == 3);
        memcpy(loss[fused], t.loss, sizeof loss[0]);
        weights[fused] = trained(&t);
        vid B = graph_find(&t.s.g, "base_model.model.lm_head.lora_B.weight");
        assert_true(B && t.s.g.values[B].rows == 67);
        const float *w = executor_data(t.s.x, B);
        for (int row = 0; row < 67; row++)
            assert_true(w[row * t.s.g.values[B].cols] != 0); /* every id of the softmax */
        MUST(save_result(&t.s, NULL, f));
        st_set *saved;
        MUST(st_open_file(&saved, scratch_path(state, "out/adapter_model.safetensors"), f));
        assert_int_equal(st_count(saved), 6);
        assert_non_null(st_find(saved, "base_model.model.lm_head.lora_A.weight"));
        st_close(saved);
        close_training(&t);
    }
    for (int i = 0; i < 3; i++) assert_true(fabs(loss[0][i] - loss[1][i]) <= 1e-5 * loss[0][i]);
    assert_true(loss[0][2] < loss[0][0]);
    assert_true(difference(weights[0], weights[1]) <= 1e-4);
    arrfree(weights[0]);
    arrfree(weights[1]);
    dataset_free(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(rows_dealt_in_any_way),      SCRATCH_TEST(labels_are_shifted_once), SCRATCH_TEST(rows_do_not_meet),
        SCRATCH_TEST(config_spellings),           SCRATCH_TEST(step_that_is_not_finite), SCRATCH_TEST(three_counters),
        SCRATCH_TEST(adapter_of_the_head),        SCRATCH_TEST(bfloat16_weights_move),   SCRATCH_TEST(row_to_blame),
        SCRATCH_TEST(stop_keeps_what_was_learnt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
