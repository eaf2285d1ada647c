/* none.c - stands in for the CUDA backend in a build without nvcc. */
#include "exec/backend.h"
#include "exec/device_stats.h"

bool cuda_backend_find(const backend **out, failure *f) {
    *out = NULL;
    return fail(f, FAIL_MACHINE, "device cuda: this build has no CUDA backend; use --device cpu");
}

unsigned long long device_stats_held(void) { return 0; }

void device_stats_reset(void) {}

bool device_stats_read(device_stats *out) {
    *out = (device_stats){0};
    return false;
}
