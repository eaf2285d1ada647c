/* cmd_train.c - `liger-sft --config FILE`: fine-tunes. Everything that can be wrong is looked at before step 1. */
#include "base/clock.h"
#include "base/folder_lock.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/load_data.h"
#include "train/save.h"
#include "train/trainer.h"

static bool check_settings(const config *c, failure *f) {
    if (c->save_steps) return fail(f, FAIL_INPUT, "save_steps: checkpoints are not in this version; leave it 0");
    if (c->resume_from_checkpoint[0])
        return fail(f, FAIL_INPUT, "resume_from_checkpoint: checkpoints are not in this version; leave it out");
    if (c->max_steps == 0 || (c->max_steps < 0 && c->num_train_epochs == 0))
        return fail(f, FAIL_INPUT, "%s: 0 leaves no step to do", c->max_steps ? "num_train_epochs" : "max_steps");
    return true;
}

static bool train(session *s, const config *c, double begin, failure *f) {
    dataset data = {0}, eval = {0};
    report *r = NULL;
    run_summary summary;
    bool ok = session_open_model(s, c, f) && session_open_text(s, f) && session_open_weights(s, f) &&
              save_check_folder(s, f) && load_training_data(&data, &eval, s, f) && train_build(s, f) &&
              session_start(s, true, f) && report_open(&r, c, f);
    if (ok)
        ok = train_run(s, &data, dataset_count(&eval) ? &eval : NULL, r, begin, &summary, f) && save_result(s, f) &&
             report_done(r, &summary, f);
    report_close(r);
    dataset_free(&eval);
    dataset_free(&data);
    return ok;
}

bool cmd_train(const config *c, failure *f) {
    double begin = clock_seconds();
    TRY(check_settings(c, f));
    folder_lock lock; /* first: before time goes into a model, and before looking at what another run writes */
    if (!folder_lock_take(&lock, c->output_dir, f)) return fail_in(f, "output_dir");
    session s = {0};
    bool ok = train(&s, c, begin, f);
    session_close(&s);
    folder_lock_release(&lock);
    return ok;
}
