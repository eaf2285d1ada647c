/* test_shard.c - buckets of gradients: each gradient in one, each summed right behind its last write, and the same bits
 * as without them. */
#include "unit.h"

#include "base/array.h"
#include "base/log.h"
#include "fixture_run.h"

#include <string.h>

/* A session on a fixture, with buckets of so many bytes (-1: none), after one micro-batch. */
static fixture_run *run(const char *model, run_kind kind, bool fused, bool layout, int64_t bucket_bytes) {
    fixture_run *r = fixture_open((fixture_options){.model = model, .kind = kind, .fused = fused});
    int slots = r->row.info.rows + FIXTURE_SPARE_SLOTS;
    session_drop_program(&r->s);
    MUST(session_build(&r->s, SESSION_TRAIN, slots, RECOMPUTE_NONE, f));
    if (layout) pass_layout(&r->s.g);
    if (bucket_bytes >= 0) pass_shard(&r->s.g, &(shard_options){.ranks = 1, .bucket_bytes = bucket_bytes});
    MUST(pass_verify(&r->s.g, f));
    return r;
}

static vid root(const graph *g, vid v) {
    while (g->values[v].base) v = g->values[v].base;
    return v;
}

/* Ops that write into bucket v stand in front of its all_reduce, the last of them right in front or in front of other
 * all_reduces; behind it nothing touches it. */
static void check_bucket(const graph *g, vid bucket) {
    int reduce = -1, last = -1, n = (int)arrlen(g->ops);
    for (int i = 0; i < n; i++) {
        const graph_op *o = &g->ops[i];
        if (o->kind == OP_all_reduce && o->out[0] == bucket) {
            assert_int_equal(reduce, -1);
            assert_int_equal(o->in[0], bucket);
            reduce = i;
            continue;
        }
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (o->out[k] && root(g, o->out[k]) == bucket) last = i;
    }
    assert_true(last >= 0 && last < reduce);
    while (last + 1 < reduce && g->ops[last + 1].kind == OP_all_reduce) last++;
    assert_int_equal(last + 1, reduce);
}

/* Gradients lie in buckets, whole, on 256 bytes, none over another. */
static int check_buckets(const graph *g) {
    int buckets = 0;
    for (vid v = 1; v < arrlen(g->values); v++) {
        const graph_value *value = &g->values[v];
        if (value->role != ROLE_GRAD) continue;
        if (!value->base) {
            check_bucket(g, v);
            buckets++;
            continue;
        }
        vid in = root(g, v);
        assert_int_equal(strncmp(g->values[in].name, "bucket.", 7), 0);
        assert_int_equal(value->at % (value->own_ld ? 64 : 1), 0);
        int64_t end = value->at + (value->rows - 1) * value_ld(g, v) + value->cols;
        if (value->base == in) assert_true(end <= g->values[in].rows);
        for (vid w = 1; w < v; w++) {
            const graph_value *other = &g->values[w];
            if (other->role != ROLE_GRAD || other->base != value->base) continue;
            assert_true(other->at >= end || other->at + other->rows * value_ld(g, w) <= value->at);
        }
    }
    return buckets;
}

static void gradients_lie_in_buckets(void **state) {
    static const char *const models[] = {"llama", "llama-tied", "qwen3", "llama-bias"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int kind = RUN_LORA; kind <= RUN_FULL; kind++)
            for (int variant = 0; variant < 4; variant++) {
                if (kind == RUN_LORA && i == 1) continue; /* has no adapter */
                bool fused = variant & 1, layout = variant & 2;
                int counts[3];
                static const int64_t sizes[3] = {0, 8000, 1 << 20};
                for (int k = 0; k < 3; k++) {
                    fixture_run *r = run(models[i], (run_kind)kind, fused, layout, sizes[k]);
                    counts[k] = check_buckets(&r->s.g);
                    fixture_close(r);
                }
                assert_true(counts[0] > counts[1] && counts[1] >= counts[2] && counts[2] == 1);
            }
}

/* With one rank a sum over the ranks is no change. */
static void same_bits(void **state) {
    (void)state;
    for (int kind = RUN_LORA; kind <= RUN_FULL; kind++)
        for (int fused = 0; fused < 2; fused++) {
            float *first = NULL, loss = 0;
            for (int k = -1; k < 2; k++) {
                fixture_run *r = run("llama", (run_kind)kind, fused, false, k);
                MUST(session_start(&r->s, true, f));
                r->row.info.last = true;
                fixture_run_row(r, true);
                float *gradients = fixture_gradients(r);
                if (k < 0) first = gradients, loss = fixture_loss(r);
                else {
                    assert_true(fixture_loss(r) == loss);
                    assert_int_equal(arrlen(gradients), arrlen(first));
                    assert_memory_equal(gradients, first, (size_t)arrlen(first) * sizeof *first);
                    arrfree(gradients);
                }
                fixture_close(r);
            }
            arrfree(first);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_lie_in_buckets), cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
