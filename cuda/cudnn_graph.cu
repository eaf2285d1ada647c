/* cudnn_graph.cu - cuDNN opened with dlopen, and graphs of its operations compiled to plans. */
#include "cudnn_graph.h"

#include <dlfcn.h>
#include <string.h>

static bool refuse(const cudnn_api *api, failure *f, const char *what, int status) {
    char last[768] = "";
    api->GetLastErrorString(last, sizeof last);
    return fail(f, FAIL_MACHINE, "cuDNN %zu, %s: %s (%d) %s", api->version, what, api->GetErrorString(status), status,
                last);
}

bool cudnn_api_open(cudnn_api *api, const char *path, failure *f) {
    memset(api, 0, sizeof *api);
    const char *name = path ? path : "libcudnn.so.9";
    api->library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* its compiled kernels outlive a close */
    if (!api->library) return fail(f, FAIL_MACHINE, "%s: %s", name, dlerror());
    const struct {
        const char *name;
        void **slot;
    } table[] = {
        {"cudnnGetVersion", (void **)&api->GetVersion},
        {"cudnnGetErrorString", (void **)&api->GetErrorString},
        {"cudnnGetLastErrorString", (void **)&api->GetLastErrorString},
        {"cudnnCreate", (void **)&api->Create},
        {"cudnnDestroy", (void **)&api->Destroy},
        {"cudnnSetStream", (void **)&api->SetStream},
        {"cudnnBackendCreateDescriptor", (void **)&api->BackendCreateDescriptor},
        {"cudnnBackendDestroyDescriptor", (void **)&api->BackendDestroyDescriptor},
        {"cudnnBackendFinalize", (void **)&api->BackendFinalize},
        {"cudnnBackendSetAttribute", (void **)&api->BackendSetAttribute},
        {"cudnnBackendGetAttribute", (void **)&api->BackendGetAttribute},
        {"cudnnBackendExecute", (void **)&api->BackendExecute},
    };
    for (const auto &entry : table) {
        *entry.slot = dlsym(api->library, entry.name);
        if (*entry.slot) continue;
        cudnn_api_close(api);
        return fail(f, FAIL_MACHINE, "%s: has no %s; expected cuDNN 9.18 or newer", name, entry.name);
    }
    api->version = api->GetVersion();
    if (api->version < CUDNN_OLDEST || api->version >= 100000) {
        fail(f, FAIL_MACHINE, "%s: is cuDNN %zu, expected 9.18 or newer of version 9", name, api->version);
        cudnn_api_close(api);
        return false;
    }
    return true;
}

void cudnn_api_close(cudnn_api *api) {
    if (api->library) dlclose(api->library);
    memset(api, 0, sizeof *api);
}

void cudnn_graph_begin(cudnn_graph *g, const cudnn_api *api, failure *f) {
    memset(g, 0, sizeof *g);
    g->api = api;
    g->f = f;
    g->next_id = 1000;
}

static void check(cudnn_graph *g, const char *what, int status) {
    if (status == 0 || g->failed) return;
    refuse(g->api, g->f, what, status);
    g->failed = true;
}

static cudnn_descriptor make(cudnn_graph *g, int type) {
    cudnn_descriptor d = NULL;
    if (g->failed) return NULL;
    if (g->made == CUDNN_GRAPH_MAX) {
        g->failed = true;
        fail(g->f, FAIL_MACHINE, "cuDNN graph: more than %d descriptors", CUDNN_GRAPH_MAX);
        return NULL;
    }
    check(g, "descriptor", g->api->BackendCreateDescriptor(type, &d));
    if (!g->failed) g->all[g->made++] = d;
    return d;
}

