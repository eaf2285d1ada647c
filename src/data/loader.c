/* loader.c - epochs of packed rows -> micro-batches, grouped into optimizer steps.
 *
 * An epoch's rows are packed from rng_fold(seed, epoch) alone, batch_size rows make a micro-batch, grad_accumulation
 * micro-batches for each rank make a step, and the last step of an epoch takes what is left.  Rows of a micro-batch
 * stand one behind the other without gaps, so that all padding is at its end.  Labels are shifted to targets here and
 * nowhere else. */
#include "base/array.h"
#include "base/rng.h"
#include "data/dataset.h"

#include <assert.h>
#include <limits.h>
#include <math.h>

struct loader {
    const dataset *d;
    loader_options o;
    packing rows;
    int64_t epoch, row; /* being dealt: epoch, and its next row */
    int64_t step, steps, steps_per_epoch;
};

void micro_batch_init(micro_batch *b, int n_slots) {
    size_t n = (size_t)n_slots, size = sizeof(int32_t);
    *b = (micro_batch){.ids = xcalloc(n, size), .pos = xcalloc(n, size), .target = xcalloc(n, size)};
    b->cu = xcalloc(n + 1, size);
    b->example = xcalloc(n, size);
}

void micro_batch_free(micro_batch *b) {
    free(b->ids);
    free(b->pos);
    free(b->cu);
    free(b->target);
    free(b->example);
    *b = (micro_batch){0};
}

static void pack_epoch(loader *l) {
    packing_free(&l->rows);
    pack_rows(&l->rows, l->d, l->o.max_length, l->o.packed, l->o.shuffle, rng_fold(l->o.seed, (uint64_t)l->epoch));
    l->row = 0;
}

/* Micro-batches of a step, over all ranks. */
static int64_t batches_together(const loader *l) { return (int64_t)l->o.grad_accumulation * l->o.ranks; }

bool loader_open(loader **out, const dataset *d, const loader_options *o, failure *f) {
    int64_t slots = (int64_t)o->batch_size * o->max_length, n = dataset_count(d);
    if (slots > INT_MAX - 1)
        return fail(f, FAIL_INPUT, "batch size %d times max_length %d is more than 2^31 tokens", o->batch_size,
                    o->max_length);
    if (n == 0) return fail(f, FAIL_INPUT, "the data set has no example");
    for (int64_t i = 0; i < n; i++)
        if (d->start[i + 1] - d->start[i] > o->max_length)
            return fail(f, FAIL_INPUT, "example %lld has %lld tokens, max_length is %d", (long long)i + 1,
                        (long long)(d->start[i + 1] - d->start[i]), o->max_length);
    loader *l = xcalloc(1, sizeof *l);
    l->d = d;
    l->o = *o;
    if (!l->o.ranks) l->o.ranks = 1;
    pack_epoch(l);
    int64_t batches = (l->rows.rows + o->batch_size - 1) / o->batch_size;
    int64_t together = batches_together(l);
    l->steps_per_epoch = (batches + together - 1) / together;
    l->steps = o->max_steps >= 0 ? o->max_steps : (int64_t)ceil(o->epochs * (double)l->steps_per_epoch);
    *out = l;
    return true;
}

void loader_close(loader *l) {
    if (!l) return;
    packing_free(&l->rows);
    free(l);
}

const dataset *loader_data(const loader *l) { return l->d; }
int64_t loader_steps(const loader *l) { return l->steps; }
int64_t loader_rows(const loader *l) { return l->rows.rows; }
int64_t loader_row(const loader *l) { return l->row < l->rows.rows ? l->row : 0; }
double loader_epoch(const loader *l) { return (double)l->step / (double)l->steps_per_epoch; }

void loader_seek(loader *l, int64_t step) {
    int64_t epoch = step / l->steps_per_epoch, rows_per_step = l->o.batch_size * batches_together(l);
    l->step = step;
    if (epoch != l->epoch) {
        l->epoch = epoch;
        pack_epoch(l);
    }
    l->row = step % l->steps_per_epoch * rows_per_step;
}

static void put_example(micro_batch *b, const dataset *d, int32_t example) {
    int64_t from = d->start[example], n = d->start[example + 1] - from;
    int at = b->info.rows;
    for (int64_t i = 0; i < n; i++) {
        int t = at + (int)i;
        bool learnt = i + 1 < n && d->labels[from + i + 1]; /* the one shift: row t predicts token t + 1 */
        b->ids[t] = d->tokens[from + i];
        b->pos[t] = (int32_t)i;
        b->target[t] = learnt ? d->tokens[from + i + 1] : -100;
        b->example[t] = example;
        b->info.labels += learnt;
    }
    b->info.rows += (int)n;
    b->cu[++b->info.docs] = b->info.rows;
    if (n > b->info.longest) b->info.longest = (int)n;
}

static void fill(loader *l, micro_batch *b, int index) {
    int slots = l->o.batch_size * l->o.max_length;
    uint64_t seed = rng_fold(rng_fold(l->o.seed, (uint64_t)l->step), (uint64_t)index);
    b->info = (batch_info){.seed = seed, .training = true};
    b->cu[0] = 0;
    for (int k = 0; k < l->o.batch_size && l->row < l->rows.rows; k++, l->row++)
        for (int64_t i = l->rows.row_start[l->row]; i < l->rows.row_start[l->row + 1]; i++)
            put_example(b, l->d, l->rows.example[i]);
    assert(b->info.rows <= slots);
    for (int t = b->info.rows; t < slots; t++) {
        b->ids[t] = b->pos[t] = 0;
        b->target[t] = -100;
        b->example[t] = -1;
    }
}

/* One row of one token that teaches nothing. */
static void stand_in(micro_batch *b) {
    b->info = (batch_info){.rows = 1, .docs = 1, .longest = 1, .training = true, .stand_in = true};
    b->ids[0] = b->pos[0] = b->cu[0] = 0;
    b->cu[1] = 1;
    b->target[0] = -100;
    b->example[0] = -1;
}

bool loader_next(loader *l, micro_batch *batches, int *n) {
    *n = 0;
    if (l->step >= l->steps) return false;
    if (l->row >= l->rows.rows) {
        l->epoch++;
        pack_epoch(l);
    }
    for (int64_t i = 0; i < batches_together(l) && l->row < l->rows.rows; i++) {
        if (i % l->o.ranks == l->o.rank) fill(l, &batches[(*n)++], (int)i);
        else l->row += l->o.batch_size;
    }
    if (*n == 0) stand_in(&batches[(*n)++]);
    l->step++;
    return true;
}
