/* cmd_bench.c - `liger-sft bench`: times training steps on random weights and random tokens, the fused program beside
 * the unfused one, from a folder that holds only config.json. Prints the table of what fusing changes.
 *
 * Rows are max_length tokens, one document each, or packed with documents of log-normal length (bench_mean_length).
 * As ranks it also says what the sums of gradients and the gathers of frozen weights take and how much of that is
 * hidden; rank 0 prints. */
#include "base/clock.h"
#include "base/log.h"
#include "cli/bench_kernels.h"
#include "cli/command.h"
#include "cli/ranks_start.h"
#include "cli/traffic.h"
#include "exec/device_stats.h"
#include "exec/flops.h"
#include "train/random_batch.h"
#include "train/ranks.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_STEPS = 3 };

typedef struct {
    op_traffic traffic[GROUP_COUNT];
    int ops;
    int64_t tokens, slots;       /* of a step */
    double seconds, best, worst; /* of a step: median, fastest, slowest */
    double mfu, planned_gib, loss, start_seconds;
    double util, device_gib; /* of the device over the timed steps; NAN without one */
    const char *recompute;
    comm_times sums; /* of a step: mean, of rank 0 */
    bool scatters;   /* sums go each to the rank that keeps it (zero_stage 2 and 3) */
} bench_result;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool time_steps(session *s, optimizer *o, micro_batch *batches, int n, bench_result *out, failure *f) {
    int steps = (int)s->c->bench_steps;
    double *times = xmalloc((size_t)steps * sizeof *times), mfu = 0;
    bool ok = true;
    for (int i = 0; i < WARM_STEPS + steps && ok; i++) {
        step_metrics m = {0};
        bool skipped;
        int first = (i * comm_size(s->ranks) + comm_rank(s->ranks)) * n;
        for (int k = 0; k < n; k++)
            random_batch_fill(&batches[k], s->c, train_slots(s->c), s->model.vocab, (uint64_t)(first + k));
        ok = train_step(s, o, batches, n, 1e-4, &m, &skipped, f);
        if (ok && skipped)
            ok = fail(f, FAIL_MACHINE,
                      "step %d: the gradient norm is not finite, so the update was skipped and its time "
                      "means nothing",
                      i + 1);
        out->tokens = m.tokens, out->slots = m.slots, out->loss = m.loss;
        if (i + 1 == WARM_STEPS) device_stats_reset();
        if (i + 1 == WARM_STEPS) comm_take_times(s->ranks);
        if (i < WARM_STEPS) continue;
        times[i - WARM_STEPS] = m.step_seconds;
        mfu += m.mfu / steps;
    }
    qsort(times, (size_t)steps, sizeof *times, by_value);
    out->seconds = times[steps / 2], out->best = times[0], out->worst = times[steps - 1];
    out->mfu = mfu;
    out->sums = comm_take_times(s->ranks);
    device_stats d;
    bool device = device_stats_read(&d);
    out->util = device ? d.util_percent : NAN;
    out->device_gib = device ? d.peak_memory_gib : NAN;
    free(times);
    return ok;
}

typedef struct {
    double seconds, flops, bytes;
    int calls;
} op_time;

/* Waits for the device: reads one number back. */
static bool wait_for_device(session *s, failure *f) {
    float loss;
    return executor_download(s->x, s->io.loss, &loss, 1, f);
}