static void set(cudnn_graph *g, cudnn_descriptor d, int name, int type, int64_t count, const void *values) {
    if (g->failed) return;
    int status = g->api->BackendSetAttribute(d, name, type, count, values);
    if (status) {
        char what[64] = "attribute ";
        int at = (int)strlen(what);
        for (int unit = 1000; unit; unit /= 10) what[at++] = (char)('0' + name / unit % 10);
        check(g, what, status);
    }
}
static void set_int(cudnn_graph *g, cudnn_descriptor d, int name, int64_t value) {
    set(g, d, name, TYPE_INT64, 1, &value);
}
static void set_enum(cudnn_graph *g, cudnn_descriptor d, int name, int type, int value) {
    set(g, d, name, type, 1, &value);
}
static void set_bool(cudnn_graph *g, cudnn_descriptor d, int name, bool value) {
    set(g, d, name, TYPE_BOOLEAN, 1, &value);
}
/* NULL: left unset */
static void set_descriptor(cudnn_graph *g, cudnn_descriptor d, int name, cudnn_descriptor value) {
    if (value) set(g, d, name, TYPE_DESCRIPTOR, 1, &value);
}
static void finalize(cudnn_graph *g, cudnn_descriptor d, const char *what) {
    if (!g->failed) check(g, what, g->api->BackendFinalize(d));
}
static void add(cudnn_graph *g, cudnn_descriptor op, const char *what) {
    finalize(g, op, what);
    if (!g->failed) g->op[g->ops++] = op;
}

static cudnn_descriptor tensor(cudnn_graph *g, int64_t id, int type, const cudnn_layout *layout, bool is_virtual,
                               bool by_value, cudnn_descriptor ragged) {
    cudnn_descriptor d = make(g, DESCRIPTOR_TENSOR);
    set_enum(g, d, TENSOR_DATA_TYPE, TYPE_DATA_TYPE, type);
    set(g, d, TENSOR_DIMENSIONS, TYPE_INT64, 4, layout->dim);
    set(g, d, TENSOR_STRIDES, TYPE_INT64, 4, layout->stride);
    set_int(g, d, TENSOR_UNIQUE_ID, id);
    set_int(g, d, TENSOR_BYTE_ALIGNMENT, 16);
    set_bool(g, d, TENSOR_IS_VIRTUAL, is_virtual);
    set_bool(g, d, TENSOR_IS_BY_VALUE, by_value);
    set_descriptor(g, d, TENSOR_RAGGED_OFFSET, ragged);
    finalize(g, d, "tensor");
    return d;
}

cudnn_descriptor cudnn_tensor(cudnn_graph *g, int64_t id, int type, cudnn_layout layout, cudnn_descriptor ragged) {
    return tensor(g, id, type, &layout, false, false, ragged);
}
cudnn_descriptor cudnn_scalar(cudnn_graph *g, int64_t id, int type) {
    const cudnn_layout one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return tensor(g, id, type, &one, false, true, NULL);
}
cudnn_descriptor cudnn_virtual(cudnn_graph *g, int type, cudnn_layout layout, cudnn_descriptor ragged) {
    return tensor(g, g->next_id++, type, &layout, true, false, ragged);
}

void cudnn_pointwise(cudnn_graph *g, int mode, int math, int axis, cudnn_descriptor x, cudnn_descriptor b,
                     cudnn_descriptor t, cudnn_descriptor y) {
    cudnn_descriptor kind = make(g, DESCRIPTOR_POINTWISE);
    set_enum(g, kind, POINTWISE_MODE, TYPE_POINTWISE_MODE, mode);
    set_enum(g, kind, POINTWISE_MATH_PREC, TYPE_DATA_TYPE, math);
    if (axis >= 0) set_int(g, kind, POINTWISE_AXIS, axis);
    finalize(g, kind, "pointwise");
    cudnn_descriptor op = make(g, DESCRIPTOR_OPERATION_POINTWISE);
    set_descriptor(g, op, OPERATION_POINTWISE_DESCRIPTOR, kind);
    set_descriptor(g, op, OPERATION_POINTWISE_X, x);
    set_descriptor(g, op, OPERATION_POINTWISE_B, b);
    set_descriptor(g, op, OPERATION_POINTWISE_T, t);
    set_descriptor(g, op, OPERATION_POINTWISE_Y, y);
    add(g, op, "pointwise operation");
}

