/* graph.h - the program: a list of values and a list of ops.
 *
 * A value is a typed, shaped array with a role and no storage yet; an op reads values and writes values; ops run in
 * list order.  Everything else (adapters, fusing, differentiation, recompute, memory plan, execution) is a function
 * over these two lists.  Ids are indexes; value 0 means "no value".  Ops are appended only by the typed builders. */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H
#include "base/dtype.h"
#include "base/memory.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { GRAPH_MAX_IN = 20, GRAPH_MAX_OUT = 14 };
typedef int32_t vid;

typedef enum {
#define OP(kind, in, out) OP_##kind,
#include "graph/ops.def"
#undef OP
    OP_COUNT
} op_kind;

typedef enum {
    ROLE_INPUT,  /* uploaded by the trainer: ids, positions, targets, weights, the rope table */
    ROLE_PARAM,  /* weights and adapters; persistent */
    ROLE_GRAD,   /* gradient of a trainable param: float32, persistent, added to, cleared at each optimizer step */
    ROLE_TEMP,   /* lives in the plan's arena */
    ROLE_STATE,  /* written in place and kept between runs: the key/value cache of generate */
    ROLE_HOST,   /* in host memory, where the backend's copies reach it: what to_host leaves for from_host */
    ROLE_OUTPUT, /* read back by the trainer; persistent, added to, cleared at each optimizer step */
} value_role;

typedef struct {
    const char *name; /* for people, and for params the Hugging Face tensor name; owned by the graph's arena */
    dtype type;
    value_role role;
    int64_t rows, cols; /* cols is 1 for vectors of N and for [D] weights rows is D */
    bool trainable;     /* params only */
    int layer;          /* 1-based decoder layer that made it; 0 outside the layers */
    vid grad;           /* params: their ROLE_GRAD value once pass_backward ran; 0 when frozen */
    /* Where it lies; set by pass_layout, all 0 before: dense storage of its own. */
    int64_t ld; /* elements from one row to the next in its storage; 0: cols */
    vid base;   /* lies inside the storage of this value (whose ld counts), from element `at` on; 0: in its own */
    int64_t at;
    bool own_ld;          /* inside base, yet its own ld counts: a gradient in its bucket (pass_shard) */
    int64_t storage_rows; /* rows of its storage when others lie below it; 0: rows */
    int owner;       /* trainable params: the rank that updates it and keeps its moments, where ranks share that work */
    bool elsewhere;  /* ... and that is another one */
    int parts, part; /* in pieces: how many equal ones its storage is cut into, and which this rank keeps; 0: whole */
    vid whole_of;    /* temporaries: the param or gradient that this is all of (shard_weights, shard_gradients) */
    vid fold;        /* params: ops read their columns times this norm's weight (pass_layout); 0: as they are */
    vid working;     /* trainable params: the copy in the compute type that ops read; 0: they read the param itself */
} graph_value;

typedef enum { GLU_SILU, GLU_GELU_TANH } glu_kind;

typedef struct {   /* all attributes an op may have; which are meant follows from op.kind */
    float eps;     /* norms; linear_lora: of its rstd */
    int head_dim;  /* rope, attention, norm_qkv_rope; rms_norm when it norms each head apart (else 0) */
    int window;    /* attention: a row sees itself and window-1 rows before it; 0: all of its document */
    float scale;   /* scale: the factor; attention: softmax scale; linear_lora*, gate_up_glu, norm_qkv_rope: alpha/r */
    bool inverse;  /* rope: rotate back (its own backward) */
    glu_kind glu;  /* glu, glu_bwd, gate_up_glu, linear_lora_bwd with a gate */
    float rate;    /* dropout */
    uint32_t salt; /* dropout: which mask of the step; equal salts give equal masks */
} op_attr;

typedef struct {
    op_kind kind;
    vid in[GRAPH_MAX_IN], out[GRAPH_MAX_OUT];
    op_attr attr;
    int layer;
    bool backward; /* appended by pass_backward, or a repeat by pass_recompute */
} graph_op;

typedef struct {
    graph_value *values; /* stb_ds arrays */
    graph_op *ops;
    int n_forward; /* ops before this index are the forward half (set by pass_backward) */
    int layer;     /* what graph_emit stamps on new ops and values */
    bool backward;
    dtype compute;      /* type of activations: F32 on the CPU */
    const char **notes; /* stb_ds array, texts in names: what pass_fold left as it was, and why */
    arena names;
} graph;

void graph_init(graph *g, dtype compute);
void graph_free(graph *g);
const char *op_name(op_kind kind);
const char *op_inputs(op_kind kind); /* the operand string of ops.def */
const char *op_outputs(op_kind kind);
int op_operands(const char *list);         /* how many operands an operand string names */
int64_t value_count(const graph_value *v); /* elements */
int64_t value_bytes(const graph_value *v); /* of the elements, packed densely */
/* Elements of what a rank keeps: all, or one piece, the last of which may end behind the value's end. A piece is a run
 * of elements, or, where pass_layout says how the storage lies (ld, storage_rows), some of its rows with their gaps. */
int64_t value_part(const graph_value *v);
/* Of a value in pieces: the element where this rank's begins, and how many of the value are in it: none, from 0 on,
 * where the value ends before. */
