/* test_checkpoint.c - the state of a run as files and back, the tensors of a checkpoint, names of folders, which of
 * them stay (cases K01, K02). */
#include "scratch.h"

#include "base/fingerprint.h"
#include "fixture_run.h"
#include "train/checkpoint.h"

#include <math.h>

/* ---- run_state ---- */

static run_state some_state(void) {
    run_state s = {.step = 7,
                   .steps = 9007199254740991,
                   .updates = 6,
                   .evaluated = 4,
                   .best_step = 4,
                   .best_loss = 0.1 + 0.2,
                   .busy = 1e-300,
                   .epoch = 1.0 / 3,
                   .row = 12,
                   .rows = 32,
                   .source = {32, 4711, 0xFFFFFFFFFFFFFFFFu, 5},
                   .sum = {.steps = 7,
                           .step_rows = 4,
                           .skipped_steps = 1,
                           .first_loss = NAN,
                           .loss = 0x1.fffffffffffffp-3,
                           .tokens = 123456789012,
                           .label_tokens = 99,
                           .slots = 200,
                           .eval_loss = 3.5,
                           .seconds = 12.25,
                           .checkpoints = 2,
                           .save_seconds = 0.001}};
    step_metrics m = {
        .step = 1, .epoch = 0.125, .loss = 0x1.23456789abcdep1, .learning_rate = 1e-5, .grad_norm = INFINITY};
    run_state_log_step(&s, &m);
    run_state_log_eval(&s, 2.5, 0.125);
    m.step = 1000001, m.loss = NAN, m.grad_norm = 4;
    run_state_log_step(&s, &m);
    return s;
}

static void put_state(void **state, const run_state *s, const config *c) {
    text_buf t = {0};
    run_state_put(&t, s, c);
    scratch_puts(state, "run_state.json", t.data);
    text_clear(&t);
    run_state_put_trainer(&t, s, c);
    scratch_puts(state, "trainer_state.json", t.data);
    text_free(&t);
}

/* Written, read and written again: the same text; numbers are the same bits. */
static void state_survives(void **state) {
    config c = {.output_dir = "a \"b\"\n", .seed = 3, .logging_steps = 5, .num_train_epochs = 2.5};
    run_state s = some_state(), back = {0};
    put_state(state, &s, &c);
    MUST(run_state_read(&back, scratch_folder(state), f));
    assert_true(back.steps == s.steps && back.source.data == s.source.data && back.sum.tokens == s.sum.tokens);
    assert_true(back.best_loss == s.best_loss && back.busy == s.busy && back.epoch == s.epoch);
    assert_true(back.sum.loss == s.sum.loss && isnan(back.sum.first_loss));
    text_buf a = {0}, b = {0};
    run_state_put(&a, &s, &c);
    run_state_put(&b, &back, &c);
    assert_string_equal(a.data, b.data);
    text_clear(&b);
    run_state_put_trainer(&b, &back, &c);
    cJSON *root;
    MUST(json_parse(&root, b.data, b.size, "trainer_state", f));
    const cJSON *history = json_find(root, "log_history"), *third = cJSON_GetArrayItem(history, 2);
    assert_int_equal(cJSON_GetArraySize(history), 3);
    assert_true(json_find(cJSON_GetArrayItem(history, 0), "loss")->valuedouble == 0x1.23456789abcdep1);
    assert_true(json_find(third, "step")->valuedouble == 1000001);
    assert_string_equal(json_find(root, "best_model_checkpoint")->valuestring, "a \"b\"\n/checkpoint-4");
    cJSON_Delete(root);
    text_free(&a);
    text_free(&b);
    run_state_free(&s);
    run_state_free(&back);
}

