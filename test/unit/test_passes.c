/* test_passes.c - the rewrites of the program, looked at as lists of ops. Their numbers are tested in test_program.c.
 */
#include "unit.h"

#include "base/array.h"
#include "exec/plan.h"
#include "graph/op_check.h"
#include "unit/program.h"

#include <string.h>

static int count_ops(const graph *g, op_kind kind) {
    int n = 0;
    for (int i = 0; i < arrlen(g->ops); i++) n += g->ops[i].kind == kind;
    return n;
}

static int count_params(const graph *g, bool trainable) {
    int n = 0;
    for (vid v = 1; v < arrlen(g->values); v++)
        n += g->values[v].role == ROLE_PARAM && g->values[v].trainable == trainable;
    return n;
}

static int attach(const char *const *targets, int n, bool regex, const int *layers, int n_layers, failure *f) {
    graph g;
    program_kind k = {0};
    model_config m = program_config(&k);
    graph_init(&g, DTYPE_F32);
    model_build(&g, &m, 8, NULL, NULL);
    lora_options o = {.rank = 2,
                      .alpha = 4,
                      .targets = targets,
                      .n_targets = n,
                      .regex = regex,
                      .layers = layers,
                      .n_layers = n_layers};
    bool ok = pass_lora(&g, &o, f);
    int adapters = ok ? count_params(&g, true) / 2 : -1;
    if (ok) assert_true(pass_verify(&g, f));
    graph_free(&g);
    return adapters;
}

/* cases.md A02 */
static void lora_targets(void **state) {
    (void)state;
    failure f;
    const int layer1[] = {1};
    assert_int_equal(attach((const char *[]){"all-linear"}, 1, false, NULL, 0, &f), 14);
    assert_int_equal(attach((const char *[]){"q_proj", "v_proj"}, 2, false, NULL, 0, &f), 4);
    assert_int_equal(attach((const char *[]){"self_attn.q_proj"}, 1, false, NULL, 0, &f), 2);
    assert_int_equal(attach((const char *[]){".*layers\\.1\\..*q_proj"}, 1, true, NULL, 0, &f), 1);
    assert_int_equal(attach((const char *[]){"q_proj"}, 1, true, NULL, 0, &f), -1); /* the whole path must match */
    assert_int_equal(attach((const char *[]){"all-linear"}, 1, false, layer1, 1, &f), 7);
    assert_int_equal(attach((const char *[]){"proj"}, 1, false, NULL, 0, &f), -1);
    assert_non_null(strstr(f.text, "\"proj\" matches no linear"));
    assert_non_null(strstr(f.text, "model.layers.0.self_attn.q_proj"));
    assert_int_equal(attach((const char *[]){"q_proj", "w1"}, 2, false, NULL, 0, &f), -1);
    assert_non_null(strstr(f.text, "\"w1\""));
    assert_int_equal(attach((const char *[]){"(q_proj"}, 1, true, NULL, 0, &f), -1);
    assert_non_null(strstr(f.text, "no regular expression"));
}

/* A tied head has no weight of its own: an adapter there would reach the embedding's name in PEFT's file. */
static void lora_spares_the_tied_head(void **state) {
    (void)state;
    failure f;
    static const char *const targets[] = {"model.embed_tokens", "embed_tokens", "lm_head", ".*"};
    for (int i = 0; i < 4; i++) {
        graph g;
        program_kind k = {.tied = true};
        model_config m = program_config(&k);
        graph_init(&g, DTYPE_F32);
        model_build(&g, &m, 8, NULL, NULL);
        lora_options o = {.rank = 2, .alpha = 4, .targets = &targets[i], .n_targets = 1, .regex = i == 3};
        assert_int_equal(pass_lora(&g, &o, &f), i == 3);
        if (i == 3) assert_int_equal(count_params(&g, true), 2 * 14);
        else assert_non_null(strstr(f.text, "matches no linear layer"));
        graph_free(&g);
    }
}

