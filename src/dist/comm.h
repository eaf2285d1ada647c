/* comm.h - the ranks of a run: processes that train one model together, and what they say to each other.
 *
 * A comm is NULL in a run of one process; every function takes that as one rank and does nothing. All ranks call the
 * same functions in the same order. Each call has a time limit: a rank that does not answer makes the others fail, with
 * what they waited for. Memory is the host's; what a card holds goes through cuda/comm_nccl.c.
 * Sums have a fixed order and give the same bits on every rank.
 *
 * Which carrier there is: MPI (comm_mpi.c, or comm_none.c in a build without it), else NCCL (cuda/comm_nccl.c). */
#ifndef DIST_COMM_H
#define DIST_COMM_H
#include "base/failure.h"
#include "dist/launcher.h"
#include <stddef.h>
#include <stdint.h>

typedef struct comm comm;

/* Joins the ranks that `place` says there are; limit: seconds that a call may wait for the others (ddp_timeout). NULL
 * for a process that nobody started as one of several. Ranks of LAUNCH_ENV have no carrier yet: comm_use gives one. */
bool comm_open(comm **out, const launch_place *place, double limit, failure *f);
/* The end of a run that went well, or whose failure every rank knows (comm_agree). NULL is fine. */
void comm_close(comm *c);
/* The end of a run that failed here alone: ends the other ranks. Returns only where the launcher does that; then only
 * comm_close may follow. */
void comm_abort(comm *c, int code);
bool comm_ended(const comm *c); /* by comm_abort */

int comm_rank(const comm *c); /* 0 .. size - 1 */
int comm_size(const comm *c);
int comm_local_rank(const comm *c); /* among the ranks of this machine: which card is its own */
int comm_local_size(const comm *c);
double comm_limit(const comm *c);
bool comm_has_carrier(const comm *c);
const launch_place *comm_place(const comm *c); /* c is not NULL */

/* `what` is for messages ("gradients"). `mine` may lie at its place in `all`. */
bool comm_all_gather(comm *c, const void *mine, size_t bytes, void *all, const char *what, failure *f);
bool comm_broadcast(comm *c, void *data, size_t bytes, int root, const char *what, failure *f);
/* x[n] becomes its sum over the ranks. */
bool comm_all_reduce(comm *c, float *x, int64_t n, const char *what, failure *f);
/* mine[n] is this rank's part of the sum over the ranks of x[size * n]. */
bool comm_reduce_scatter(comm *c, const float *x, float *mine, int64_t n, const char *what, failure *f);
bool comm_barrier(comm *c, const char *what, failure *f);

/* Numbers of the host, few of them, added up in the order of the ranks. n at most COMM_FEW. */
enum { COMM_FEW = 64 };
bool comm_sum(comm *c, double *x, int n, const char *what, failure *f);
bool comm_max(comm *c, double *x, int n, const char *what, failure *f);

/* Whether all ranks did well so far: true for all or false for all, then with the failure of the first rank that had
 * one (its number in front when it is not rank 0). Ranks past 0 say nothing more of it: rank 0 prints it once. */
bool comm_agree(comm *c, bool ok, failure *f);
/* That all ranks have the same: false for all when they do not. Both need a carrier: without one they ask nobody. */
bool comm_same(comm *c, uint64_t fingerprint, const char *what, failure *f);
/* The failure is one that comm_agree told to every rank. */
bool comm_agreed(const comm *c);

/* ---- what sums of gradients, and weights that are gathered, take, for bench ---- */
typedef struct {
    double busy, waited; /* seconds on the carrier; of these, seconds in which this rank had nothing else to do */
    int64_t bytes;       /* summed */
    int calls;
    double gathering, awaited; /* seconds of all_gathers; of these, seconds that were waited for */
    int64_t gathered;          /* bytes brought together */
    int gathers;
} comm_times;
void comm_add_times(comm *c, const comm_times *more); /* by the kernels of all_reduce, reduce_scatter and all_gather */
comm_times comm_take_times(comm *c);                  /* since the last call of this; 0 for NULL */

/* ---- carriers ---- */

typedef struct {
    const char *name;
    void *state;
    bool (*all_gather)(void *state, const void *mine, size_t bytes, void *all, double limit, failure *f);
    bool (*broadcast)(void *state, void *data, size_t bytes, int root, double limit, failure *f);
    bool (*reduce_scatter)(void *state, const float *x, float *mine, int64_t n, double limit, failure *f);
    void (*abort)(void *state, int code);
    void (*close)(void *state);
} comm_carrier;

void comm_use(comm *c, const comm_carrier *carrier);

/* comm_mpi.c or comm_none.c. open fills the carrier and the place of this process in its world. */
bool comm_mpi_is_built(void);
bool comm_mpi_open(comm_carrier *out, launch_place *place, failure *f);
/* cuda/comm_nccl.c or cuda/none.c, behind the backend's open: what carries gradients from card to card, and everything
 * else where the ranks have no carrier yet. With MPI and ranks that share a card it stays with host memory. */
bool comm_nccl_open(comm *c, failure *f);
#endif
