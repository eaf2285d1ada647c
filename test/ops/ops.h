/* ops.h - the op test: one table of cases (cases.c) over every op, run by run.c.
 *
 * An operand set is built from the patterns of ops.def; its values are kept as doubles for the reference and written
 * into guarded buffers of the stored types for the kernel. */
#ifndef TEST_OPS_OPS_H
#define TEST_OPS_OPS_H
#include "exec/backend.h"

typedef struct {
    op_kind kind;
    const char *dims;   /* "N=7 K=24 M=40": every symbol of the op's patterns but 1 */
    int rows;           /* real token rows; 0: all N */
    int docs;           /* documents; 0: 1 */
    dtype weight;       /* stored type of W, w and biases */
    const char *absent; /* optional operands that are left out: " bias Ag Bg " */
    bool folded;        /* the form of pass/fold.c: with the operands that only it has, without those it has not */
    bool add;           /* outputs are added to (all that have the float type) */
    bool no_labels;     /* every target is -100 */
    bool evaluation;    /* batch.training is false */
    int samples;        /* of each gradient; 0: 24 */
    op_attr attr;
} op_case;

enum { MOST_OPERANDS = GRAPH_MAX_IN };

typedef struct {
    char name[16];
    char row_symbol[8]; /* "N" when the rows are token rows */
    dtype type;
    int64_t rows, cols;
    int64_t real;  /* rows that hold data */
    double *value; /* [rows, cols]; NULL: absent */
} operand;

typedef struct {
    op_kind kind;
    const op_case *c;
    int n_in, n_out;
    operand in[GRAPH_MAX_IN], out[GRAPH_MAX_OUT];
    int cu[16];
    batch_info batch;
} operand_set;

extern const op_case op_cases[], op_perf_cases[];
extern const int n_op_cases, n_op_perf_cases;

/* operands.c */
int64_t case_dim(const op_case *c, const char *symbol);
void operands_make(operand_set *s, const op_case *c, op_kind kind); /* shapes; inputs filled at random */
void operands_count_labels(operand_set *s);                         /* again, when the targets were changed */
void operands_free(operand_set *s);
operand *operand_find(operand *list, int n, const char *name); /* NULL: not there or absent */
double *value_of(operand_set *s, const char *name);            /* of an input or output; NULL: absent */
double round_to(dtype type, double x);
double random_normal(void);
uint64_t random_bits(void);
void random_seed(uint64_t seed);

/* reference.c: forward ops in double, plain loops */
bool reference_has(const op_case *c);
op_kind forward_of(op_kind kind); /* the forward op that `kind` is the gradient of; OP_COUNT: none */
/* x of `to` = act(gate) up of `from`, where that is a folded linear_lora_bwd */
void reference_through_glu(operand_set *to, operand_set *from);
void reference_run(operand_set *s);

/* complete.c and perf.c */
int check_complete(void);
int run_perf(const char *only);

/* run.c: buffers and one call of a kernel */
typedef struct {
    operand_set *set;
    graph g;
    kernel_call call;
    char *blocks[GRAPH_MAX_IN + GRAPH_MAX_OUT + 1], *copies[GRAPH_MAX_IN + GRAPH_MAX_OUT + 1];
    size_t bytes[GRAPH_MAX_IN + GRAPH_MAX_OUT + 1];
} prepared;
void prepare(prepared *p, operand_set *s); /* builds graph, buffers and call from the set's values */
void prepared_free(prepared *p);
#endif