/* cases.md A01 */
static void lora_scale(void **state) {
    (void)state;
    const int rank[] = {8, 16, 64};
    const float plain[] = {2, 1, 0.25f}, rs[] = {5.656854f, 4, 2};
    for (int i = 0; i < 3; i++) {
        lora_options o = {.rank = rank[i], .alpha = 16};
        assert_float_equal(lora_scaling(&o), plain[i], 1e-6);
        o.use_rslora = true;
        assert_float_equal(lora_scaling(&o), rs[i], 1e-6);
    }
}

static void lora_names(void **state) {
    (void)state;
    graph g;
    failure f;
    program_build(&g, &(program_kind){.rank = 3}, 8, &f);
    vid A = graph_find(&g, "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight");
    vid B = graph_find(&g, "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight");
    assert_true(A && B);
    assert_true(g.values[A].rows == 3 && g.values[A].cols == 40 && g.values[B].rows == 24 && g.values[B].cols == 3);
    graph_free(&g);
}

static void fuse_finds_every_chain(void **state) {
    (void)state;
    const program_kind kinds[] = {{.fused = true, .rank = 2},
                                  {.fused = true, .rank = 2, .qk_norm = true, .bias = true},
                                  {.fused = true, .full = true, .tied = true}};
    for (int i = 0; i < 3; i++) {
        graph g;
        failure f;
        program_build(&g, &kinds[i], 8, &f);
        assert_true(pass_verify(&g, &f));
        assert_int_equal(count_ops(&g, OP_norm_qkv_rope), 2);
        assert_int_equal(count_ops(&g, OP_gate_up_glu), 2);
        assert_int_equal(count_ops(&g, OP_add_rms_norm), 3); /* before each mlp and before the head */
        assert_int_equal(count_ops(&g, OP_linear_ce), 1);
        assert_int_equal(count_ops(&g, OP_linear_lora), kinds[i].rank ? 4 : 0); /* o_proj, down_proj */
        assert_int_equal(count_ops(&g, OP_cross_entropy), 0);
        /* embed; prologue, attention, o_proj, add + norm, gate/up, down_proj; add + norm, head, sum */
        assert_int_equal(g.n_forward, 1 + 2 * 6 + 3);
        graph_free(&g);
    }
}

static void fuse_leaves_dropout_chains(void **state) {
    (void)state;
    graph g;
    failure f;
    program_build(&g, &(program_kind){.fused = true, .rank = 2, .dropout = 0.1f}, 8, &f);
    assert_true(pass_verify(&g, &f));
    assert_int_equal(count_ops(&g, OP_norm_qkv_rope), 0);
    assert_int_equal(count_ops(&g, OP_linear_lora), 0);
    assert_int_equal(count_ops(&g, OP_linear_ce), 1);
    graph_free(&g);
}

static void fuse_rule_names(void **state) {
    (void)state;
    graph g;
    failure f;
    program_kind k = {0};
    model_config m = program_config(&k);
    graph_init(&g, DTYPE_F32);
    model_build(&g, &m, 8, NULL, NULL);
    assert_false(pass_fuse(&g, "linear_c", FOLD_NONE, NULL, &f));
    assert_non_null(strstr(f.text, "nearest: linear_ce"));
    assert_true(pass_fuse(&g, "linear_ce,add_rms_norm", FOLD_NONE, NULL, &f));
    assert_int_equal(count_ops(&g, OP_linear_ce), 1);
    assert_int_equal(count_ops(&g, OP_gate_up_glu), 0);
    graph_free(&g);
}

/* Frozen weights get no gradient, and nothing runs below the first trainable layer. */
static void backward_does_no_needless_work(void **state) {
    (void)state;
    graph g;
    failure f;
    program_build(&g, &(program_kind){.rank = 2}, 8, &f);
    assert_int_equal(count_ops(&g, OP_embed_bwd), 0);
    assert_int_equal(count_ops(&g, OP_rms_norm_bwd), 4); /* 5 norms; the first one's input does not train */
    int weight_gradients = 0;
    for (vid v = 1; v < arrlen(g.values); v++) {
        if (g.values[v].role != ROLE_GRAD) continue;
        assert_non_null(strstr(g.values[v].name, ".lora_"));
        weight_gradients++;
    }
    assert_int_equal(weight_gradients, 28);
    graph_free(&g);
    program_build(&g, &(program_kind){.full = true, .tied = true}, 8, &f);
    vid table = graph_find(&g, "model.embed_tokens.weight");
    int writers = 0; /* embedding and head add into one gradient */
    for (int i = 0; i < arrlen(g.ops); i++)
        for (int k = 0; k < GRAPH_MAX_OUT; k++) writers += g.ops[i].out[k] == g.values[table].grad;
    assert_int_equal(writers, 2);
    graph_free(&g);
}

