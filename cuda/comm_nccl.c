/* comm_nccl.c - NCCL between the cards of the ranks, opened at run time: sums of gradients on a stream of its own
 * beside the backward half, and, for ranks that MPI did not start, everything else that ranks say to each other.
 *
 * The communicator is one that does not block, and a stream is asked rather than waited for: so every call has the
 * limit of comm.h.  When a call fails or nobody answers, the communicator is aborted, which ends its kernels, and stays
 * so. */
#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "device.h"
#include "nccl_api.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROBE = 1 << 16, MOST = 64 << 20, SPINS = 2000, SLEEP_NS = 20000 };

/* A call that is under way on the stream. */
typedef struct {
    cudaEvent_t begin, end; /* of it */
    cudaEvent_t after;      /* all that follows from it */
    cudaEvent_t reached;    /* the other stream came to where it has to wait */
    const char *at;         /* memory that must not be touched before `after`; NULL: it is nobody's till the join */
    size_t bytes;
    bool gathers, awaited;
} span;

static struct {
    nccl_api api;
    nccl_handle comm;
    int size;
    double limit;
    bool pending; /* calls on the stream that nobody has waited for */
    cudaStream_t stream;
    cudaEvent_t ready, done; /* what a sum waits for; what waits for the sums */
    cudaEvent_t computed;    /* the end of what goes on beside the sums */
    span *spans;             /* stb_ds: of each call of a micro-batch, made once */
    int n_spans, n_guarded;  /* calls since the last join; of these, of memory that somebody may come to */
    comm_times times;
    comm *ranks;
    bool is_carrier; /* of everything that ranks say */
    char *room;      /* device memory through which the host's bytes go */
    size_t room_bytes;
} state;

/* ---- the library ---- */

/* Function pointers come as object pointers from dlsym. */
static bool find_function(void *to, const char *name) {
    void *at = dlsym(state.api.library, name);
    memcpy(to, &at, sizeof at);
    return at != NULL;
}

static bool find_all(void) {
    nccl_api *a = &state.api;
    return find_function(&a->GetVersion, "ncclGetVersion") && find_function(&a->GetErrorString, "ncclGetErrorString") &&
           find_function(&a->GetLastError, "ncclGetLastError") && find_function(&a->GetUniqueId, "ncclGetUniqueId") &&
           find_function(&a->CommInitRankConfig, "ncclCommInitRankConfig") &&
           find_function(&a->CommGetAsyncError, "ncclCommGetAsyncError") &&
           find_function(&a->CommDestroy, "ncclCommDestroy") && find_function(&a->CommAbort, "ncclCommAbort") &&
           find_function(&a->AllReduce, "ncclAllReduce") && find_function(&a->AllGather, "ncclAllGather") &&
           find_function(&a->ReduceScatter, "ncclReduceScatter") && find_function(&a->Broadcast, "ncclBroadcast");
}

static bool open_library(failure *f) {
    int version = 0;
    if (state.api.library) return true;
    state.api.library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!state.api.library)
        return fail(f, FAIL_MACHINE,
                    "ranks on GPUs need NCCL, which cannot be opened (%s): install libnccl2, put its folder into "
                    "LD_LIBRARY_PATH, or start the ranks with mpirun and give --ddp_backend mpi, which is slower",
                    dlerror());
    bool whole = find_all() && state.api.GetVersion(&version) == NCCL_DONE && version >= NCCL_OLDEST;
    if (whole) log_info("NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return whole || fail(f, FAIL_MACHINE, "libnccl.so.2: found version %d, expected 2.14 (%d) or newer", version,
                         (int)NCCL_OLDEST);
}

/* ---- waiting ---- */

/* Ends the kernels that are under way, so that nothing waits for them any more. */
static void give_up(void) {
    if (state.comm) state.api.CommAbort(state.comm);
    state.comm = NULL;
    state.pending = false;
    state.n_spans = state.n_guarded = 0;
}

static bool refuse(int status, failure *f) {
    const char *last = state.comm ? state.api.GetLastError(state.comm) : NULL;
    fail(f, FAIL_MACHINE, "NCCL says: %s%s%.800s", state.api.GetErrorString(status), last && last[0] ? "; " : "",
         last ? last : "");
    give_up();
    return false;
}

