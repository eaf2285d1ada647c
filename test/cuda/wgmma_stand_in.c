/* wgmma_stand_in.c - what test_wgmma_gemm needs of the backend, for a build of that test alone (build_wgmma.sh). */
#include "device.h"
#include "gemm.h"
#include "launch.h"

static cudaStream_t stream;
static failure failed;

cudaStream_t cuda_stream(void) { return stream; }
failure *cuda_failure(void) { return &failed; }

static int attribute(enum cudaDeviceAttr what) {
    int value = 0;
    cudaDeviceGetAttribute(&value, what, 0);
    return value;
}
int cuda_arch(void) {
    return attribute(cudaDevAttrComputeCapabilityMajor) * 10 + attribute(cudaDevAttrComputeCapabilityMinor);
}
int cuda_code(void) { return 90; } /* build_wgmma.sh compiles for nothing else */
int cuda_processors(void) { return attribute(cudaDevAttrMultiProcessorCount); }

bool cuda_check(cudaError_t status, const char *text, failure *f) {
    return status == cudaSuccess || fail(f, FAIL_MACHINE, "%s: %s", text, cudaGetErrorString(status));
}

void cuda_check_launch(const kernel_call *call) { (void)call; }

static bool open_card(failure *f) { return cuda_check(cudaStreamCreate(&stream), "stream", f) && gemm_open(NULL, f); }
static void close_card(void) { gemm_close(); }

bool cuda_backend_find(const backend **b, int local_rank, failure *f) {
    (void)local_rank;
    static backend card;
    card.open = open_card;
    card.close = close_card;
    *b = &card;
    return cuda_check(cudaFree(NULL), "no CUDA device", f);
}
