/* none.c - stands in for the CUDA backend in a build without nvcc. */
#include "exec/backend.h"
#include "exec/device_stats.h"

#include <assert.h>

bool cuda_backend_find(const backend **out, int local_rank, failure *f) {
    (void)local_rank;
    *out = NULL;
    return fail(f, FAIL_MACHINE, "device cuda: this build has no CUDA backend; use --device cpu");
}

unsigned long long device_stats_held(void) { return 0; }

bool comm_nccl_open(comm *c, failure *f) {
    (void)c, (void)f;
    assert(!"no card, no NCCL");
    return false;
}

void device_stats_reset(void) {}

bool device_stats_read(device_stats *out) {
    *out = (device_stats){0};
    return false;
}
