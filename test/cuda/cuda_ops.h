/* cuda_ops.h - test_cuda_ops: the op cases on a card, held against the CPU kernels.
 *
 * An operand has a place in a guarded block of device memory; blocks are written whole before a run and read whole
 * behind it, so that every byte is accounted for: guards, gaps between rows, rows that are not real, inputs. */
#ifndef TEST_CUDA_CUDA_OPS_H
#define TEST_CUDA_CUDA_OPS_H
#include "launch.h"
#include "ops/ops.h"

enum { GUARD = 256, MOST_PLACED = GRAPH_MAX_IN + GRAPH_MAX_OUT, MOST_BLOCKS = MOST_PLACED + 1 };

typedef struct {
    char *device;                        /* GUARD bytes before the data */
    size_t bytes;                        /* of the data */
    unsigned char *before, *after, *may; /* host, with the guards; may: bytes that a kernel may change */
} block;

/* Device memory of at least `bytes` between guards; the data is filled with `fill` (0xFF: NaN). */
void block_make(block *b, size_t bytes, int fill);
void block_free(block *b);
static inline unsigned char *block_at(const block *b, size_t offset) { return b->before + GUARD + offset; }
static inline void *block_device(const block *b, size_t offset) { return b->device + GUARD + offset; }
void block_allow(block *b, size_t offset, size_t bytes);
void block_upload(const block *b);
void block_download(block *b);
/* NULL, or what kind of byte was changed that should not be: "guard before", "guard behind", "byte N". */
const char *block_damage(const block *b);

typedef enum { DENSE, STRIDED, IN_PLACE, PACKED, LAYOUTS } layout;
extern const char *const layout_names[LAYOUTS];

/* One call of a device kernel. */
typedef struct {
    operand_set *set;
    layout layout;
    dtype compute;
    graph g;
    kernel_call call;
    block blocks[MOST_BLOCKS];
    int n_blocks;
    int of_block[MOST_PLACED]; /* block of operand i (inputs, then outputs) */
    size_t at[MOST_PLACED];    /* byte offset in it */
} device_call;

/* place.c. False: the case has no such layout. */
bool device_call_make(device_call *d, operand_set *s, layout how, dtype compute, const backend *b);
void device_call_free(device_call *d);
dtype device_type(op_kind kind, const operand *o, bool out, dtype compute);
bool is_added(const operand_set *s, const operand *o, dtype type);
bool holds_state(const operand *o);
double stored_value(const void *p, dtype type);
void store_value(void *p, dtype type, double x);

extern const op_case cuda_cases[];
extern const int n_cuda_cases;

typedef struct {
    int passed, failed, skipped;
} tally;

void check_cuda(cudaError_t error, const char *what);                               /* ends the program */
void check_chunk(tally *t);                                                         /* chunk.c */
void check_adamw(tally *t, const backend *b);                                       /* check_adamw.c */
void run_cuda_perf(const kernel *cuda_kernels, const backend *b, const char *only); /* speed.c */
#endif
