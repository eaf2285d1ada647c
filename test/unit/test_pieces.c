/* test_pieces.c - what ranks keep of weights that pass_layout put into one storage, and what their gathers make of it:
 * the pieces of all ranks behind each other are the storage that a single process has, bit for bit, adapters and gaps
 * included; and in the program every op finds its weights where it does in that of a single process.  What goes on
 * beside other work keeps its memory meanwhile. */
#include "unit.h"

#include "base/array.h"
#include "fixture_run.h"

#include <string.h>

static bool upload_rows(void *to, size_t to_pitch, const void *from, size_t row_bytes, int64_t rows, failure *f) {
    (void)f;
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)to + (size_t)r * to_pitch, (const char *)from + (size_t)r * row_bytes, row_bytes);
    return true;
}

static float element(const tensor *t, int64_t i) {
    float x;
    dtype_to_f32(&x, (const char *)t->data + (size_t)i * dtype_size(t->type), t->type, 1);
    return x;
}

/* As cuda/adamw.cu does it. */
static bool publish(const optim_group *groups, int n, failure *f) {
    (void)f;
    for (const optim_group *g = groups; g < groups + n; g++)
        for (int64_t i = 0; g->working.data && i < g->n; i++) {
            const tensor *w = &g->working;
            int64_t row = i / w->cols - g->first, col = i % w->cols;
            float x = g->weight[i] * (g->fold.data ? element(&g->fold, col) : 1);
            if (row < 0 || row >= w->rows) continue;
            dtype_from_f32((char *)w->data + (size_t)(row * w->ld + col) * dtype_size(w->type), w->type, &x, 1);
        }
    return true;
}

/* The CPU's memory with a card's layout; nothing is run. */
static backend laid_out(void) {
    backend b = cpu_backend;
    b.host_memory = false;
    b.upload_rows = upload_rows;
    b.publish = publish;
    b.compute = DTYPE_BF16;
    return b;
}

static backend laid;

/* Weights of one rank, or of the only one (o->ranks 0). */
static fixture_run *keep(fixture_options how, const shard_options *o) {
    laid = laid_out();
    fixture_run *r = fixture_open(how);
    int slots = r->row.info.rows;
    session_drop_program(&r->s);
    r->s.b = &laid;
    MUST(session_build(&r->s, SESSION_TRAIN, slots, how.recompute, f));
    if (o->ranks) {
        pass_shard_weights(&r->s.g, o);
        if (o->zero_stage > 1) pass_shard_gradients(&r->s.g, o);
        MUST(pass_verify(&r->s.g, f));
    }
    MUST(session_start(&r->s, true, f));
    return r;
}

static vid read_id(const graph *g, vid v) { return g->values[v].working ? g->values[v].working : v; }

/* What op k-th operand v of the whole program is, beside that of the spread one. */
static void compare_places(const graph *whole, vid v, const graph *spread, vid w) {
    if (!v || !w) {
        assert_true(!v && !w);
        return;
    }
    const graph_value *a = &whole->values[read_id(whole, v)], *b = &spread->values[read_id(spread, w)];
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    if (!b->whole_of) return;
    assert_int_equal(value_ld(whole, read_id(whole, v)), value_ld(spread, w));
    assert_int_equal(a->at, b->at);
    assert_int_equal(a->base != 0, b->base != 0);
    assert_string_equal(spread->values[b->whole_of].name, whole->values[v].name);
}

/* Ops of the spread program but its gathers are those of the whole one; W[0]'s storage is that of what lies in it. */
static void compare_programs(const graph *whole, const graph *spread) {
    int at = 0;
    for (int i = 0; i < arrlen(spread->ops); i++) {
        const graph_op *o = &spread->ops[i];
        if (o->kind == OP_all_gather || o->kind == OP_reduce_scatter) continue;
        const graph_op *w = &whole->ops[at++];
        assert_int_equal(o->kind, w->kind);
        for (int k = 0; k < GRAPH_MAX_IN; k++) compare_places(whole, w->in[k], spread, o->in[k]);
        vid storage = 0, other = 0; /* operands that share one do so in both */
        for (int k = 0; k < GRAPH_MAX_IN; k++) {
            const graph_value *a = &spread->values[o->in[k]];
            if (!o->in[k] || !a->whole_of || !(a->base || a->ld)) continue;
            const vid r = read_id(whole, w->in[k]), in = whole->values[r].base ? whole->values[r].base : r;
            if (!storage) storage = a->base ? a->base : o->in[k], other = in;
            assert_int_equal(storage == (a->base ? a->base : o->in[k]), other == in);
        }
    }
    assert_int_equal(at, arrlen(whole->ops));
}

