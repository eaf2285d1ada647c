/* test_parity.c - every model family against transformers + PEFT in float32; `test_parity --cuda` on the card in
 * float32, `test_parity --cuda-bf16` in bf16.  There a tensor may be as far from float32 as NMSE 1e-4 or, where
 * transformers' own bfloat16 run of the same model is farther (as it is for gradients of these random models: up to
 * 1e-2), twice as far as that one: both are roundings of their own.
 *
 * The golden values come from scripts/make_fixtures.py, which ran each document of the packed row by itself.  Checked
 * for unfused and fused programs, and those with folded norms (which only differ for adapters): logits (of whole rows
 * and over a key/value cache), per-token and mean loss, every adapter gradient, every full-tuning gradient, 20
 * optimizer steps.  Within one kind of program, every recompute level and planned or unplanned memory must give the
 * same bits.  A tensor's error is |a - b| / |b| over the whole tensor, and the largest element error over the largest
 * element. */
#include "fixture_run.h"
#include "train/optimizer.h"
#include "train/schedule.h"

/* float32 on the CPU; the reference's own rounding is up to 3e-6 */
static double TOLERANCE = 1e-5, STEP_TOLERANCE = 1e-4;
static bool bf16;

static const char *const FIXTURES[] = {"llama", "llama-tied",   "llama3-rope", "llama-bias",
                                       "qwen2", "qwen2-window", "qwen3",       "mistral"};
enum { N_FIXTURES = sizeof FIXTURES / sizeof *FIXTURES };

static bool is_lora(const fixture_run *r) {
    return r->o.kind == RUN_LORA || r->o.kind == RUN_LORA_LOGITS || r->o.kind == RUN_LORA_CACHED;
}

/* The tolerance of `what` (a name behind bf16.KIND. in the golden file): `exact` in float32. */
static double allowed(const fixture_run *r, const char *kind, const char *what, double exact) {
    char name[64];
    if (!bf16) return exact;
    snprintf(name, sizeof name, "bf16.%s.%s", is_lora(r) ? "lora" : kind, what);
    float *theirs = fixture_floats(fixture_golden(r, name));
    double bound = fmax(exact, 2 * (double)theirs[0]);
    free(theirs);
    return bound;
}

static double worst; /* of the test that runs, for its line */

static void note(double error) {
    if (error > worst) worst = error;
}

static void check_tensor(const fixture_run *r, const char *name, const float *got, double tolerance) {
    const st_tensor *t = fixture_golden(r, name);
    float *want = fixture_floats(t);
    double difference = 0, size = 0, largest_difference = 0, largest = 0;
    for (int64_t i = 0; i < t->count; i++) {
        double d = fabs((double)got[i] - (double)want[i]), w = fabs((double)want[i]);
        if (!(d <= 1e30)) test_fail("%s %s[%lld] is %g", r->o.model, name, (long long)i, (double)got[i]);
        difference += d * d, size += w * w;
        if (d > largest_difference) largest_difference = d;
        if (w > largest) largest = w;
    }
    free(want);
    double error = sqrt(difference / size), scaled = largest_difference / largest;
    note(error);
    note(scaled);
    if (error > tolerance || (scaled > tolerance && !bf16))
        test_fail("%s%s: %s differs from transformers: relative error %.3g, largest %.3g, allowed %g", r->o.model,
                  r->o.fused ? " (fused)" : "", name, error, scaled, tolerance);
}

static void check_value(const fixture_run *r, const char *name, vid v, double tolerance) {
    float *got = fixture_download(r, v, fixture_golden(r, name)->count);
    check_tensor(r, name, got, tolerance);
    free(got);
}

/* Families whose norms before q, k and v, and before gate and up, dissolve into the products (pass_fold). */
static bool folds_qkv(const char *model) { return !strstr(model, "qwen") && !strstr(model, "bias"); }
static bool folds_mlp(const char *model) { return !strstr(model, "bias"); } /* a bias of gate or up: no gate_up_glu */

