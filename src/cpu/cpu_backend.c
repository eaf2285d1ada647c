/* cpu_backend.c - the CPU as a backend: host memory and the kernels of this folder. */
#include "cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const kernel kernels[OP_COUNT] = {
#define OP(kind, in, out) [OP_##kind] = cpu_op_##kind,
#include "graph/ops.def"
#undef OP
};

static int64_t (*const scratch_floats[OP_COUNT])(const graph *g, const graph_op *op) = {
    [OP_rms_norm] = cpu_scratch_rms_norm,
    [OP_linear] = cpu_scratch_linear,
    [OP_rope] = cpu_scratch_rope,
    [OP_attention] = cpu_scratch_attention,
    [OP_attention_cached] = cpu_scratch_attention_cached,
    [OP_rms_norm_bwd] = cpu_scratch_rms_norm,
    [OP_linear_dx] = cpu_scratch_linear_dx,
    [OP_attention_bwd] = cpu_scratch_attention_bwd,
    [OP_add_rms_norm] = cpu_scratch_rms_norm,
    [OP_linear_lora] = cpu_scratch_linear_lora,
    [OP_linear_lora_bwd] = cpu_scratch_linear_lora,
    [OP_gate_up_glu] = cpu_scratch_gate_up_glu,
    [OP_gate_up_bwd] = cpu_scratch_gate_up_bwd,
    [OP_qkv_bwd] = cpu_scratch_qkv_bwd,
    [OP_norm_qkv_rope] = cpu_scratch_norm_qkv_rope,
    [OP_linear_ce] = cpu_scratch_linear_ce,
    [OP_linear_ce_bwd] = cpu_scratch_linear_ce_bwd,
};

static size_t scratch(const graph *g, const graph_op *op) {
    return scratch_floats[op->kind] ? (size_t)scratch_floats[op->kind](g, op) * 4 : 0;
}

static bool open_backend(failure *f) {
    (void)f;
    cpu_blas_open();
    return true;
}

static void close_backend(void) {}

enum { ALIGNMENT = 256 };

static bool alloc(void **out, size_t bytes, const char *what, failure *f) {
    size_t size = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    *out = size < bytes ? NULL : aligned_alloc(ALIGNMENT, size);
    if (*out) return true;
    return fail(f, FAIL_MACHINE, "%s: %zu bytes of memory are needed and cannot be had", what, bytes);
}

static bool copy(void *to, const void *from, size_t bytes, failure *f) {
    (void)f;
    if (bytes) memcpy(to, from, bytes);
    return true;
}

static bool clear(void *block, size_t bytes, failure *f) {
    (void)f;
    if (bytes) memset(block, 0, bytes);
    return true;
}

/* What the kernel thinks can be had without swapping. */
static size_t memory(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return 0;
    char line[128];
    size_t kib = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1) break;
    fclose(file);
    return kib * 1024;
}

static bool finish(failure *f) {
    (void)f;
    return true;
}

const backend cpu_backend = {
    .name = "cpu",
    .compute = DTYPE_F32,
    .host_memory = true,
    .open = open_backend,
    .close = close_backend,
    .alloc = alloc,
    .free = free,
    .upload = copy,
    .download = copy,
    .clear = clear,
    .memory = memory,
    .scratch = scratch,
    .kernels = kernels,
    .finish = finish,
    .adamw = cpu_adamw,
};