/* Value v of the whole program, which is gathered as `part` of the others; returns its bytes. */
static int64_t compare_pieces(fixture_run *whole, vid v, fixture_run *const *ranks, int n, vid part) {
    const graph *g = &ranks[0]->s.g;
    int64_t piece = value_storage(g, part), bytes = 0;
    vid in = read_id(&whole->s.g, v);
    const graph_value *value = &whole->s.g.values[in];
    bool alone = !g->values[part].ld && !g->values[part].storage_rows; /* a run of elements, not the whole storage */
    bytes = alone ? value_bytes(value) : value_storage(&whole->s.g, in);
    char *all = xmalloc((size_t)(piece * n));
    for (int r = 0; r < n; r++) memcpy(all + r * piece, executor_data(ranks[r]->s.x, part), (size_t)piece);
    assert_true(piece * n >= bytes);
    assert_memory_equal(all, executor_data(whole->s.x, in), (size_t)bytes);
    free(all);
    return bytes;
}

static void compare(fixture_options how, shard_options o) {
    fixture_run *whole = keep(how, &(shard_options){0}), **ranks = xcalloc((size_t)o.ranks, sizeof *ranks);
    for (o.rank = 0; o.rank < o.ranks; o.rank++) ranks[o.rank] = keep(how, &o);
    const graph *g = &ranks[0]->s.g;
    compare_programs(&whole->s.g, g);
    int64_t gathered = 0;
    for (int i = 0; i < arrlen(g->ops); i++) {
        const graph_op *op = &g->ops[i];
        if (op->kind != OP_all_gather) continue;
        vid v = graph_find(&whole->s.g, g->values[op->in[0]].name);
        assert_true(v != 0);
        gathered += compare_pieces(whole, v, ranks, o.ranks, read_id(g, op->in[0]));
    }
    assert_true(gathered > 0);
    assert_true(ranks[0]->s.p.params < whole->s.p.params);
    for (int r = 0; r < o.ranks; r++) fixture_close(ranks[r]);
    fixture_close(whole);
    free(ranks);
}

static void a_frozen_base(void **state) {
    static const char *const models[] = {"llama", "llama-bias", "qwen3"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int ranks = 2; ranks <= 5; ranks++)
            for (int variant = 0; variant < 3; variant++)
                compare((fixture_options){.model = models[i],
                                          .kind = RUN_LORA,
                                          .fused = variant > 0,
                                          .fold = variant > 1,
                                          .recompute = variant > 1 ? RECOMPUTE_FULL : RECOMPUTE_NONE},
                        (shard_options){.ranks = ranks, .base = true});
}

static void trained_weights(void **state) {
    static const char *const models[] = {"llama", "llama-tied", "llama-bias", "qwen3"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int ranks = 2; ranks <= 5; ranks++)
            for (int fused = 0; fused < 2; fused++)
                compare((fixture_options){.model = models[i], .kind = RUN_FULL, .fused = fused},
                        (shard_options){.ranks = ranks, .zero_stage = 3});
}

/* No op between the scatter of one gradient and that of the next writes where the first one reads. */
static void gradients_on_their_way(void **state) {
    (void)state;
    fixture_options how = {.model = "llama", .kind = RUN_FULL, .fused = true};
    for (int stage = 2; stage <= 3; stage++) {
        fixture_run *r = keep(how, &(shard_options){.ranks = 3, .zero_stage = stage});
        const graph *g = &r->s.g;
        int scatters = 0;
        for (int i = 0; i < arrlen(g->ops); i++) {
            if (g->ops[i].kind != OP_reduce_scatter) continue;
            vid x = g->ops[i].in[0];
            int64_t from = r->s.p.offset[x], to = from + value_storage(g, x);
            scatters++;
            for (int j = i + 1; j < arrlen(g->ops) && g->ops[j].kind != OP_reduce_scatter; j++)
                for (int k = 0; k < GRAPH_MAX_OUT; k++) {
                    vid y = g->ops[j].out[k];
                    while (g->values[y].base) y = g->values[y].base;
                    int64_t at = r->s.p.offset[y];
                    if (y && at >= 0) assert_true(at >= to || at + value_storage(g, y) <= from);
                }
        }
        assert_true(scatters > 10);
        fixture_close(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_frozen_base), cmocka_unit_test(trained_weights),
                                       cmocka_unit_test(gradients_on_their_way)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
