/* test_fold_choice.c - which norms dissolve where fuse_rules leaves it open: what rules mean, the choice between times,
 * the file of times, and whole layers timed on the CPU (whose times mean nothing here). */
#include "unit/scratch.h"

#include "fixture_run.h"
#include "train/fold_choice.h"
#include "unit/program.h"

static void what_rules_say(void **state) {
    (void)state;
    static const struct {
        const char *rules;
        bool open;
        int qkv, mlp; /* folded of two layers, with FOLD_QKV where it is open */
    } cases[] = {
        {"all", true, 1, 0},           {"all,-linear_ce", true, 1, 0},
        {"all,fold", false, 1, 2},     {"fold,all", false, 1, 2},
        {"all,-fold", false, 0, 0},    {"all,fold_qkv", false, 1, 0},
        {"all,fold_mlp", false, 0, 2}, {"all,fold,-fold_qkv", false, 0, 2},
        {"all,-all", false, 0, 0},     {"linear_lora,norm_qkv_rope,gate_up_glu,add_rms_norm", false, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        graph g;
        failure f;
        program_kind k = {0};
        model_config m = program_config(&k);
        int qkv = 0, mlp = 0;
        graph_init(&g, DTYPE_F32);
        model_build(&g, &m, 8, NULL, NULL);
        assert_int_equal(fuse_leaves_folds_open(cases[i].rules), cases[i].open);
        assert_done(pass_fuse(&g, cases[i].rules, FOLD_QKV, NULL, &f), &f);
        for (int o = 0; o < arrlen(g.ops); o++) {
            qkv += g.ops[o].kind == OP_norm_qkv_rope && g.ops[o].in[NQR_RA];
            mlp += g.ops[o].kind == OP_gate_up_glu && g.ops[o].in[GUG_RSTD];
        }
        if (qkv != cases[i].qkv || mlp != cases[i].mlp) test_fail("%s: %d and %d", cases[i].rules, qkv, mlp);
        graph_free(&g);
    }
    assert_false(fuse_leaves_folds_open("all,fodl"));
}

static void choice_between_times(void **state) {
    (void)state;
    static const struct {
        fold_times t; /* none, q k v, gate up, both */
        int choice;
    } cases[] = {
        {{{1, 1, 1, 1}}, FOLD_ALL},
        {{{1, 0.9, 0.9, 0.8}}, FOLD_ALL},
        {{{1, 1.02, 1.03, 1.05}}, FOLD_NONE},
        {{{1, 1, 1.02, 1.02}}, FOLD_QKV},
        {{{1, 1.02, 1, 1.02}}, FOLD_MLP},
        {{{1, 1.009, 1.009, 1.018}}, FOLD_ALL},         /* each costs less than 1 % */
        {{{13.395, 13.255, 12.868, 13.199}}, FOLD_ALL}, /* a card's: q k v -0.14 and +0.33, gate up -0.53 and -0.06 */
        {{{9.327, 9.015, 8.860, 9.106}}, FOLD_ALL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (fold_choose(&cases[i].t) != cases[i].choice)
            test_fail("case %zu: %d, not %d", i, fold_choose(&cases[i].t), cases[i].choice);
}

/* Visit v of round r comes at time 4 r + v, or v from the end of the round on the way down; a layer then takes
 * `of` times what the card's state makes of it. */
static fold_times round_at(const double *of, int r, double drift) {
    fold_times t;
    for (int i = 0; i < 4; i++) t.of[i] = of[i] * (1 + drift * (4 * r + (r % 2 ? 3 - i : i)));
    return t;
}

static void rounds_settle(void **state) {
    (void)state;
    static const double of[] = {13.5, 13.4, 13.3, 13.2};
    fold_times rounds[4], out;
    for (int r = 0; r < 4; r++) rounds[r] = round_at(of, r, 0.001);
    assert_true(fold_settle(rounds, 2, &out)); /* steady */
    assert_int_equal(fold_choose(&out), FOLD_ALL);
    for (int r = 0; r < 4; r++) rounds[r] = round_at(of, r, 0.03); /* 3 % slower every visit */
    assert_false(fold_settle(rounds, 2, &out));
    assert_true(fold_settle(rounds, 4, &out));
    for (int i = 0; i < 3; i++) assert_true(out.of[i] > out.of[i + 1]); /* in their order all the same */
    rounds[3].of[2] *= 1.3;                                             /* something else came between */
    assert_false(fold_settle(rounds, 4, &out));
}

/* ---- the file ---- */

static fold_times times_of(int i) { return (fold_times){{1e-3 * i, 2e-3 * i, 3e-3 * i, 4e-3 * i}}; }

static void times_are_kept(void **state) {
    const char *path = scratch_path(state, "deep/er/folds.txt");
    fold_times t;
    assert_false(fold_times_find(path, 1, &t)); /* absent */
    for (int i = 1; i <= 70; i++) {
        fold_times in = times_of(i);
        fold_times_add(path, (uint64_t)i << 60 | (uint64_t)i, &in);
    }
    assert_true(fold_times_find(path, (uint64_t)70 << 60 | 70, &t));
    for (int i = 0; i <= FOLD_ALL; i++) assert_true(fabs(t.of[i] - times_of(70).of[i]) < 1e-6);
    assert_false(fold_times_find(path, (uint64_t)1 << 60 | 1, &t)); /* the oldest left */
    fold_times in = times_of(7);
    fold_times_add(path, (uint64_t)70 << 60 | 70, &in);
    assert_true(fold_times_find(path, (uint64_t)70 << 60 | 70, &t)); /* the last counts */
    assert_true(fabs(t.of[0] - 7e-3) < 1e-9);
}

/* A file that is a folder is no file; nothing ends. */
static void nowhere_to_write(void **state) {
    fold_times t = times_of(1);
    fold_times_add(scratch_folder(state), 1, &t);
    assert_false(fold_times_find(scratch_folder(state), 1, &t));
    fold_times_add("/proc/none/folds.txt", 1, &t);
    assert_false(fold_times_find("/proc/none/folds.txt", 1, &t));
}

/* Whatever happens to a file, what is found is what was put there. */
static void damaged_files(void **state) {
    const char *path = scratch_path(state, "folds.txt");
    failure f;
    rng r = {.key = 3};
    int found = 0, lost = 0;
    for (int round = 0; round < 60; round++) {
        char *text;
        size_t n;
        file_remove(path, &f);
        for (int i = 1; i <= 3; i++) {
            fold_times in = times_of(i);
            fold_times_add(path, (uint64_t)i, &in);
        }
        assert_done(file_read(&text, &n, 1 << 16, path, &f), &f);
        n = scratch_mutate(text, n, &r);
        scratch_write(path, text, n);
        free(text);
        for (int i = 1; i <= 3; i++) {
            fold_times t, in = times_of(i);
            if (!fold_times_find(path, (uint64_t)i, &t)) {
                lost++;
                continue;
            }
            found++;
            for (int k = 0; k <= FOLD_ALL; k++) assert_true(fabs(t.of[k] - in.of[k]) < 1e-9);
        }
        fold_times in = times_of(9), t;
        fold_times_add(path, 9, &in);
        assert_true(fold_times_find(path, 9, &t)); /* and it is a whole file again */
    }
    assert_true(found > 50 && lost > 50);
}

/* ---- timing ---- */

static void whole_layers_are_timed(void **state) {
    (void)state;
    static const char *const models[] = {"llama", "qwen2"}; /* q, k and v of the second have biases: never folded */
    for (int i = 0; i < 2; i++) {
        fixture_run *r = fixture_open((fixture_options){.model = models[i], .kind = RUN_NEW_LORA, .fused = true});
        fold_times t = {{0}};
        failure why = {0};
        r->c.max_length = 32;
        if (fold_measure(&r->s, 0.1, &t, &why)) {
            for (int k = 0; k <= FOLD_ALL; k++) assert_true(t.of[k] > 0 && t.of[k] < 10);
            if (i) assert_true(t.of[FOLD_QKV] == t.of[FOLD_NONE] && t.of[FOLD_ALL] == t.of[FOLD_MLP]);
            if (i) assert_true(t.of[FOLD_MLP] != t.of[FOLD_NONE]);
        } else if (!strstr(why.text, "something else uses the cpu")) test_fail("%s", why.text);
        fixture_close(r);
    }
}

/* What stays FOLD_NONE without timing, and its note. */
static void nothing_to_time(void **state) {
    (void)state;
    fixture_run *r = fixture_open((fixture_options){.model = "llama", .kind = RUN_NEW_LORA, .fused = true});
    MUST(fold_choice_make(&r->s, f));
    assert_int_equal(r->s.folds, FOLD_NONE);
    assert_non_null(strstr(r->s.fold_note, "timed on cards only"));
    r->c.fuse_rules = "all,-fold";
    MUST(fold_choice_make(&r->s, f));
    assert_null(r->s.fold_note);
    fixture_close(r);
}

/* ---- with a stand-in for a card's name: what is kept is used again, where it is asked for ---- */

static const char *stand_in_platform(void) { return "stand-in"; }

static void kept_times_decide(void **state) {
    fixture_run *r = fixture_open((fixture_options){.model = "llama", .kind = RUN_NEW_LORA, .fused = true});
    backend b = *r->s.b;
    const backend *own = r->s.b;
    const char *path = scratch_path(state, "liger-sft/folds-1-stand-in.txt");
    uint64_t key;
    bool differ;
    b.platform = stand_in_platform;
    r->s.b = &b, r->c.max_length = 32;
    assert_int_equal(setenv("XDG_CACHE_HOME", scratch_folder(state), 1), 0);
    MUST(fold_times_key(&r->s, &key, &differ, f));
    assert_true(differ);
    for (int choice = 0; choice <= FOLD_ALL; choice++) {
        fold_times t = {{2e-3, 2e-3, 2e-3, 2e-3}};
        t.of[choice] = 1e-3;
        fold_times_add(path, key, &t);
        MUST(fold_choice_make(&r->s, f));
        assert_int_equal(r->s.folds, choice);
        assert_non_null(strstr(r->s.fold_note, "timed before"));
    }
    r->c.deterministic = true;
    MUST(fold_choice_make(&r->s, f));
    assert_int_equal(r->s.folds, FOLD_NONE);
    assert_non_null(strstr(r->s.fold_note, "deterministic"));
    r->c.deterministic = false, r->c.tuner_type = "full"; /* nothing folds: the pass says why */
    MUST(fold_choice_make(&r->s, f));
    assert_int_equal(r->s.folds, FOLD_ALL);
    assert_null(r->s.fold_note);
    unsetenv("XDG_CACHE_HOME");
    r->s.b = own;
    fixture_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_rules_say),         cmocka_unit_test(choice_between_times),
        cmocka_unit_test(rounds_settle),          SCRATCH_TEST(times_are_kept),
        SCRATCH_TEST(nowhere_to_write),           SCRATCH_TEST(damaged_files),
        cmocka_unit_test(whole_layers_are_timed), cmocka_unit_test(nothing_to_time),
        SCRATCH_TEST(kept_times_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
