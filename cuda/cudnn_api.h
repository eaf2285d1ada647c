/* cudnn_api.h - the part of cuDNN 9's backend interface that we call, declared here so that neither its headers nor
 * its library are needed to build, and opened at run time.  Numbers are those of cuDNN's public header
 * cudnn_graph_v9.h; they are part of its binary interface.  The first `int` of every function is its status, 0: done.
 */
#ifndef CUDA_CUDNN_API_H
#define CUDA_CUDNN_API_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cudnn_context *cudnn_handle;
typedef void *cudnn_descriptor;

/* The functions, under their names without "cudnn". */
typedef struct {
    void *library;
    size_t version; /* 91900: 9.19.0 */
    size_t (*GetVersion)(void);
    const char *(*GetErrorString)(int status);
    void (*GetLastErrorString)(char *text, size_t size);
    int (*Create)(cudnn_handle *handle);
    int (*Destroy)(cudnn_handle handle);
    int (*SetStream)(cudnn_handle handle, cudaStream_t stream);
    int (*BackendCreateDescriptor)(int type, cudnn_descriptor *out);
    int (*BackendDestroyDescriptor)(cudnn_descriptor d);
    int (*BackendFinalize)(cudnn_descriptor d);
    int (*BackendSetAttribute)(cudnn_descriptor d, int name, int type, int64_t count, const void *values);
    int (*BackendGetAttribute)(cudnn_descriptor d, int name, int type, int64_t room, int64_t *count, void *values);
    int (*BackendExecute)(cudnn_handle handle, cudnn_descriptor plan, cudnn_descriptor pack);
} cudnn_api;

enum { CUDNN_OLDEST = 91800 }; /* ragged backward on Hopper starts from a workspace that is not cleared before it */

enum cudnn_data { DATA_FLOAT = 0, DATA_INT32 = 4, DATA_BF16 = 9, DATA_BOOLEAN = 11 };

enum cudnn_descriptor_type {
    DESCRIPTOR_POINTWISE = 0,
    DESCRIPTOR_ENGINECFG = 3,
    DESCRIPTOR_ENGINEHEUR = 4,
    DESCRIPTOR_EXECUTION_PLAN = 5,
    DESCRIPTOR_OPERATION_POINTWISE = 13,
    DESCRIPTOR_OPERATIONGRAPH = 15,
    DESCRIPTOR_VARIANT_PACK = 16,
    DESCRIPTOR_TENSOR = 17,
    DESCRIPTOR_MATMUL = 18,
    DESCRIPTOR_OPERATION_MATMUL = 19,
    DESCRIPTOR_REDUCTION = 21,
    DESCRIPTOR_OPERATION_REDUCTION = 22,
    DESCRIPTOR_OPERATION_RESHAPE = 31,
    DESCRIPTOR_DEVICEPROP = 38,
};

enum cudnn_type {
    TYPE_HANDLE = 0,
    TYPE_DATA_TYPE = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_DOUBLE = 5,
    TYPE_VOID_PTR = 6,
    TYPE_HEUR_MODE = 8,
    TYPE_POINTWISE_MODE = 14,
    TYPE_DESCRIPTOR = 15,
    TYPE_REDUCTION = 18,
    TYPE_CHAR = 24,
};

enum cudnn_pointwise {
    POINTWISE_ADD = 0,
    POINTWISE_MUL = 1,
    POINTWISE_DIV = 6,
    POINTWISE_SUB = 9,
    POINTWISE_EXP = 13,
    POINTWISE_LOG = 15,
    POINTWISE_IDENTITY = 21,
    POINTWISE_CMP_GT = 302,
    POINTWISE_CMP_GE = 303,
    POINTWISE_CMP_LT = 304,
    POINTWISE_AND = 400,
    POINTWISE_GEN_INDEX = 501,
    POINTWISE_SELECT = 601,
};

enum cudnn_reduction { REDUCE_ADD = 0, REDUCE_MAX = 3 };
enum { HEUR_MODE_A = 3 };

enum cudnn_attribute {
    POINTWISE_MODE = 0,
    POINTWISE_MATH_PREC = 1,
    POINTWISE_AXIS = 9,
    ENGINEHEUR_MODE = 200,
    ENGINEHEUR_OPERATION_GRAPH = 201,
    ENGINEHEUR_RESULTS = 202,
    ENGINEHEUR_DEVICEPROP = 204,
    ENGINECFG_WORKSPACE_SIZE = 303,
    PLAN_HANDLE = 400,
    PLAN_ENGINE_CONFIG = 401,
    PLAN_WORKSPACE_SIZE = 402,
    OPERATION_POINTWISE_DESCRIPTOR = 750,
    OPERATION_POINTWISE_X = 751,
    OPERATION_POINTWISE_B = 752,
    OPERATION_POINTWISE_Y = 753,
    OPERATION_POINTWISE_T = 758,
    OPERATIONGRAPH_HANDLE = 800,
    OPERATIONGRAPH_OPS = 801,
    TENSOR_BYTE_ALIGNMENT = 900,
    TENSOR_DATA_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_UNIQUE_ID = 906,
    TENSOR_IS_VIRTUAL = 907,
    TENSOR_IS_BY_VALUE = 908,
    TENSOR_RAGGED_OFFSET = 913,
    PACK_UNIQUE_IDS = 1000,
    PACK_DATA_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    MATMUL_COMP_TYPE = 1500,
    MATMUL_PADDING_VALUE = 1503,
    OPERATION_MATMUL_A = 1520,
    OPERATION_MATMUL_B = 1521,
    OPERATION_MATMUL_C = 1522,
    OPERATION_MATMUL_DESCRIPTOR = 1523,
    OPERATION_MATMUL_M = 1525,
    OPERATION_MATMUL_N = 1526,
    OPERATION_MATMUL_K = 1527,
    REDUCTION_OPERATOR = 1600,
    REDUCTION_COMP_TYPE = 1601,
    OPERATION_REDUCTION_X = 1610,
    OPERATION_REDUCTION_Y = 1611,
    OPERATION_REDUCTION_DESCRIPTOR = 1612,
    OPERATION_RESHAPE_X = 2200,
    OPERATION_RESHAPE_Y = 2201,
    DEVICEPROP_JSON = 2702,
};
#endif