int64_t value_piece(const graph_value *v, int64_t *n);
typedef struct {
    int64_t first, n; /* rows [first, first + n) of the value */
    int64_t at;       /* element of what is kept of the storage it lies in, where row `first` begins */
} kept_rows;
/* What this rank keeps of v: all rows but where they lie in a storage whose rows are spread. */
kept_rows value_kept(const graph *g, vid v);
int64_t value_ld(const graph *g, vid v);
/* Columns behind each row of a temporary that are no value's: pass_layout leaves them to the op that runs. */
int64_t value_room(const graph *g, vid v);
int64_t value_storage(const graph *g, vid v);     /* bytes of its own storage, gaps included; 0 inside another's */
vid graph_find(const graph *g, const char *name); /* 0 when there is none; for tests and messages */

/* One line per op: outputs with shapes = kind(inputs); `explain` adds the operand string of ops.def. */
void graph_print(const graph *g, FILE *out, bool explain);

vid graph_add_value(graph *g, value_role role, dtype type, int64_t rows, int64_t cols, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* Checks the shapes of the operands against ops.def's pattern and appends; aborts on a malformed op. */
graph_op *graph_emit(graph *g, graph_op op);

/* Typed builders. Absent optional operands are 0. */
vid g_embed(graph *g, vid ids, vid W);
vid g_rms_norm(graph *g, vid x, vid w, float eps); /* w narrower than x: each w-wide slice of a row is normed */
vid g_linear(graph *g, vid x, vid W, vid bias);
vid g_rope(graph *g, vid x, vid pos, vid freq, bool inverse);
vid g_attention(graph *g, vid q, vid k, vid v, vid cu, int head_dim, int window, float scale);
/* One sequence: stores the rows of k and v at their positions in the caches (n_context rows), attends over these. */
vid g_attention_cached(graph *g, vid q, vid k, vid v, vid pos, int n_context, op_attr attr);
vid g_gather(graph *g, vid x, vid index); /* rows of x by number; batch_info.labels of them */
vid g_add(graph *g, vid a, vid b);
vid g_scale(graph *g, vid x, float by);
vid g_dropout(graph *g, vid x, float rate, uint32_t salt);
vid g_glu(graph *g, vid gate, vid up, glu_kind kind);
vid g_cross_entropy(graph *g, vid logits, vid target);
vid g_weighted_sum(graph *g, vid x, vid weight, const char *name);

/* Operand positions of the ops that have many (see ops.def). */
enum { LORA_X, LORA_W, LORA_BIAS, LORA_A, LORA_B, LORA_RES };
enum { LORA_Y, LORA_S, LORA_RSTD };
enum { GUG_X, GUG_WG, GUG_WU, GUG_AG, GUG_BG, GUG_AU, GUG_BU, GUG_RSTD, GUG_NORM };
enum { LORA_BWD_DY, LORA_BWD_X, LORA_BWD_W, LORA_BWD_A, LORA_BWD_B, LORA_BWD_S, LORA_BWD_GATE, LORA_BWD_UP };
enum { LORA_BWD_DX, LORA_BWD_DA, LORA_BWD_DB, LORA_BWD_DGATE, LORA_BWD_DUP, LORA_BWD_DOT };
enum {
    GUB_DGATE,
    GUB_DUP,
    GUB_X,
    GUB_WG,
    GUB_WU,
    GUB_AG,
    GUB_BG,
    GUB_AU,
    GUB_BU,
    GUB_SG,
    GUB_SU,
    GUB_RSTD,
    GUB_NORM,
    GUB_DOT,
    GUB_DRES
};
enum { GUB_DX, GUB_DAG, GUB_DBG, GUB_DAU, GUB_DBU };
enum {
    QKV_DQ,
    QKV_DK,
    QKV_DV,
    QKV_X,
    QKV_WQ,
    QKV_WK,
    QKV_WV,
    QKV_AQ,
    QKV_BQ,
    QKV_AK,
    QKV_BK,
    QKV_AV,
    QKV_BV,
    QKV_SQ,
    QKV_SK,
    QKV_SV,
    QKV_RSTD,
    QKV_NORM,
    QKV_DOT,
    QKV_DRES
};
enum { QKV_DX, QKV_DAQ, QKV_DBQ, QKV_DAK, QKV_DBK, QKV_DAV, QKV_DBV };
enum { GUG_Y, GUG_GATE, GUG_UP, GUG_SG, GUG_SU };
enum {
    NQR_A,
    NQR_B,
    NQR_W,
    NQR_WQ,
    NQR_WK,
    NQR_WV,
    NQR_BIAS_Q,
    NQR_BIAS_K,
    NQR_BIAS_V,
    NQR_AQ,
    NQR_BQ,
    NQR_AK,
    NQR_BK,
    NQR_AV,
    NQR_BV,
    NQR_NORM_Q,
    NQR_NORM_K,
    NQR_POS,
    NQR_FREQ,
    NQR_RA
};
enum { NQR_SUM, NQR_H, NQR_RSTD, NQR_Q, NQR_K, NQR_V, NQR_SQ, NQR_SK, NQR_SV, NQR_Q0, NQR_K0, NQR_RQ, NQR_RK };
enum { ATB_DO, ATB_Q, ATB_K, ATB_V, ATB_CU, ATB_O, ATB_LSE, ATB_POS, ATB_FREQ };
enum { ATB_DQ, ATB_DK, ATB_DV, ATB_DOT };
#endif
