/* test_loader.c - packing and micro-batches: every token once, positions, document starts, shifted targets, counters,
 * steps (D01, D08, D09, L03, O04, Z02). */
#include "base/array.h"
#include "base/rng.h"
#include "data/dataset.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Examples of the given lengths whose last `answer` tokens are labels (never the first token). Token = 1000 * example +
 * i. */
static dataset make(const int *lengths, int n, int answer) {
    dataset d = {0};
    arrput(d.start, 0);
    for (int e = 0; e < n; e++) {
        for (int i = 0; i < lengths[e]; i++) {
            arrput(d.tokens, 1000 * e + i);
            arrput(d.labels, i > 0 && i >= lengths[e] - answer);
        }
        arrput(d.start, arrlen(d.tokens));
    }
    return d;
}

static dataset make_random(int n, int most, uint64_t seed) {
    int *lengths = malloc((size_t)n * sizeof *lengths);
    rng r = {seed, 0};
    for (int i = 0; i < n; i++) {
        uint64_t a = 1 + rng_below(&r, (uint64_t)most), b = 1 + rng_below(&r, a); /* mostly short, as real rows are */
        lengths[i] = (int)(1 + rng_below(&r, b));
    }
    dataset d = make(lengths, n, 4);
    free(lengths);
    return d;
}

/* Each example in one row, no row empty or over the limit. */
static int64_t check_packing(const packing *p, const dataset *d, int most) {
    int64_t n = dataset_count(d), total = 0;
    char *seen = calloc((size_t)n, 1);
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t filled = 0;
        assert_true(p->row_start[r] < p->row_start[r + 1]);
        for (int64_t i = p->row_start[r]; i < p->row_start[r + 1]; i++) {
            int32_t e = p->example[i];
            assert_in_range(e, 0, n - 1);
            assert_false(seen[e]);
            seen[e] = 1;
            filled += d->start[e + 1] - d->start[e];
        }
        assert_true(filled <= most);
        total += filled;
    }
    assert_int_equal(p->row_start[p->rows], n);
    assert_int_equal(total, d->start[n]);
    free(seen);
    return total;
}

static void packing_random(void **state) {
    (void)state;
    for (int k = 0; k < 40; k++) {
        int most = (int[]){1, 2, 7, 63, 64, 65, 500, 4097}[k % 8], n = 1 + 37 * k;
        dataset d = make_random(n, most, (uint64_t)k);
        int64_t rows = 0;
        for (uint64_t key = 0; key < 3; key++) {
            packing p;
            pack_rows(&p, &d, most, true, true, key);
            int64_t total = check_packing(&p, &d, most);
            assert_true(p.rows >= (total + most - 1) / most);
            assert_true(p.rows <= 2 * ((total + most - 1) / most)); /* best fit: no two rows could be one */
            if (key > 0) assert_int_equal(p.rows, rows);            /* the same for every epoch */
            rows = p.rows;
            packing_free(&p);
        }
        dataset_free(&d);
    }
}

/* Best fit, longest first, on a case done by hand: 6 4 | 5 3 2 | 3 in rows of 10. */
static void packing_by_hand(void **state) {
    (void)state;
    dataset d = make((int[]){2, 3, 4, 5, 6, 3}, 6, 1);
    packing p;
    pack_rows(&p, &d, 10, true, false, 0);
    check_packing(&p, &d, 10);
    assert_int_equal(p.rows, 3);
    static const int32_t rows[3][3] = {{0, 1, 3}, {2, 4, -1}, {5, -1, -1}};
    for (int r = 0; r < 3; r++)
        for (int64_t i = p.row_start[r], k = 0; i < p.row_start[r + 1]; i++, k++)
            assert_int_equal(p.example[i], rows[r][k]);
    packing_free(&p);
    pack_rows(&p, &d, 10, false, false, 0);
    assert_int_equal(p.rows, 6);
    for (int r = 0; r < 6; r++) assert_int_equal(p.example[r], r);
    packing_free(&p);
    dataset_free(&d);
}

static void packing_shuffles(void **state) {
    (void)state;
    dataset d = make_random(300, 100, 5);
    packing a, b, c;
    pack_rows(&a, &d, 128, true, true, 1);
    pack_rows(&b, &d, 128, true, true, 1);
    pack_rows(&c, &d, 128, true, true, 2);
    assert_memory_equal(a.example, b.example, 300 * sizeof *a.example);
    assert_memory_not_equal(a.example, c.example, 300 * sizeof *a.example);
    packing_free(&a);
    packing_free(&b);
    packing_free(&c);
    dataset_free(&d);
}

typedef struct {
    loader *l;
    micro_batch b[12];
    int slots, n;
} run;