static void check_folds(const fixture_run *r) {
    int layers = r->s.model.n_layer, qkv = 0, mlp = 0;
    for (int i = 0; i < r->s.g.n_forward; i++) {
        const graph_op *o = &r->s.g.ops[i];
        qkv += o->kind == OP_norm_qkv_rope && o->in[NQR_RA], mlp += o->kind == OP_gate_up_glu && o->in[GUG_RSTD];
    }
    bool fold = r->o.fold && r->o.kind != RUN_FULL;
    if (strcmp(fixture_device, "cpu") != 0) { /* a card has kernels for some shapes and types */
        assert_true(!r->o.fold || arrlen(r->s.g.notes));
        return;
    }
    assert_int_equal(qkv, fold && folds_qkv(r->o.model) ? layers - 1 : 0); /* the first reads the embedding */
    assert_int_equal(mlp, fold && folds_mlp(r->o.model) ? layers : 0);
    assert_true(!r->o.fold || qkv == layers - 1 || arrlen(r->s.g.notes));
}

static void test_logits(void **state) {
    for (int i = 0; i < 6; i++) {
        bool fused = i % 3 > 0, fold = i % 3 == 2, adapter = i >= 3;
        fixture_run *r = fixture_open((fixture_options){
            .model = *state, .kind = adapter ? RUN_LORA_LOGITS : RUN_LOGITS, .fused = fused, .fold = fold});
        check_folds(r);
        fixture_run_row(r, false);
        check_value(r, adapter ? "lora.logits" : "base.logits", r->s.io.logits,
                    allowed(r, "base", "logits", TOLERANCE));
        fixture_close(r);
    }
}

/* One document through the program that generates: a few tokens at a time over the key/value cache, then one by one. */
static void check_cached_document(fixture_run *r, int document, const float *want) {
    session *s = &r->s;
    int first = r->row.cu[document], length = r->row.cu[document + 1] - first, vocab = s->model.vocab;
    for (int done = 0; done < length;) {
        int n = done < 4 && length - done >= 3 ? 3 : 1;
        int32_t index = n - 1;
        batch_info info = {.rows = n, .docs = 1, .labels = 1, .longest = n};
        MUST(executor_upload(s->x, s->io.ids, r->row.ids + first + done, n, f));
        MUST(executor_upload(s->x, s->io.pos, r->row.pos + first + done, n, f));
        MUST(executor_upload(s->x, s->io.index, &index, 1, f));
        MUST(executor_run(s->x, 0, s->g.n_forward, &info, f));
        done += n;
        float *got = fixture_download(r, s->io.logits, vocab);
        double difference = 0, size = 0;
        for (int i = 0; i < vocab; i++) {
            double w = (double)want[(first + done - 1) * vocab + i], d = (double)got[i] - w;
            difference += d * d, size += w * w;
        }
        free(got);
        note(sqrt(difference / size));
        if (!(sqrt(difference / size) <= allowed(r, "base", "row", TOLERANCE)))
            test_fail("%s: document %d, token %d: logits over the cache differ by %.3g", r->o.model, document, done,
                      sqrt(difference / size));
    }
}

static void test_cached_logits(void **state) {
    for (int i = 0; i < 6; i++) {
        bool fused = i % 3 > 0, fold = i % 3 == 2, adapter = i >= 3;
        run_kind kind = adapter ? RUN_LORA_CACHED : RUN_CACHED;
        fixture_run *r = fixture_open((fixture_options){.model = *state, .kind = kind, .fused = fused, .fold = fold});
        check_folds(r);
        float *want = fixture_floats(fixture_golden(r, adapter ? "lora.logits" : "base.logits"));
        for (int d = 0; d < r->row.info.docs; d++) check_cached_document(r, d, want);
        free(want);
        fixture_close(r);
    }
}