static void state_is_refused(void **state) {
    static const struct {
        const char *file, *from, *to, *says;
    } cases[] = {
        {"run_state.json", "\"format\": 1,", "\"format\": 2,", "run_state.json: format 2, this version reads 1"},
        {"run_state.json", "\"format\": 1,", "", "run_state.json"},
        {"run_state.json", "\"step\": 7", "\"step\": 0", "step 0 of"},
        {"run_state.json", "\"step\": 7", "\"step\": -7", "step: found -7, expected 0"},
        {"run_state.json", "\"step\": 7", "\"step\": 7.5", "step: found 7.5, expected an integer"},
        {"run_state.json", "\"step\": 7", "\"step\": \"7\"", "step: found"},
        {"run_state.json", "\"steps\": 9007199254740991", "\"steps\": 6", "step 7 of 6"},
        {"run_state.json", "\"updates\": 6", "\"updates\": 8", "with 8 updates cannot be"},
        {"run_state.json", "\"ffffffffffffffff\"", "\"FFFFFFFFFFFFFFFF\"", "expected 16 hexadecimal digits"},
        {"run_state.json", "\"row\"", "\"rwo\"", "row"},
        {"trainer_state.json", "\"log_history\": [", "\"log_history\": 1, \"x\": [", "log_history: found number"},
    };
    config c = {.output_dir = "out"};
    run_state s = some_state();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_state(state, &s, &c);
        char *text;
        size_t n;
        MUST(file_read(&text, &n, 1 << 20, scratch_path(state, cases[i].file), f));
        char *at = strstr(text, cases[i].from);
        assert_non_null(at);
        text_buf t = {0};
        text_add(&t, text, (size_t)(at - text));
        text_puts(&t, cases[i].to);
        text_puts(&t, at + strlen(cases[i].from));
        scratch_puts(state, cases[i].file, t.data);
        run_state back = {0};
        failure why = {0};
        if (run_state_read(&back, scratch_folder(state), &why)) test_fail("case %d is taken", (int)i);
        assert_int_equal(why.kind, FAIL_INPUT);
        if (!strstr(why.text, cases[i].says)) test_fail("case %d: %s", (int)i, why.text);
        run_state_free(&back);
        text_free(&t);
        free(text);
    }
    run_state_free(&s);
}

/* Damaged files are refused or taken, never more. */
static void state_mutations(void **state) {
    config c = {.output_dir = "out"};
    run_state s = some_state();
    rng r = {11, 0};
    put_state(state, &s, &c);
    char *text;
    size_t n;
    MUST(file_read(&text, &n, 1 << 20, scratch_path(state, "run_state.json"), f));
    char *copy = xmalloc(n + 1);
    for (int i = 0; i < 2000; i++) {
        memcpy(copy, text, n + 1);
        size_t size = scratch_mutate(copy, n, &r);
        scratch_write(scratch_path(state, "run_state.json"), copy, size);
        run_state back = {0};
        failure why = {0};
        if (!run_state_read(&back, scratch_folder(state), &why)) assert_int_equal(why.kind, FAIL_INPUT);
        else assert_true(back.step > 0 && back.step <= back.steps);
        run_state_free(&back);
    }
    free(copy);
    free(text);
    run_state_free(&s);
}

/* ---- folders ---- */

static void names_of_folders(void **state) {
    static const char *const names[] = {
        "checkpoint-10/x",    "checkpoint-9/x",   "checkpoint-100/x",       "checkpoint-007/x", "checkpoint-/x",
        "checkpoint-8.tmp/x", "checkpoint-1e3/x", "checkpoint-5.old.tmp/x", "checkpoints-3/x",  "checkpoint-11"};
    const char *out = scratch_folder(state);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) scratch_puts(state, names[i], "x");
    int64_t *steps = checkpoint_list(out);
    assert_int_equal(arrlen(steps), 3);
    assert_true(steps[0] == 9 && steps[1] == 10 && steps[2] == 100);
    arrfree(steps);
    MUST(checkpoint_clean(out, f));
    assert_int_equal(scratch_count(state), 8); /* both .tmp went */
    MUST(checkpoint_remove(out, 10, f));
    steps = checkpoint_list(out);
    assert_int_equal(arrlen(steps), 2);
    arrfree(steps);
    assert_null(checkpoint_list(scratch_path(state, "nowhere")));
    MUST(checkpoint_clean(scratch_path(state, "nowhere"), f));
}

