/* test_fold.c - norms that dissolve into the products around them (pass_fold): which do and which are left, with the
 * reason; what is kept for the backward half; and adapters on some of the linears only, held against the program
 * without it.  The golden values of whole adapters are in test_parity.c, the ops in test/ops. */
#include "fixture_run.h"

#include "train/optimizer.h"
#include "unit/program.h"

static int count_ops(const graph *g, op_kind kind) {
    int n = 0;
    for (int i = 0; i < arrlen(g->ops); i++) n += g->ops[i].kind == kind;
    return n;
}

static int count_folded(const graph *g, op_kind kind, int rstd) {
    int n = 0;
    for (int i = 0; i < arrlen(g->ops); i++) n += g->ops[i].kind == kind && g->ops[i].in[rstd];
    return n;
}

static bool has_note(const graph *g, const char *text) {
    for (int i = 0; i < arrlen(g->notes); i++)
        if (strstr(g->notes[i], text)) return true;
    return false;
}

static void build(graph *g, program_kind k) {
    failure f;
    k.fused = k.fold = true;
    program_build(g, &k, 8, &f);
    assert_true(pass_verify(g, &f));
}

static void every_norm_but_two(void **state) {
    (void)state;
    graph g;
    build(&g, (program_kind){.rank = 2});
    assert_int_equal(count_folded(&g, OP_norm_qkv_rope, NQR_RA), 1); /* of two layers: the first reads the embedding */
    assert_int_equal(count_folded(&g, OP_gate_up_glu, GUG_RSTD), 2);
    assert_int_equal(count_folded(&g, OP_linear_lora, LORA_RES), 3);
    assert_int_equal(count_ops(&g, OP_add_rms_norm), 1); /* before the head */
    assert_int_equal(count_ops(&g, OP_rms_norm_bwd), 1);
    assert_int_equal(count_ops(&g, OP_glu_bwd), 0); /* in down_proj's backward */
    assert_int_equal(count_ops(&g, OP_qkv_rope_bwd), 1);
    assert_int_equal(arrlen(g.notes), 1);
    assert_string_equal(g.notes[0], "fold: norm_qkv_rope of 1 layer left as it is: it reads the embedding: no product "
                                    "is before it");
    for (vid v = 1; v < arrlen(g.values); v++) assert_int_equal(g.values[v].fold, 0); /* pass_layout's */
    graph_free(&g);
}

