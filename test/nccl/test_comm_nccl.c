/* test_comm_nccl.c - cuda/comm_nccl.c without a card: CUDA and NCCL are stand-ins of this folder.  Without an argument
 * it starts itself as ranks, as --gpus does, for every part; with one it is a rank of that part (mpirun also starts
 * such). */
#include "device.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "mpi/ranks_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double LIMIT = 0.5;

/* Not yet connected. */
static comm *open_ranks(double limit) {
    launch_place place;
    failure f = {0};
    comm *c = NULL;
    bool ok = launch_find(&place, &f);
    if (ok && place.kind == LAUNCH_ALONE) place.kind = LAUNCH_ENV; /* a world of one, as ddp_backend nccl makes it */
    if (ok && comm_open(&c, &place, limit, &f)) return c;
    printf("FAILED: %s\n", f.text);
    abort();
}

static float held(int r, int i) { return (float)((r + 1) * (i % 1000 + 1)); }

/* Two sums of gradients under way at once, then the wait for both; and a param from its owner. */
static void gradients(comm *c) {
    enum { N = 100001 };
    failure f = {0};
    int size = comm_size(c), all = size * (size + 1) / 2;
    float *x = xmalloc(2 * N * sizeof *x);
    for (int i = 0; i < 2 * N; i++) x[i] = held(comm_rank(c), i);
    comm_take_times(c);
    DONE(c, nccl_all_reduce(x, N, &f) && nccl_all_reduce(x + N, N, &f) && nccl_join(&f), &f);
    for (int i = 0; i < 2 * N; i++)
        if (x[i] != (float)(all * (i % 1000 + 1))) RIGHT(c, !"the sum");
    comm_times times = comm_take_times(c);
    RIGHT(c, times.calls == 2 && times.bytes == 2 * N * 4 && times.busy > 0);
    if (comm_rank(c) == size - 1) x[7] = 77;
    DONE(c, nccl_broadcast(x, N * sizeof *x, size - 1, &f) && nccl_join(&f) && nccl_join(&f), &f);
    RIGHT(c, x[7] == 77);
    free(x);
}

static void add_sum(cudaStream_t stream, const float *sum, void *data) {
    float *to = data;
    cudaStreamSynchronize(stream);
    for (int i = 0; i < 1000; i++) to[i] += sum[i];
}

/* Two weights gathered beside each other, of which one is waited for; a gradient's sum in pieces, added to what is
 * there; and the wait for all. */
static void pieces(comm *c) {
    enum { N = 1000 };
    failure f = {0};
    int size = comm_size(c), rank = comm_rank(c), sum = size * (size + 1) / 2;
    float mine[N], kept[N], *a = xcalloc((size_t)(N * size), sizeof *a), *b = xcalloc((size_t)(N * size), sizeof *b);
    for (int i = 0; i < N; i++) mine[i] = held(rank, i), kept[i] = 1;
    comm_take_times(c);
    DONE(c, nccl_all_gather(mine, sizeof mine, a, &f) && nccl_all_gather(mine, sizeof mine, b, &f), &f);
    DONE(c, nccl_wait_for(mine, sizeof mine, &f) && nccl_wait_for(b + N * size - 1, 4, &f), &f);
    for (int i = 0; i < N * size; i++) RIGHT(c, a[i] == held(i / N, i % N) && b[i] == a[i]);
    for (int i = 0; i < N * size; i++) a[i] = held(rank, i);
    DONE(c, nccl_reduce_scatter(a, N, add_sum, kept, &f) && nccl_wait_for(a, 4, &f) && nccl_join(&f), &f);
    for (int i = 0; i < N; i++) RIGHT(c, kept[i] == (float)(1 + sum * ((rank * N + i) % 1000 + 1)));
    comm_times times = comm_take_times(c);
    RIGHT(c, times.gathers == 2 && times.gathered == 2 * 4 * N * size && times.calls == 1);
    RIGHT(c, times.bytes == 4 * N * size && times.gathering > 0 && times.awaited <= times.gathering);
    free(a);
    free(b);
}

/* What the host says, over whichever carrier there is. */
static void words(comm *c) {
    enum { N = 1000 };
    failure f = {0};
    int size = comm_size(c), rank = comm_rank(c);
    double x[2] = {rank + 1, 1e-3}, top = -rank;
    DONE(c, comm_sum(c, x, 2, "x", &f) && comm_max(c, &top, 1, "top", &f), &f);
    RIGHT(c, x[0] == size * (size + 1) / 2 && fabs(x[1] - 1e-3 * size) < 1e-15 && top == 0);
    float *y = xmalloc((size_t)(N * size) * sizeof *y), mine[N];
    for (int i = 0; i < N * size; i++) y[i] = held(rank, i);
    DONE(c, comm_reduce_scatter(c, y, mine, N, "y", &f), &f);
    for (int i = 0; i < N; i++) RIGHT(c, mine[i] == (float)(size * (size + 1) / 2 * ((rank * N + i) % 1000 + 1)));
    DONE(c, comm_all_reduce(c, y, N * size - 1, "y", &f), &f);
    RIGHT(c, y[N * size - 2] == (float)(size * (size + 1) / 2 * ((N * size - 2) % 1000 + 1)) || size == 1);
    if (rank == size - 1) y[3] = -5;
    DONE(c, comm_broadcast(c, y, (size_t)(N * size) * sizeof *y, size - 1, "y", &f), &f);
    RIGHT(c, y[3] == -5);
    DONE(c, comm_agree(c, true, &f) && comm_same(c, 5, "the number", &f), &f);
    bool ok = rank < size - 1 || fail(&f, FAIL_INPUT, "the last rank's reason");
    RIGHT(c, !comm_agree(c, ok, &f) && strstr(f.text, "the last rank's reason") && comm_agreed(c));
    free(y);
}