/* Every gradient that the golden file has for this kind of tuning, and no other. */
static void check_gradients(const fixture_run *r) {
    int wanted = 0, found = 0;
    for (int i = 0; i < st_count(r->golden); i++) {
        const char *name = st_at(r->golden, i)->name;
        size_t n = strlen(name);
        bool lora = strncmp(name, "base_model.", 11) == 0;
        wanted += n > 5 && strcmp(name + n - 5, ".grad") == 0 && lora == (r->o.kind == RUN_LORA);
    }
    for (vid v = 1; v < arrlen(r->s.g.values); v++) {
        const graph_value *value = &r->s.g.values[v];
        if (value->role != ROLE_PARAM || !value->trainable) continue;
        char name[256];
        snprintf(name, sizeof name, "%s.grad", value->name);
        assert_int_not_equal(value->grad, 0);
        check_value(r, name, value->grad, allowed(r, "base", "grads", TOLERANCE));
        found++;
    }
    assert_int_equal(found, wanted);
    assert_true(wanted > 10);
}

static void check_loss_and_gradients(const char *model, run_kind kind) {
    bool lora = kind == RUN_LORA;
    for (int i = 0; i < 3; i++) {
        fixture_run *r = fixture_open((fixture_options){.model = model, .kind = kind, .fused = i > 0, .fold = i == 2});
        check_folds(r);
        fixture_run_row(r, false);
        check_value(r, lora ? "lora.nll" : "base.nll", r->s.io.nll, allowed(r, "base", "nll", TOLERANCE));
        fixture_run_row(r, true);
        check_value(r, lora ? "lora.loss" : "base.loss", r->s.io.loss, allowed(r, "base", "loss", TOLERANCE));
        check_gradients(r);
        fixture_close(r);
    }
}

static void test_lora_gradients(void **state) { check_loss_and_gradients(*state, RUN_LORA); }
static void test_full_gradients(void **state) { check_loss_and_gradients(*state, RUN_FULL); }

static float *results_of(fixture_options o, float *loss, int64_t *arena_bytes) {
    fixture_run *r = fixture_open(o);
    fixture_run_row(r, true);
    *loss = fixture_loss(r);
    plan temporaries; /* without what ops need beside their operands, which is the same at all levels */
    plan_make(&temporaries, &r->s.g, NULL, !o.unplanned);
    *arena_bytes = temporaries.arena;
    plan_free(&temporaries);
    float *gradients = fixture_gradients(r);
    fixture_close(r);
    return gradients;
}

static void check_same_bits(const char *model, run_kind kind, bool fused, bool fold) {
    int64_t kept_bytes, bytes;
    float kept_loss, loss;
    fixture_options o = {.model = model,
                         .kind = kind,
                         .fused = fused,
                         .fold = fold,
                         .flags = {"--deterministic", "true"}}; /* on a card: no timing */
    float *kept = results_of(o, &kept_loss, &kept_bytes);
    for (int level = 0; level < RECOMPUTE_COUNT; level++) {
        for (int unplanned = 0; unplanned < 2; unplanned++) {
            o.recompute = (recompute_level)level, o.unplanned = unplanned;
            float *again = results_of(o, &loss, &bytes);
            assert_memory_equal(&loss, &kept_loss, sizeof loss);
            assert_int_equal(arrlen(again), arrlen(kept));
            assert_memory_equal(again, kept, (size_t)arrlen(kept) * sizeof *kept);
            if (unplanned) assert_true(bytes > kept_bytes);
            else if (fold && level == RECOMPUTE_CHEAP) assert_true(bytes <= kept_bytes); /* little is left for it */
            else if (level > 0) assert_true(bytes < kept_bytes);
            arrfree(again);
        }
    }
    arrfree(kept);
}

static void test_same_bits(void **state) {
    for (int i = 0; i < 4; i++) check_same_bits(*state, i & 1 ? RUN_FULL : RUN_LORA, i & 2, false);
    check_same_bits(*state, RUN_LORA, true, true);
}

