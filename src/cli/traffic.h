/* traffic.h - kernel launches and bytes moved by one layer of a program, by group: what fusing changes. */
#ifndef CLI_TRAFFIC_H
#define CLI_TRAFFIC_H
#include "graph/graph.h"

typedef enum { GROUP_QKV, GROUP_ATTENTION, GROUP_OUT, GROUP_MLP, GROUP_HEAD, GROUP_OTHER, GROUP_COUNT } op_group;

typedef struct {
    int launches[2];  /* forward, backward */
    int64_t bytes[2]; /* every operand read or written once */
} op_traffic;

/* Layer `layer` (1-based), and the ends of the program (head, embedding). */
void traffic_count(const graph *g, int layer, op_traffic out[GROUP_COUNT]);
int64_t op_bytes(const graph *g, const graph_op *o); /* every operand read or written once */
void traffic_print(const op_traffic *plain, const op_traffic *fused);
#endif
