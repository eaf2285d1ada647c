/* cmd_train.c - `liger-sft --config FILE`: fine-tunes. Everything that can be wrong is looked at before step 1. */
#include "base/array.h"
#include "base/clock.h"
#include "base/folder_lock.h"
#include "base/log.h"
#include "base/signals.h"
#include "cli/command.h"
#include "cli/load_data.h"
#include "cli/ranks_start.h"
#include "train/ranks.h"
#include "train/save.h"
#include "train/training_run.h"

static bool check_settings(const config *c, failure *f) {
    if (c->max_steps == 0 || (c->max_steps < 0 && c->num_train_epochs == 0))
        return fail(f, FAIL_INPUT, "%s: 0 leaves no step to do", c->max_steps ? "num_train_epochs" : "max_steps");
    return true;
}

/* Checkpoints of the run whose folder this one takes over: they would be taken for its own. */
static bool clear_folder(const config *c, failure *f) {
    TRY(checkpoint_clean(c->output_dir, f));
    if (!c->overwrite_output_dir) return true;
    int64_t *steps = checkpoint_list(c->output_dir);
    bool ok = true;
    for (int i = 0; i < arrlen(steps) && ok; i++) ok = checkpoint_remove(c->output_dir, steps[i], f);
    if (arrlen(steps)) log_info("%s: %d checkpoints of an earlier run removed", c->output_dir, (int)arrlen(steps));
    arrfree(steps);
    return ok;
}

static bool open_files(report **r, const config *c, const resume *from, failure *f) {
    const run_state *s = &from->from.state;
    bool goes_on = from->kind == RESUME_BEHIND && from->goes_on;
    if (!goes_on) return clear_folder(c, f) && report_open(r, c, false, f);
    return report_open(r, c, true, f) && report_resume(*r, s->step, s->evaluated == s->step, f);
}

/* Files are rank 0's; the others have nothing to say. */
static bool open_report(report **r, const session *s, const resume *from, failure *f) {
    if (comm_rank(s->ranks) > 0) return report_open_silent(r), true;
    TRY(open_files(r, s->c, from, f));
    if (s->ranks && comm_place(s->ranks)->kind == LAUNCH_MPI) report_lines(*r);
    return true;
}

/* Everything up to the first step. Behind each comm_agree all ranks go on, or none does. */
static bool prepare(session *s, const config *c, comm *ranks, const resume *from, dataset *data, dataset *eval,
                    failure *f) {
    bool first = comm_rank(ranks) == 0, ok = session_open_model(s, c, f);
    s->ranks = ranks;
    ok = ok && session_open_backend(s, f);
    TRY(comm_agree(ranks, ok, f) && ranks_join(s, f));
    ok = ranks_check_start(ranks, from, f);
    ok = ok && session_open_text(s, f) && session_open_weights(s, f) &&
         (!first || save_check_folder(s, from->goes_on, f)) && load_training_data(data, eval, s, f);
    return comm_agree(ranks, ok, f) && ranks_check_inputs(s, data, f) && train_build(s, f);
}

static bool train(session *s, const config *c, comm *ranks, const resume *from, double begin, failure *f) {
    dataset data = {0}, eval = {0};
    report *r = NULL;
    run *t = NULL;
    run_summary summary;
    bool first = comm_rank(ranks) == 0, ok = prepare(s, c, ranks, from, &data, &eval, f);
    if (ok) { /* a rank that is alone with a failure asks nobody any more */
        ok = session_start(s, true, f) && run_open(&t, s, &data, from, f) && open_report(&r, s, from, f);
        ok = comm_agree(ranks, ok, f);
    }
    signals_hold(ok);
    ok = ok && run_train(t, &eval, r, begin, &summary, f);
    if (ok) ok = comm_agree(ranks, run_save_result(t, f) && (!first || report_done(r, &summary, f)), f);
    signals_hold(false);
    report_close(r);
    run_close(t);
    dataset_free(&eval);
    dataset_free(&data);
    return ok;
}

/* Where the run begins is looked up first, so that settings that do not fit are told before anything is opened. */
static bool find_and_train(const config *c, comm *ranks, double begin, failure *f) {
    resume from = {0};
    session s = {0};
    bool ok = comm_agree(ranks, resume_find(&from, c, comm_size(ranks), f), f) && ranks_check_start(ranks, &from, f);
    if (ok && from.kind != RESUME_FINISHED) ok = train(&s, c, ranks, &from, begin, f);
    ranks_say(ranks, ok, f);
    session_close(&s);
    resume_close(&from);
    return ok;
}

/* First: before time goes into a model, and before looking at what another run writes. */
static bool lock_folder(folder_lock *lock, const config *c, comm *ranks, failure *f) {
    bool ok = comm_rank(ranks) > 0 || folder_lock_take(lock, c->output_dir, f) || fail_in(f, "output_dir");
    ok = comm_agree(ranks, ok, f);
    ranks_say(ranks, ok, f);
    return ok;
}

bool cmd_train(const config *given, failure *f) {
    double begin = clock_seconds();
    config c = *given;
    comm *ranks;
    signals_catch();
    TRY(check_settings(&c, f) && ranks_open(&ranks, &c, f));
    folder_lock lock = {0};
    bool ok = lock_folder(&lock, &c, ranks, f), locked = ok && comm_rank(ranks) == 0;
    ok = ok && find_and_train(&c, ranks, begin, f);
    if (locked) folder_lock_release(&lock);
    ranks_close(ranks);
    return ok;
}