/* Each kind of program, what folds of it, and the note. */
static void what_must_stay(void **state) {
    (void)state;
    static const struct {
        program_kind kind;
        int qkv, mlp;
        const char *note;
    } cases[] = {
        {{.full = true}, 0, 0, "norm_qkv_rope of 2 layers left as it is: a norm or a weight trains"},
        {{.full = true}, 0, 0, "gate_up_glu of 2 layers left as it is: a norm or a weight trains"},
        {{.rank = 2, .bias = true}, 0, 2, "norm_qkv_rope of 2 layers left as it is: q, k or v has a bias"},
        {{.rank = 2, .qk_norm = true}, 0, 2, "2 layers left as it is: q and k have norms of their own"},
        {{.rank = 2, .dropout = 0.1f}, 0, 0, "nothing to fold: the rules norm_qkv_rope and gate_up_glu found no chain"},
        {{.rank = 2, .window = true}, 1, 2, "it reads the embedding"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        graph g;
        build(&g, cases[i].kind);
        assert_int_equal(count_folded(&g, OP_norm_qkv_rope, NQR_RA), cases[i].qkv);
        assert_int_equal(count_folded(&g, OP_gate_up_glu, GUG_RSTD), cases[i].mlp);
        assert_true(has_note(&g, cases[i].note));
        graph_free(&g);
    }
}

static bool all_but_narrow_inputs(const graph *g, const graph_op *op, const char **why) {
    *why = "an input is narrow";
    return op->kind != OP_linear_lora || g->values[op->in[LORA_X]].cols != 32; /* o_proj's */
}

/* What a backend has no kernels for stays, and the rest folds. */
static void what_a_backend_refuses(void **state) {
    (void)state;
    graph g;
    failure f;
    program_kind k = {0};
    model_config m = program_config(&k);
    graph_init(&g, DTYPE_F32);
    model_build(&g, &m, 8, NULL, NULL);
    assert_done(pass_fuse(&g, "all,fold", all_but_narrow_inputs, &f), &f);
    assert_true(pass_verify(&g, &f));
    assert_int_equal(count_folded(&g, OP_gate_up_glu, GUG_RSTD), 0);
    assert_int_equal(count_folded(&g, OP_norm_qkv_rope, NQR_RA), 1);
    assert_true(has_note(&g, "gate_up_glu of 2 layers left as it is: an input is narrow"));
    graph_free(&g);
}

/* Bytes of the arena: neither h nor the gradients of h and of the mlp's activation exist. */
static void needs_less_memory(void **state) {
    (void)state;
    for (recompute_level level = 0; level < RECOMPUTE_COUNT; level++) {
        int64_t planned[2], kept[2];
        for (int fold = 0; fold < 2; fold++) {
            graph g;
            failure f;
            plan p;
            program_build(&g, &(program_kind){.rank = 2, .fused = true, .fold = fold, .level = level}, 64, &f);
            plan_make(&p, &g, NULL, true);
            planned[fold] = p.arena, kept[fold] = p.naive;
            plan_free(&p);
            graph_free(&g);
        }
        assert_true(planned[1] <= planned[0]);
        assert_true(kept[1] < kept[0]);
        if (level == RECOMPUTE_NONE) assert_true(planned[0] - planned[1] >= 2 * 64 * 24 * (int64_t)sizeof(float));
    }
}

/* ---- adapters on some linears ---- */

static void take_steps(fixture_run *r, int n) {
    optimizer *o;
    MUST(optimizer_open(&o, &r->s, f));
    for (int i = 0; i < n; i++) {
        double norm;
        fixture_run_row(r, true);
        MUST(optimizer_step(o, 1e-2, &norm, f));
    }
    optimizer_close(o);
}

static void check_close(const float *a, const float *b, int64_t n, const char *what) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        difference += d * d, size += (double)b[i] * (double)b[i];
    }
    if (!(sqrt(difference) <= 1e-5 * sqrt(size)) || !(size > 0))
        test_fail("%s: folded and not differ by %.3g of %.3g", what, sqrt(difference), sqrt(size));
}

/* New adapters start with B = 0; after a step every gradient counts. */
static void some_targets(void **state) {
    (void)state;
    static const char *const flags[][6] = {
        {"--target_modules", "q_proj,v_proj", NULL},
        {"--target_modules", "down_proj", NULL},
        {"--target_modules", "o_proj,up_proj,k_proj", NULL},
        {"--target_modules", "all-linear", "--layers_to_transform", "1", NULL},
        {"--target_modules", "gate_proj", "--layers_to_transform", "0", NULL},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        float *gradients[2], loss[2];
        for (int fold = 0; fold < 2; fold++) {
            fixture_options o = {.model = "llama", .kind = RUN_NEW_LORA, .fused = true, .fold = fold};
            o.flags[0] = "--lora_rank", o.flags[1] = "3";
            for (int k = 0; k < 4 && flags[i][k]; k++) o.flags[2 + k] = flags[i][k];
            fixture_run *r = fixture_open(o);
            assert_int_equal(count_folded(&r->s.g, OP_gate_up_glu, GUG_RSTD), fold ? r->s.model.n_layer : 0);
            take_steps(r, 2);
            fixture_run_row(r, true);
            loss[fold] = fixture_loss(r);
            gradients[fold] = fixture_gradients(r);
            fixture_close(r);
        }
        assert_int_equal(arrlen(gradients[0]), arrlen(gradients[1]));
        check_close(&loss[1], &loss[0], 1, "loss");
        check_close(gradients[1], gradients[0], arrlen(gradients[0]), flags[i][1]);
        arrfree(gradients[0]);
        arrfree(gradients[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_norm_but_two),     cmocka_unit_test(what_must_stay),
        cmocka_unit_test(what_a_backend_refuses), cmocka_unit_test(needs_less_memory),
        cmocka_unit_test(some_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
