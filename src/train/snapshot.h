/* snapshot.h - what a run has trained (and the optimizer's moments), in host memory: copied at once, so that a thread
 * can write it while the run goes on, or fetched from the device tensor by tensor. */
#ifndef TRAIN_SNAPSHOT_H
#define TRAIN_SNAPSHOT_H
#include "train/optimizer.h"

typedef struct {
    const session *s;
    const optimizer *o;      /* NULL: weights alone */
    const optimizer *pieces; /* whom to ask for weights that are in pieces, where o is NULL; set behind snapshot_open */
    vid *params;             /* stb_ds: the trainable params in the program's order, as the optimizer has them */
    float **held;            /* [OPTIMIZER_PARTS * params]; NULL: fetched when asked for */
    float *fetched;          /* the tensor asked for last, when nothing is held */
} snapshot;

/* `hold` copies all tensors now (4 bytes for each element of each part); else `s` and `o` are read later. */
bool snapshot_open(snapshot *p, const session *s, const optimizer *o, bool hold, failure *f);
void snapshot_close(snapshot *p);
int64_t snapshot_bytes(const snapshot *p); /* of all parts */
/* A part of param i; lives until the next call when nothing is held. NULL on failure. */
const float *snapshot_tensor(snapshot *p, int i, optimizer_part part, failure *f);
int snapshot_find(const snapshot *p, const char *name); /* -1: there is none */
#endif
