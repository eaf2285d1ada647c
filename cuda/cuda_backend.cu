/* cuda_backend.cu - one NVIDIA card as a backend: memory, transfers, and the kernels of this folder behind a wrapper
 * that names each op to a profiler (NVTX) and keeps the first error with the op's name and shapes.
 *
 * One stream; upload, clear and kernels are enqueued in order, download waits.  Activations are bfloat16, sums float32.
 * Errors of a launch are seen behind its op; those of a running kernel at the next download, when the op is no longer
 * known (compute-sanitizer names it). */
#include "cuda.cuh"
#include "folded.h"
#include "gemm.h"
#include "product.h"

extern "C" {
#include "exec/device_stats.h"
#include "weights/hub_cache.h"
}

#include <nvtx3/nvToolsExt.h>

namespace {
enum { OLDEST = 80 };
/* Kernels that the driver loads when they are first used, and plans of cuDNN; measured, docs/bench/h200.md. */
const size_t LATER = (size_t)352 << 20;

struct {
    cudaStream_t stream;
    int card, arch, code, processors;
    char name[256]; /* of the card */
    size_t held;    /* by the card for us when a program is first planned: context, work space of products, NCCL's */
    failure failed; /* the first of the run; kind FAIL_NONE: none */
} state;

/* ---- errors ---- */

/* "[8192,4096]BF16 " for every operand that is there */
void describe(char *text, size_t room, const tensor *list, int n) {
    size_t used = strlen(text);
    for (int i = 0; i < n && used + 1 < room; i++) {
        const tensor *t = &list[i];
        if (!t->data) continue;
        snprintf(text + used, room - used, " [%lld,%lld]%s", (long long)t->rows, (long long)t->cols,
                 dtype_name(t->type));
        used = strlen(text);
    }
}

void name_op(failure *f, const kernel_call *call) {
    char text[900];
    snprintf(text, sizeof text, "%s of layer %d%s, rows %d, from", op_name(call->op->kind), call->op->layer,
             call->op->backward ? " (backward)" : "", call->batch->rows);
    describe(text, sizeof text, call->in, GRAPH_MAX_IN);
    snprintf(text + strlen(text), sizeof text - strlen(text), " to");
    describe(text, sizeof text, call->out, GRAPH_MAX_OUT);
    fail_in(f, "%s", text);
}

/* ---- the table of kernels ---- */

/* From its first element to behind its last row. */
size_t bytes_of(const tensor *t) { return (size_t)(t->rows * t->ld) * dtype_size(t->type); }

/* visit(memory, bytes, writes): each operand, and the scratch. */
template <typename VISIT> void each_memory(const kernel_call *call, VISIT visit) {
    for (const tensor &t : call->in)
        if (t.data) visit(t.data, bytes_of(&t), false);
    for (const tensor &t : call->out)
        if (t.data) visit(t.data, bytes_of(&t), true);
    if (call->scratch_bytes) visit(call->scratch, call->scratch_bytes, true);
}

/* For gathers and scatters of the ranks that are under way in memory of this op; on their own stream they wait for each
 * other. */
void wait_for_ranks(const kernel_call *call) {
    op_kind kind = call->op->kind;
    if (kind == OP_all_gather || kind == OP_all_reduce || kind == OP_reduce_scatter) return;
    each_memory(call, [](const void *at, size_t bytes, bool) { nccl_wait_for(at, bytes, &state.failed); });
}

/* For copies that are under way in memory of this op; among each other they keep their order. */
void wait_for_copies(const kernel_call *call) {
    if (call->op->kind == OP_to_host || call->op->kind == OP_from_host) return;
    each_memory(call,
                [](const void *at, size_t bytes, bool writes) { offload_wait_for(at, bytes, writes, &state.failed); });
}

void run_op(const kernel_call *call, kernel run) {
    char name[64];
    if (state.failed.kind != FAIL_NONE) return; /* what follows a failure would fail too, or work on garbage */
    snprintf(name, sizeof name, "%d %s%s", call->op->layer, op_name(call->op->kind), call->op->backward ? " bwd" : "");
    nvtxRangePushA(name);
    if (call->ranks && nccl_is_open()) wait_for_ranks(call);
    if (offload_under_way()) wait_for_copies(call);
    run(call);
    nvtxRangePop();
    if (state.failed.kind != FAIL_NONE) name_op(&state.failed, call);
    else cuda_check_launch(call);
}

#define OP(kind, in, out)                                                                                              \
    void run_##kind(const kernel_call *call) { run_op(call, cuda_op_##kind); }
#include "graph/ops.def"
#undef OP

/* In the order of op_kind, which is made from the same list. */
const kernel kernels[OP_COUNT] = {
#define OP(kind, in, out) run_##kind,
#include "graph/ops.def"
#undef OP
};

size_t scratch(const graph *g, const graph_op *op) {
    switch ((int)op->kind) {
    case OP_rms_norm_bwd: return cuda_scratch_rms_norm_bwd(g, op);
    case OP_attention: return cuda_scratch_attention(g, op);
    case OP_attention_bwd: return cuda_scratch_attention_bwd(g, op);
    case OP_linear_lora:
    case OP_gate_up_glu:
    case OP_norm_qkv_rope: return folded_scratch_forward(g, op);
    case OP_linear_lora_bwd: return cuda_scratch_linear_lora_bwd(g, op);
    case OP_gate_up_bwd: return cuda_scratch_gate_up_bwd(g, op);
    case OP_qkv_bwd: return cuda_scratch_qkv_bwd(g, op);
    case OP_linear_ce: return cuda_scratch_linear_ce(g, op);
    case OP_linear_ce_bwd: return cuda_scratch_linear_ce_bwd(g, op);
    default: return 0;
    }
}

/* ---- open and close ---- */

/* The build holds code for this card. */
__global__ void probe_kernel() {}

bool check_code(failure *f) {
    struct cudaFuncAttributes probe;
    cudaError_t e = cudaFuncGetAttributes(&probe, probe_kernel);
    state.code = probe.ptxVersion;
    if (e == cudaSuccess) return true;
    (void)cudaGetLastError();
    return fail(f, FAIL_MACHINE,
                "device cuda: this build has kernels for architectures %s, the card is an sm_%d (%s): build with "
                "-DCUDA_ARCHS=%d",
                CUDA_ARCHS, state.arch, cudaGetErrorString(e), state.arch);
}

void close_backend(void) {
    if (state.stream) cudaStreamSynchronize(state.stream);
    nccl_close();
    offload_close();
    cuda_adamw_close();
    cuda_attention_close();
    gemm_close();
    transfer_close();
    if (state.stream) cudaStreamDestroy(state.stream);
    device_stats_close();
    state.stream = NULL;
    state.held = 0;
    state.failed = {};
}

bool open_device(failure *f) {
    char bus[32];
    arena names = {};
    TRY(cuda_check(cudaDeviceGetPCIBusId(bus, sizeof bus, state.card), "card", f));
    device_stats_open(bus); /* before the context, so that its memory counts as ours */
    TRY(cuda_check(cudaSetDevice(state.card), "card", f));
    TRY(check_code(f));
    TRY(cuda_check(cudaStreamCreate(&state.stream), "stream", f));
    bool ok = gemm_open(hub_own_cache(&names), f);
    arena_free(&names);
    return ok;
}

bool open_backend(failure *f) {
    if (open_device(f)) return true;
    close_backend();
    return false;
}

/* ---- memory ---- */

bool alloc(void **out, size_t bytes, const char *what, failure *f) {
    cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
    if (e == cudaSuccess) return true;
    size_t free_bytes = 0, total = 0;
    *out = NULL;
    (void)cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total);
    return fail(f, FAIL_MACHINE,
                "%s: %zu bytes (%.2f GiB) of device memory are needed, %.2f of %.2f GiB are free (%s): lower "
                "per_device_train_batch_size or max_length, or end what else uses the card",
                what, bytes, (double)bytes / 0x1p30, (double)free_bytes / 0x1p30, (double)total / 0x1p30,
                cudaGetErrorString(e));
}

