/* op_check.h - the shape rule of every op: its operand patterns in ops.def, solved for the symbols. */
#ifndef GRAPH_OP_CHECK_H
#define GRAPH_OP_CHECK_H
#include "graph/graph.h"

/* False with the reason in why[room] when an operand is absent that must be there, or shapes do not fit together. */
bool op_check(const graph *g, const graph_op *op, char *why, size_t room);
#endif