static int sums(void) {
    failure f = {0};
    comm *c = open_ranks(20);
    bool mpi = comm_has_carrier(c);
    DONE(c, comm_nccl_open(c, &f), &f);
    RIGHT(c, nccl_is_open() && comm_has_carrier(c));
    if (!mpi && comm_size(c) > 1) RIGHT(c, access(comm_place(c)->meeting, F_OK) != 0 || comm_rank(c) > 0);
    gradients(c);
    pieces(c);
    words(c);
    nccl_close();
    RIGHT(c, !nccl_is_open() && comm_has_carrier(c) == mpi);
    comm_close(c);
    return 0;
}

/* The card is opened a second time, as bench does. */
static int twice(void) {
    failure f = {0};
    comm *c = open_ranks(20);
    for (int i = 0; i < 2; i++) {
        DONE(c, comm_nccl_open(c, &f), &f);
        gradients(c);
        nccl_close();
    }
    comm_close(c);
    return 0;
}

static bool says(const failure *f, const char *a, const char *b) { return strstr(f->text, a) && strstr(f->text, b); }

/* The last rank never joins in: the others' wait has an end, and so have the calls behind it. */
static int late(bool words_only) {
    failure f = {0};
    comm *c = open_ranks(LIMIT);
    DONE(c, comm_nccl_open(c, &f), &f);
    if (comm_rank(c) == comm_size(c) - 1) {
        nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
        nccl_close();
        comm_close(c);
        return 0;
    }
    double started = clock_seconds(), x = 1;
    float *y = xcalloc(1000, sizeof *y);
    if (words_only) {
        RIGHT(c, !comm_sum(c, &x, 1, "the late sum", &f));
        RIGHT(c, says(&f, "the late sum, among 3 ranks over NCCL: ", "no answer within 0.5 s"));
    } else {
        DONE(c, nccl_all_reduce(y, 1000, &f), &f);
        RIGHT(c, !nccl_join(&f) && says(&f, "gradients or weights, among 3 ranks", "no answer within 0.5 s"));
    }
    RIGHT(c, f.kind == FAIL_MACHINE && clock_seconds() - started < 2 && !nccl_is_open());
    RIGHT(c, !comm_sum(c, &x, 1, "another sum", &f) && strstr(f.text, "the ranks have lost each other"));
    RIGHT(c, !nccl_all_reduce(y, 1000, &f) && nccl_join(&f));
    nccl_close();
    comm_close(c);
    free(y);
    return 0;
}

/* NCCL refuses rank 1, of which the other learns by its own limit; or the library is not what is needed. */
static int refused(const char *text, const char *other) {
    failure f = {0};
    comm *c = open_ranks(LIMIT);
    RIGHT(c, !comm_nccl_open(c, &f) && f.kind == FAIL_MACHINE);
    if (!strstr(f.text, comm_rank(c) == 1 ? text : other)) printf("FAILED: rank %d: %s\n", comm_rank(c), f.text);
    int code = strstr(f.text, comm_rank(c) == 1 ? text : other) ? 0 : 1;
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    nccl_close();
    comm_close(c);
    return code;
}

/* Over MPI ranks can tell that they share a card: NCCL stays closed, MPI goes on. */
static int one_card(void) {
    failure f = {0};
    comm *c = open_ranks(20);
    DONE(c, comm_nccl_open(c, &f), &f);
    RIGHT(c, !nccl_is_open() && comm_has_carrier(c));
    words(c);
    nccl_close();
    comm_close(c);
    return 0;
}

static int play(const char *part) {
    log_quiet(true);
    if (strcmp(part, "sums") == 0) return sums();
    if (strcmp(part, "twice") == 0) return twice();
    if (strcmp(part, "late words") == 0) return late(true);
    if (strcmp(part, "late gradients") == 0) return late(false);
    if (strcmp(part, "refused") == 0)
        return refused("connecting 2 ranks over NCCL: NCCL says: invalid usage", "no answer within 0.5 s");
    if (strcmp(part, "old") == 0) return refused("expected 2.14 (21400) or newer", "expected 2.14 (21400) or newer");
    return strcmp(part, "one card") == 0 ? one_card() : 99;
}

static int start(int n, const char *part, const char *name, const char *value) {
    char *argv[] = {(char *)(uintptr_t)part, NULL};
    failure f = {0};
    int code = 99;
    if (name) setenv(name, value, 1);
    bool ok = launch_local(n, argv, &code, &f);
    if (name) unsetenv(name);
    if (!ok || code) printf("FAILED: %s with %d ranks: code %d %s\n", part, n, code, f.text);
    return !ok || code;
}

int main(int argc, char **argv) {
    if (argc > 1) return play(argv[1]);
    int bad = 0;
    for (int n = 1; n <= 4; n++) bad += start(n, "sums", NULL, NULL);
    bad += start(2, "twice", NULL, NULL);
    bad += start(3, "late words", NULL, NULL);
    bad += start(3, "late gradients", NULL, NULL);
    bad += start(2, "refused", "STAND_IN_NCCL_REFUSES", "1");
    bad += start(2, "old", "STAND_IN_NCCL_VERSION", "21300");
    return bad != 0;
}