/* One more run of the program, op by op with a wait behind each: time by kind of op, forward and backward apart. */
static bool time_ops(session *s, const micro_batch *b, failure *f) {
    op_time times[OP_COUNT][2] = {{{0}}};
    double pairs = batch_pairs(b->cu, b->info.docs), total = 0;
    for (int i = 0; i < session_ops(s); i++) {
        const graph_op *o = &s->g.ops[i];
        batch_info info = b->info;
        info.training = true;
        TRY(wait_for_device(s, f));
        double started = clock_seconds();
        TRY(executor_run(s->x, i, 1, &info, f) && wait_for_device(s, f));
        op_time *t = &times[o->kind][o->backward];
        double seconds = clock_seconds() - started;
        t->seconds += seconds, total += seconds;
        t->flops += op_flops(&s->g, o, &info, pairs);
        t->bytes += (double)op_bytes(&s->g, o);
        t->calls++;
    }
    printf("\n%-20s %4s %6s %10s %8s %10s %10s\n", "op", "", "calls", "ms", "share %", "TFLOP/s", "GB/s");
    for (op_kind k = 0; k < OP_COUNT; k++)
        for (int way = 0; way < 2; way++) {
            const op_time *t = &times[k][way];
            if (!t->calls) continue;
            printf("%-20s %4s %6d %10.3f %8.2f %10.1f %10.0f\n", op_name(k), way ? "bwd" : "fwd", t->calls,
                   1e3 * t->seconds, 100 * t->seconds / total, t->flops / t->seconds / 1e12,
                   t->bytes / t->seconds / 1e9);
        }
    printf("%-20s %4s %6d %10.3f   (each op waited for: launches cost more than in a step)\n\n", "sum", "",
           session_ops(s), 1e3 * total);
    return true;
}

/* Up to the first step; behind each comm_agree all ranks go on, or none does. */
static bool prepare(session *s, const config *c, comm *ranks, optimizer **o, failure *f) {
    bool ok = session_open_model(s, c, f);
    s->ranks = ranks;
    ok = ok && session_open_backend(s, f);
    TRY(comm_agree(ranks, ok, f) && ranks_join(s, f));
    ok = train_build(s, f);
    return comm_agree(ranks, ok && session_start(s, true, f) && optimizer_open(o, s, f), f);
}

static bool measure(session *s, const config *c, comm *ranks, bench_result *out, failure *f) {
    double begin = clock_seconds();
    optimizer *o = NULL;
    if (!prepare(s, c, ranks, &o, f)) {
        optimizer_close(o);
        return false;
    }
    int n = (int)c->gradient_accumulation_steps;
    micro_batch *batches = xcalloc((size_t)n, sizeof *batches);
    for (int i = 0; i < n; i++) micro_batch_init(&batches[i], train_slots(c));
    traffic_count(&s->g, s->model.n_layer > 1 ? 2 : 1, out->traffic);
    out->ops = session_ops(s);
    out->planned_gib = (double)plan_peak(&s->p) / 0x1p30;
    out->recompute = recompute_name(s->level);
    for (int i = 0; i < out->ops; i++) out->scatters |= s->g.ops[i].kind == OP_reduce_scatter;
    out->start_seconds = clock_seconds() - begin;
    bool ok = time_steps(s, o, batches, n, out, f) && (!c->bench_ops || time_ops(s, &batches[0], f));
    for (int i = 0; i < n; i++) micro_batch_free(&batches[i]);
    free(batches);
    optimizer_close(o);
    return ok;
}

static bool measure_path(const config *c, comm *ranks, bool fused, bench_result *out, failure *f) {
    config variant = *c;
    variant.use_liger_kernel = fused;
    session s = {0};
    bool ok = measure(&s, &variant, ranks, out, f);
    ranks_say(ranks, ok, f);
    session_close(&s);
    return ok;
}

/* A figure that may not exist, in `width` columns. */
static void print_figure(int width, double x) {
    if (isfinite(x)) printf(" %*.1f", width, x);
    else printf(" %*s", width, "na");
}

static void print_row(const char *name, const bench_result *r) {
    printf("%-8s %10.0f %9.2f %9.2f %9.2f", name, (double)r->tokens / r->seconds, 1e3 * r->seconds, 1e3 * r->best,
           1e3 * r->worst);
    print_figure(6, r->mfu);
    print_figure(6, r->util);
    print_figure(10, r->device_gib);
    printf(" %9.2f %7.1f %5d %9s %8.2f %8.4f\n", r->planned_gib, 100 * (double)r->tokens / (double)r->slots, r->ops,
           r->recompute, r->start_seconds, r->loss);
    fflush(stdout);
}