static run open_run(const dataset *d, loader_options o) {
    run r = {.slots = o.batch_size * o.max_length};
    failure f;
    assert_true(loader_open(&r.l, d, &o, &f));
    for (int i = 0; i < 12; i++) micro_batch_init(&r.b[i], r.slots);
    return r;
}

static void close_run(run *r) {
    for (int i = 0; i < 12; i++) micro_batch_free(&r->b[i]);
    loader_close(r->l);
}

static void expect_ints(const int32_t *got, const int *expected, int n) {
    for (int i = 0; i < n; i++) assert_int_equal(got[i], expected[i]);
}

/* D09: lengths 3, 1, 2, everything a label: 6 tokens in 3 documents are 3 targets. */
static void document_edges(void **state) {
    (void)state;
    dataset d = make((int[]){3, 1, 2}, 3, 9);
    run r = open_run(&d, (loader_options){1, 8, 1, 1.0, -1, true, false, 7});
    assert_int_equal(loader_steps(r.l), 1);
    assert_true(loader_next(r.l, r.b, &r.n));
    assert_int_equal(r.n, 1);
    const micro_batch *b = &r.b[0];
    expect_ints(b->ids, (int[]){0, 1, 2, 1000, 2000, 2001, 0, 0}, 8);
    expect_ints(b->pos, (int[]){0, 1, 2, 0, 0, 1, 0, 0}, 8);
    expect_ints(b->cu, (int[]){0, 3, 4, 6}, 4);
    expect_ints(b->target, (int[]){1, 2, -100, -100, 2001, -100, -100, -100}, 8);
    expect_ints(b->example, (int[]){0, 0, 0, 1, 2, 2, -1, -1}, 8);
    assert_int_equal(b->info.rows, 6);
    assert_int_equal(b->info.docs, 3);
    assert_int_equal(b->info.labels, 3);
    assert_int_equal(b->info.longest, 3);
    assert_true(b->info.training);
    assert_false(loader_next(r.l, r.b, &r.n));
    close_run(&r);
    dataset_free(&d);
}

/* Z02 and D01: lengths 3 and 6 with 2 and 4 labels. Two rows of 6 slots: 12 slots, 9 tokens, 6 labels; packed 9, 9, 6.
 * Padding is told by its place: the fill id 0 is a token of example 0 too, and the last answer token stays a target. */
static void counters(void **state) {
    (void)state;
    dataset d = make((int[]){3, 6}, 2, 4);
    d.labels[0] = d.labels[4] = 0;
    for (int packed = 0; packed < 2; packed++) {
        run r = open_run(&d, (loader_options){packed ? 1 : 2, packed ? 9 : 6, 1, 1.0, -1, packed, false, 7});
        assert_true(loader_next(r.l, r.b, &r.n));
        assert_int_equal(r.slots, packed ? 9 : 12);
        assert_int_equal(r.b[0].info.rows, 9);
        assert_int_equal(r.b[0].info.labels, 6);
        expect_ints(r.b[0].target, (int[]){1, 2, -100, -100, 1002, 1003, 1004, 1005, -100}, 9);
        if (!packed) expect_ints(r.b[0].target + 9, (int[]){-100, -100, -100}, 3);
        close_run(&r);
    }
    dataset_free(&d);
}

/* L03: a target is the next token of its own document, never two on, never the next row's. */
static void shifted_once(void **state) {
    (void)state;
    dataset d = make_random(500, 60, 3);
    run r = open_run(&d, (loader_options){2, 64, 4, 1.0, -1, true, true, 11});
    int64_t tokens = 0, labels = 0, expected = 0;
    while (loader_next(r.l, r.b, &r.n))
        for (int k = 0; k < r.n; k++) {
            const micro_batch *b = &r.b[k];
            int count = 0, doc = 0;
            for (int t = 0; t < b->info.rows; t++) {
                while (b->cu[doc + 1] <= t) doc++;
                bool last = t + 1 == b->cu[doc + 1];
                assert_int_equal(b->pos[t], t - b->cu[doc]);
                if (last) assert_int_equal(b->target[t], -100);
                else assert_true(b->target[t] == -100 || b->target[t] == b->ids[t + 1]);
                count += b->target[t] >= 0;
            }
            assert_int_equal(b->cu[b->info.docs], b->info.rows);
            assert_int_equal(count, b->info.labels);
            tokens += b->info.rows;
            labels += count;
        }
    for (int64_t i = 0; i < arrlen(d.labels); i++) expected += d.labels[i];
    assert_int_equal(tokens, arrlen(d.tokens));
    assert_int_equal(labels, expected);
    close_run(&r);
    dataset_free(&d);
}