static bool too_late(failure *f) {
    fail(f, FAIL_MACHINE, "no answer within %g s (ddp_timeout): another rank has ended, hangs, or is much slower",
         state.limit);
    give_up();
    return false;
}

static void wait_a_little(int turn) {
    const struct timespec pause = {.tv_nsec = SLEEP_NS};
    if (turn < SPINS) sched_yield();
    else nanosleep(&pause, NULL);
}

static bool is_open(failure *f) { return state.comm || fail(f, FAIL_MACHINE, "the ranks have lost each other"); }

/* What a call of NCCL gave, once it is more than "in progress". */
static bool settle(int status, failure *f) {
    double end = clock_seconds() + state.limit;
    for (int turn = 0; status == NCCL_IN_PROGRESS; turn += turn < SPINS) {
        int asked = state.api.CommGetAsyncError(state.comm, &status);
        if (asked != NCCL_DONE) status = asked;
        if (status == NCCL_IN_PROGRESS && clock_seconds() > end) return too_late(f);
        if (status == NCCL_IN_PROGRESS) wait_a_little(turn);
    }
    return status == NCCL_DONE || refuse(status, f);
}

/* Until all that was put on the stream is done. */
static bool wait_for_stream(failure *f) {
    double end = clock_seconds() + state.limit;
    TRY(cuda_check(cudaEventRecord(state.done, state.stream), "event", f));
    for (int turn = 0;; turn += turn < SPINS) {
        cudaError_t e = cudaEventQuery(state.done);
        if (e == cudaSuccess) return true;
        if (e != cudaErrorNotReady) return cuda_check(e, "waiting for NCCL", f);
        int status = NCCL_DONE, asked = state.api.CommGetAsyncError(state.comm, &status);
        if (asked != NCCL_DONE || status != NCCL_DONE) return refuse(asked ? asked : status, f);
        if (clock_seconds() > end) return too_late(f);
        wait_a_little(turn);
    }
}

/* ---- gradients and weights ---- */

bool nccl_is_open(void) { return state.comm != NULL; }

static bool make_span(failure *f) {
    span one = {0};
    TRY(cuda_check(cudaEventCreate(&one.begin), "event", f) && cuda_check(cudaEventCreate(&one.end), "event", f));
    TRY(cuda_check(cudaEventCreateWithFlags(&one.after, cudaEventDisableTiming), "event", f));
    TRY(cuda_check(cudaEventCreate(&one.reached), "event", f));
    arrput(state.spans, one);
    return true;
}

/* The stream follows what is on the other one so far; a call begins. */
static bool begin_span(span **out, failure *f) {
    TRY(is_open(f) && (state.n_spans < arrlen(state.spans) || make_span(f)));
    span *s = *out = &state.spans[state.n_spans++];
    s->at = NULL;
    s->gathers = s->awaited = false;
    state.pending = true;
    return cuda_check(cudaEventRecord(state.ready, cuda_stream()), "event", f) &&
           cuda_check(cudaStreamWaitEvent(state.stream, state.ready, 0), "event", f) &&
           cuda_check(cudaEventRecord(s->begin, state.stream), "event", f);
}

static bool end_span(span *s, int status, failure *f) {
    return settle(status, f) && cuda_check(cudaEventRecord(s->end, state.stream), "event", f);
}

/* Behind all that follows from it. */
static bool guard(span *s, const void *at, size_t bytes, failure *f) {
    s->at = at;
    s->bytes = bytes;
    state.n_guarded++;
    return cuda_check(cudaEventRecord(s->after, state.stream), "event", f);
}

bool nccl_all_reduce(float *x, int64_t n, failure *f) {
    span *s;
    TRY(begin_span(&s, f));
    state.times.bytes += n * (int64_t)sizeof *x;
    state.times.calls++;
    return end_span(s, state.api.AllReduce(x, x, (size_t)n, NCCL_FLOAT32, NCCL_SUM, state.comm, state.stream), f);
}

