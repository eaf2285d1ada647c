/* none.c - stands in for the CUDA backend in a build without nvcc. */
#include "exec/backend.h"

bool cuda_backend_find(const backend **out, failure *f) {
    *out = NULL;
    return fail(f, FAIL_MACHINE, "device cuda: this build has no CUDA backend; use --device cpu");
}
