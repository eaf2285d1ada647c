/* cuda_cases.c - cases that the table of test/ops has not: widths that are multiples of 16 bytes, and what the device
 * kernels decide by width: groups of lanes, blocks, tails behind the registers, several tiles. */
#include "cuda_ops.h"

#define ADD   .add = true
#define FOLD  .folded = true
#define PLAIN .absent = " pos freq dot "
#define NORM  .attr = {.eps = 1e-5f}

const op_case cuda_cases[] = {
    {OP_embed, "N=40 V=90 D=1024", .rows = 37},
    {OP_gather, "N=90 D=4096 L=50", .rows = 85},
    {OP_add, "N=33 D=1536", .rows = 31},
    {OP_add, "N=300 D=4104"},
    {OP_scale, "N=33 D=1536", .rows = 31, .attr = {.scale = 0.37f}},
    {OP_dropout, "N=70 D=4096", .rows = 67, .attr = {.rate = 0.05f, .salt = 77}},
    {OP_dropout, "N=33 D=64", .attr = {.rate = 0.999f, .salt = 1}},
    {OP_dropout, "N=33 D=64", .evaluation = true, .attr = {.rate = 0.5f, .salt = 1}},
    {OP_glu, "N=33 F=1536", .rows = 31, .attr = {.glu = GLU_SILU}},
    {OP_glu, "N=70 F=14336", .attr = {.glu = GLU_GELU_TANH}},
    {OP_glu_bwd, "N=33 F=1536", .rows = 31, .attr = {.glu = GLU_SILU}},
    {OP_glu_bwd, "N=33 F=1536", .attr = {.glu = GLU_GELU_TANH}},

    {OP_rms_norm, "N=33 D=16", .rows = 31, NORM},  /* groups of lanes */
    {OP_rms_norm, "N=33 D=576", .rows = 31, NORM}, /* a block to a row */
    {OP_rms_norm, "N=33 D=4096", .rows = 31, NORM},
    {OP_rms_norm, "N=9 D=10240", NORM}, /* wider than the registers */
    {OP_rms_norm, "N=9 D=1501", NORM},  /* the same by single elements */
    {OP_rms_norm, "N=33 D=2048 H=32 d=64", .rows = 31, .attr = {.eps = 1e-6f, .head_dim = 64}},
    {OP_rms_norm, "N=33 D=1024 H=8 d=128", .attr = {.eps = 1e-6f, .head_dim = 128}},
    {OP_rms_norm, "N=9 D=768 H=3 d=256", .attr = {.eps = 1e-6f, .head_dim = 256}},
    {OP_add_rms_norm, "N=33 D=2048", .rows = 31, NORM},
    {OP_add_rms_norm, "N=9 D=10240", NORM},
    {OP_add_rms_norm, "N=9 D=1501", NORM},
    {OP_add_rms_norm, "N=9 D=64", NORM},
    {OP_rms_norm_bwd, "N=33 D=4096", .rows = 31, ADD, NORM},
    {OP_rms_norm_bwd, "N=33 D=4096", .absent = " dw dres ", NORM},
    {OP_rms_norm_bwd, "N=9 D=10240", NORM},
    {OP_rms_norm_bwd, "N=9 D=1501", NORM},
    {OP_rms_norm_bwd, "N=2500 D=64", .rows = 2477, NORM}, /* several rounds of the partial sums */
    {OP_rms_norm_bwd, "N=33 D=1024 H=8 d=128", .rows = 31, .absent = " dres ", ADD,
     .attr = {.eps = 1e-6f, .head_dim = 128}},
    {OP_rms_norm_bwd, "N=9 D=256 H=4 d=64", .absent = " dx dres ", .attr = {.eps = 1e-6f, .head_dim = 64}},

    {OP_rope, "N=33 H=32 d=128", .rows = 31, .docs = 2},
    {OP_rope, "N=33 H=9 d=64", .attr = {.inverse = true}},
    {OP_rope, "N=9 H=8 d=80"},
    {OP_rope, "N=5 H=70 d=256"}, /* several rounds of a block */
    {OP_rope, "N=5000 H=1 d=32"},

    {OP_cross_entropy, "N=20 V=32000", .rows = 18},
    {OP_cross_entropy, "N=6 V=128256", ADD},
    {OP_cross_entropy, "N=6 V=151936"},
    {OP_cross_entropy_bwd, "N=20 V=32000", .rows = 18},
    {OP_cross_entropy_bwd, "N=6 V=128256"},
    {OP_weighted_sum, "N=10000", .rows = 9871, ADD},
    {OP_embed_bwd, "N=700 V=40 D=5000", .rows = 691, ADD}, /* two tiles of columns, ids in several lists */
    {OP_embed_bwd, "N=300 V=1000 D=512"},

    {OP_attention_cached, "N=1 H=32 G=8 d=128 C=300", .attr = {.head_dim = 128, .scale = 0.088f}},
    {OP_attention_cached, "N=40 H=9 G=3 d=64 C=300", .rows = 37, .attr = {.head_dim = 64, .scale = 0.125f}},
    {OP_attention_cached, "N=9 H=2 G=1 d=256 C=90", .attr = {.head_dim = 256, .scale = 0.0625f, .window = 33}},
    {OP_attention, "N=300 H=8 G=2 d=64", .rows = 291, .docs = 3, .attr = {.head_dim = 64, .scale = 0.125f}},
    {OP_attention, "N=260 H=4 G=4 d=128", .docs = 2, .attr = {.head_dim = 128, .scale = 0.088f, .window = 70}},
    {OP_attention_bwd, "N=300 H=8 G=2 d=64", PLAIN, .rows = 291, .docs = 3, .attr = {.head_dim = 64, .scale = 0.125f}},
    {OP_attention_bwd, "N=260 H=4 G=4 d=128", PLAIN, .docs = 2,
     .attr = {.head_dim = 128, .scale = 0.088f, .window = 70}},

    {OP_linear, "N=200 K=256 M=384", .rows = 133},
    {OP_linear_dx, "N=200 K=256 M=384", .rows = 133},
    {OP_linear_dw, "N=200 K=256 M=384", .rows = 133, ADD},
    {OP_linear_lora, "N=140 K=256 M=384 R=16", .rows = 133, .attr = {.scale = 2}},
    {OP_linear_lora, "N=140 K=256 M=384 R=64", .absent = " bias ", .attr = {.scale = 0.5f}},
    {OP_linear_lora_bwd, "N=140 K=256 M=384 R=16", .rows = 133, ADD, .attr = {.scale = 2}},
    {OP_linear_lora_bwd, "N=140 K=256 M=384 R=64", .attr = {.scale = 0.5f}},
    {OP_gate_up_glu, "N=140 K=256 F=512 R=16", .rows = 133, .attr = {.scale = 2}},
    {OP_gate_up_bwd, "N=140 K=256 F=512 R=16", .rows = 133, ADD, .attr = {.scale = 2}},
    {OP_norm_qkv_rope, "N=140 D=256 H=4 G=2 d=64 R=16", .rows = 133, .docs = 2,
     .absent = " bq bk bv wq wk q0 k0 rq rk ", .attr = {.eps = 1e-5f, .head_dim = 64, .scale = 2}},
    {OP_norm_qkv_rope, "N=140 D=256 H=4 G=2 d=64 R=16", .attr = {.eps = 1e-5f, .head_dim = 64, .scale = 2}},
    {OP_qkv_bwd, "N=140 D=256 H=4 G=2 d=64 R=16", .rows = 133, ADD, .attr = {.scale = 2}},
    {OP_linear_lora, "N=140 K=256 M=384 R=16", FOLD, .rows = 133, .absent = " bias ",
     .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_linear_lora, "N=300 K=520 M=136 R=3", FOLD, .absent = " bias rstd ", .attr = {.scale = 0.5f}},
    {OP_linear_lora, "N=33 K=256 M=384 R=16", FOLD, .absent = " bias A B s ", .attr = {.eps = 1e-6f}},
    {OP_linear_lora_bwd, "N=140 K=512 M=256 R=16", FOLD, .rows = 133, ADD, .attr = {.scale = 2}},
    {OP_linear_lora_bwd, "N=300 K=136 M=256 R=3", FOLD, .absent = " dot ", .attr = {.scale = 2, .glu = GLU_GELU_TANH}},
    {OP_linear_lora_bwd, "N=33 K=512 M=256 R=16", FOLD, .absent = " A B x s dA dB "},
    {OP_gate_up_glu, "N=140 K=256 F=512 R=16", FOLD, .rows = 133, .attr = {.eps = 1e-5f, .scale = 0.5f}},
    {OP_gate_up_glu, "N=300 K=200 F=72 R=5", FOLD, .attr = {.eps = 1e-5f, .scale = 2, .glu = GLU_GELU_TANH}},
    {OP_gate_up_glu, "N=33 K=256 F=512 R=16", FOLD, .absent = " Ag Bg sg ", .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_gate_up_glu, "N=33 K=256 F=512 R=16", FOLD, .absent = " Ag Bg sg Au Bu su ", .attr = {.eps = 1e-5f}},
    {OP_gate_up_bwd, "N=140 K=256 F=512 R=16", FOLD, .rows = 133, ADD, .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_gate_up_bwd, "N=300 K=200 F=72 R=5", FOLD, .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_gate_up_bwd, "N=33 K=256 F=512 R=16", FOLD, .absent = " Ag Bg sg dAg dBg ", .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_gate_up_bwd, "N=33 K=256 F=512 R=16", FOLD, .absent = " Ag Bg sg dAg dBg Au Bu su dAu dBu ",
     .attr = {.eps = 1e-5f}},
    {OP_gate_up_bwd, "N=33 K=256 F=512 R=16", FOLD, .absent = " dx dot dres ", .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_norm_qkv_rope, "N=140 D=256 H=4 G=2 d=64 R=16", FOLD, .rows = 133, .docs = 2,
     .attr = {.eps = 1e-5f, .head_dim = 64, .scale = 2}},
    {OP_norm_qkv_rope, "N=300 D=264 H=3 G=1 d=128 R=5", FOLD, .absent = " Ak Bk sk ",
     .attr = {.eps = 1e-5f, .head_dim = 128, .scale = 2}},
    {OP_norm_qkv_rope, "N=33 D=256 H=4 G=2 d=64 R=16", FOLD, .absent = " Aq Bq sq Ak Bk sk Av Bv sv ",
     .attr = {.eps = 1e-5f, .head_dim = 64}},
    {OP_qkv_bwd, "N=140 D=256 H=4 G=2 d=64 R=16", FOLD, .rows = 133, ADD, .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_qkv_bwd, "N=300 D=264 H=3 G=1 d=128 R=5", FOLD, .absent = " Ak Bk sk dAk dBk ",
     .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_qkv_bwd, "N=33 D=256 H=4 G=2 d=64 R=16", FOLD, .absent = " dx dot dres ", .attr = {.eps = 1e-5f, .scale = 2}},
    {OP_attention_bwd, "N=300 H=8 G=2 d=64", .rows = 291, .docs = 3, .attr = {.head_dim = 64, .scale = 0.125f}},
    {OP_attention_bwd, "N=260 H=32 G=8 d=128", .docs = 2, .attr = {.head_dim = 128, .scale = 0.088f}},
    {OP_attention_bwd, "N=260 H=4 G=4 d=128", .absent = " dot ", .docs = 2,
     .attr = {.head_dim = 128, .scale = 0.088f, .window = 70}},
    {OP_attention_bwd, "N=300 H=4 G=2 d=256", .rows = 291, .attr = {.head_dim = 256, .scale = 0.0625f}}, /* by cuDNN */
    {OP_attention_bwd, "N=90 H=3 G=1 d=256", .rows = 87, .docs = 2, .attr = {.head_dim = 256, .scale = 0.0625f}},
    {OP_attention_bwd, "N=90 H=3 G=1 d=96", .rows = 87, .docs = 2, .attr = {.head_dim = 96, .scale = 0.1f}},
    {OP_linear_ce, "N=100 D=256 V=4000", .rows = 97},
    {OP_linear_ce_bwd, "N=100 D=256 V=4000", .rows = 97, ADD},
};
const int n_cuda_cases = sizeof cuda_cases / sizeof *cuda_cases;
