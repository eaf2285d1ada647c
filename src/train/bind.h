/* bind.h - gives the params of a session's program their contents; used by session.c and optimizer.c. */
#ifndef TRAIN_BIND_H
#define TRAIN_BIND_H
#include "train/session.h"

/* From the weights and the adapter that are open; a new adapter starts as PEFT's: A uniform in +-1/sqrt(in), B zero.
 * Without weights (bench): random ones, matrices uniform with standard deviation 0.02, vectors 1. */
bool bind_params(session *s, failure *f);

/* Trainable param v as far as this rank has it, without gradient and moments. */
optim_group bind_group(const session *s, vid v);
/* The copies that ops read of trainable params, from these; nothing where there are none. */
bool bind_publish(const session *s, failure *f);
#endif
