/* fold_choice.h - which norms dissolve into products (pass_fold) where fuse_rules leaves it open: what is fastest on
 * this card at this shape.
 *
 * Three layers of the run's model are timed with each choice, forward and backward, for half a second of back-to-back
 * layers: single kernels that take turns share a clock, and mislead where a card is at its power limit.
 * The times are kept in a file of the user's cache folder, by card, library, program file and shape.  Backends without
 * a name for that (the CPU) and deterministic runs time nothing and fold nothing. */
#ifndef TRAIN_FOLD_CHOICE_H
#define TRAIN_FOLD_CHOICE_H
#include "train/session.h"

/* By choice of folds (pass.h): seconds of a layer, forward and backward. */
typedef struct {
    double of[FOLD_ALL + 1];
} fold_times;

/* Sets folds and fold_note of the session, one for all ranks (rank 0 times), for session_build of a training program.
 * With gradient_checkpointing auto, as if all is kept. A measurement that fails is no failure: nothing is folded then.
 * Takes about 5 s when a shape is new. All ranks call it. */
bool fold_choice_make(session *s, failure *f);

/* ---- its parts, for tests ---- */

/* Each kind of norm dissolves unless that costs more than 1 % of a layer's time, since folded programs need less
 * memory. What it costs is the mean of two differences, with and without the other kind: single times of a card at its
 * power limit scatter by about 1 %. */
int fold_choose(const fold_times *t);
/* Whether n >= 2 rounds of times, up and down through the choices in turn, agree; *out gets the times. They do when the
 * last two are within 10 % of each other for every choice; or, of four, when every choice has the same share, within
 * 2 %, of the first two as of the last two: a card that slows down steadily changes all of a pair alike. */
bool fold_settle(const fold_times *rounds, int n, fold_times *out);
/* Times every choice, behind `warm` seconds of work, for a sixth of that at least twice; false, with the reason in f,
 * when it cannot be done or the times do not settle. Choices that make one program are timed once. */
bool fold_measure(const session *s, double warm, fold_times *out, failure *f);
/* What times are kept under: of all programs, and of the program file that runs them. *differ false: no choice changes
 * anything. */
bool fold_times_key(const session *s, uint64_t *key, bool *differ, failure *f);
/* A file of times. Lines that are damaged are not found, and leave when one is added; a file that cannot be written is
 * none. */
bool fold_times_find(const char *path, uint64_t key, fold_times *out);
void fold_times_add(const char *path, uint64_t key, const fold_times *t);
#endif
