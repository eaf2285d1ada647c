/* cudnn_attention.h - attention over packed documents by cuDNN, where it has a kernel for the shape and the card.
 *
 * cuDNN's plans are for a number of documents and a longest length.  Both are rounded up to powers of two and a plan
 * is compiled when a pair is first met (about 1 s for the first pair, then 40 ms per plan); documents that a micro-
 * batch does not have get length 0.  Rounding to the batch's own sizes, rather than to one pair for the whole run,
 * keeps the grid close to the work: (most documents) x (longest row) blocks would be almost all empty.
 * The backward adds dq up with atomics: two runs differ in the last bits.  No soft cap.  Every operand needs the row
 * stride that it had in `layout` at open.  When open or prepare returns false the caller takes attention.h instead. */
#ifndef CUDA_CUDNN_ATTENTION_H
#define CUDA_CUDNN_ATTENTION_H
#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cudnn_attention cudnn_attention;

/* A layout whose dq has stride 0 is for forward only; else dq needs q's row stride.
 * Opens cuDNN (library: path, or NULL for the loader's libcudnn.so.9) on the current device and compiles the plans for
 * (max_docs, shape->N).  false, with the reason in f: no cuDNN, too old, or no engine for this shape. */
bool cudnn_attention_open(cudnn_attention **out, const attention_shape *shape, const attention_operands *layout,
                          int max_docs, const char *library, failure *f);
void cudnn_attention_close(cudnn_attention *a);
int cudnn_attention_version(const cudnn_attention *a); /* 91900: 9.19.0 */

/* Bytes of workspace, 256-byte aligned, for backward (and at least what forward needs); fixed from open on. */
size_t cudnn_attention_workspace(const cudnn_attention *a);

/* Before a micro-batch's first call: cu[docs + 1] on the device, docs and the longest document's rows on the host.
 * Compiles plans when the pair is new; enqueues one small kernel that fills lengths and offsets. */
bool cudnn_attention_prepare(cudnn_attention *a, const int32_t *cu, int docs, int longest, cudaStream_t stream,
                             failure *f);
bool cudnn_attention_forward(cudnn_attention *a, const attention_operands *x, void *workspace, cudaStream_t stream,
                             failure *f);
bool cudnn_attention_backward(cudnn_attention *a, const attention_operands *x, void *workspace, cudaStream_t stream,
                              failure *f);

/* Whether an engine takes the graphs for (docs, longest) on the device described by `profile` (cuDNN's JSON of device
 * properties).  Needs cuDNN and no GPU.  workspace: bytes of the engines, forward and backward. */
bool cudnn_attention_probe(const attention_shape *shape, const attention_operands *layout, int docs, int longest,
                           int major, const char *library, const char *profile, int64_t workspace[2], failure *f);
#ifdef __cplusplus
}
#endif
#endif