/* O04: 7 micro-batches, 4 a step, 2 epochs: 4 steps of 4, 3, 4, 3; 3 micro-batches with 4 a step are one step. */
static void short_window(void **state) {
    (void)state;
    dataset d = make((int[]){4, 4, 4, 4, 4, 4, 4}, 7, 2);
    run r = open_run(&d, (loader_options){1, 4, 4, 2.0, -1, true, true, 1});
    assert_int_equal(loader_steps(r.l), 4);
    static const int sizes[] = {4, 3, 4, 3};
    uint64_t seeds[14];
    int n = 0;
    for (int s = 0; s < 4; s++) {
        assert_true(loader_next(r.l, r.b, &r.n));
        assert_int_equal(r.n, sizes[s]);
        assert_true(loader_epoch(r.l) == (s + 1) / 2.0);
        for (int k = 0; k < r.n; k++) seeds[n++] = r.b[k].info.seed;
    }
    assert_false(loader_next(r.l, r.b, &r.n));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) assert_true(seeds[i] != seeds[j]);
    close_run(&r);
    static const struct {
        double epochs;
        int64_t max_steps, steps;
    } counts[] = {{1, -1, 2}, {0.5, -1, 1}, {1.2, -1, 3}, {3, -1, 6}, {1, 5, 5}, {9, 1, 1}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        r = open_run(&d, (loader_options){1, 4, 4, counts[i].epochs, counts[i].max_steps, true, true, 1});
        int64_t steps = 0;
        while (loader_next(r.l, r.b, &r.n)) steps++;
        assert_int_equal(steps, counts[i].steps);
        assert_int_equal(loader_steps(r.l), counts[i].steps);
        close_run(&r);
    }
    r = open_run(&d, (loader_options){3, 4, 4, 1.0, -1, true, true, 1});
    assert_int_equal(loader_steps(r.l), 1);
    assert_true(loader_next(r.l, r.b, &r.n));
    assert_int_equal(r.n, 3);
    assert_int_equal(r.b[2].info.rows, 4); /* the seventh row alone */
    close_run(&r);
    dataset_free(&d);
}

/* (8 x 1), (4 x 2), (1 x 8) rows a step hold the same tokens, in the same order. */
static void same_rows_any_split(void **state) {
    (void)state;
    dataset d = make_random(200, 40, 9);
    int32_t seen[3][8 * 48];
    int used[3] = {0};
    for (int k = 0; k < 3; k++) {
        int batch = (int[]){8, 4, 1}[k];
        run r = open_run(&d, (loader_options){batch, 48, 8 / batch, 1.0, -1, true, true, 4});
        assert_true(loader_next(r.l, r.b, &r.n));
        for (int m = 0; m < r.n; m++) {
            memcpy(seen[k] + used[k], r.b[m].ids, (size_t)r.b[m].info.rows * sizeof(int32_t));
            used[k] += r.b[m].info.rows;
        }
        close_run(&r);
    }
    assert_int_equal(used[0], used[1]);
    assert_int_equal(used[0], used[2]);
    assert_memory_equal(seen[0], seen[1], (size_t)used[0] * sizeof(int32_t));
    assert_memory_equal(seen[0], seen[2], (size_t)used[0] * sizeof(int32_t));
    dataset_free(&d);
}

static void same_batch(const micro_batch *a, const micro_batch *b, int slots) {
    assert_int_equal(a->info.rows, b->info.rows);
    assert_int_equal(a->info.docs, b->info.docs);
    assert_int_equal(a->info.labels, b->info.labels);
    assert_true(a->info.seed == b->info.seed);
    assert_memory_equal(a->ids, b->ids, (size_t)slots * sizeof(int32_t));
    assert_memory_equal(a->target, b->target, (size_t)slots * sizeof(int32_t));
}

/* 12 micro-batches a step, of one rank or of 2, 3, 4, 6: the same ones in the same steps, each once; what is not there
 * in a last, short step stands in for nothing. So too when the ranks go on from a later step. */
static void ranks_deal_the_same(void **state) {
    (void)state;
    dataset d = make_random(61, 40, 9);
    loader_options o = {1, 48, 12, 2.0, -1, false, true, 4};
    for (int ranks = 2; ranks <= 6; ranks += ranks == 4 ? 2 : 1)
        for (int64_t from = 0; from < 9; from += 4) {
            run one = open_run(&d, o), each[6];
            for (int r = 0; r < ranks; r++) {
                loader_options mine = o;
                mine.grad_accumulation = 12 / ranks, mine.rank = r, mine.ranks = ranks;
                each[r] = open_run(&d, mine);
                assert_int_equal(loader_steps(each[r].l), loader_steps(one.l));
                loader_seek(each[r].l, from);
            }
            loader_seek(one.l, from);
            while (loader_next(one.l, one.b, &one.n)) {
                int dealt = 0;
                for (int r = 0; r < ranks; r++) {
                    run *e = &each[r];
                    assert_true(loader_next(e->l, e->b, &e->n));
                    assert_true(loader_epoch(e->l) == loader_epoch(one.l));
                    for (int k = 0; k < e->n; k++) {
                        if (e->b[k].info.stand_in) {
                            assert_true(e->n == 1 && r >= one.n);
                            assert_true(e->b[k].info.rows == 1 && e->b[k].info.labels == 0);
                            continue;
                        }
                        same_batch(&e->b[k], &one.b[k * ranks + r], one.slots);
                        dealt++;
                    }
                }
                assert_int_equal(dealt, one.n);
            }
            for (int r = 0; r < ranks; r++) {
                assert_false(loader_next(each[r].l, each[r].b, &each[r].n));
                close_run(&each[r]);
            }
            close_run(&one);
        }
    dataset_free(&d);
}

