/* test_fold.c - norms that dissolve into the products around them (pass_fold): which do and which are left, with the
 * reason; what is kept for the backward half; adapters on some of the linears only, held against the program without
 * it; and what a device stores.  The golden values of whole adapters are in test_parity.c, the ops in test/ops. */
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

static int count_dots(const graph *g) {
    int n = 0;
    for (int i = 0; i < arrlen(g->ops); i++) n += g->ops[i].kind == OP_attention_bwd && g->ops[i].out[ATB_DOT];
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
    assert_int_equal(count_ops(&g, OP_glu_bwd), 0);                   /* in down_proj's backward */
    assert_int_equal(count_folded(&g, OP_attention_bwd, ATB_POS), 2); /* rope's way back */
    assert_int_equal(count_dots(&g), 1);
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
    assert_done(pass_fuse(&g, "all,fold", FOLD_NONE, all_but_narrow_inputs, &f), &f);
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

/* ---- weights as a device stores them ---- */

static bool copy_rows(void *to, size_t pitch, const void *from, size_t row_bytes, int64_t rows, failure *f) {
    (void)f;
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)to + (size_t)r * pitch, (const char *)from + (size_t)r * row_bytes, row_bytes);
    return true;
}

static float stored_at(const tensor *t, int64_t row, int64_t column) {
    float x;
    dtype_to_f32(&x, (const char *)t->data + (size_t)(row * t->ld + column) * dtype_size(t->type), t->type, 1);
    return x;
}

static float rounded(float x) {
    uint16_t stored;
    dtype_from_f32(&stored, DTYPE_BF16, &x, 1);
    dtype_to_f32(&x, &stored, DTYPE_BF16, 1);
    return x;
}

static bool publish(const optim_group *groups, int n, failure *f) {
    (void)f;
    for (int k = 0; k < n; k++) {
        const tensor *w = &groups[k].working, *fold = &groups[k].fold;
        for (int64_t i = 0; i < groups[k].n; i++) {
            int64_t row = i / w->cols, column = i % w->cols;
            float x = groups[k].weight[i] * (fold->data ? stored_at(fold, column, 0) : 1);
            dtype_from_f32((char *)w->data + (size_t)(row * w->ld + column) * 2, DTYPE_BF16, &x, 1);
        }
    }
    return true;
}

/* A param's elements as the files have them. */
static float *file_values(const session *s, vid v) {
    const char *name = s->g.values[v].name;
    const st_tensor *t = st_find(s->weights, name);
    return fixture_floats(t ? t : st_find(s->adapter, name));
}

/* Of a weight: what products read is the file's value times the norm's, rounded once. Returns whether it is folded. */
static bool check_stored(const session *s, vid v) {
    const graph_value *value = &s->g.values[v];
    tensor t = executor_tensor(s->x, value->working ? value->working : v);
    float *want = file_values(s, v), *norm = value->fold ? file_values(s, value->fold) : NULL;
    for (int64_t r = 0; r < value->rows; r++)
        for (int64_t c = 0; c < value->cols; c++) {
            float x = rounded(want[r * value->cols + c] * (norm ? rounded(norm[c]) : 1));
            if (stored_at(&t, r, c) != x) test_fail("%s [%d, %d]", value->name, (int)r, (int)c);
        }
    if (value->working) { /* the master is as in the file */
        const float *master = executor_data(s->x, v);
        assert_memory_equal(master, want, (size_t)value_count(value) * sizeof *want);
    }
    free(want);
    free(norm);
    return value->fold;
}

static int check_all_stored(const session *s) {
    int folded = 0;
    for (vid v = 1; v < arrlen(s->g.values); v++)
        if (s->g.values[v].role == ROLE_PARAM && s->g.values[v].cols > 1) folded += check_stored(s, v);
    return folded;
}

static void stored_times_the_norm(void **state) {
    (void)state;
    backend device = cpu_backend;
    device.compute = DTYPE_BF16, device.host_memory = false, device.upload_rows = copy_rows, device.publish = publish;
    for (int training = 0; training < 2; training++) {
        fixture_run *r = xcalloc(1, sizeof *r);
        r->o = (fixture_options){
            .model = "llama", .kind = training ? RUN_LORA : RUN_LORA_LOGITS, .fused = true, .fold = true};
        log_quiet(true);
        fixture_dtype = "bfloat16";
        fixture_config(r);
        fixture_dtype = "float32";
        MUST(session_open_model(&r->s, &r->c, f));
        r->s.b = &device;
        MUST(session_open_weights(&r->s, f));
        MUST(session_build(&r->s, training ? SESSION_TRAIN : SESSION_EVAL, 16, RECOMPUTE_NONE, f));
        MUST(session_start(&r->s, true, f));
        int layers = r->s.model.n_layer; /* q, k, v but of the first, gate, up: W and A of each */
        assert_int_equal(check_all_stored(&r->s), 2 * (3 * (layers - 1) + 2 * layers));
        if (training) { /* and as the optimizer refreshes them */
            for (vid v = 1; v < arrlen(r->s.g.values); v++) {
                const graph_value *value = &r->s.g.values[v];
                tensor t = executor_tensor(r->s.x, value->working);
                for (int64_t i = 0; value->working && i < t.rows; i++)
                    memset((char *)t.data + (size_t)(i * t.ld) * 2, 0xFF, (size_t)t.cols * 2);
            }
            optimizer *o;
            MUST(optimizer_open(&o, &r->s, f));
            MUST(optimizer_restored(o, 0, f));
            check_all_stored(&r->s);
            optimizer_close(o);
        }
        fixture_close(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_norm_but_two),     cmocka_unit_test(what_must_stay),
        cmocka_unit_test(what_a_backend_refuses), cmocka_unit_test(needs_less_memory),
        cmocka_unit_test(some_targets),           cmocka_unit_test(stored_times_the_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