void free_block(void *block) { cudaFree(block); }

bool alloc_host(void **out, size_t bytes, const char *what, failure *f) {
    cudaError_t e = cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocDefault);
    if (e == cudaSuccess) return true;
    *out = NULL;
    (void)cudaGetLastError();
    return fail(f, FAIL_MACHINE,
                "%s: %zu bytes of page-locked host memory cannot be had (%s): take gradient_checkpointing full, lower "
                "per_device_train_batch_size or max_length, or end what else uses the host's memory",
                what, bytes, cudaGetErrorString(e));
}

void free_host(void *block) { cudaFreeHost(block); }

bool upload(void *to, const void *from, size_t bytes, failure *f) { return transfer_up(to, bytes, from, bytes, 1, f); }

bool clear(void *block, size_t bytes, failure *f) {
    return !bytes || cuda_check(cudaMemsetAsync(block, 0, bytes, state.stream), "clearing device memory", f);
}

size_t memory(void) {
    size_t free_bytes, total;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return 0;
    return free_bytes > LATER ? free_bytes - LATER : 1;
}

/* The ranks are connected before anything is planned or allocated. */
size_t overhead(void) {
    if (!state.held) state.held = (size_t)device_stats_held();
    return state.held + LATER;
}

/* Dense bf16 with float32 sums, TFLOP/s, from the makers' sheets; the first name that the card's contains. */
double peak_flops(dtype compute) {
    static const struct {
        const char *name;
        double tflops;
    } cards[] = {{"H200", 989},  {"H100 PCIe", 756}, {"H100 NVL", 835}, {"H100", 989},    {"B200", 2250},
                 {"A100", 312},  {"L40S", 362},      {"A10G", 70},      {"A10", 125},     {"L4", 121},
                 {"A6000", 155}, {"RTX 3090", 71},   {"RTX 4090", 165}, {"RTX 5090", 209}};
    if (compute != DTYPE_BF16) return 0;
    for (auto &c : cards)
        if (strstr(state.name, c.name)) return c.tflops * 1e12;
    return 0;
}