bool nccl_all_gather(const void *mine, size_t bytes, void *all, failure *f) {
    span *s;
    TRY(begin_span(&s, f));
    s->gathers = true;
    state.times.gathered += (int64_t)bytes * state.size;
    state.times.gathers++;
    return end_span(s, state.api.AllGather(mine, all, bytes, NCCL_UINT8, state.comm, state.stream), f) &&
           guard(s, all, bytes * (size_t)state.size, f);
}

bool nccl_reduce_scatter(float *x, int64_t n, void (*behind)(cudaStream_t stream, const float *sum, void *data),
                         void *data, failure *f) {
    span *s;
    float *mine = x + n * comm_rank(state.ranks);
    size_t bytes = (size_t)n * (size_t)state.size * sizeof *x;
    TRY(begin_span(&s, f));
    state.times.bytes += (int64_t)bytes;
    state.times.calls++;
    TRY(end_span(s, state.api.ReduceScatter(x, mine, (size_t)n, NCCL_FLOAT32, NCCL_SUM, state.comm, state.stream), f));
    behind(state.stream, mine, data);
    return guard(s, x, bytes, f);
}

bool nccl_wait_for(const void *at, size_t bytes, failure *f) {
    const char *from = at, *to = from + bytes;
    for (int i = 0; i < state.n_spans && state.n_guarded; i++) {
        span *s = &state.spans[i];
        if (!s->at || s->at >= to || s->at + s->bytes <= from) continue;
        s->at = NULL;
        s->awaited = true;
        state.n_guarded--;
        TRY(cuda_check(cudaEventRecord(s->reached, cuda_stream()), "event", f) &&
            cuda_check(cudaStreamWaitEvent(cuda_stream(), s->after, 0), "event", f));
    }
    return true;
}

static double seconds_between(cudaEvent_t a, cudaEvent_t b) {
    float ms = 0;
    if (cudaEventElapsedTime(&ms, a, b) != cudaSuccess) (void)cudaGetLastError(); /* a figure for people */
    return ms > 0 ? 1e-3 * (double)ms : 0;
}

static double least(double a, double b) { return a < b ? a : b; }

/* Behind a wait for both streams. A call is waited for from where the other stream came to need it, or at the end, and
 * no longer than it takes. */
static void take_times(void) {
    for (int i = 0; i < state.n_spans; i++) {
        const span *s = &state.spans[i];
        double seconds = seconds_between(s->begin, s->end);
        double waited = least(seconds, seconds_between(s->awaited ? s->reached : state.computed, s->end));
        *(s->gathers ? &state.times.gathering : &state.times.busy) += seconds;
        *(s->gathers ? &state.times.awaited : &state.times.waited) += waited;
    }
    comm_add_times(state.ranks, &state.times);
    state.times = (comm_times){0};
    state.n_spans = state.n_guarded = 0;
}

bool nccl_broadcast(void *data, size_t bytes, int root, failure *f) {
    TRY(is_open(f));
    TRY(cuda_check(cudaEventRecord(state.ready, cuda_stream()), "event", f));
    TRY(cuda_check(cudaStreamWaitEvent(state.stream, state.ready, 0), "event", f));
    TRY(settle(state.api.Broadcast(data, data, bytes, NCCL_UINT8, root, state.comm, state.stream), f));
    state.pending = true;
    return true;
}

bool nccl_join(failure *f) {
    if (!state.pending) return true;
    state.pending = false;
    TRY(cuda_check(cudaEventRecord(state.computed, cuda_stream()), "event", f));
    TRY(cuda_check(cudaStreamWaitEvent(state.stream, state.computed, 0), "event", f));
    if (wait_for_stream(f)) return take_times(), true;
    return fail_in(f, "gradients or weights, among %d ranks over NCCL", state.size);
}

/* ---- what the host says ---- */

/* Room for `bytes` on the card. */
static bool make_room(size_t bytes, failure *f) {
    if (state.room_bytes >= bytes) return true;
    cudaFree(state.room);
    state.room = NULL;
    state.room_bytes = 0;
    void *block;
    TRY(cuda_check(cudaMalloc(&block, bytes), "room for what ranks say to each other", f));
    state.room = block;
    state.room_bytes = bytes;
    return true;
}