/* What backward ops read of the forward half, but for a layer's: bytes that must live across. */
static int64_t kept_bytes(const graph *g, int but) {
    bool *read = xcalloc((size_t)arrlen(g->values), sizeof *read);
    int64_t bytes = 0;
    for (int i = g->n_forward; i < arrlen(g->ops); i++)
        for (int k = 0; k < GRAPH_MAX_IN; k++) read[g->ops[i].in[k]] = true;
    for (int i = 0; i < g->n_forward; i++)
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (g->ops[i].out[k] && g->ops[i].layer != but && read[g->ops[i].out[k]])
                bytes += value_bytes(&g->values[g->ops[i].out[k]]);
    free(read);
    return bytes;
}

static int repeats_of(const graph *g, int layer) {
    int n = 0;
    for (int i = g->n_forward; i < arrlen(g->ops); i++)
        n += g->ops[i].layer == layer && strncmp(g->values[g->ops[i].out[0]].name, "again.", 6) == 0;
    return n;
}

static void recompute_keeps_less(void **state) {
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        int64_t kept[RECOMPUTE_COUNT], of_others = 0;
        for (recompute_level level = 0; level < RECOMPUTE_COUNT; level++) {
            graph g;
            failure f;
            program_build(&g, &(program_kind){.rank = 2, .fused = fused, .level = level}, 8, &f);
            assert_true(pass_verify(&g, &f));
            kept[level] = kept_bytes(&g, -1);
            of_others = kept_bytes(&g, fused ? 2 : -1);
            assert_true((repeats_of(&g, 1) > 0) == (level != RECOMPUTE_NONE));
            /* of the last layer, whose way back comes at once, only beside full logits, and where memory counts most */
            bool last_too = level == RECOMPUTE_OFFLOAD || (level != RECOMPUTE_NONE && !fused);
            assert_true((repeats_of(&g, 2) > 0) == last_too);
            graph_free(&g);
        }
        assert_true(kept[RECOMPUTE_CHEAP] < kept[RECOMPUTE_NONE]);
        assert_true(kept[RECOMPUTE_FULL] < kept[RECOMPUTE_CHEAP]);
        /* full: the two layers' inputs, the last norm's input and output, its rstd, lse and nll: nothing of a layer
         * but, fused, s of its last product */
        assert_true(of_others <= (int64_t)sizeof(float) * 8 * (5 * 24 + 3) + 4 * 8 * (fused ? 2 : 31));
    }
}

/* What a layer leaves for its way back goes to host memory behind the op that makes it, and is back in the layer before
 * its own. */
