/* bpe_merge.c - merges a row of symbols.
 *
 * Short rows: look for the best rank again after each merge; quadratic, but the numbers stay in the first cache.
 * Long rows: a linked list and a heap of (rank, place), O(n log n); entries that no longer hold are passed over.
 * Both take the best rank first, and the leftmost of equals. */
#include "text/bpe.h"

enum { SCAN_MAX = 100 };

static int32_t merge_scan(const bpe *b, uint32_t *rank, int32_t *id, int32_t n) {
    for (int32_t i = 0; i + 1 < n; i++) rank[i] = bpe_rank(b, id[i], id[i + 1]);
    while (n > 1) {
        uint32_t best = UINT32_MAX;
        for (int32_t i = 0; i + 1 < n; i++) best = rank[i] < best ? rank[i] : best;
        if (best == UINT32_MAX) break;
        int32_t at = 0;
        while (rank[at] != best) at++;
        id[at] = b->merged[best];
        size_t behind = (size_t)(n - at - 2);
        memmove(id + at + 1, id + at + 2, behind * sizeof *id);
        memmove(rank + at, rank + at + 1, behind * sizeof *rank);
        n--;
        if (at > 0) rank[at - 1] = bpe_rank(b, id[at - 1], id[at]);
        if (at + 1 < n) rank[at] = bpe_rank(b, id[at], id[at + 1]);
    }
    return n;
}

static void heap_push(bpe_scratch *s, uint32_t rank, int32_t at) {
    if (rank == UINT32_MAX) return;
    uint64_t entry = (uint64_t)rank << 32 | (uint32_t)at;
    size_t i = s->n_heap++;
    for (; i > 0 && s->heap[(i - 1) / 2] > entry; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = entry;
}

static uint64_t heap_pop(bpe_scratch *s) {
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (size_t child = 1; child < s->n_heap; child = 2 * i + 1) {
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Each merge takes one entry out, puts at most two in and takes a symbol away: never more than 2 n entries. */
static int32_t merge_heap(const bpe *b, bpe_scratch *s, int32_t *id, int32_t n) {
    uint32_t *rank = s->rank;
    int32_t *next = s->next, *previous = s->previous;
    s->n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        next[i] = i + 1 < n ? i + 1 : -1;
        previous[i] = i - 1;
        rank[i] = i + 1 < n ? bpe_rank(b, id[i], id[i + 1]) : UINT32_MAX;
        heap_push(s, rank[i], i);
    }
    while (s->n_heap) {
        uint64_t top = heap_pop(s);
        int32_t at = (int32_t)(uint32_t)top;
        if (rank[at] != top >> 32) continue; /* the pair at this place has changed */
        int32_t right = next[at], after = next[right], before = previous[at];
        id[at] = b->merged[rank[at]];
        next[at] = after;
        rank[right] = UINT32_MAX;
        if (after >= 0) previous[after] = at;
        rank[at] = after >= 0 ? bpe_rank(b, id[at], id[after]) : UINT32_MAX;
        heap_push(s, rank[at], at);
        if (before < 0) continue;
        rank[before] = bpe_rank(b, id[before], id[at]);
        heap_push(s, rank[before], before);
    }
    int32_t left = 0;
    for (int32_t i = 0; i >= 0; i = next[i]) id[left++] = id[i];
    return left;
}

int32_t bpe_merge(const bpe *b, bpe_scratch *s, int32_t *id, int32_t n) {
    if (n < 2) return n;
    return n <= SCAN_MAX ? merge_scan(b, s->rank, id, n) : merge_heap(b, s, id, n);
}
