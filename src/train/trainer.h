/* trainer.h - what a run does over a started session: one step, and the evaluation of a data set. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H
#include "data/dataset.h"
#include "report/report.h"
#include "train/optimizer.h"
#include "train/session.h"

/* Every function here is called by all ranks of a run alike. Figures are those of all ranks together unless said.
 *
 * Rows of a micro-batch are per_device_train_batch_size * max_length slots. */
int train_slots(const config *c);
/* The first recompute level whose plan fits the backend's memory; leaves the program built at that level. With
 * gradient_checkpointing other than auto: that level. Fails when it does not fit, with what would (fit.h). */
bool train_build(session *s, failure *f);
typedef struct {
    double loss; /* mean over label tokens */
    int64_t tokens, label_tokens;
    double seconds;
    bool stopped; /* by a signal that waits (base/signals.h): the numbers are of a part */
} eval_result;
/* Mean loss of a data set through the forward half of the session's program. */
bool train_evaluate(session *s, const dataset *data, eval_result *out, failure *f);

/* One optimizer step over n micro-batches of this rank at this learning rate: forward, backward, clipped update. Fills
 * loss, grad_norm, learning_rate, tokens, label_tokens, slots, step_seconds (of the slowest rank), tokens_per_second
 * and mfu (mean of the ranks; NAN where the peak is unknown). A loss or gradient that is not finite leaves everything
 * as it was, on all ranks: *skipped is then set, and grad_norm is NAN where the loss is not finite. */
bool train_step(session *s, optimizer *o, const micro_batch *batches, int n, double learning_rate, step_metrics *m,
                bool *skipped, failure *f);

/* Sum of the losses of a micro-batch's label tokens, through the forward half of the session's program. Where weights
 * are in pieces a forward half takes all of them: a rank that needs no more losses goes on with
 * train_losses_end, which runs along until no other rank needs one either. Every rank ends its losses so. */
bool train_loss(session *s, const micro_batch *b, double *loss, failure *f);
bool train_losses_end(session *s, failure *f);

/* What train_build tries on so many ranks, one after the other: what sends least first. Returns how many; a failure
 * when the settings ask for what the open backend does not have. */
enum { ZERO_STAGES = 4, TRAIN_SHARDINGS = 2 * ZERO_STAGES };
bool train_shardings(const session *s, int ranks, sharding out[TRAIN_SHARDINGS], int *n, failure *f);

/* Runs one micro-batch: forward, and backward when `backward`, with dLoss/dnll = scale on label rows. */
bool train_micro_batch(session *s, const micro_batch *b, float scale, bool backward, failure *f);
#endif
