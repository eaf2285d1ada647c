/* comm_mpi.c - MPI as the carrier, for memory of the host.
 *
 * Every call is MPI's nonblocking form, asked for its end until the time limit: plain calls of MPI wait for ever.
 * Waiting goes from spinning to short sleeps, because ranks may share processors. */
#include "base/clock.h"
#include "base/memory.h"
#include "dist/comm.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>

typedef struct {
    MPI_Comm world;
    bool gave_up; /* on a call that cannot be taken back: MPI may still write where it was told to, so it is not called
                     again but to end everything */
} mpi_state;

static bool check(int error, failure *f) {
    if (error == MPI_SUCCESS) return true;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(error, text, &n);
    return fail(f, FAIL_MACHINE, "MPI says: %.*s", n, text);
}

/* Turns of asking before it gives the processor away, and before it sleeps. */
enum { SPINS = 200, YIELDS = 2000, SLEEP_NS = 50000 };

static void wait_a_little(int turn) {
    const struct timespec pause = {.tv_nsec = SLEEP_NS};
    if (turn < SPINS) return;
    if (turn < YIELDS) sched_yield();
    else nanosleep(&pause, NULL);
}

static bool wait_for(mpi_state *s, MPI_Request *request, double limit, failure *f) {
    double end = clock_seconds() + limit;
    for (int turn = 0;; turn += turn < YIELDS) {
        int done = 0;
        TRY(check(MPI_Test(request, &done, MPI_STATUS_IGNORE), f));
        if (done) return true;
        if (turn >= SPINS && clock_seconds() > end) {
            s->gave_up = true;
            return fail(f, FAIL_MACHINE,
                        "no answer within %g s (ddp_timeout): another rank has ended, hangs, or is much slower", limit);
        }
        wait_a_little(turn);
    }
}

static bool can_call(const mpi_state *s, failure *f) {
    return !s->gave_up || fail(f, FAIL_MACHINE, "the ranks have lost each other");
}

enum { MOST = 1 << 30 }; /* bytes or elements in one call; MPI counts in int */

/* MPI wants to be told when what a rank gives lies where it is to go. */
static const void *from_place(const mpi_state *s, const void *mine, size_t bytes, void *all) {
    int rank = 0;
    MPI_Comm_rank(s->world, &rank);
    return mine == (char *)all + (size_t)rank * bytes ? MPI_IN_PLACE : mine;
}

/* More bytes of each rank than an int counts: in units of UNIT bytes, which pieces of weights have. */
static bool gather_long(mpi_state *s, const void *mine, size_t bytes, void *all, double limit, failure *f) {
    enum { UNIT = 64 };
    MPI_Datatype unit;
    MPI_Request request;
    if (bytes % UNIT || bytes / UNIT > MOST)
        return fail(f, FAIL_MACHINE, "%zu bytes a rank, expected at most %d, or a multiple of %d", bytes, MOST, UNIT);
    int n = (int)(bytes / UNIT);
    TRY(check(MPI_Type_contiguous(UNIT, MPI_BYTE, &unit), f));
    bool ok = check(MPI_Type_commit(&unit), f) &&
              check(MPI_Iallgather(from_place(s, mine, bytes, all), n, unit, all, n, unit, s->world, &request), f) &&
              wait_for(s, &request, limit, f);
    return check(MPI_Type_free(&unit), f) && ok;
}

static bool all_gather(void *state, const void *mine, size_t bytes, void *all, double limit, failure *f) {
    mpi_state *s = state;
    MPI_Request request;
    TRY(can_call(s, f));
    if (bytes > MOST) return gather_long(s, mine, bytes, all, limit, f);
    TRY(check(MPI_Iallgather(from_place(s, mine, bytes, all), (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, s->world,
                             &request),
              f));
    return wait_for(s, &request, limit, f);
}

static bool broadcast(void *state, void *data, size_t bytes, int root, double limit, failure *f) {
    mpi_state *s = state;
    TRY(can_call(s, f));
    for (size_t at = 0; at < bytes; at += MOST) {
        MPI_Request request;
        size_t n = bytes - at < MOST ? bytes - at : MOST;
        TRY(check(MPI_Ibcast((char *)data + at, (int)n, MPI_BYTE, root, s->world, &request), f));
        TRY(wait_for(s, &request, limit, f));
    }
    return true;
}

static bool reduce_scatter(void *state, const float *x, float *mine, int64_t n, double limit, failure *f) {
    mpi_state *s = state;
    MPI_Request request;
    TRY(can_call(s, f));
    if (n > MOST) return fail(f, FAIL_MACHINE, "%lld numbers a rank, expected at most %d", (long long)n, MOST);
    TRY(check(MPI_Ireduce_scatter_block(x, mine, (int)n, MPI_FLOAT, MPI_SUM, s->world, &request), f));
    return wait_for(s, &request, limit, f);
}

static void abort_all(void *state, int code) {
    mpi_state *s = state;
    MPI_Abort(s->world, code);
    free(s);
}

static void close_world(void *state) {
    mpi_state *s = state;
    if (s->gave_up) {
        abort_all(s, FAIL_MACHINE);
        return;
    }
    MPI_Comm_free(&s->world);
    MPI_Finalize();
    free(s);
}

static bool find_place(mpi_state *s, launch_place *place, failure *f) {
    MPI_Comm machine;
    TRY(check(MPI_Comm_rank(s->world, &place->rank), f) && check(MPI_Comm_size(s->world, &place->size), f));
    TRY(check(MPI_Comm_split_type(s->world, MPI_COMM_TYPE_SHARED, place->rank, MPI_INFO_NULL, &machine), f));
    bool ok =
        check(MPI_Comm_rank(machine, &place->local_rank), f) && check(MPI_Comm_size(machine, &place->local_size), f);
    MPI_Comm_free(&machine);
    return ok;
}

bool comm_mpi_is_built(void) { return true; }

bool comm_mpi_open(comm_carrier *out, launch_place *place, failure *f) {
    int provided;
    TRY(check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), f));
    mpi_state *s = xcalloc(1, sizeof *s);
    bool ok = check(MPI_Comm_dup(MPI_COMM_WORLD, &s->world), f) &&
              check(MPI_Comm_set_errhandler(s->world, MPI_ERRORS_RETURN), f) && find_place(s, place, f);
    if (!ok) {
        free(s);
        return false;
    }
    *out = (comm_carrier){"MPI", s, all_gather, broadcast, reduce_scatter, abort_all, close_world};
    return true;
}
