/* pack.c - examples into rows of max_length, best fit, longest first.
 *
 * Rows that are still open hang in a list for each amount of free space, and a tree of bits over those amounts finds
 * the smallest one that is large enough, so placing an example takes a few word operations.  Examples are sorted by
 * length with a counting sort of the shuffled order: which of several equally long examples comes first is random, how
 * many rows come out is not. */
#include "base/array.h"
#include "base/rng.h"
#include "data/dataset.h"

#include <assert.h>
#include <string.h>

enum { LEVELS = 4 }; /* 64^4 = 16,777,216 amounts of free space */

typedef struct {
    uint64_t *level[LEVELS]; /* level[0] has a bit per amount, level[k] a bit per word of level[k - 1] */
} bit_tree;

static void tree_init(bit_tree *t, size_t n) {
    for (int k = 0; k < LEVELS; k++) {
        n = n / 64 + 1;
        t->level[k] = xcalloc(n, sizeof(uint64_t));
    }
}

static void tree_free(bit_tree *t) {
    for (int k = 0; k < LEVELS; k++) free(t->level[k]);
}

static void tree_set(bit_tree *t, size_t i) {
    for (int k = 0; k < LEVELS; k++, i /= 64) t->level[k][i / 64] |= (uint64_t)1 << i % 64;
}

static void tree_clear(bit_tree *t, size_t i) {
    for (int k = 0; k < LEVELS; k++, i /= 64) {
        t->level[k][i / 64] &= ~((uint64_t)1 << i % 64);
        if (t->level[k][i / 64]) return;
    }
}

/* The smallest i >= from that is set, -1 when there is none. */
static int64_t tree_next(const bit_tree *t, size_t from) {
    size_t i = from;
    for (int k = 0; k < LEVELS; k++) {
        uint64_t word = t->level[k][i / 64] & ~(uint64_t)0 << i % 64;
        if (word) {
            i = i / 64 * 64 + (size_t)__builtin_ctzll(word);
            while (k-- > 0) i = i * 64 + (size_t)__builtin_ctzll(t->level[k][i]);
            return (int64_t)i;
        }
        i = i / 64 + 1; /* the next word's bit, one level up; the spare word at the end keeps it in range */
    }
    return -1;
}

static int64_t example_length(const dataset *d, int64_t i) { return d->start[i + 1] - d->start[i]; }

/* out: `order` sorted by length, longest first, ties as they come. */
static void sort_by_length(int32_t *out, const int32_t *order, int64_t n, const dataset *d, int max_length) {
    int64_t *at = xcalloc((size_t)max_length + 2, sizeof *at);
    for (int64_t i = 0; i < n; i++) at[max_length - example_length(d, i) + 1]++;
    for (int k = 0; k <= max_length; k++) at[k + 1] += at[k];
    for (int64_t i = 0; i < n; i++) out[at[max_length - example_length(d, order[i])]++] = order[i];
    free(at);
}

/* row_of[example]; returns the number of rows. */
static int64_t place(int32_t *row_of, const int32_t *sorted, int64_t n, const dataset *d, int max_length) {
    bit_tree tree;
    tree_init(&tree, (size_t)max_length + 1);
    int32_t *head = xmalloc(((size_t)max_length + 1) * sizeof *head), *next = xmalloc(((size_t)n + 1) * sizeof *next);
    memset(head, 0xFF, ((size_t)max_length + 1) * sizeof *head);
    int64_t rows = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t length = example_length(d, sorted[i]), space = tree_next(&tree, (size_t)length);
        int32_t row;
        if (space < 0) {
            row = (int32_t)rows++;
            space = max_length;
        } else {
            row = head[space];
            head[space] = next[row];
            if (head[space] < 0) tree_clear(&tree, (size_t)space);
        }
        row_of[sorted[i]] = row;
        int64_t left = space - length;
        if (left == 0) continue;
        if (head[left] < 0) tree_set(&tree, (size_t)left);
        next[row] = head[left];
        head[left] = row;
    }
    tree_free(&tree);
    free(head);
    free(next);
    return rows;
}

/* Examples in `order` grouped by row; rows by `rank` (their place in the epoch). */
static void group(packing *p, const int32_t *order, int64_t n, const int32_t *row_of, const int32_t *rank) {
    p->row_start = xcalloc((size_t)p->rows + 1, sizeof *p->row_start);
    p->example = xmalloc(((size_t)n + 1) * sizeof *p->example);
    for (int64_t i = 0; i < n; i++) p->row_start[rank[row_of[i]] + 1]++;
    for (int64_t r = 0; r < p->rows; r++) p->row_start[r + 1] += p->row_start[r];
    int64_t *at = xmalloc(((size_t)p->rows + 1) * sizeof *at);
    memcpy(at, p->row_start, ((size_t)p->rows + 1) * sizeof *at);
    for (int64_t i = 0; i < n; i++) p->example[at[rank[row_of[order[i]]]]++] = order[i];
    free(at);
}

static int32_t *rows_in_order(const int32_t *order, int64_t n, const int32_t *row_of, int64_t rows, rng *r) {
    int32_t *rank = xmalloc(((size_t)rows + 1) * sizeof *rank);
    memset(rank, 0xFF, ((size_t)rows + 1) * sizeof *rank);
    int32_t seen = 0;
    for (int64_t i = 0; i < n; i++)
        if (rank[row_of[order[i]]] < 0) rank[row_of[order[i]]] = seen++;
    if (r) rng_shuffle(r, rank, rows);
    return rank;
}

void pack_rows(packing *p, const dataset *d, int max_length, bool packed, bool shuffle, uint64_t key) {
    int64_t n = dataset_count(d);
    rng r = {key, 0};
    int32_t *order = xmalloc(((size_t)n + 1) * sizeof *order), *row_of = xmalloc(((size_t)n + 1) * sizeof *row_of);
    for (int64_t i = 0; i < n; i++) {
        assert(example_length(d, i) <= max_length && example_length(d, i) > 0);
        order[i] = row_of[i] = (int32_t)i;
    }
    if (shuffle) rng_shuffle(&r, order, n);
    *p = (packing){.rows = n};
    if (packed) {
        int32_t *sorted = xmalloc(((size_t)n + 1) * sizeof *sorted);
        sort_by_length(sorted, order, n, d, max_length);
        p->rows = place(row_of, sorted, n, d, max_length);
        free(sorted);
    }
    int32_t *rank = rows_in_order(order, n, row_of, p->rows, shuffle ? &r : NULL);
    group(p, order, n, row_of, rank);
    free(rank);
    free(row_of);
    free(order);
}

void packing_free(packing *p) {
    free(p->example);
    free(p->row_start);
    *p = (packing){0};
}
