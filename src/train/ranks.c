/* ranks.c - carriers, fingerprints and the figures of a step; see ranks.h. */
#include "train/ranks.h"
#include "base/array.h"
#include "base/fingerprint.h"
#include "base/signals.h"

#include <math.h>
#include <string.h>

/* What carries gradients can be had, as far as settings and launchers say. */
static bool check_carrier(const session *s, failure *f) {
    const comm *c = s->ranks;
    bool host = s->b->host_memory, carried = comm_has_carrier(c);
    if (host && strcmp(s->c->ddp_backend, "nccl") == 0)
        return fail(f, FAIL_INPUT, "ddp_backend: nccl needs GPUs, and the device is the %s", s->b->name);
    if (!carried && host)
        return fail(f, FAIL_INPUT,
                    "the environment (RANK, WORLD_SIZE) says %d ranks; on the %s they need mpirun -n %d, or --gpus %d",
                    comm_size(c), s->b->name, comm_size(c), comm_size(c));
    if (!carried && strcmp(s->c->ddp_backend, "mpi") == 0)
        return fail(f, FAIL_INPUT, "ddp_backend: mpi needs ranks that mpirun or srun started, these come from %s",
                    "the environment (torchrun, --gpus)");
    return true;
}

bool ranks_join(session *s, failure *f) {
    comm *c = s->ranks;
    if (!c) return true;
    TRY(comm_agree(c, check_carrier(s, f), f));
    return s->b->host_memory || strcmp(s->c->ddp_backend, "mpi") == 0 || comm_nccl_open(c, f);
}

bool ranks_check_start(comm *c, const resume *from, failure *f) {
    int64_t start[2] = {from->kind, from->from.state.step};
    return comm_same(c, fingerprint(0, start, sizeof start), "the checkpoint to go on from", f);
}

bool ranks_check_inputs(session *s, const dataset *data, failure *f) {
    if (!s->ranks) return true;
    run_source source = resume_source(s, data);
    text_buf settings = {0};
    config_put_json(s->c, &settings);
    uint64_t mark = fingerprint(0, settings.data, settings.size);
    text_free(&settings);
    return comm_same(s->ranks, mark, "the config", f) && comm_same(s->ranks, source.model, "the model", f) &&
           comm_same(s->ranks, source.data, "the data set", f);
}

bool ranks_count(session *s, const micro_batch *batches, int n, step_metrics *m, failure *f) {
    double sums[3] = {0}; /* tokens, labels, micro-batches */
    for (int i = 0; i < n; i++) {
        const batch_info *b = &batches[i].info;
        if (b->stand_in) continue;
        sums[0] += b->rows, sums[1] += b->labels, sums[2] += 1;
    }
    TRY(comm_sum(s->ranks, sums, 3, "the tokens of a step", f));
    m->tokens = (int64_t)sums[0];
    m->label_tokens = (int64_t)sums[1];
    m->slots = (int64_t)sums[2] * s->g.values[s->io.ids].rows;
    return true;
}

typedef struct {
    double norm, mfu, seconds;
} rank_step;

static bool same_norm(double a, double b) { return a == b || (!isfinite(a) && !isfinite(b)); }

bool ranks_finish_step(session *s, step_metrics *m, failure *f) {
    if (!s->ranks) return true;
    int n = comm_size(s->ranks), other = 0;
    rank_step mine = {m->grad_norm, m->mfu, m->step_seconds}, *all = xmalloc((size_t)n * sizeof *all);
    bool ok = comm_all_gather(s->ranks, &mine, sizeof mine, all, "the figures of a step", f);
    m->mfu = 0;
    for (int r = 0; r < n && ok; r++) {
        m->mfu += all[r].mfu / n;
        m->step_seconds = fmax(m->step_seconds, all[r].seconds);
        if (!same_norm(all[r].norm, all[0].norm)) other = r;
    }
    if (ok && other) {
        fail(f, FAIL_MACHINE,
             "the gradient norm is %.9g on rank 0 and %.9g on rank %d: their weights have parted, through a fault of a "
             "machine or unlike machines",
             all[0].norm, all[other].norm, other);
        ok = comm_agree(s->ranks, false, f);
    }
    free(all);
    return ok;
}

bool ranks_finish_run(session *s, run_summary *out, failure *f) {
    out->ranks = comm_size(s->ranks);
    double mean = out->gpu_util / (double)out->ranks;
    double *peaks = arena_alloc(&s->memory, (size_t)out->ranks * sizeof *peaks);
    TRY(comm_sum(s->ranks, &mean, 1, "utilisation", f));
    TRY(comm_all_gather(s->ranks, &out->peak_memory_gib, sizeof *peaks, peaks, "peak memory", f));
    for (int64_t r = 0; r < out->ranks; r++) out->peak_memory_gib = fmax(out->peak_memory_gib, peaks[r]);
    out->gpu_util = mean;
    out->rank_peaks = peaks;
    return true;
}

bool ranks_signal(const session *s, int *out, failure *f) {
    double signal = signals_caught();
    TRY(comm_max(s->ranks, &signal, 1, "whether to stop", f));
    *out = (int)signal;
    return true;
}

bool ranks_add(const session *s, int *x, failure *f) {
    double sum = *x;
    TRY(comm_sum(s->ranks, &sum, 1, "the rows of a step", f));
    *x = (int)sum;
    return true;
}

bool ranks_gather(const session *s, int32_t **list, failure *f) {
    comm *c = s->ranks;
    if (!c) return true;
    double most = (double)arrlen(*list);
    TRY(comm_max(c, &most, 1, "the rows of a step", f));
    size_t room = (size_t)most + 1; /* the count stands in front */
    int32_t *mine = xcalloc(room, sizeof *mine), *all = xmalloc(room * (size_t)comm_size(c) * sizeof *all);
    mine[0] = (int32_t)arrlen(*list);
    if (mine[0]) memcpy(mine + 1, *list, (size_t)mine[0] * sizeof *mine);
    bool ok = comm_all_gather(c, mine, room * sizeof *mine, all, "the rows of a step", f);
    arrsetlen(*list, 0);
    for (int r = 0; r < comm_size(c) && ok; r++)
        for (int32_t i = 1; i <= all[(size_t)r * room]; i++) arrput(*list, all[(size_t)r * room + (size_t)i]);
    free(mine);
    free(all);
    return ok;
}
