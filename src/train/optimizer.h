/* optimizer.h - AdamW over the trainable params of a session, with float32 master weights and moments. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H
#include "train/session.h"

typedef struct optimizer optimizer;

/* Allocates the moments (two floats for each trainable weight). */
bool optimizer_open(optimizer **out, session *s, failure *f);
void optimizer_close(optimizer *o);
int64_t optimizer_params(const optimizer *o); /* trainable weights */
/* One step at this learning rate. *norm: the global L2 norm of all gradients; they are scaled so that it is at most
 * max_grad_norm (0: no limit). When it is not finite nothing changes and the step does not count.
 * Adapters decay by weight_decay; of a model's own params, norms and biases do not (transformers' Trainer). */
bool optimizer_step(optimizer *o, double learning_rate, double *norm, failure *f);
bool optimizer_decays(const char *param_name);
#endif
