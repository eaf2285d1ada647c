/* dataset.h - files of examples -> tokenized examples -> packed rows -> micro-batches. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H
#include "base/failure.h"
#include "exec/kernel.h"
#include "text/chat.h"

typedef enum { TRUNCATE_DELETE, TRUNCATE_LEFT, TRUNCATE_RIGHT } truncation;

typedef struct {        /* what was left out, and why */
    const char *reason; /* static text */
    int64_t count;
    int64_t rows[5]; /* the first few row numbers, 1-based */
    const char *path;
} drop_count;

typedef struct {
    int32_t *tokens; /* stb_ds, all examples one after the other */
    uint8_t *labels; /* stb_ds, parallel: 1 where the token is to be learnt (the first token of an example never is) */
    int64_t *start;  /* stb_ds [examples + 1] */
    int64_t *source; /* stb_ds [examples]: the row of its file that an example came from, 1-based */
    int32_t *path;   /* stb_ds [examples]: index into dataset_options.paths */
    int64_t rows_read;
    drop_count *drops; /* stb_ds: rows left out */
    drop_count *notes; /* stb_ds: rows kept after a rule was applied to them (cut to length, U+FFFD put in, ...) */
    int64_t dropped_characters;
} dataset;

typedef struct {
    const char *const *paths; /* "file#n" takes the first n rows */
    int n_paths;
    int max_length;
    truncation truncation;
    bool strict;        /* a bad row stops the run with its number and reason */
    const char *system; /* used where a row has no system message; NULL: none */
    int vocab;          /* model rows: a token id at or past it makes the row bad; 0: unchecked */
    int threads;
} dataset_options;

bool dataset_load(dataset *d, const dataset_options *o, const tokenizer *t, const chat_format *c, failure *f);
void dataset_free(dataset *d);
int64_t dataset_count(const dataset *d);
/* Of tokens, labels and the edges of examples: equal for equal training data, whatever the files are called. */
uint64_t dataset_fingerprint(const dataset *d);

/* Rows of one epoch: examples placed into rows of max_length. The number of rows depends on the lengths alone, so every
 * epoch has as many. */
typedef struct {
    int32_t *example;   /* [examples placed], grouped by row */
    int64_t *row_start; /* [rows + 1] into example */
    int64_t rows;
} packing;
/* packed: best fit, longest first, over all examples; `key` decides which of several examples of one length goes where,
 * and the order of the rows. Not packed: one example a row. shuffle false keeps the file's order (packed: rows in the
 * order of their first example). O(examples + max_length). No example may be longer than max_length. */
void pack_rows(packing *p, const dataset *d, int max_length, bool packed, bool shuffle, uint64_t key);
void packing_free(packing *p);

/* One micro-batch in host memory, for N = batch_size * max_length slots. */
typedef struct {
    int32_t *ids, *pos, *cu, *target; /* [N] [N] [N+1] [N]; target is -100 where nothing is learnt */
    int32_t *example;                 /* [N]: which example a slot belongs to (for logs and tests) */
    batch_info info;
} micro_batch;
void micro_batch_init(micro_batch *b, int n_slots);
void micro_batch_free(micro_batch *b);

/* Deals micro-batches out of epochs of packed rows. A step is grad_accumulation micro-batches for each rank (the last
 * of an epoch may have fewer), dealt in turn: the first to rank 0, the next to rank 1, ... A rank for which none is
 * left gets a stand-in. The order depends on seed and epoch alone, the rows of a step on nothing but how many they are:
 * batch_size * grad_accumulation * ranks. */
typedef struct loader loader;
typedef struct {
    int batch_size, max_length, grad_accumulation;
    double epochs;     /* num_train_epochs; used when max_steps < 0 */
    int64_t max_steps; /* -1: from epochs */
    bool packed, shuffle;
    uint64_t seed;
    int rank, ranks; /* ranks 0: one */
} loader_options;
bool loader_open(loader **out, const dataset *d, const loader_options *o, failure *f);
void loader_close(loader *l);
const dataset *loader_data(const loader *l);
int64_t loader_steps(const loader *l); /* optimizer steps of the whole run */
int64_t loader_rows(const loader *l);  /* packed rows of an epoch */
int64_t loader_row(const loader *l);   /* rows dealt of the epoch that is being dealt: the index of the next one */
double loader_epoch(const loader *l);  /* epochs done, as a fraction, after the step dealt last */
/* The step dealt next is the one after `step` steps, as if they had been dealt (to go on from a checkpoint). */
void loader_seek(loader *l, int64_t step);
/* Fills this rank's micro-batches of the next step: *n of them, 1 to grad_accumulation. False at the end (f untouched).
 */
bool loader_next(loader *l, micro_batch *batches, int *n);
#endif
