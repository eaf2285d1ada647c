/* kernel.h - what a backend's kernel is given.
 *
 * Kernels work on the first `rows` token rows of the micro-batch (kernel_rows: or on all rows of an operand that has
 * fewer, behind a gather); rows at or beyond it hold garbage and are neither read nor need be written.  A tensor whose
 * `add` is set is added to, every other output is overwritten. */
#ifndef EXEC_KERNEL_H
#define EXEC_KERNEL_H
#include "dist/comm.h"
#include "graph/graph.h"

/* One micro-batch, beside the arrays that are graph inputs. */
typedef struct {
    int rows;      /* token rows that are real, <= N */
    int docs;      /* documents; cu[0..docs] are their first rows, cu[docs] == rows */
    int labels;    /* rows whose target is >= 0 */
    int longest;   /* rows of the longest document */
    uint64_t seed; /* of this micro-batch's dropout masks */
    bool training; /* false: dropout passes its input through */
    bool last;     /* of its step: behind it gradients are whole, and all_reduce sums them over the ranks */
    bool stand_in; /* there is nothing left for this rank: one row without a label that does not count */
} batch_info;

typedef struct {
    void *data; /* NULL: an absent operand */
    dtype type;
    int64_t rows, cols, ld; /* ld: elements from one row to the next; more than cols on backends with pass_layout */
    bool add;
    int64_t room; /* columns behind each row that the op which runs may use as it likes; pass_layout leaves them */
} tensor;

typedef struct {
    const graph_op *op;
    tensor in[GRAPH_MAX_IN], out[GRAPH_MAX_OUT];
    const batch_info *batch;
    void *scratch; /* scratch(op) bytes of the backend's; nothing stays in them from one op to the next */
    size_t scratch_bytes;
    comm *ranks; /* NULL: one */
    failure *f;  /* where all_reduce and all_gather put their failure, which ends the run */
} kernel_call;

/* Rows to work on, for a kernel whose first operand has one row per token. */
static inline int kernel_rows(const kernel_call *call) {
    return call->in[0].rows < call->batch->rows ? (int)call->in[0].rows : call->batch->rows;
}

typedef void (*kernel)(const kernel_call *call);
#endif