static bool put(void *to, const void *from, size_t bytes, failure *f) {
    return cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, state.stream), "copy to the card", f);
}

/* Behind wait_for_stream: cannot hang. */
static bool get(void *to, const void *from, size_t bytes, failure *f) {
    return cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, state.stream), "copy from the card",
                      f) &&
           cuda_check(cudaStreamSynchronize(state.stream), "copy from the card", f);
}

static bool all_gather(void *unused, const void *mine, size_t bytes, void *all, double limit, failure *f) {
    (void)unused, (void)limit; /* it is state.limit */
    size_t part = cuda_round(bytes), n = (size_t)state.size;
    TRY(is_open(f) && make_room(part + n * bytes, f) && put(state.room, mine, bytes, f));
    char *to = state.room + part;
    TRY(settle(state.api.AllGather(state.room, to, bytes, NCCL_UINT8, state.comm, state.stream), f));
    return wait_for_stream(f) && get(all, to, n * bytes, f);
}

static bool broadcast(void *unused, void *data, size_t bytes, int root, double limit, failure *f) {
    (void)unused, (void)limit;
    for (size_t at = 0; at < bytes; at += MOST) {
        size_t n = bytes - at < MOST ? bytes - at : MOST;
        char *piece = (char *)data + at;
        TRY(is_open(f) && make_room(n, f) && put(state.room, piece, n, f));
        TRY(settle(state.api.Broadcast(state.room, state.room, n, NCCL_UINT8, root, state.comm, state.stream), f));
        TRY(wait_for_stream(f) && get(piece, state.room, n, f));
    }
    return true;
}

static bool reduce_scatter(void *unused, const float *x, float *mine, int64_t n, double limit, failure *f) {
    (void)unused, (void)limit;
    size_t part = cuda_round((size_t)n * sizeof *x), all = (size_t)n * (size_t)state.size * sizeof *x;
    TRY(is_open(f) && make_room(part + all, f) && put(state.room + part, x, all, f));
    TRY(settle(state.api.ReduceScatter(state.room + part, state.room, (size_t)n, NCCL_FLOAT32, NCCL_SUM, state.comm,
                                       state.stream),
               f));
    return wait_for_stream(f) && get(mine, state.room, (size_t)n * sizeof *mine, f);
}

static void abort_here(void *unused, int code) {
    (void)unused, (void)code; /* the launcher ends the others when this process ends with it */
    give_up();
}

static void close_later(void *unused) { (void)unused; } /* nccl_close, with the card */

/* ---- open and close ---- */

typedef struct {
    char host[64], card[32];
} rank_card;

static bool find_card(rank_card *out, failure *f) {
    int card;
    *out = (rank_card){{0}, {0}};
    gethostname(out->host, sizeof out->host - 1);
    return cuda_check(cudaGetDevice(&card), "card", f) &&
           cuda_check(cudaDeviceGetPCIBusId(out->card, sizeof out->card, card), "card", f);
}

/* Whether two ranks have one card: NCCL refuses that. Known only where ranks can ask each other already. */
static bool find_shared(comm *c, bool *shared, failure *f) {
    rank_card mine, *all;
    int n = comm_size(c);
    *shared = false;
    TRY(comm_agree(c, find_card(&mine, f), f));
    if (!comm_has_carrier(c)) return true;
    all = xmalloc((size_t)n * sizeof *all);
    bool ok = comm_all_gather(c, &mine, sizeof mine, all, "which card each rank has", f);
    for (int a = 0; a < n && ok && !*shared; a++)
        for (int b = 0; b < a && !*shared; b++) {
            *shared = memcmp(&all[a], &all[b], sizeof mine) == 0;
            if (*shared)
                log_warning("ranks %d and %d share card %s of %s: gradients go through host memory and MPI", b, a,
                            all[a].card, all[a].host);
        }
    free(all);
    return ok;
}

