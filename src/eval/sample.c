/* sample.c - greedy choice, or a draw from the softmax of the logits cut to its head.
 *
 * The cuts come in transformers' order: temperature, then top_k, then top_p over what top_k left.  Probabilities are
 * doubles; equal logits are ordered by id, so that a draw is the same on every machine. */
#include "eval/sample.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    double p; /* unnormalised */
    int32_t id;
} candidate;

static int32_t likeliest(const float *logits, int n) {
    int32_t best = -1;
    for (int i = 0; i < n; i++)
        if (!isnan(logits[i]) && logits[i] > -INFINITY && (best < 0 || logits[i] > logits[best])) best = i;
    return best;
}

static int by_probability(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* How many of the sorted candidates reach top_p of their own sum. */
static int head_count(const candidate *list, int n, double top_p) {
    double sum = 0, reached = 0;
    for (int i = 0; i < n; i++) sum += list[i].p;
    for (int i = 0; i < n; i++) {
        reached += list[i].p;
        if (reached >= top_p * sum) return i + 1;
    }
    return n;
}

static int32_t draw(const candidate *list, int n, double uniform) {
    double sum = 0, reached = 0;
    for (int i = 0; i < n; i++) sum += list[i].p;
    for (int i = 0; i < n; i++) {
        reached += list[i].p;
        if (uniform * sum < reached) return list[i].id;
    }
    return list[n - 1].id; /* rounding */
}

int32_t sample_token(const float *logits, int n, const sample_options *o, double uniform) {
    int32_t best = likeliest(logits, n);
    if (best < 0 || o->temperature <= 0 || isinf(logits[best])) return best;
    candidate *list = xmalloc((size_t)n * sizeof *list);
    int count = 0;
    for (int i = 0; i < n; i++) {
        double p = exp(((double)logits[i] - logits[best]) / o->temperature);
        if (p > 0) list[count++] = (candidate){p, i}; /* leaves NaN out too */
    }
    qsort(list, (size_t)count, sizeof *list, by_probability);
    if (o->top_k > 0 && o->top_k < count) count = (int)o->top_k;
    if (o->top_p < 1) count = head_count(list, count, o->top_p);
    int32_t id = draw(list, count, uniform);
    free(list);
    return id;
}
