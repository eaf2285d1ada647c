/* program.h - a small model's program, built without files, for tests of passes, plan and executor. */
#ifndef TEST_UNIT_PROGRAM_H
#define TEST_UNIT_PROGRAM_H
#include "model/model.h"
#include "pass/pass.h"

typedef struct {
    bool qk_norm, bias, tied, full, fused, fold, window; /* fold: beside fused */
    int rank;                                            /* 0: no adapter */
    float dropout;
    recompute_level level;
} program_kind;

static inline model_config program_config(const program_kind *k) {
    static int full_windows[4] = {0, 0, 0, 0}, sliding[4] = {4, 4, 0, 0};
    return (model_config){.family = "llama",
                          .n_layer = 2,
                          .d_model = 24,
                          .n_head = 4,
                          .n_kv_head = 2,
                          .head_dim = 8,
                          .d_ff = 40,
                          .vocab = 31,
                          .rms_eps = 1e-5f,
                          .rope = {.kind = ROPE_DEFAULT, .theta = 10000},
                          .qkv_bias = k->bias,
                          .qk_norm = k->qk_norm,
                          .tied_head = k->tied,
                          .window = k->window ? sliding : full_windows,
                          .stored = DTYPE_F32};
}

static inline model_io program_build(graph *g, const program_kind *k, int n, failure *f) {
    static const char *const all[] = {"all-linear"};
    model_config m = program_config(k);
    graph_init(g, DTYPE_F32);
    model_io io = model_build(g, &m, n, NULL, NULL);
    lora_options o = {.rank = k->rank, .alpha = 8, .dropout = k->dropout, .targets = all, .n_targets = 1};
    if (k->full) pass_full(g);
    if (k->rank && !pass_lora(g, &o, f)) return io;
    if (k->fused && !pass_fuse(g, k->fold ? "all,fold" : "all", FOLD_NONE, NULL, f)) return io;
    pass_backward(g, io.nll, io.weight);
    pass_recompute(g, k->level);
    return io;
}
#endif
