/* comm.c - what is the same for every carrier: sums, agreement, failures that say which rank; see comm.h.
 *
 * A sum of few numbers is gathered and added up here, in the order of the ranks. A long one is reduced in pieces, each
 * at one rank, and the pieces are gathered: so that every rank has the same bits by construction. */
#include "dist/comm.h"
#include "base/log.h"
#include "base/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 18 }; /* floats of one rank's part of a long sum that go at once */

struct comm {
    launch_place place;
    double limit;
    comm_carrier carrier;
    bool agreed, ended;
    comm_times times;
    float *part; /* [PIECE] */
};

bool comm_open(comm **out, const launch_place *place, double limit, failure *f) {
    *out = NULL;
    if (place->kind == LAUNCH_ALONE) return true;
    comm *c = xcalloc(1, sizeof *c);
    c->place = *place;
    c->limit = limit;
    c->part = xmalloc(PIECE * sizeof *c->part);
    if (place->kind == LAUNCH_MPI && !comm_mpi_open(&c->carrier, &c->place, f)) {
        free(c->part);
        free(c);
        return false;
    }
    *out = c;
    return true;
}

void comm_use(comm *c, const comm_carrier *carrier) { c->carrier = *carrier; }

void comm_close(comm *c) {
    if (!c) return;
    if (c->carrier.close && !c->ended) c->carrier.close(c->carrier.state);
    free(c->part);
    free(c);
}

void comm_abort(comm *c, int code) {
    if (!c || c->ended) return;
    c->ended = true;
    if (c->carrier.abort) c->carrier.abort(c->carrier.state, code);
}

bool comm_ended(const comm *c) { return c && c->ended; }

int comm_rank(const comm *c) { return c ? c->place.rank : 0; }
int comm_size(const comm *c) { return c ? c->place.size : 1; }
int comm_local_rank(const comm *c) { return c ? c->place.local_rank : 0; }
int comm_local_size(const comm *c) { return c ? c->place.local_size : 1; }
double comm_limit(const comm *c) { return c ? c->limit : 0; }
bool comm_has_carrier(const comm *c) { return !c || c->carrier.all_gather; }
bool comm_agreed(const comm *c) { return c && c->agreed; }
const launch_place *comm_place(const comm *c) { return &c->place; }

void comm_add_times(comm *c, const comm_times *more) {
    c->times.busy += more->busy;
    c->times.waited += more->waited;
    c->times.bytes += more->bytes;
    c->times.calls += more->calls;
    c->times.gathering += more->gathering;
    c->times.awaited += more->awaited;
    c->times.gathered += more->gathered;
    c->times.gathers += more->gathers;
}

comm_times comm_take_times(comm *c) {
    comm_times times = {0};
    if (!c) return times;
    times = c->times;
    c->times = (comm_times){0};
    return times;
}

/* Puts what was going on, and who says so, in front of a carrier's failure. */
static bool named(const comm *c, bool ok, const char *what, failure *f) {
    return ok || fail_in(f, "%s, among %d ranks over %s", what, c->place.size, c->carrier.name);
}

bool comm_all_gather(comm *c, const void *mine, size_t bytes, void *all, const char *what, failure *f) {
    if (!c) {
        if (all != mine) memcpy(all, mine, bytes);
        return true;
    }
    return named(c, c->carrier.all_gather(c->carrier.state, mine, bytes, all, c->limit, f), what, f);
}

bool comm_broadcast(comm *c, void *data, size_t bytes, int root, const char *what, failure *f) {
    return !c || !bytes || named(c, c->carrier.broadcast(c->carrier.state, data, bytes, root, c->limit, f), what, f);
}

bool comm_reduce_scatter(comm *c, const float *x, float *mine, int64_t n, const char *what, failure *f) {
    if (!c) {
        memcpy(mine, x, (size_t)n * sizeof *x);
        return true;
    }
    return named(c, c->carrier.reduce_scatter(c->carrier.state, x, mine, n, c->limit, f), what, f);
}