/* ---- tensors ---- */

typedef struct {
    fixture_run *r;
    optimizer *o;
} trained;

/* Weights and moments that no two tensors share. */
static void fill(const trained *t, uint64_t key) {
    for (int i = 0; i < optimizer_count(t->o); i++)
        for (int part = 0; part < OPTIMIZER_PARTS; part++) {
            int64_t n = value_count(&t->r->s.g.values[optimizer_param(t->o, i)]);
            float *x = xmalloc((size_t)n * sizeof *x);
            for (int64_t k = 0; k < n; k++)
                x[k] = rng_normal(rng_fold(key, (uint64_t)(i * OPTIMIZER_PARTS + part)), (uint64_t)k);
            MUST(optimizer_write(t->o, i, (optimizer_part)part, x, f));
            free(x);
        }
}

/* All of them, one after the other (stb_ds). */
static float *all_of(const trained *t) {
    float *all = NULL;
    for (int i = 0; i < optimizer_count(t->o); i++)
        for (int part = 0; part < OPTIMIZER_PARTS; part++) {
            size_t n = (size_t)value_count(&t->r->s.g.values[optimizer_param(t->o, i)]);
            MUST(optimizer_read(t->o, i, (optimizer_part)part, arraddnptr(all, n), f));
        }
    return all;
}

static trained open_trained(void **state, const char *model, run_kind kind, const char *limit) {
    trained t;
    t.r =
        fixture_open((fixture_options){.model = model,
                                       .kind = kind,
                                       .fused = true,
                                       .flags = {"--output_dir", scratch_folder(state), "--save_total_limit", limit}});
    MUST(optimizer_open(&t.o, &t.r->s, f));
    return t;
}

static void close_trained(trained *t) {
    optimizer_close(t->o);
    fixture_close(t->r);
}

static void save(const trained *t, run_state *s, int64_t step, bool hold) {
    snapshot p;
    s->step = step;
    MUST(snapshot_open(&p, &t->r->s, t->o, hold, f));
    MUST(checkpoint_write(&p, s, f));
    snapshot_close(&p);
}

