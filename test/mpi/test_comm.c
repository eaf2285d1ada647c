/* test_comm.c - the communicator among as many ranks as mpirun started: values of every call, agreement, the limit. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "mpi/ranks_test.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* What rank r holds at i. */
static float held(int r, int64_t i) { return rng_uniform((uint64_t)r + 1, (uint64_t)i) - 0.5f; }

static void fill(float *x, int r, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = held(r, i);
}

/* Sums of lengths around the number of ranks and of a piece; the same bits everywhere, on every run. */
static void sums(comm *c) {
    static const int64_t lengths[] = {1, 2, 3, 4, 5, 7, 1000, 100003, 2500001};
    failure f = {0};
    int size = comm_size(c);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        int64_t n = lengths[k];
        float *x = xmalloc((size_t)n * sizeof *x + 8), *again = xmalloc((size_t)n * sizeof *x);
        fill(x, comm_rank(c), n), fill(again, comm_rank(c), n);
        x[n] = 77; /* not to be touched */
        DONE(c, comm_all_reduce(c, x, n, "x", &f), &f);
        DONE(c, comm_all_reduce(c, again, n, "x", &f), &f);
        RIGHT(c, x[n] == 77 && memcmp(x, again, (size_t)n * sizeof *x) == 0);
        for (int64_t i = 0; i < n; i++) {
            double sum = 0;
            for (int r = 0; r < size; r++) sum += (double)held(r, i);
            if (fabs((double)x[i] - sum) > 1e-6 * size) RIGHT(c, !"the sum");
        }
        DONE(c, comm_broadcast(c, again, (size_t)n * sizeof *again, size - 1, "x", &f), &f);
        RIGHT(c, memcmp(x, again, (size_t)n * sizeof *x) == 0);
        free(x);
        free(again);
    }
}

static void parts(comm *c) {
    enum { N = 1000 };
    failure f = {0};
    int size = comm_size(c), rank = comm_rank(c);
    float *x = xmalloc((size_t)size * N * sizeof *x), mine[N], *all = xmalloc((size_t)size * N * sizeof *all);
    fill(x, rank, (int64_t)size * N);
    DONE(c, comm_reduce_scatter(c, x, mine, N, "x", &f), &f);
    DONE(c, comm_all_gather(c, mine, sizeof mine, all, "x", &f), &f);
    for (int64_t i = 0; i < (int64_t)size * N; i++) {
        double sum = 0;
        for (int r = 0; r < size; r++) sum += (double)held(r, i);
        if (fabs((double)all[i] - sum) > 1e-6 * size) RIGHT(c, !"the part of the sum");
    }
    RIGHT(c, memcmp(all + (size_t)rank * N, mine, sizeof mine) == 0);
    free(x);
    free(all);
}

static void few(comm *c) {
    failure f = {0};
    int size = comm_size(c);
    double x[2] = {comm_rank(c) + 1, 1e-3}, top = -comm_rank(c);
    DONE(c, comm_sum(c, x, 2, "x", &f), &f);
    RIGHT(c, x[0] == size * (size + 1) / 2 && fabs(x[1] - 1e-3 * size) < 1e-15);
    DONE(c, comm_max(c, &top, 1, "x", &f), &f);
    RIGHT(c, top == 0);
    DONE(c, comm_barrier(c, "everybody", &f), &f);
    double nan = comm_rank(c) == size - 1 ? NAN : 1;
    DONE(c, comm_sum(c, &nan, 1, "x", &f), &f);
    RIGHT(c, isnan(nan));
}

/* A rank that comes later than the limit allows: the others fail with a reason, each soon behind the limit, and leaving
 * ends all. CTest looks for rank 0's line. */
static void limit(void) {
    comm *c = ranks_test_open(0.5);
    failure f = {0};
    double x = 1, started = clock_seconds();
    DONE(c, comm_barrier(c, "the start", &f), &f);
    if (comm_rank(c) == comm_size(c) - 1) nanosleep(&(struct timespec){.tv_sec = 20}, NULL);
    RIGHT(c, !comm_sum(c, &x, 1, "the late sum", &f) && f.kind == FAIL_MACHINE && clock_seconds() - started < 3);
    RIGHT(c, strstr(f.text, "the late sum, among ") && strstr(f.text, "no answer within 0.5 s (ddp_timeout)"));
    RIGHT(c, !comm_barrier(c, "another call", &f) && strstr(f.text, "the ranks have lost each other"));
    if (comm_rank(c) == 0) printf("gave up as it should\n");
    fflush(stdout);
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    comm_close(c);
}

/* The first rank's failure reaches all, with its kind. */
static void agreement(comm *c) {
    failure f = {0};
    int size = comm_size(c), rank = comm_rank(c), odd = size > 2 ? 1 : size - 1;
    char from[32];
    DONE(c, comm_agree(c, true, &f), &f);
    DONE(c, comm_same(c, 0xABCDEF, "the number", &f), &f);
    RIGHT(c, !comm_agreed(c));
    bool ok = rank < odd || fail(&f, FAIL_USAGE, "reason %d", rank);
    RIGHT(c, !comm_agree(c, ok, &f) && f.kind == FAIL_USAGE && comm_agreed(c));
    snprintf(from, sizeof from, odd ? "rank %d: reason %d" : "reason 0", odd, odd);
    RIGHT(c, strcmp(f.text, from) == 0);
    RIGHT(c, !comm_agree(c, false, &f)); /* at once: everybody knows */
}

static void difference(void) {
    failure f = {0};
    comm *c = ranks_test_open(20);
    int size = comm_size(c);
    bool ok = comm_same(c, comm_rank(c) == size - 1 && size > 1 ? 2 : 1, "the number", &f);
    RIGHT(c, ok == (size == 1));
    if (size > 1) RIGHT(c, strstr(f.text, "the number differs from rank 0's") && f.kind == FAIL_INPUT);
    comm_close(c);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all"; /* MPI starts once in a process */
    if (strcmp(what, "limit") == 0) limit();
    else if (strcmp(what, "difference") == 0) difference();
    else {
        comm *c = ranks_test_open(20);
        sums(c);
        parts(c);
        few(c);
        agreement(c);
        comm_close(c);
    }
    return 0;
}
