/* pass.h - the passes, in the order in which they run (build comes first, verify after each in debug builds):
 *   lora -> fuse -> backward -> early_loss -> recompute (with offload) -> layout -> shard_weights
 *   -> shard or shard_gradients -> plan
 * A pass is one file with one public function that rewrites the program. */
#ifndef PASS_PASS_H
#define PASS_PASS_H
#include "base/failure.h"
#include "graph/graph.h"

typedef struct {
    int rank;
    float alpha, dropout;
    bool use_rslora;
    const char *const *targets; /* last name parts ("q_proj"), or "all-linear"; a single entry with regex set is a
                                   regular expression over the whole module path (PEFT's rule) */
    int n_targets;
    bool regex;
    const int *layers; /* layers_to_transform, 0-based; NULL: all */
    int n_layers;
} lora_options;

/* alpha/r, or alpha/sqrt(r) with rsLoRA. */
float lora_scaling(const lora_options *o);
/* y = xW' becomes y = xW' + scaling (dropout(x) A') B' for every targeted linear; everything else freezes. New params
 * are named as in PEFT's files ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"). A target that
 * matches nothing is a failure that lists some module names. */
bool pass_lora(graph *g, const lora_options *o, failure *f);

/* Full tuning: every param trains, with float32 master weights. */
void pass_full(graph *g);

/* Whether a backend has kernels for an op at its operands' shapes, of the forward op and of its way back; where not,
 * *why says so (a constant text). NULL: for all. */
typedef bool (*op_served)(const graph *g, const graph_op *op, const char **why);

/* The norms that pass_fold lets dissolve: those before q, k and v, and those before gate and up. FOLD_OPEN: the rules
 * do not say. */
enum { FOLD_OPEN = -1, FOLD_NONE, FOLD_QKV, FOLD_MLP, FOLD_ALL };

/* Rewrites chains into fused ops, before pass_backward, so that each brings its own backward rule. `rules` is a comma
 * list of rule names ("all": every one), a dash in front takes one out; fold, fold_qkv and fold_mlp are pass_fold.
 * folds: what dissolves where the rules leave it open. */
bool pass_fuse(graph *g, const char *rules, int folds, op_served serves, failure *f);
bool fuse_leaves_folds_open(const char *rules); /* they say all, and nothing of folds */
/* Lets frozen norms dissolve into the products around them; what stays as it was is said in g->notes. */
void pass_fold(graph *g, int folds, op_served serves);

/* Appends the backward ops of everything between a trainable param and `nll`, whose gradient is the value `seed`. */
void pass_backward(graph *g, vid nll, vid seed);
bool backward_has_rule(op_kind kind); /* false: the op is terminal */

/* Lets linear_ce make its gradients itself. Only where the weights of the loss are known before the forward half. */
void pass_early_loss(graph *g);

typedef enum { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_FULL, RECOMPUTE_OFFLOAD, RECOMPUTE_COUNT } recompute_level;
const char *recompute_name(recompute_level level);
/* none: keep all; cheap: repeat norms, rotations and activations in the backward, keep products and attention;
 * full: keep only each layer's input; offload: and keep that in host memory. */
void pass_recompute(graph *g, recompute_level level);
/* Its last part at the level offload: what a layer leaves for its way back waits in host memory. */
void pass_offload(graph *g);

/* Where values lie, for backends whose products take base and adapter in one matrix (backend.upload_rows is there).
 * Fills ld, base, at, storage_rows and working of values. */
void pass_layout(graph *g);

/* zero_stage 1: every rank updates its own share of the params, whole tensors, and keeps their moments; 2: a piece of
 * each param, and keeps the gradient of that piece alone too; 3: and the weights. */
typedef struct {
    int rank, ranks;      /* rank -1: the one that keeps most (for plans) */
    int64_t bucket_bytes; /* see pass_shard */
    int zero_stage;
    bool base; /* frozen matrices in pieces */
} shard_options;

/* Spreads frozen matrices (base) and trained params (zero_stage 3) over o->ranks ranks, of which this is o->rank: each
 * keeps one piece, and an all_gather brings them together a layer ahead of their use, in each half anew. Before
 * pass_shard. Where pass_layout ran, trained params share no storage with frozen ones (LoRA: zero_stage below 3). */
void pass_shard_weights(graph *g, const shard_options *o);
/* zero_stage 2 and 3, in the place of pass_shard: gradients in pieces, with a reduce_scatter behind each op that adds
 * to one. */
void pass_shard_gradients(graph *g, const shard_options *o);

/* Ranks that each have the whole model (data parallel): gradients gather in buckets of bucket_bytes and a part of
 * one gradient more, in the order in which the backward half ends them; behind the last op that writes into a bucket
 * comes its all_reduce. Runs last. */
void pass_shard(graph *g, const shard_options *o);

/* Each value is written before it is read, once (GRAD and OUTPUT gather); roles fit; shapes fit ops.def. */
bool pass_verify(const graph *g, failure *f);
#endif