static void same_file(void **state, const char *a, const char *b) {
    char *x, *y;
    size_t n, m;
    MUST(file_read(&x, &n, 1 << 24, scratch_path(state, a), f) &&
         file_read(&y, &m, 1 << 24, scratch_path(state, b), f));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* What is restored is what was saved, to the bit, over bfloat16 weights too; held and fetched tensors make the same
 * files, and a folder that is written again is replaced. */
static void tensors_survive(void **state) {
    static const struct {
        const char *model;
        run_kind kind;
        const char *file;
    } cases[] = {{"llama", RUN_LORA, "adapter_model.safetensors"}, {"qwen3", RUN_FULL, "model.safetensors"}};
    for (int i = 0; i < 2; i++) {
        trained t = open_trained(state, cases[i].model, cases[i].kind, "0");
        run_state s = {.steps = 9, .updates = 1};
        fill(&t, 5);
        save(&t, &s, 3, true);
        fill(&t, 1 + (uint64_t)i);
        float *before = all_of(&t);
        save(&t, &s, 3, true);
        save(&t, &s, 4, false);
        arena a = {0};
        same_file(state, "checkpoint-3/optimizer.safetensors", "checkpoint-4/optimizer.safetensors");
        same_file(state, arena_printf(&a, "checkpoint-3/%s", cases[i].file),
                  arena_printf(&a, "checkpoint-4/%s", cases[i].file));
        fill(&t, 77);
        checkpoint c;
        MUST(checkpoint_open(&c, scratch_path(state, "checkpoint-3"), f));
        assert_int_equal(c.state.step, 3);
        MUST(checkpoint_restore(&c, t.o, &t.r->s, f));
        assert_int_equal(optimizer_updates(t.o), 1);
        float *after = all_of(&t);
        assert_memory_equal(before, after, arrlenu(before) * sizeof *before);
        checkpoint_close(&c);
        assert_int_equal(scratch_count(state), 2); /* nothing beside the two folders */
        MUST(checkpoint_remove(scratch_folder(state), 3, f) && checkpoint_remove(scratch_folder(state), 4, f));
        arrfree(before);
        arrfree(after);
        arena_free(&a);
        close_trained(&t);
    }
}

/* Tensors of another program: by name and both shapes. */
static void tensors_are_refused(void **state) {
    trained t = open_trained(state, "llama", RUN_LORA, "0");
    run_state s = {.steps = 9, .updates = 1};
    save(&t, &s, 3, true);
    close_trained(&t);
    static const struct {
        const char *model;
        run_kind kind;
        const char *says;
    } cases[] = {{"qwen3", RUN_LORA, "this run needs F32 ["}, {"llama", RUN_FULL, "is missing"}};
    for (int i = 0; i < 2; i++) {
        t = open_trained(state, cases[i].model, cases[i].kind, "0");
        checkpoint c;
        failure why = {0};
        MUST(checkpoint_open(&c, scratch_path(state, "checkpoint-3"), f));
        assert_false(checkpoint_restore(&c, t.o, &t.r->s, &why));
        assert_int_equal(why.kind, FAIL_INPUT);
        if (!strstr(why.text, cases[i].says)) test_fail("%s", why.text);
        checkpoint_close(&c);
        close_trained(&t);
    }
}

/* The newest two and the best; folders of other names stay. */
static void rotation(void **state) {
    trained t = open_trained(state, "llama", RUN_LORA, "2");
    run_state s = {.steps = 99, .updates = 1, .best_step = 9, .best_loss = 1};
    scratch_puts(state, "checkpoint-old/x", "x");
    static const int64_t saved[] = {8, 9, 10, 11, 100};
    for (int i = 0; i < 5; i++) save(&t, &s, saved[i], true);
    int64_t *left = checkpoint_list(scratch_folder(state));
    assert_int_equal(arrlen(left), 2);
    assert_true(left[0] == 9 && left[1] == 100);
    arrfree(left);
    s.best_step = 0;
    save(&t, &s, 101, true);
    left = checkpoint_list(scratch_folder(state));
    assert_true(arrlen(left) == 2 && left[0] == 100 && left[1] == 101);
    arrfree(left);
    assert_int_equal(scratch_count(state), 3);
    close_trained(&t);
}

/* ---- fingerprints ---- */

static void fingerprints(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    uint8_t *x = xcalloc(N, 1);
    uint64_t zeros = fingerprint(0, x, N);
    assert_true(zeros != fingerprint(0, x, N - 1) && zeros != fingerprint(1, x, N));
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        assert_true(fingerprint(0, x, N) == zeros);
    }
    omp_set_num_threads(1);
    x[N - 1] = 1;
    uint64_t last = fingerprint(0, x, N);
    x[N - 1] = 0, x[N - 9] = 1;
    assert_true(last != zeros && fingerprint(0, x, N) != zeros && fingerprint(0, x, N) != last);
    assert_true(fingerprint(3, "", 0) == fingerprint(3, NULL, 0));
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(state_survives),   SCRATCH_TEST(state_is_refused), SCRATCH_TEST(state_mutations),
        SCRATCH_TEST(names_of_folders), SCRATCH_TEST(tensors_survive),  SCRATCH_TEST(tensors_are_refused),
        SCRATCH_TEST(rotation),         SCRATCH_TEST(fingerprints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
