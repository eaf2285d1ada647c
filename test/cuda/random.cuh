/* random.cuh - what the tests of products on the device share: random values that depend on an index and a seed alone,
 * and an end with a message. */
#ifndef TEST_CUDA_RANDOM_CUH
#define TEST_CUDA_RANDOM_CUH
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void stop_on(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    fflush(stdout);
    abort();
}

static inline __device__ uint32_t random_bits(uint64_t i, uint32_t seed) {
    uint32_t h = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32) ^ seed * 40503u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u;
    return h ^ h >> 16;
}
/* From -1 to 1. */
static inline __device__ float random_value(uint64_t i, uint32_t seed) {
    return ((float)(random_bits(i, seed) >> 8) / (float)(1 << 24) - 0.5f) * 2;
}
#endif
