/* cudnn_graph.h - cuDNN opened with dlopen, and graphs of its operations compiled to plans.
 *
 * A graph is built tensor by tensor and operation by operation; the first failure is kept and everything after it is
 * skipped, so that only cudnn_graph_finish needs to be checked.  Tensors have four dimensions. */
#ifndef CUDA_CUDNN_GRAPH_H
#define CUDA_CUDNN_GRAPH_H
extern "C" {
#include "base/failure.h"
}
#include "cudnn_api.h"

/* Opens the library: `path`, or where NULL what the loader finds as libcudnn.so.9.  Older than CUDNN_OLDEST fails. */
bool cudnn_api_open(cudnn_api *api, const char *path, failure *f);
void cudnn_api_close(cudnn_api *api);

enum { CUDNN_GRAPH_MAX = 192 };

typedef struct {
    const cudnn_api *api;
    failure *f;
    bool failed;
    int64_t next_id; /* of virtual tensors */
    int made, ops;
    cudnn_descriptor all[CUDNN_GRAPH_MAX], op[CUDNN_GRAPH_MAX];
} cudnn_graph;

typedef struct {
    int64_t dim[4], stride[4];
} cudnn_layout;

void cudnn_graph_begin(cudnn_graph *g, const cudnn_api *api, failure *f);

/* A tensor in memory, bound by its id at execution; `ragged`: int32 tensor of element offsets per document, or NULL. */
cudnn_descriptor cudnn_tensor(cudnn_graph *g, int64_t id, int type, cudnn_layout layout, cudnn_descriptor ragged);
/* A scalar on the host. */
cudnn_descriptor cudnn_scalar(cudnn_graph *g, int64_t id, int type);
/* One that stays inside the kernel. */
cudnn_descriptor cudnn_virtual(cudnn_graph *g, int type, cudnn_layout layout, cudnn_descriptor ragged);

/* y = mode(x, b, t); b, t: NULL where the mode takes fewer.  axis: of GEN_INDEX, else -1. */
void cudnn_pointwise(cudnn_graph *g, int mode, int math, int axis, cudnn_descriptor x, cudnn_descriptor b,
                     cudnn_descriptor t, cudnn_descriptor y);
/* c = a b; m, n, k: int32 tensors with each document's true extents, or NULL. */
void cudnn_matmul(cudnn_graph *g, cudnn_descriptor a, cudnn_descriptor b, cudnn_descriptor c, cudnn_descriptor m,
                  cudnn_descriptor n, cudnn_descriptor k, bool pad);
void cudnn_reduce(cudnn_graph *g, int op, cudnn_descriptor x, cudnn_descriptor y);
void cudnn_reshape(cudnn_graph *g, cudnn_descriptor x, cudnn_descriptor y);

typedef struct {
    cudnn_descriptor plan, all[CUDNN_GRAPH_MAX]; /* what the plan was made from lives as long as it */
    int made;
    int64_t workspace; /* bytes */
} cudnn_plan;

/* Compiles the graph for the handle's device.  With a NULL handle it only finds an engine, and that one's workspace,
 * for the device that `profile` describes (cuDNN's JSON of device properties), which needs no GPU.  The plan takes over
 * the graph's descriptors. */
bool cudnn_graph_finish(cudnn_graph *g, cudnn_handle handle, const char *profile, cudnn_plan *plan);
void cudnn_plan_free(const cudnn_api *api, cudnn_plan *plan);
bool cudnn_plan_run(const cudnn_api *api, cudnn_handle handle, const cudnn_plan *plan, int count, const int64_t *ids,
                    void *const *pointers, void *workspace, failure *f);
#endif