/* Going on from any step deals what would have come. */
static void seek(void **state) {
    (void)state;
    dataset d = make_random(90, 40, 2);
    loader_options o = {2, 48, 3, 2.5, -1, true, true, 6};
    run all = open_run(&d, o);
    for (int64_t step = 0; step < loader_steps(all.l); step++) {
        run r = open_run(&d, o);
        loader_seek(r.l, step);
        assert_true(loader_next(all.l, all.b, &all.n));
        assert_true(loader_next(r.l, r.b, &r.n));
        assert_int_equal(r.n, all.n);
        for (int k = 0; k < r.n; k++) {
            assert_int_equal(r.b[k].info.rows, all.b[k].info.rows);
            assert_int_equal(r.b[k].info.labels, all.b[k].info.labels);
            assert_true(r.b[k].info.seed == all.b[k].info.seed);
            assert_memory_equal(r.b[k].ids, all.b[k].ids, (size_t)r.slots * sizeof(int32_t));
            assert_memory_equal(r.b[k].target, all.b[k].target, (size_t)r.slots * sizeof(int32_t));
        }
        assert_true(loader_epoch(r.l) == loader_epoch(all.l));
        close_run(&r);
    }
    assert_false(loader_next(all.l, all.b, &all.n));
    close_run(&all);
    dataset_free(&d);
}

/* K03: going on from any step in another split of as many rows deals the rows that would have come. */
static void seek_in_another_split(void **state) {
    (void)state;
    dataset d = make_random(90, 40, 2);
    run all = open_run(&d, (loader_options){1, 48, 8, 2.5, -1, true, true, 6});
    for (int64_t step = 0; step < loader_steps(all.l); step++) {
        run r = open_run(&d, (loader_options){4, 48, 2, 2.5, -1, true, true, 6});
        int32_t seen[2][8 * 48];
        int used[2] = {0};
        assert_int_equal(loader_steps(r.l), loader_steps(all.l));
        loader_seek(r.l, step);
        assert_int_equal(loader_row(r.l), step % ((loader_rows(r.l) + 7) / 8) * 8);
        for (int k = 0; k < 2; k++) {
            run *one = k ? &r : &all;
            assert_true(loader_next(one->l, one->b, &one->n));
            for (int m = 0; m < one->n; m++) {
                memcpy(seen[k] + used[k], one->b[m].ids, (size_t)one->b[m].info.rows * sizeof(int32_t));
                used[k] += one->b[m].info.rows;
            }
        }
        assert_int_equal(used[0], used[1]);
        assert_memory_equal(seen[0], seen[1], (size_t)used[0] * sizeof(int32_t));
        assert_true(loader_epoch(r.l) == loader_epoch(all.l) && loader_row(r.l) == loader_row(all.l));
        close_run(&r);
    }
    close_run(&all);
    dataset_free(&d);
}

static void refusals(void **state) {
    (void)state;
    dataset d = make((int[]){5}, 1, 2), none = {0};
    loader *l;
    failure f;
    assert_false(loader_open(&l, &d, &(loader_options){1, 4, 1, 1.0, -1, true, true, 1}, &f));
    assert_non_null(strstr(f.text, "5 tokens, max_length is 4"));
    assert_false(loader_open(&l, &d, &(loader_options){65536, 1048576, 1, 1.0, -1, true, true, 1}, &f));
    assert_non_null(strstr(f.text, "2^31"));
    assert_false(loader_open(&l, &none, &(loader_options){1, 4, 1, 1.0, -1, true, true, 1}, &f));
    dataset_free(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_random),
        cmocka_unit_test(packing_by_hand),
        cmocka_unit_test(packing_shuffles),
        cmocka_unit_test(document_edges),
        cmocka_unit_test(counters),
        cmocka_unit_test(shifted_once),
        cmocka_unit_test(short_window),
        cmocka_unit_test(refusals),
        cmocka_unit_test(seek),
        cmocka_unit_test(same_rows_any_split),
        cmocka_unit_test(seek_in_another_split),
        cmocka_unit_test(ranks_deal_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
