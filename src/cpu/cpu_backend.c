/* cpu_backend.c - the CPU as a backend: host memory and the kernels of this folder. */
#include "base/host_memory.h"
#include "base/mapped.h"
#include "cpu/cpu.h"

#include <stdint.h>
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
    [OP_reduce_scatter] = cpu_scratch_reduce_scatter,
};

static size_t scratch(const graph *g, const graph_op *op) {
    return scratch_floats[op->kind] ? (size_t)scratch_floats[op->kind](g, op) * 4 : 0;
}

static bool open_backend(failure *f) { return cpu_blas_open(f); }

static void close_backend(void) {}

enum { ALIGNMENT = 256 };

static bool alloc(void **out, size_t bytes, const char *what, failure *f) {
    size_t size = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    *out = size < bytes ? NULL : aligned_alloc(ALIGNMENT, size);
    if (*out) return true;
    host_room room = host_memory_room(0);
    return fail(f, FAIL_MACHINE,
                "%s: %zu bytes (%.2f GiB) of host memory are needed, %.2f GiB are free %s: lower "
                "per_device_train_batch_size or max_length, or end what else uses the memory",
                what, bytes, (double)bytes / 0x1p30, (double)room.bytes / 0x1p30, room.why);
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

/* Weights are used where they are mapped, and a plan counts them. */
static size_t memory(void) {
    size_t bytes = host_memory_room(mapped_bytes()).bytes;
    return bytes == SIZE_MAX ? 0 : bytes;
}

static bool finish(failure *f) {
    (void)f;
    return true;
}

static bool broadcast(comm *ranks, void *data, size_t bytes, int root, failure *f) {
    return comm_broadcast(ranks, data, bytes, root, "trained weights", f);
}

static bool all_gather(comm *ranks, const void *mine, size_t bytes, void *all, failure *f) {
    return comm_all_gather(ranks, mine, bytes, all, "trained weights", f);
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
    .broadcast = broadcast,
    .all_gather = all_gather,
};
