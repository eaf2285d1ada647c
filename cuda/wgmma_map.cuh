/* wgmma_map.cuh - tensor maps: how TMA finds the boxes of a matrix (host code). */
#ifndef CUDA_WGMMA_MAP_CUH
#define CUDA_WGMMA_MAP_CUH
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "base/failure.h"

namespace wgmma {
typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn find_encode() {
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? (encode_fn)entry : NULL;
}

struct box {
    CUtensorMapDataType type;
    int bytes; /* of an element */
    int cols, rows;
    CUtensorMapSwizzle swizzle;
};

static bool map_boxes(CUtensorMap *map, const box &of, const void *data, int64_t rows, int64_t cols, int64_t ld,
                      failure *f) {
    static const encode_fn encode = find_encode();
    cuuint64_t size[] = {(cuuint64_t)cols, (cuuint64_t)rows}, stride[] = {(cuuint64_t)(ld * of.bytes)};
    cuuint32_t shape[] = {(cuuint32_t)of.cols, (cuuint32_t)of.rows}, step[] = {1, 1};
    if (!encode) return fail(f, FAIL_MACHINE, "the driver has no cuTensorMapEncodeTiled; it needs CUDA 12.0 or newer");
    CUresult r =
        encode(map, of.type, 2, (void *)(uintptr_t)data, size, stride, shape, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
               of.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r == CUDA_SUCCESS) return true;
    return fail(f, FAIL_MACHINE, "tensor map of [%lld, %lld] with stride %lld at %p: driver error %d", (long long)rows,
                (long long)cols, (long long)ld, data, (int)r);
}

/* A matrix of bf16, moved in boxes of 64 columns (128 bytes, swizzled) by box_rows. */
static inline bool map_matrix(CUtensorMap *map, const void *data, int64_t rows, int64_t cols, int64_t ld, int box_rows,
                              failure *f) {
    const box of = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, 64, box_rows, CU_TENSOR_MAP_SWIZZLE_128B};
    return map_boxes(map, of, data, rows, cols, ld, f);
}

/* A dense matrix of float32, moved in pieces of one row. */
static inline bool map_floats(CUtensorMap *map, const void *data, int64_t rows, int64_t cols, int box_cols,
                              failure *f) {
    const box of = {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, box_cols, 1, CU_TENSOR_MAP_SWIZZLE_NONE};
    return map_boxes(map, of, data, rows, cols, cols, f);
}
} // namespace wgmma
#endif