/* The last numbers of a long sum, fewer than there are ranks: gathered, and added up by everyone in the same order. */
static bool reduce_rest(comm *c, float *x, int64_t n, const char *what, failure *f) {
    size_t size = (size_t)c->place.size, count = (size_t)n;
    float *all = xmalloc(size * count * sizeof *all);
    bool ok = comm_all_gather(c, x, count * sizeof *x, all, what, f);
    for (size_t i = 0; i < count && ok; i++) {
        double sum = 0;
        for (size_t r = 0; r < size; r++) sum += (double)all[r * count + i];
        x[i] = (float)sum;
    }
    free(all);
    return ok;
}

bool comm_all_reduce(comm *c, float *x, int64_t n, const char *what, failure *f) {
    if (!c || c->place.size == 1) return true;
    int64_t size = c->place.size;
    while (n >= size) {
        int64_t part = n / size < PIECE ? n / size : PIECE;
        TRY(comm_reduce_scatter(c, x, c->part, part, what, f));
        TRY(comm_all_gather(c, c->part, (size_t)part * sizeof *x, x, what, f));
        x += part * size, n -= part * size;
    }
    return !n || reduce_rest(c, x, n, what, f);
}

bool comm_barrier(comm *c, const char *what, failure *f) {
    double nothing = 0;
    return comm_sum(c, &nothing, 1, what, f);
}

static bool gather_few(comm *c, double *x, int n, double **all, const char *what, failure *f) {
    assert(n <= COMM_FEW);
    *all = xmalloc((size_t)n * (size_t)c->place.size * sizeof **all);
    if (comm_all_gather(c, x, (size_t)n * sizeof *x, *all, what, f)) return true;
    free(*all);
    return false;
}

bool comm_sum(comm *c, double *x, int n, const char *what, failure *f) {
    double *all;
    if (!c) return true;
    TRY(gather_few(c, x, n, &all, what, f));
    for (int i = 0; i < n; i++) {
        x[i] = 0;
        for (int r = 0; r < c->place.size; r++) x[i] += all[r * n + i];
    }
    free(all);
    return true;
}

bool comm_max(comm *c, double *x, int n, const char *what, failure *f) {
    double *all;
    if (!c) return true;
    TRY(gather_few(c, x, n, &all, what, f));
    for (int i = 0; i < n; i++)
        for (int r = 0; r < c->place.size; r++)
            if (all[r * n + i] > x[i]) x[i] = all[r * n + i];
    free(all);
    return true;
}

/* The failure of rank `first`, told to all. */
static bool share_failure(comm *c, int first, failure *f) {
    failure told;
    if (first == c->place.rank) f->text[sizeof f->text - 1] = 0;
    if (!comm_broadcast(c, first == c->place.rank ? f : &told, sizeof told, first, "the failure of a rank", &told))
        return fail(f, FAIL_MACHINE, "%s", told.text);
    if (first != c->place.rank) *f = told;
    c->agreed = true;
    if (c->place.rank > 0) log_to_file_only();
    return first == 0 ? false : fail_in(f, "rank %d", first);
}

bool comm_agree(comm *c, bool ok, failure *f) {
    if (!c || c->agreed || c->ended || !comm_has_carrier(c)) return ok;
    unsigned char mine = ok, *all = xmalloc((size_t)c->place.size);
    failure f_gather;
    if (!comm_all_gather(c, &mine, 1, all, "whether all ranks did well so far", &f_gather)) {
        free(all);
        return ok ? fail(f, FAIL_MACHINE, "%s", f_gather.text) : false;
    }
    int first = 0;
    while (first < c->place.size && all[first]) first++;
    int size = c->place.size;
    free(all);
    return first == size ? true : share_failure(c, first, f);
}

bool comm_same(comm *c, uint64_t fingerprint, const char *what, failure *f) {
    uint64_t first = fingerprint;
    if (!comm_has_carrier(c)) return true;
    TRY(comm_broadcast(c, &first, sizeof first, 0, what, f));
    bool same = first == fingerprint;
    if (!same)
        fail(f, FAIL_INPUT,
             "%s differs from rank 0's: all ranks need the same config, data and model files (on several machines: a "
             "shared folder, or equal copies)",
             what);
    return comm_agree(c, same, f);
}
