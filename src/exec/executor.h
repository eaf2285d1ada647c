/* executor.h - a planned program on a backend: allocates once, binds weights, runs ranges of ops. */
#ifndef EXEC_EXECUTOR_H
#define EXEC_EXECUTOR_H
#include "exec/plan.h"

typedef struct executor executor;

/* Allocates everything but params (see executor_bind). The graph, plan and backend must outlive the executor. */
bool executor_open(executor **out, const graph *g, const plan *p, const backend *b, failure *f);
void executor_close(executor *x); /* NULL is fine */

/* Gives param v its contents. A frozen param on a host-memory backend is used where it lies when aligned to its
 * element (`from` must then outlive the executor); otherwise it is copied. `type` is the type of `from`; trainable
 * params are converted to float32 (masters), frozen ones keep their stored type. Of a param in pieces `from` is the
 * whole, and only what this rank keeps of it is read. */
bool executor_bind(executor *x, vid v, const void *from, dtype type, failure *f);

/* Ranks that the program's all_reduce and all_gather speak to; NULL, as at first: none but this one. */
void executor_join(executor *x, comm *ranks);

tensor executor_tensor(const executor *x, vid v); /* as a kernel sees it */
void *executor_data(const executor *x, vid v);    /* the device address; NULL before bind */
bool executor_upload(executor *x, vid v, const void *from, int64_t elements, failure *f); /* of the value's type */
bool executor_download(executor *x, vid v, void *to, int64_t elements, failure *f);
bool executor_clear(executor *x, value_role role, failure *f); /* zeroes all GRAD or OUTPUT values */
/* Runs ops [first, first + n). */
bool executor_run(executor *x, int first, int n, const batch_info *batch, failure *f);
#endif
