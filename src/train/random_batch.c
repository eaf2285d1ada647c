/* random_batch.c - micro-batches of random tokens; see random_batch.h. */
#include "train/random_batch.h"
#include "base/rng.h"

#include <math.h>

/* The next document's length: at most `room`. */
static int document_length(const config *c, rng *r, int room) {
    if (c->bench_mean_length <= 0) return room < (int)c->max_length ? room : (int)c->max_length;
    double sigma = 0.6, mu = log(c->bench_mean_length) - sigma * sigma / 2;
    double length = exp(mu + sigma * (double)rng_normal(r->key, r->counter++));
    int n = length < 2 ? 2 : (int)length;
    int most = room < (int)c->max_length ? room : (int)c->max_length;
    return n < most ? n : most;
}

void random_batch_fill(micro_batch *b, const config *c, int slots, int vocab, uint64_t key) {
    rng r = {.key = rng_fold((uint64_t)c->seed, key)};
    int rows = 0, docs = 0, labels = 0, longest = 0;
    while (slots - rows >= 2) {
        int n = document_length(c, &r, slots - rows);
        for (int t = 0; t < n; t++) {
            b->ids[rows + t] = (int32_t)rng_below(&r, (uint64_t)vocab);
            b->pos[rows + t] = t;
        }
        for (int t = 0; t + 1 < n; t++) b->target[rows + t] = b->ids[rows + t + 1];
        b->target[rows + n - 1] = -100;
        labels += n - 1;
        b->cu[docs++] = rows;
        rows += n;
        if (n > longest) longest = n;
    }
    b->cu[docs] = rows;
    b->info = (batch_info){.rows = rows, .docs = docs, .labels = labels, .longest = longest, .seed = r.key};
}