static void offload_goes_and_comes_back(void **state) {
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        graph g;
        failure f;
        program_build(&g, &(program_kind){.rank = 2, .fused = fused, .level = RECOMPUTE_OFFLOAD}, 8, &f);
        assert_true(pass_verify(&g, &f));
        int gone = -1, back = -1, used = -1;
        for (int i = 0; i < arrlen(g.ops); i++) {
            const graph_op *o = &g.ops[i];
            if (o->kind == OP_to_host) {
                assert_int_equal(gone, -1); /* the first layer's input; the last one's way back comes at once */
                gone = i;
                assert_int_equal(g.ops[i - 1].kind, OP_embed);
                assert_int_equal(o->in[0], g.ops[i - 1].out[0]);
                assert_int_equal(g.values[o->out[0]].role, ROLE_HOST);
            } else if (o->kind == OP_from_host) {
                assert_int_equal(back, -1);
                back = i;
                assert_int_equal(o->in[0], g.ops[gone].out[0]);
                assert_true(o->backward && o->layer == 2 && g.ops[i + 1].layer == 2);
                if (fused) assert_int_equal(g.ops[i - 1].kind, OP_glu_bwd); /* it writes the widest: dgate, dup */
            }
            for (int k = 0; k < GRAPH_MAX_IN; k++) {
                if (back >= 0 && used < 0 && o->in[k] == g.ops[back].out[0]) used = i;
                if (i >= g.n_forward) assert_int_not_equal(o->in[k], g.ops[gone].in[0]);
            }
        }
        assert_true(gone >= 0 && gone < g.n_forward && back >= g.n_forward && used > back);
        assert_int_equal(g.ops[used].layer, 1);
        plan p;
        plan_make(&p, &g, NULL, true);
        assert_int_equal(p.host, value_bytes(&g.values[g.ops[gone].out[0]]));
        plan_free(&p);
        graph_free(&g);
    }
}

static bool overlap(int64_t a, int64_t na, int64_t b, int64_t nb) { return a < b + nb && b < a + na; }

static size_t some_scratch(const graph *g, const graph_op *op) {
    return op->kind == OP_attention ? 0 : (size_t)(700 * (op - g->ops) % 5000);
}

static void plan_never_overlaps_live_values(void **state) {
    (void)state;
    const backend device = {.scratch = some_scratch};
    graph g;
    failure f;
    program_build(&g, &(program_kind){.rank = 2, .fused = true, .level = RECOMPUTE_CHEAP}, 8, &f);
    plan p;
    plan_make(&p, &g, &device, true);
    int n = (int)arrlen(g.values);
    int *first = xcalloc((size_t)n, sizeof(int)), *last = xcalloc((size_t)n, sizeof(int));
    for (int i = 0; i < arrlen(g.ops); i++)
        for (int k = 0; k < GRAPH_MAX_IN + GRAPH_MAX_OUT; k++) {
            const graph_op *o = &g.ops[i];
            vid v = 0;
            if (k < GRAPH_MAX_IN) v = o->in[k];
            else v = o->out[k - GRAPH_MAX_IN];
            if (!first[v]) first[v] = i + 1;
            last[v] = i + 1;
        }
    for (vid a = 1; a < n; a++)
        for (vid b = a + 1; b < n; b++) {
            if (p.offset[a] < 0 || p.offset[b] < 0 || last[a] < first[b] || last[b] < first[a]) continue;
            assert_false(overlap(p.offset[a], value_bytes(&g.values[a]), p.offset[b], value_bytes(&g.values[b])));
        }
    for (int i = 0; i < arrlen(g.ops); i++) {
        assert_true(p.scratch[i].bytes >= (int64_t)some_scratch(&g, &g.ops[i]));
        assert_true(p.scratch[i].at + p.scratch[i].bytes <= p.arena);
        for (vid v = 1; v < n; v++)
            if (p.offset[v] >= 0 && first[v] <= i + 1 && i + 1 <= last[v])
                assert_false(overlap(p.offset[v], value_bytes(&g.values[v]), p.scratch[i].at, p.scratch[i].bytes));
    }
    assert_true(p.arena < p.naive);
    assert_int_equal(p.moments, 2 * p.trainable);
    assert_int_equal(p.grads, p.trainable);
    plan alone;
    plan_make(&alone, &g, &device, false);
    assert_int_equal(alone.arena, alone.naive);
    plan_free(&alone);
    plan_free(&p);
    free(first);
    free(last);
    graph_free(&g);
}

static const graph_value *value_named(const graph *g, const char *name) {
    vid v = graph_find(g, name);
    assert_true(v);
    return &g->values[v];
}