void cudnn_matmul(cudnn_graph *g, cudnn_descriptor a, cudnn_descriptor b, cudnn_descriptor c, cudnn_descriptor m,
                  cudnn_descriptor n, cudnn_descriptor k, bool pad) {
    cudnn_descriptor kind = make(g, DESCRIPTOR_MATMUL);
    double zero = 0;
    set_enum(g, kind, MATMUL_COMP_TYPE, TYPE_DATA_TYPE, DATA_FLOAT);
    if (pad) set(g, kind, MATMUL_PADDING_VALUE, TYPE_DOUBLE, 1, &zero);
    finalize(g, kind, "matmul");
    cudnn_descriptor op = make(g, DESCRIPTOR_OPERATION_MATMUL);
    set_descriptor(g, op, OPERATION_MATMUL_A, a);
    set_descriptor(g, op, OPERATION_MATMUL_B, b);
    set_descriptor(g, op, OPERATION_MATMUL_C, c);
    set_descriptor(g, op, OPERATION_MATMUL_DESCRIPTOR, kind);
    set_descriptor(g, op, OPERATION_MATMUL_M, m);
    set_descriptor(g, op, OPERATION_MATMUL_N, n);
    set_descriptor(g, op, OPERATION_MATMUL_K, k);
    add(g, op, "matmul operation");
}

void cudnn_reduce(cudnn_graph *g, int op_kind, cudnn_descriptor x, cudnn_descriptor y) {
    cudnn_descriptor kind = make(g, DESCRIPTOR_REDUCTION);
    set_enum(g, kind, REDUCTION_OPERATOR, TYPE_REDUCTION, op_kind);
    set_enum(g, kind, REDUCTION_COMP_TYPE, TYPE_DATA_TYPE, DATA_FLOAT);
    finalize(g, kind, "reduction");
    cudnn_descriptor op = make(g, DESCRIPTOR_OPERATION_REDUCTION);
    set_descriptor(g, op, OPERATION_REDUCTION_DESCRIPTOR, kind);
    set_descriptor(g, op, OPERATION_REDUCTION_X, x);
    set_descriptor(g, op, OPERATION_REDUCTION_Y, y);
    add(g, op, "reduction operation");
}

void cudnn_reshape(cudnn_graph *g, cudnn_descriptor x, cudnn_descriptor y) {
    cudnn_descriptor op = make(g, DESCRIPTOR_OPERATION_RESHAPE);
    set_descriptor(g, op, OPERATION_RESHAPE_X, x);
    set_descriptor(g, op, OPERATION_RESHAPE_Y, y);
    add(g, op, "reshape operation");
}

/* Asks the heuristics for engine configurations, best first; they land at the end of g->all. */
static int find_engines(cudnn_graph *g, cudnn_descriptor graph, cudnn_descriptor profile, cudnn_descriptor *found,
                        int room) {
    cudnn_descriptor heur = make(g, DESCRIPTOR_ENGINEHEUR);
    int64_t count = 0;
    set_descriptor(g, heur, ENGINEHEUR_OPERATION_GRAPH, graph);
    set_enum(g, heur, ENGINEHEUR_MODE, TYPE_HEUR_MODE, HEUR_MODE_A);
    set_descriptor(g, heur, ENGINEHEUR_DEVICEPROP, profile);
    finalize(g, heur, "heuristics");
    for (int i = 0; i < room; i++) found[i] = make(g, DESCRIPTOR_ENGINECFG);
    if (g->failed) return 0;
    check(g, "heuristics' results",
          g->api->BackendGetAttribute(heur, ENGINEHEUR_RESULTS, TYPE_DESCRIPTOR, room, &count, found));
    return g->failed ? 0 : (int)(count < room ? count : room);
}

