/* model.h - the one decoder builder, shared by every family. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H
#include "model/model_config.h"

typedef struct {
    vid ids, pos, cu, target, weight; /* inputs: [N] [N] [N+1] [N] int32; weight[N] float32 = dLoss / dnll */
    vid freq;                         /* input [d/2] float32, uploaded once */
    vid nll, loss;                    /* nll[N]; loss[1] = sum of nll * weight, gathered over the step */
    vid logits;                       /* [N,V]; 0 after the fused head took its place */
    vid index;                        /* [1] int32: inference only */
    vid hidden;                       /* [N,D] after the final norm: what the head reads */
} model_io;

/* Appends the forward program for N token rows: embedding, layers, head, loss. Params are named as in the model's files
 * ("model.layers.0.self_attn.q_proj.weight") and have the stored type `stored(name)` says (NULL: config's). */
typedef dtype (*stored_type)(const char *name, void *context);
model_io model_build(graph *g, const model_config *m, int n_rows, stored_type stored, void *context);
/* The same without loss, for one sequence of at most n_context tokens that arrives n_rows or fewer at a time: keys and
 * values stay in caches; logits are made for the rows that io.index names (batch_info.labels of them, here at most 1).
 */
model_io model_build_inference(graph *g, const model_config *m, int n_rows, int n_context, stored_type stored,
                               void *context);
#endif
