/* optimizer.h - AdamW over the trainable params of a session, with float32 master weights and moments. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H
#include "train/session.h"

typedef struct optimizer optimizer;

/* Allocates the moments (two floats for each trainable weight that this rank updates). */
bool optimizer_open(optimizer **out, session *s, failure *f);
void optimizer_close(optimizer *o);
int64_t optimizer_params(const optimizer *o); /* trainable weights */
/* One step at this learning rate. *norm: the global L2 norm of all gradients; they are scaled so that it is at most
 * max_grad_norm (0: no limit). When it is not finite nothing changes and the step does not count.
 * Adapters decay by weight_decay; of a model's own params, norms and biases do not (transformers' Trainer). */
bool optimizer_step(optimizer *o, double learning_rate, double *norm, failure *f);

/* ---- among ranks that share the moments, or more (zero_stage): optimizer_read of what other ranks keep
 * works on rank 0 alone, while the others are in optimizer_serve; optimizer_served ends that. Where nothing is shared
 * both return at once. */
bool optimizer_serve(const optimizer *o, failure *f);
bool optimizer_served(const optimizer *o, failure *f);

/* ---- for checkpoints: the trainable params in the program's order, each with what belongs to it ---- */
typedef enum { OPTIMIZER_WEIGHT, OPTIMIZER_MEAN, OPTIMIZER_SQUARE, OPTIMIZER_PARTS } optimizer_part;
int optimizer_count(const optimizer *o);
vid optimizer_param(const optimizer *o, int i);
/* All elements of a part of param i, float32. After writes: optimizer_restored. */
bool optimizer_read(const optimizer *o, int i, optimizer_part part, float *to, failure *f);
/* Takes what this rank keeps of it. */
bool optimizer_write(optimizer *o, int i, optimizer_part part, const float *from, failure *f);
int64_t optimizer_updates(const optimizer *o); /* steps that counted */
/* The next step is the one after `updates`; working copies follow the weights. */
bool optimizer_restored(optimizer *o, int64_t updates, failure *f);

bool optimizer_decays(const char *param_name);
#endif
