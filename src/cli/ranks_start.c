/* ranks_start.c - starts, joins and leaves ranks; see ranks_start.h. */
#include "cli/ranks_start.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "exec/backend.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool start(const config *c, char *const *line, int *code, failure *f) {
    const backend *b;
    TRY(backend_find(&b, c->device, 0, f));
    if (!b->host_memory) return launch_local((int)c->gpus, line, code, f);
    if (!comm_mpi_is_built())
        return fail(f, FAIL_MACHINE,
                    "gpus: %lld ranks on the CPU need MPI, which this build does not have: install libopenmpi-dev and "
                    "openmpi-bin and build again",
                    (long long)c->gpus);
    return launch_mpirun((int)c->gpus, line, f);
}

bool ranks_start(const config *c, const char *command, char *const *argv, bool *started, int *code, failure *f) {
    launch_place place;
    int n = 0;
    TRY(launch_find(&place, f));
    if (c->gpus < 2 || place.kind != LAUNCH_ALONE) return true;
    while (argv[n]) n++;
    char **line = xcalloc((size_t)n + 2, sizeof *line);
    line[0] = xstrdup(command);
    for (int i = 0; i < n; i++) line[i + 1] = argv[i];
    *started = true;
    bool ok = start(c, line, code, f);
    free(line[0]);
    free(line);
    return ok;
}

bool ranks_refuse(const char *command, failure *f) {
    launch_place place;
    TRY(launch_find(&place, f));
    if (place.size == 1) return true;
    return fail(f, FAIL_USAGE, "%s runs as one process, and %d were started", command, place.size);
}

/* A fair share of the processors, unless the launcher bound us to our own. */
static void share_threads(config *c, int local_size) {
    int mine = omp_get_num_procs();
    if (c->threads || local_size < 2) return;
    if (mine >= (int)sysconf(_SC_NPROCESSORS_ONLN)) mine /= local_size;
    c->threads = mine > 0 ? mine : 1;
    omp_set_num_threads((int)c->threads);
}

static bool open_log(const config *c, int rank, failure *f) {
    FILE *file = NULL;
    if (rank && c->rank_logs[0]) {
        arena a = {0};
        char name[32];
        snprintf(name, sizeof name, "rank-%d.log", rank);
        const char *path = path_join(&a, c->rank_logs, name);
        bool ok = file_make_folders(c->rank_logs, f);
        if (ok && !(file = fopen(path, "w"))) ok = fail_errno(f, FAIL_MACHINE, "rank_logs: %s: cannot write", path);
        arena_free(&a);
        if (!ok) return false;
    }
    log_rank(rank, file); /* the file lives as long as the process, whose last words it takes */
    return true;
}

static bool check_number(const config *c, const comm *ranks, failure *f) {
    if (c->gpus < 2 || c->gpus == comm_local_size(ranks)) return true;
    return fail(f, FAIL_USAGE,
                "gpus: found %lld, and %d ranks were started on this machine; leave gpus out when mpirun, srun or "
                "torchrun starts them",
                (long long)c->gpus, comm_local_size(ranks));
}

bool ranks_open(comm **out, config *c, failure *f) {
    launch_place place;
    *out = NULL;
    TRY(launch_find(&place, f));
    bool alone_with_nccl = place.kind == LAUNCH_ALONE && strcmp(c->ddp_backend, "nccl") == 0;
    if (alone_with_nccl) place.kind = LAUNCH_ENV; /* a world of one */
    TRY(comm_open(out, &place, (double)c->ddp_timeout, f));
    comm *ranks = *out;
    bool ok = comm_agree(ranks, open_log(c, comm_rank(ranks), f) && check_number(c, ranks, f), f);
    if (!ok) {
        ranks_say(ranks, false, f);
        ranks_close(ranks);
        return false;
    }
    config_spread(c, comm_size(ranks));
    share_threads(c, comm_local_size(ranks));
    if (ranks)
        log_info("%d ranks, %d on this machine, %lld threads each", comm_size(ranks), comm_local_size(ranks),
                 (long long)c->threads);
    return true;
}

void ranks_say(comm *ranks, bool ok, const failure *f) {
    if (!ranks || ok) return;
    log_error("%s", f->text);
    log_to_file_only(); /* the caller says it again */
    signals_ignore();   /* the launcher's, when another rank has ended with this failure */
    if (!comm_agreed(ranks)) comm_abort(ranks, (int)f->kind);
}

void ranks_close(comm *ranks) {
    failure f;
    if (comm_has_carrier(ranks) && !comm_ended(ranks))
        comm_barrier(ranks, "the end", &f); /* whoever failed to come has said why */
    comm_close(ranks);
}