/* A plan from one engine configuration; on failure g->f says why, and another may be tried. */
static bool make_plan(cudnn_graph *g, cudnn_descriptor engine, cudnn_handle handle, cudnn_plan *plan) {
    cudnn_descriptor d = NULL;
    int status = g->api->BackendCreateDescriptor(DESCRIPTOR_EXECUTION_PLAN, &d);
    if (!status) status = g->api->BackendSetAttribute(d, PLAN_HANDLE, TYPE_HANDLE, 1, &handle);
    if (!status) status = g->api->BackendSetAttribute(d, PLAN_ENGINE_CONFIG, TYPE_DESCRIPTOR, 1, &engine);
    if (!status) status = g->api->BackendFinalize(d);
    int64_t count = 0;
    if (!status) status = g->api->BackendGetAttribute(d, PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &count, &plan->workspace);
    if (!status) {
        plan->plan = d;
        return true;
    }
    refuse(g->api, g->f, "plan", status);
    if (d) g->api->BackendDestroyDescriptor(d);
    return false;
}

/* Without a device nothing can be compiled to its end: an engine that passed cuDNN's own checks is the answer. */
static bool engine_workspace(cudnn_graph *g, cudnn_descriptor engine, cudnn_plan *plan) {
    int64_t count = 0;
    check(g, "engine's workspace",
          g->api->BackendGetAttribute(engine, ENGINECFG_WORKSPACE_SIZE, TYPE_INT64, 1, &count, &plan->workspace));
    return !g->failed;
}

bool cudnn_graph_finish(cudnn_graph *g, cudnn_handle handle, const char *profile_text, cudnn_plan *plan) {
    memset(plan, 0, sizeof *plan);
    cudnn_descriptor profile = NULL, graph = NULL, engines[8];
    if (!handle) {
        profile = make(g, DESCRIPTOR_DEVICEPROP);
        set(g, profile, DEVICEPROP_JSON, TYPE_CHAR, (int64_t)strlen(profile_text) + 1, profile_text);
        finalize(g, profile, "device profile");
    }
    graph = make(g, DESCRIPTOR_OPERATIONGRAPH);
    if (handle) set(g, graph, OPERATIONGRAPH_HANDLE, TYPE_HANDLE, 1, &handle);
    set(g, graph, OPERATIONGRAPH_OPS, TYPE_DESCRIPTOR, g->ops, g->op);
    finalize(g, graph, "operation graph");
    int count = find_engines(g, graph, profile, engines, 8);
    bool done = false;
    if (!g->failed && count == 0) fail(g->f, FAIL_MACHINE, "cuDNN %zu: no engine takes this graph", g->api->version);
    for (int i = 0; i < count && !done; i++)
        done = handle ? make_plan(g, engines[i], handle, plan) : engine_workspace(g, engines[i], plan);
    memcpy(plan->all, g->all, sizeof g->all);
    plan->made = g->made;
    g->made = g->ops = 0;
    if (!done) cudnn_plan_free(g->api, plan);
    return done;
}

void cudnn_plan_free(const cudnn_api *api, cudnn_plan *plan) {
    if (plan->plan) api->BackendDestroyDescriptor(plan->plan);
    for (int i = plan->made; i-- > 0;) api->BackendDestroyDescriptor(plan->all[i]);
    memset(plan, 0, sizeof *plan);
}

bool cudnn_plan_run(const cudnn_api *api, cudnn_handle handle, const cudnn_plan *plan, int count, const int64_t *ids,
                    void *const *pointers, void *workspace, failure *f) {
    cudnn_descriptor pack = NULL;
    int status = api->BackendCreateDescriptor(DESCRIPTOR_VARIANT_PACK, &pack);
    if (!status) status = api->BackendSetAttribute(pack, PACK_UNIQUE_IDS, TYPE_INT64, count, ids);
    if (!status) status = api->BackendSetAttribute(pack, PACK_DATA_POINTERS, TYPE_VOID_PTR, count, pointers);
    if (!status) status = api->BackendSetAttribute(pack, PACK_WORKSPACE, TYPE_VOID_PTR, 1, &workspace);
    if (!status) status = api->BackendFinalize(pack);
    if (!status) status = api->BackendExecute(handle, plan->plan, pack);
    bool done = status == 0 || refuse(api, f, "execution", status);
    if (pack) api->BackendDestroyDescriptor(pack);
    return done;
}