/* Base and adapters of q, k and v in one matrix: 32 + 16 + 16 rows and 3 x 3 ranks rounded up to 16. */
static void layout_stacks_weights(void **state) {
    (void)state;
    graph g;
    failure f;
    program_build(&g, &(program_kind){.rank = 3, .fused = true, .bias = true}, 8, &f);
    pass_layout(&g);
    assert_true(pass_verify(&g, &f));
    const graph_value *q = value_named(&g, "model.layers.0.self_attn.q_proj.weight");
    const graph_value *v = value_named(&g, "model.layers.0.self_attn.v_proj.weight");
    vid base = graph_find(&g, "model.layers.0.self_attn.q_proj.weight");
    assert_true(q->ld == 24 + 16 && q->storage_rows == 64 + 16 && !q->base);
    assert_true(v->base == base && v->at == 48 * 40 && value_ld(&g, graph_find(&g, v->name)) == 40);
    const graph_value *A = value_named(&g, "working.base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight");
    const graph_value *B = value_named(&g, "working.base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight");
    assert_true(A->base == base && A->at == (64 + 6) * 40 && B->base == base && B->at == 48 * 40 + 24 + 6);
    assert_int_equal(value_named(&g, "model.layers.0.self_attn.q_proj.bias")->storage_rows, 64);
    assert_int_equal(value_named(&g, "model.layers.0.self_attn.v_proj.bias")->at, 48);
    for (int i = 0; i < arrlen(g.ops); i++) {
        const graph_op *o = &g.ops[i];
        if (o->kind == OP_norm_qkv_rope) {
            assert_int_equal(value_ld(&g, o->out[NQR_H]), 24 + 16);
            assert_int_equal(value_ld(&g, o->out[NQR_K]), 64);
            assert_true(g.values[o->out[NQR_V]].base == o->out[NQR_Q] && g.values[o->out[NQR_V]].at == 48);
        } else if (o->kind == OP_qkv_bwd) {
            assert_int_equal(value_ld(&g, o->in[QKV_DV]), 64 + 16);
            const graph_value *dAv = &g.values[o->out[QKV_DAV]];
            assert_true(dAv->base == o->out[QKV_DAQ] && dAv->at == 6 * 24);
            assert_int_equal(g.values[o->out[QKV_DAQ]].storage_rows, 9);
        } else if (o->kind == OP_linear_lora) {
            assert_int_equal(value_ld(&g, o->in[LORA_X]), g.values[o->in[LORA_X]].cols + 8);
        } else if (o->kind == OP_gate_up_bwd) {
            assert_int_equal(value_ld(&g, o->in[GUB_DUP]), 2 * 40 + 8);
        }
    }
    graph_free(&g);
}

/* Of a value: the last op that touches it, and the first. */
static int last_op(const graph *g, vid v) {
    for (int i = (int)arrlen(g->ops) - 1; i >= 0; i--)
        for (int k = 0; k < GRAPH_MAX_IN + GRAPH_MAX_OUT; k++)
            if ((k < GRAPH_MAX_IN ? g->ops[i].in[k] : g->ops[i].out[k - GRAPH_MAX_IN]) == v) return i;
    return -1;
}
static int first_op(const graph *g, vid v) {
    for (int i = 0; i < arrlen(g->ops); i++)
        for (int k = 0; k < GRAPH_MAX_IN + GRAPH_MAX_OUT; k++)
            if ((k < GRAPH_MAX_IN ? g->ops[i].in[k] : g->ops[i].out[k - GRAPH_MAX_IN]) == v) return i;
    return -1;
}

/* Nothing placed inside another storage reaches beyond it or into a neighbour, but for what takes another's very place
 * in the last op that reads that one; and the plan keeps storages apart. */
