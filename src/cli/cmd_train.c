/* cmd_train.c - `liger-sft --config FILE`: fine-tunes. Everything that can be wrong is looked at before step 1. */
#include "base/array.h"
#include "base/clock.h"
#include "base/folder_lock.h"
#include "base/log.h"
#include "base/signals.h"
#include "cli/command.h"
#include "cli/load_data.h"
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

static bool open_report(report **r, const config *c, const resume *from, failure *f) {
    const run_state *s = &from->from.state;
    bool goes_on = from->kind == RESUME_BEHIND && from->goes_on;
    if (!goes_on) return clear_folder(c, f) && report_open(r, c, false, f);
    return report_open(r, c, true, f) && report_resume(*r, s->step, s->evaluated == s->step, f);
}

static bool train(session *s, const config *c, const resume *from, double begin, failure *f) {
    dataset data = {0}, eval = {0};
    report *r = NULL;
    run *t = NULL;
    run_summary summary;
    bool ok = session_open_model(s, c, f) && session_open_backend(s, f) && session_open_text(s, f) &&
              session_open_weights(s, f) && save_check_folder(s, from->goes_on, f) &&
              load_training_data(&data, &eval, s, f) && train_build(s, f) && session_start(s, true, f) &&
              run_open(&t, s, &data, from, f) && open_report(&r, c, from, f);
    signals_hold(ok);
    ok = ok && run_train(t, &eval, r, begin, &summary, f) && save_result(s, f) && report_done(r, &summary, f);
    signals_hold(false);
    report_close(r);
    run_close(t);
    dataset_free(&eval);
    dataset_free(&data);
    return ok;
}

/* Where the run begins is looked up first, so that settings that do not fit are told before anything is opened. */
static bool find_and_train(const config *c, double begin, failure *f) {
    resume from;
    bool ok = resume_find(&from, c, 1, f);
    if (ok && from.kind != RESUME_FINISHED) {
        session s = {0};
        ok = train(&s, c, &from, begin, f);
        session_close(&s);
    }
    resume_close(&from);
    return ok;
}

bool cmd_train(const config *c, failure *f) {
    double begin = clock_seconds();
    signals_catch();
    TRY(check_settings(c, f));
    folder_lock lock; /* first: before time goes into a model, and before looking at what another run writes */
    if (!folder_lock_take(&lock, c->output_dir, f)) return fail_in(f, "output_dir");
    bool ok = find_and_train(c, begin, f);
    folder_lock_release(&lock);
    return ok;
}
