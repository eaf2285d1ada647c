/* complete.c - no holes: every op of ops.def has a CPU kernel, a reference or a forward op that it is the gradient of,
 * a backward rule unless it is terminal, and at least one case. */
#include "ops/ops.h"
#include "pass/pass.h"

static bool is_terminal(op_kind kind) {
    bool backward = kind >= OP_embed_bwd && kind <= OP_cross_entropy_bwd;
    return backward || kind == OP_weighted_sum || kind == OP_gather || kind == OP_attention_cached ||
           kind == OP_linear_lora_bwd || kind == OP_gate_up_bwd || kind == OP_qkv_bwd || kind == OP_linear_ce_bwd ||
           kind == OP_all_reduce || kind == OP_all_gather || kind == OP_reduce_scatter || kind == OP_to_host ||
           kind == OP_from_host;
}

int check_complete(void) {
    int bad = 0;
    for (op_kind kind = 0; kind < OP_COUNT; kind++) {
        int cases = 0;
        for (int i = 0; i < n_op_cases; i++) cases += op_cases[i].kind == kind;
        const char *hole = !cpu_backend.kernels[kind]                     ? "no CPU kernel"
                           : backward_has_rule(kind) == is_terminal(kind) ? "no backward rule, and not terminal"
                           : !cases                                       ? "no case in test/ops/cases.c"
                                                                          : NULL;
        if (hole) printf("FAIL %s: %s\n", op_name(kind), hole);
        bad += hole != NULL;
    }
    return bad;
}