static void layout_never_overlaps(void **state) {
    (void)state;
    const program_kind kinds[] = {{.rank = 3, .fused = true, .level = RECOMPUTE_CHEAP},
                                  {.rank = 3, .fused = true, .fold = true},
                                  {.rank = 3, .fused = true, .fold = true, .level = RECOMPUTE_FULL},
                                  {.rank = 8, .fused = true, .qk_norm = true, .bias = true, .tied = true},
                                  {.full = true, .fused = true, .level = RECOMPUTE_FULL}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        graph g;
        failure f;
        int64_t in_place = 0;
        program_build(&g, &kinds[i], 8, &f);
        pass_layout(&g);
        assert_true(pass_verify(&g, &f));
        for (vid base = 1; base < arrlen(g.values); base++) {
            int64_t n = value_storage(&g, base) / (int64_t)dtype_size(g.values[base].type), ld = value_ld(&g, base);
            vid *used = xcalloc((size_t)n + 1, sizeof *used);
            for (vid v = 1; v < arrlen(g.values) && !g.values[base].base; v++) {
                const graph_value *value = &g.values[v];
                if (v != base && value->base != base) continue;
                for (int64_t r = 0; r < value->rows; r++)
                    for (int64_t c = 0; c < value->cols; c++) {
                        int64_t at = value->at + r * ld + c;
                        assert_true(at < n);
                        const graph_value *before = &g.values[used[at]];
                        if (used[at]) {
                            assert_true(before->at == value->at && before->cols == value->cols);
                            assert_true(last_op(&g, used[at]) == first_op(&g, v) ||
                                        last_op(&g, v) == first_op(&g, used[at]));
                        }
                        in_place += used[at] != 0;
                        used[at] = v;
                    }
            }
            free(used);
        }
        /* dgate and dup of both layers, where gate and up lie side by side and neither pair has room */
        assert_int_equal(in_place, kinds[i].fold ? 2 * 8 * 2 * 40 : 0);
        graph_free(&g);
    }
}

/* The head's gradient moves into the forward half where its weights are an input, and only there. */
static void early_loss_takes_the_gradient(void **state) {
    (void)state;
    const program_kind kinds[] = {{.rank = 3, .fused = true}, {.full = true, .fused = true, .tied = true}, {.rank = 3}};
    for (int i = 0; i < 3; i++) {
        graph g;
        failure f;
        program_build(&g, &kinds[i], 8, &f);
        int before = count_ops(&g, OP_linear_ce_bwd), n = (int)arrlen(g.ops);
        assert_int_equal(before, kinds[i].fused);
        pass_early_loss(&g);
        assert_true(pass_verify(&g, &f));
        assert_int_equal(count_ops(&g, OP_linear_ce_bwd), 0);
        assert_int_equal(arrlen(g.ops), n - before);
        for (int k = 0; k < arrlen(g.ops); k++) {
            const graph_op *o = &g.ops[k];
            if (o->kind != OP_linear_ce) continue;
            assert_true(k < g.n_forward && g.values[o->in[3]].role == ROLE_INPUT && o->out[2]);
            assert_true(!o->out[3] == !kinds[i].full);
        }
        pass_early_loss(&g); /* again: nothing is left to do */
        assert_int_equal(arrlen(g.ops), n - before);
        graph_free(&g);
    }
    graph g;
    failure f;
    program_build(&g, &kinds[0], 8, &f);
    for (int k = 0; k < arrlen(g.ops); k++) /* weights that a run makes */
        if (g.ops[k].kind == OP_linear_ce_bwd) g.values[g.ops[k].in[0]].role = ROLE_TEMP;
    pass_early_loss(&g);
    assert_int_equal(count_ops(&g, OP_linear_ce_bwd), 1);
    graph_free(&g);
}

static void verify_finds_faults(void **state) {
    (void)state;
    graph g;
    failure f;
    program_build(&g, &(program_kind){.rank = 2}, 8, &f);
    assert_true(pass_verify(&g, &f));
    graph_op saved = g.ops[3];
    g.ops[3].in[0] = g.ops[4].out[0];
    assert_false(pass_verify(&g, &f));
    g.ops[3] = saved;
    g.ops[4].out[0] = saved.out[0];
    assert_false(pass_verify(&g, &f));
    graph_free(&g);
}