/* What ranks said to each other in the timed steps; rank 0's: the wait for slower ranks counts as time on the carrier.
 * passes: an all_reduce of so many bytes moves 2 (n - 1) / n of them over every rank's links, a reduce_scatter or an
 * all_gather (n - 1) / n (nccl-tests' bus bandwidth). */
typedef struct {
    const char *what, *calls_are;
    double bytes, busy, waited;
    int calls, passes;
} carried;

static void print_carried(const char *name, int steps, int ranks, double step_seconds, const carried *all) {
    double busy = all->busy / steps, waited = all->waited / steps, bytes = all->bytes / steps;
    printf("%-8s %d ranks: %.2f MiB of %s in %d %s a step, %.2f ms on the way, %.2f ms of them waited for", name, ranks,
           bytes / 0x1p20, all->what, all->calls / steps, all->calls_are, 1e3 * busy, 1e3 * waited);
    printf(" (%.1f %% hidden; %.2f %% of the step waits)", busy > 0 ? 100 * (1 - waited / busy) : 0,
           100 * waited / step_seconds);
    if (ranks > 1 && busy > 0)
        printf(", %.2f GB/s on the bus", 1e-9 * bytes * all->passes * (ranks - 1) / ranks / busy);
    printf("\n");
    fflush(stdout);
}

static void print_ranks(const char *name, const config *c, comm *ranks, const bench_result *r) {
    const comm_times *t = &r->sums;
    carried sums = {"gradients", "sums", (double)t->bytes, t->busy, t->waited, t->calls, r->scatters ? 1 : 2};
    carried gathers = {"weights", "gathers", (double)t->gathered, t->gathering, t->awaited, t->gathers, 1};
    if (!ranks) return;
    print_carried(name, (int)c->bench_steps, comm_size(ranks), r->seconds, &sums);
    if (t->gathers) print_carried(name, (int)c->bench_steps, comm_size(ranks), r->seconds, &gathers);
}

static bool bench(const config *c, comm *ranks, failure *f) {
    bench_result result[2] = {0}; /* unfused, fused */
    static const char *const names[2] = {"unfused", "fused"};
    bool both = strcmp(c->bench_paths, "both") == 0;
    printf("%-8s %10s %9s %9s %9s %6s %6s %10s %9s %7s %5s %9s %8s %8s\n", "path", "tokens/s", "step ms", "fastest",
           "slowest", "MFU %", "util %", "device GiB", "plan GiB", "real %", "ops", "recompute", "start s", "loss");
    fflush(stdout);
    for (int fused = 0; fused < 2; fused++) {
        if (!both && strcmp(c->bench_paths, names[fused]) != 0) continue;
        TRY(measure_path(c, ranks, fused, &result[fused], f));
        print_row(names[fused], &result[fused]);
        print_ranks(names[fused], c, ranks, &result[fused]);
    }
    if (!both) return true;
    traffic_print(result[0].traffic, result[1].traffic);
    printf("\nfused / unfused: speed %.3f, planned memory %.3f\n", result[0].seconds / result[1].seconds,
           result[1].planned_gib / result[0].planned_gib);
    return true;
}

bool cmd_bench(const config *given, failure *f) {
    config c = *given;
    comm *ranks;
    TRY(config_need(&c, "model", f) && ranks_open(&ranks, &c, f));
    if (c.kernels) {
        bool alone = comm_size(ranks) == 1;
        if (!alone)
            fail(f, FAIL_INPUT, "kernels: found %d ranks, expected one: kernels are timed alone", comm_size(ranks));
        ranks_say(ranks, alone, f);
        ranks_close(ranks);
        return alone && bench_kernels(&c, f);
    }
    if (comm_rank(ranks) > 0 && !freopen("/dev/null", "w", stdout)) log_warning("standard output cannot be closed");
    bool ok = bench(&c, ranks, f);
    ranks_close(ranks);
    return ok;
}