void set_deterministic(bool on) {
    gemm_set_timed(!on);
    cuda_attention_set_own(on);
}

bool finish(failure *f) {
    if (state.failed.kind == FAIL_NONE) return offload_join(f) && nccl_join(f);
    *f = state.failed;
    state.failed = {};
    return false;
}

/* What is enqueued goes into a graph that nobody runs; its nodes are launches and clears. */
bool count_launches(bool begin, int *n, failure *f) {
    cudaGraph_t graph = NULL;
    size_t nodes = 0;
    if (begin) return cuda_check(cudaStreamBeginCapture(state.stream, cudaStreamCaptureModeRelaxed), "capture", f);
    bool ok = cuda_check(cudaStreamEndCapture(state.stream, &graph), "end of capture", f);
    ok = ok && cuda_check(cudaGraphGetNodes(graph, NULL, &nodes), "captured launches", f);
    if (graph) cudaGraphDestroy(graph);
    *n = (int)nodes;
    return ok;
}

/* Over NCCL beside the host, which finish() waits for; else through host memory. */
bool broadcast(comm *ranks, void *data, size_t bytes, int root, failure *f) {
    if (nccl_is_open()) return nccl_broadcast(data, bytes, root, f);
    const size_t PIECE = (size_t)64 << 20;
    char *host = (char *)xmalloc(bytes < PIECE ? bytes : PIECE), *at = (char *)data;
    bool ok = true;
    for (size_t left = bytes, n; left && ok; left -= n, at += n) {
        n = left < PIECE ? left : PIECE;
        ok = (comm_rank(ranks) != root || transfer_down(host, at, n, f)) &&
             comm_broadcast(ranks, host, n, root, "trained weights", f) &&
             (comm_rank(ranks) == root || transfer_up(at, n, host, n, 1, f));
    }
    free(host);
    return ok;
}

/* By name, so that a new member of the table cannot shift the others. */
backend make_table() {
    backend b = {};
    b.name = "cuda";
    b.compute = DTYPE_BF16;
    b.open = open_backend;
    b.close = close_backend;
    b.alloc = alloc;
    b.free = free_block;
    b.alloc_host = alloc_host;
    b.free_host = free_host;
    b.upload = upload;
    b.download = transfer_down;
    b.clear = clear;
    b.memory = memory;
    b.overhead = overhead;
    b.peak_flops = peak_flops;
    b.scratch = scratch;
    b.kernels = kernels;
    b.finish = finish;
    b.upload_rows = transfer_up;
    b.adamw = cuda_adamw;
    b.publish = cuda_publish;
    b.set_deterministic = set_deterministic;
    b.broadcast = broadcast;
    b.all_gather = cuda_all_gather;
    b.serves = folded_serves;
    b.platform = gemm_platform;
    b.count_launches = count_launches;
    return b;
}
const backend cuda_backend = make_table();
} // namespace

extern "C" {
cudaStream_t cuda_stream(void) { return state.stream; }
int cuda_arch(void) { return state.arch; }
int cuda_code(void) { return state.code; }
int cuda_processors(void) { return state.processors; }
failure *cuda_failure(void) { return &state.failed; }

bool cuda_check(cudaError_t status, const char *text, failure *f) {
    if (status == cudaSuccess) return true;
    (void)cudaGetLastError();
    return fail(f, FAIL_MACHINE, "%s: %s (%s)", text, cudaGetErrorString(status), cudaGetErrorName(status));
}

void cuda_check_launch(const kernel_call *call) {
    cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess || state.failed.kind != FAIL_NONE) return;
    cuda_check(e, "launch", &state.failed);
    name_op(&state.failed, call);
}

bool cuda_backend_find(const backend **out, int local_rank, failure *f) {
    int count = 0;
    struct cudaDeviceProp card;
    *out = NULL;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaErrorInsufficientDriver || e == cudaErrorSystemDriverMismatch)
        return fail(f, FAIL_MACHINE, "device cuda: no NVIDIA driver, or one too old for CUDA %d.%d; use --device cpu",
                    CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && count == 0))
        return fail(f, FAIL_MACHINE, "device cuda: there is no NVIDIA card here (or CUDA_VISIBLE_DEVICES hides it)");
    TRY(cuda_check(e, "device cuda", f));
    state.card = local_rank % count;
    TRY(cuda_check(cudaGetDeviceProperties(&card, state.card), "device cuda", f));
    state.arch = card.major * 10 + card.minor;
    state.processors = card.multiProcessorCount;
    snprintf(state.name, sizeof state.name, "%s", card.name);
    if (state.arch < OLDEST)
        return fail(f, FAIL_MACHINE,
                    "device cuda: %s is an sm_%d, expected sm_%d (A100, RTX 30) or newer; use --device cpu", card.name,
                    state.arch, OLDEST);
    *out = &cuda_backend;
    return true;
}
}