/* Rank 0's id, to all. */
static bool share_id(comm *c, nccl_id *id, failure *f) {
    const char *meeting = comm_place(c)->meeting;
    int status = comm_rank(c) == 0 ? state.api.GetUniqueId(id) : NCCL_DONE;
    TRY(comm_agree(c, status == NCCL_DONE || refuse(status, f), f));
    if (comm_has_carrier(c)) return comm_broadcast(c, id, sizeof *id, 0, "NCCL's id", f);
    if (comm_size(c) == 1) return true;
    if (!meeting[0])
        return fail(
            f, FAIL_INPUT,
            "ranks on several machines, started by torchrun: NCCL's id has no way between them; start them with "
            "mpirun or srun --mpi=pmix, or set LIGER_SFT_MEETING to the name of a file in a folder that they "
            "share, new for each run");
    return comm_rank(c) == 0 ? meeting_put(meeting, id, sizeof *id, f)
                             : meeting_get(meeting, id, sizeof *id, comm_limit(c), f);
}

static bool open_stream(failure *f) {
    int least, greatest;
    TRY(cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream", f));
    return cuda_check(cudaStreamCreateWithPriority(&state.stream, cudaStreamNonBlocking, greatest), "stream", f) &&
           cuda_check(cudaEventCreateWithFlags(&state.ready, cudaEventDisableTiming), "event", f) &&
           cuda_check(cudaEventCreateWithFlags(&state.done, cudaEventDisableTiming), "event", f) &&
           cuda_check(cudaEventCreate(&state.computed), "event", f);
}

/* A first sum: connects the ranks, takes the memory that NCCL needs before ours is planned, and shows a network that
 * does not work at once. */
static bool probe(failure *f) {
    TRY(make_room(PROBE * sizeof(float), f));
    TRY(cuda_check(cudaMemsetAsync(state.room, 0, PROBE * sizeof(float), state.stream), "first sum", f));
    TRY(settle(state.api.AllReduce(state.room, state.room, PROBE, NCCL_FLOAT32, NCCL_SUM, state.comm, state.stream),
               f));
    return wait_for_stream(f);
}

static bool connect_ranks(comm *c, failure *f) {
    nccl_id id = {{0}};
    nccl_config config = {sizeof config, (unsigned)NCCL_CONFIG_MAGIC, NCCL_OLDEST, 0};
    TRY(comm_agree(c, open_stream(f), f) && share_id(c, &id, f));
    TRY(settle(state.api.CommInitRankConfig(&state.comm, comm_size(c), id, comm_rank(c), &config), f) && probe(f));
    if (!comm_has_carrier(c) && comm_rank(c) == 0 && comm_size(c) > 1) meeting_end(comm_place(c)->meeting);
    return true;
}

bool comm_nccl_open(comm *c, failure *f) {
    bool shared;
    TRY(find_shared(c, &shared, f));
    if (shared) return true;
    TRY(comm_agree(c, open_library(f), f));
    state.size = comm_size(c);
    state.limit = comm_limit(c);
    state.ranks = c;
    if (!connect_ranks(c, f)) return fail_in(f, "connecting %d ranks over NCCL", state.size);
    const comm_carrier carrier = {"NCCL", NULL, all_gather, broadcast, reduce_scatter, abort_here, close_later};
    state.is_carrier = !comm_has_carrier(c);
    if (state.is_carrier) comm_use(c, &carrier);
    return true;
}

void nccl_close(void) {
    const comm_carrier none = {0};
    if (state.comm) state.api.CommDestroy(state.comm);
    if (state.is_carrier) comm_use(state.ranks, &none); /* another open may give one again */
    for (int i = 0; i < arrlen(state.spans); i++) {
        cudaEventDestroy(state.spans[i].begin);
        cudaEventDestroy(state.spans[i].end);
        cudaEventDestroy(state.spans[i].after);
        cudaEventDestroy(state.spans[i].reached);
    }
    arrfree(state.spans);
    if (state.computed) cudaEventDestroy(state.computed);
    cudaFree(state.room);
    if (state.ready) cudaEventDestroy(state.ready);
    if (state.done) cudaEventDestroy(state.done);
    if (state.stream) cudaStreamDestroy(state.stream);
    nccl_api api = state.api; /* the library stays */
    memset(&state, 0, sizeof state);
    state.api = api;
}