static void check_step(const fixture_run *r, const char *series, int step, double got) {
    char name[64];
    snprintf(name, sizeof name, "%s.steps.%s", r->o.kind == RUN_LORA ? "lora" : "full", series);
    float *want = fixture_floats(fixture_golden(r, name));
    double error = fabs(got - (double)want[step]) / fmax(fabs((double)want[step]), 1e-9);
    note(error);
    if (!(error <= allowed(r, "full", "steps", STEP_TOLERANCE)))
        test_fail("%s%s: step %d %s is %.8g, transformers has %.8g", r->o.model, r->o.fused ? " (fused)" : "", step + 1,
                  name, got, (double)want[step]);
    free(want);
}

static void check_steps(const char *model, run_kind kind, bool fused, bool fold) {
    const int steps = 20;
    fixture_run *r = fixture_open((fixture_options){
        .model = model,
        .kind = kind,
        .fused = fused,
        .fold = fold,
        .flags = {"--learning_rate", "1e-3", "--warmup_steps", "2", "--max_grad_norm", kind == RUN_LORA ? "1" : "4"}});
    schedule rates = schedule_from_config(&r->c, steps);
    optimizer *o;
    MUST(optimizer_open(&o, &r->s, f));
    for (int step = 0; step < steps; step++) {
        double norm, rate = schedule_rate(&rates, step);
        fixture_run_row(r, true);
        check_step(r, "loss", step, (double)fixture_loss(r));
        MUST(optimizer_step(o, rate, &norm, f));
        check_step(r, "grad_norm", step, norm);
        check_step(r, "learning_rate", step, rate);
    }
    for (vid v = 1; v < arrlen(r->s.g.values) && kind == RUN_LORA; v++) {
        char final[256];
        snprintf(final, sizeof final, "%s.final", r->s.g.values[v].name);
        if (r->s.g.values[v].trainable) check_value(r, final, v, allowed(r, "lora", "final", STEP_TOLERANCE));
    }
    optimizer_close(o);
    fixture_close(r);
}

static void test_steps(void **state) {
    for (int i = 0; i < 4; i++) check_steps(*state, i & 1 ? RUN_FULL : RUN_LORA, i & 2, false);
    check_steps(*state, RUN_LORA, true, true);
}

static int print_worst(void **state) {
    (void)state;
    if (worst > 0) print_message("[          ] largest relative error %.2g\n", worst);
    worst = 0;
    return 0;
}

/* Where to run, and what to allow there. */
static void choose_device(int argc, char **argv) {
    if (argc < 2) return;
    bf16 = strcmp(argv[1], "--cuda-bf16") == 0;
    if (!bf16 && strcmp(argv[1], "--cuda") != 0) test_fail("%s: --cuda or --cuda-bf16 is expected", argv[1]);
    fixture_device = "cuda";
    fixture_dtype = bf16 ? "bfloat16" : "float32";
    TOLERANCE = bf16 ? 1e-2 : 1e-4; /* 1e-2: the root of 1e-4 */
    STEP_TOLERANCE = bf16 ? 1e-2 : 1e-4;
}

int main(int argc, char **argv) {
    choose_device(argc, argv);
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } checks[] = {{"logits", test_logits},
                  {"cached_logits", test_cached_logits},
                  {"lora_gradients", test_lora_gradients},
                  {"full_gradients", test_full_gradients},
                  {"same_bits", test_same_bits},
                  {"steps", test_steps}};
    enum { N_CHECKS = sizeof checks / sizeof *checks };
    struct CMUnitTest tests[N_FIXTURES * N_CHECKS];
    char names[N_FIXTURES * N_CHECKS][64];
    for (int i = 0; i < N_FIXTURES * N_CHECKS; i++) {
        const char *fixture = FIXTURES[i / N_CHECKS];
        snprintf(names[i], sizeof names[i], "%s %s", fixture, checks[i % N_CHECKS].name);
        tests[i] =
            (struct CMUnitTest){names[i], checks[i % N_CHECKS].run, NULL, print_worst, (void *)(uintptr_t)fixture};
    }
    return cmocka_run_group_tests_name("parity", tests, NULL, NULL);
}
