/* backend.c - picks a backend by name; "auto" tries CUDA first. */
#include "exec/backend.h"

#include <string.h>

bool backend_find(const backend **out, const char *name, int local_rank, failure *f) {
    if (strcmp(name, "cuda") == 0) return cuda_backend_find(out, local_rank, f);
    failure none;
    if (strcmp(name, "auto") == 0 && cuda_backend_find(out, local_rank, &none)) return true;
    *out = &cpu_backend;
    return true;
}