static void shapes_are_checked(void **state) {
    (void)state;
    graph g;
    char why[256];
    graph_init(&g, DTYPE_F32);
    vid x = graph_add_value(&g, ROLE_INPUT, DTYPE_F32, 5, 8, "x"),
        w = graph_add_value(&g, ROLE_PARAM, DTYPE_F32, 6, 8, "w");
    vid y = graph_add_value(&g, ROLE_TEMP, DTYPE_F32, 5, 6, "y"),
        z = graph_add_value(&g, ROLE_TEMP, DTYPE_F32, 5, 7, "z");
    assert_true(op_check(&g, &(graph_op){OP_linear, {x, w}, {y}}, why, sizeof why));
    assert_false(op_check(&g, &(graph_op){OP_linear, {x, w}, {z}}, why, sizeof why));
    assert_string_equal(why, "operand y: found 7 where M = 6 is expected");
    assert_false(op_check(&g, &(graph_op){OP_linear, {x, 0}, {y}}, why, sizeof why));
    assert_string_equal(why, "operand W is absent");
    assert_false(op_check(&g, &(graph_op){OP_linear, {x, w, x}, {y}}, why, sizeof why));
    vid pos = graph_add_value(&g, ROLE_INPUT, DTYPE_I32, 5, 1, "pos");
    vid f4 = graph_add_value(&g, ROLE_INPUT, DTYPE_F32, 4, 1, "f4"),
        f3 = graph_add_value(&g, ROLE_INPUT, DTYPE_F32, 3, 1, "f3");
    assert_true(op_check(&g, &(graph_op){OP_rope, {x, pos, f4}, {x}, {.head_dim = 8}}, why, sizeof why));
    assert_false(op_check(&g, &(graph_op){OP_rope, {x, pos, f3}, {x}, {.head_dim = 8}}, why, sizeof why));
    vid cu = graph_add_value(&g, ROLE_INPUT, DTYPE_I32, 6, 1, "cu");
    vid lse = graph_add_value(&g, ROLE_TEMP, DTYPE_F32, 5, 1, "lse"),
        dot = graph_add_value(&g, ROLE_TEMP, DTYPE_F32, 5, 1, "dot");
    graph_op attention = {OP_attention_bwd, {x, x, x, x, cu, x, lse, pos, f4}, {x, x, x, dot}, {.head_dim = 8}};
    assert_true(op_check(&g, &attention, why, sizeof why));
    attention.in[ATB_FREQ] = f3;
    assert_false(op_check(&g, &attention, why, sizeof why));
    attention.in[ATB_FREQ] = 0;
    assert_false(op_check(&g, &attention, why, sizeof why));
    assert_string_equal(why, "of the operands pos, freq one is absent");
    attention.in[ATB_POS] = 0;
    assert_false(op_check(&g, &attention, why, sizeof why));
    assert_string_equal(why, "of the operands dot, pos the second is absent");
    graph_free(&g);
}

/* Every op of the list is reachable by a rule or known to be terminal. */
static void backward_rules_are_complete(void **state) {
    (void)state;
    for (op_kind k = 0; k < OP_COUNT; k++) {
        bool backward_op = k >= OP_embed_bwd && k <= OP_cross_entropy_bwd;
        bool terminal = k == OP_weighted_sum || k == OP_gather || k == OP_attention_cached || backward_op ||
                        k == OP_linear_lora_bwd || k == OP_gate_up_bwd || k == OP_qkv_bwd || k == OP_linear_ce_bwd ||
                        k == OP_all_reduce || k == OP_all_gather || k == OP_reduce_scatter || k == OP_to_host ||
                        k == OP_from_host;
        assert_int_equal(backward_has_rule(k), !terminal);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_targets),
        cmocka_unit_test(lora_spares_the_tied_head),
        cmocka_unit_test(lora_scale),
        cmocka_unit_test(lora_names),
        cmocka_unit_test(fuse_finds_every_chain),
        cmocka_unit_test(fuse_leaves_dropout_chains),
        cmocka_unit_test(fuse_rule_names),
        cmocka_unit_test(backward_does_no_needless_work),
        cmocka_unit_test(recompute_keeps_less),
        cmocka_unit_test(offload_goes_and_comes_back),
        cmocka_unit_test(plan_never_overlaps_live_values),
        cmocka_unit_test(layout_stacks_weights),
        cmocka_unit_test(layout_never_overlaps),
        cmocka_unit_test(early_loss_takes_the_gradient),
        cmocka_unit_test(verify_finds_faults),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(backward_rules_are_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
