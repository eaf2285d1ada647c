/* gemm.c - matrix products by cuBLASLt, the algorithm chosen by timing; see gemm.h.
 *
 * cuBLASLt is column-major: a row-major matrix is its own transpose there, so c' = op(b)' op(a)' is asked for, with b
 * as its first operand. Timing runs the product on the operands themselves.  With beta == 0 that may be repeated at
 * will.  A sum that is added to (beta != 0) is timed with alpha 1e-30 of the real one: what this leaves behind vanishes
 * in rounding when the real product is added.  Reductions with atomics, and those that round partial sums to c's type,
 * are not let in. */
#include "gemm.h"
#include "base/array.h"
#include "base/file.h"
#include "base/text.h"

#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

enum { CANDIDATES = 16, WORKSPACE = 64 << 20, LEAST_STEP = 16, KEY = 12, MOST_CACHE = 16 << 20 };
static const float VANISHING = 1e-30f;

typedef struct {
    int64_t v[KEY];
} gemm_key;

typedef struct {
    gemm_key key;
    cublasLtMatmulAlgo_t algo;
    bool unchecked; /* read from the file, which may be damaged */
} known_algo;

/* A product in cuBLASLt's terms. */
typedef struct {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, c;
} problem;

static struct {
    cublasLtHandle_t handle;
    void *workspace;
    cudaEvent_t from, to;
    known_algo *known; /* stb_ds; about a hundred */
    ptrdiff_t last;    /* found last: steps repeat, so the next one is likely the one behind it */
    char *file;        /* NULL: none */
    char platform[320];
    bool timed;
} state;

void gemm_set_timed(bool timed) {
    if (!timed) arrfree(state.known);
    state.last = 0;
    state.timed = timed;
}

static const char *const form_names[] = {"NT", "NN", "TN"};

static bool complain(const gemm_call *g, const char *what, cublasStatus_t status, failure *f) {
    return fail(f, FAIL_MACHINE, "product %s [%lld, %lld] over %lld, %s to %s, strides %lld %lld %lld: %s: %s",
                form_names[g->form], (long long)g->rows, (long long)g->cols, (long long)g->depth, dtype_name(g->in),
                dtype_name(g->out), (long long)g->lda, (long long)g->ldb, (long long)g->ldc, what,
                cublasLtGetStatusString(status));
}

static cudaDataType cuda_type(dtype type) {
    return type == DTYPE_BF16 ? CUDA_R_16BF : type == DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static cublasStatus_t set_desc(problem *p, cublasLtMatmulDescAttributes_t name, const void *value, size_t size) {
    return cublasLtMatmulDescSetAttribute(&p->desc, name, value, size);
}

static bool describe(problem *p, const gemm_call *g, failure *f) {
    cublasOperation_t first = g->form == GEMM_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = g->form == GEMM_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t rows = (uint64_t)g->rows, cols = (uint64_t)g->cols, depth = (uint64_t)g->depth;
    bool b_is_t = g->form == GEMM_NT, a_is_t = g->form == GEMM_TN;
    cudaDataType in = cuda_type(g->in), out = cuda_type(g->out);
    cublasStatus_t s = cublasLtMatmulDescInit(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = set_desc(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (!s) s = set_desc(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (!s && g->bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        s = set_desc(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        if (!s) s = set_desc(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
        if (!s) s = set_desc(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &out, sizeof out);
    }
    if (!s) s = cublasLtMatrixLayoutInit(&p->a, in, b_is_t ? depth : cols, b_is_t ? cols : depth, g->ldb);
    if (!s) s = cublasLtMatrixLayoutInit(&p->b, in, a_is_t ? rows : depth, a_is_t ? depth : rows, g->lda);
    if (!s) s = cublasLtMatrixLayoutInit(&p->c, out, cols, rows, g->ldc);
    return s ? complain(g, "cannot be described", s, f) : true;
}

/* The largest power of 2, up to 256, that the address is a multiple of. */
static uint32_t alignment(const void *p) {
    uintptr_t at = (uintptr_t)p | 256;
    return (uint32_t)(at & (~at + 1));
}

/* Token rows, rounded up so that the batches of a run fall on few shapes: at most 8 between n and 2 n. */
static int64_t rounded(int64_t n) {
    int64_t step = LEAST_STEP;
    while (step * 16 < n) step *= 2;
    return (n + step - 1) / step * step;
}

/* The token rows are `rows` of NT and NN and `depth` of TN. */
static gemm_key key_of(const gemm_call *g) {
    bool tn = g->form == GEMM_TN;
    return (gemm_key){{g->form, g->in, g->out, tn ? g->rows : rounded(g->rows), g->cols,
                       tn ? rounded(g->depth) : g->depth, g->lda, g->ldb, g->ldc,
                       (int64_t)alignment(g->a) << 20 | (int64_t)alignment(g->b) << 10 | alignment(g->c), g->beta != 0,
                       g->bias ? alignment(g->bias) : 0}};
}

static known_algo *find(const gemm_key *key) {
    ptrdiff_t n = arrlen(state.known);
    for (ptrdiff_t i = 1; i <= n; i++) {
        ptrdiff_t at = (state.last + i) % n;
        if (memcmp(&state.known[at].key, key, sizeof *key) == 0) return &state.known[state.last = at];
    }
    return NULL;
}

static cublasStatus_t start(const gemm_call *g, problem *p, const cublasLtMatmulAlgo_t *algo, float alpha) {
    return cublasLtMatmul(state.handle, &p->desc, &alpha, g->b, &p->a, g->a, &p->b, &g->beta, g->c, &p->c, g->c, &p->c,
                          algo, state.workspace, WORKSPACE, cuda_stream());
}

/* What cuBLASLt proposes, best guess first. */
static bool propose(const gemm_call *g, problem *p, cublasLtMatmulHeuristicResult_t *list, int most, int *n,
                    failure *f) {
    cublasLtMatmulPreferenceOpaque_t want;
    uint64_t room = WORKSPACE;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, a = alignment(g->b), b = alignment(g->a);
    uint32_t c = alignment(g->c);
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size;
    } wants[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
    };
    cublasStatus_t s = cublasLtMatmulPreferenceInit(&want);
    for (size_t i = 0; !s && i < sizeof wants / sizeof *wants; i++)
        s = cublasLtMatmulPreferenceSetAttribute(&want, wants[i].name, wants[i].value, wants[i].size);
    *n = 0;
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(state.handle, &p->desc, &p->a, &p->b, &p->c, &p->c, &want, most, list, n);
    if (s || *n == 0) return complain(g, "no algorithm", s ? s : CUBLAS_STATUS_NOT_SUPPORTED, f);
    return true;
}

/* Milliseconds of one run, the mean of `runs`; negative when it cannot run. */
static float time_runs(const gemm_call *g, problem *p, const cublasLtMatmulAlgo_t *algo, int runs) {
    float ms = -1, alpha = g->beta != 0 ? g->alpha * VANISHING : g->alpha;
    bool ok = cudaEventRecord(state.from, cuda_stream()) == cudaSuccess;
    for (int i = 0; i < runs && ok; i++) ok = start(g, p, algo, alpha) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cudaEventRecord(state.to, cuda_stream()) == cudaSuccess;
    ok = ok && cudaEventSynchronize(state.to) == cudaSuccess;
    if (!ok || cudaEventElapsedTime(&ms, state.from, state.to) != cudaSuccess) return -1;
    return ms / (float)runs;
}

/* One run to warm up, one to see what it takes; those not far behind then run for about 2 ms in all. */
static int fastest(const gemm_call *g, problem *p, const cublasLtMatmulHeuristicResult_t *list, int n) {
    int best = 0;
    float best_ms = -1;
    for (int i = 0; i < n; i++) {
        if (list[i].state != CUBLAS_STATUS_SUCCESS || list[i].workspaceSize > WORKSPACE) continue;
        if (time_runs(g, p, &list[i].algo, 1) < 0) continue;
        float ms = time_runs(g, p, &list[i].algo, 1);
        if (ms < 0 || (best_ms >= 0 && ms > 1.3f * best_ms + 0.02f)) continue;
        int runs = ms > 0.5f ? 3 : ms > 0.05f ? 8 : 20;
        ms = time_runs(g, p, &list[i].algo, runs);
        if (ms < 0 || (best_ms >= 0 && ms >= best_ms)) continue;
        best = i, best_ms = ms;
    }
    return best;
}

/* ---- the file: one line per shape, KEY decimal numbers and the algorithm's words ---- */

enum { WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

static void remember_in_file(const gemm_key *key, const cublasLtMatmulAlgo_t *algo) {
    FILE *file = state.file ? fopen(state.file, "a") : NULL;
    if (!file) return; /* a cache that cannot be written costs the timing at the next start, nothing else */
    text_buf line = {0};
    for (int i = 0; i < KEY; i++) text_printf(&line, "%lld ", (long long)key->v[i]);
    for (int i = 0; i < WORDS; i++)
        text_printf(&line, "%llx%c", (unsigned long long)algo->data[i], i + 1 < WORDS ? ' ' : '\n');
    fwrite(line.data, 1, line.size, file);
    fclose(file);
    text_free(&line);
}

static bool read_line(char *line, gemm_key *key, cublasLtMatmulAlgo_t *algo) {
    for (int i = 0; i < KEY + WORDS; i++) {
        char *end;
        unsigned long long value = strtoull(line, &end, i < KEY ? 10 : 16);
        if (end == line || (*end != ' ' && *end != '\n' && *end != 0)) return false;
        if (i < KEY) key->v[i] = (int64_t)value;
        else algo->data[i - KEY] = value;
        line = end;
    }
    return true;
}

static void read_file(void) {
    char *text;
    size_t n;
    failure ignored = {0};
    if (!state.file || !file_read(&text, &n, MOST_CACHE, state.file, &ignored)) return;
    for (char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n');
        if (!next) break; /* cut off while written */
        *next++ = 0;
        known_algo k;
        memset(&k, 0, sizeof k);
        k.unchecked = true;
        if (read_line(line, &k.key, &k.algo)) arrput(state.known, k);
    }
    free(text);
}

const char *gemm_platform(void) { return state.platform; }

static void name_file(const char *cache) {
    struct cudaDeviceProp card;
    int device;
    failure ignored = {0};
    if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&card, device) != cudaSuccess) return;
    for (char *c = card.name; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9'))) *c = '-';
    snprintf(state.platform, sizeof state.platform, "%s-%d-cublaslt-%zu", card.name, card.multiProcessorCount,
             cublasLtGetVersion());
    if (!cache || !file_make_folders(cache, &ignored)) return;
    text_buf path = {0};
    text_printf(&path, "%s/products-1-%s.txt", cache, state.platform);
    state.file = path.data;
}

bool gemm_open(const char *cache, failure *f) {
    memset(&state, 0, sizeof state);
    state.timed = true;
    cublasStatus_t s = cublasLtCreate(&state.handle);
    if (s) return fail(f, FAIL_MACHINE, "cuBLASLt cannot start: %s", cublasLtGetStatusString(s));
    TRY(cuda_check(cudaMalloc(&state.workspace, WORKSPACE), "work space of matrix products", f));
    TRY(cuda_check(cudaEventCreate(&state.from), "event", f));
    TRY(cuda_check(cudaEventCreate(&state.to), "event", f));
    name_file(cache);
    read_file();
    return true;
}

void gemm_close(void) {
    if (state.workspace) cudaFree(state.workspace);
    if (state.from) cudaEventDestroy(state.from);
    if (state.to) cudaEventDestroy(state.to);
    if (state.handle) cublasLtDestroy(state.handle);
    arrfree(state.known);
    free(state.file);
    memset(&state, 0, sizeof state);
}

/* The algorithm for the shape that g's is rounded to, whichever g of that shape comes first. */
static bool choose_untimed(const gemm_call *g, cublasLtMatmulAlgo_t *algo, failure *f) {
    gemm_call round = *g;
    problem p;
    int n;
    cublasLtMatmulHeuristicResult_t first;
    if (g->form == GEMM_TN) round.depth = rounded(g->depth);
    else round.rows = rounded(g->rows);
    TRY(describe(&p, &round, f));
    TRY(propose(&round, &p, &first, 1, &n, f));
    *algo = first.algo;
    return true;
}

/* The algorithm for this shape, which is new; timed now. */
static bool choose(const gemm_call *g, problem *p, const gemm_key *key, cublasLtMatmulAlgo_t *algo, failure *f) {
    cublasLtMatmulHeuristicResult_t list[CANDIDATES];
    int n;
    if (!state.timed) TRY(choose_untimed(g, algo, f));
    else {
        TRY(propose(g, p, list, CANDIDATES, &n, f));
        *algo = list[n > 1 ? fastest(g, p, list, n) : 0].algo;
        remember_in_file(key, algo);
    }
    arrput(state.known, ((known_algo){*key, *algo, false}));
    return true;
}

/* Whether an algorithm of the file may run these operands. */
static bool fits(problem *p, const cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(state.handle, &p->desc, &p->a, &p->b, &p->c, &p->c, algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= WORKSPACE;
}

/* Runs with the algorithm kept for the shape. false: it does not run these operands (their rows differ a little from
 * those it was chosen for). */
static bool run_known(const gemm_call *g, problem *p, known_algo *known) {
    if (known->unchecked && !fits(p, &known->algo)) return false;
    known->unchecked = false;
    return start(g, p, &known->algo, g->alpha) == CUBLAS_STATUS_SUCCESS;
}

bool gemm_run(const gemm_call *g, failure *f) {
    if (g->rows == 0 || g->cols == 0 || g->depth == 0) {
        if (g->beta != 0 || g->rows == 0 || g->cols == 0) return true;
        size_t size = dtype_size(g->out);
        return cuda_check(
            cudaMemset2DAsync(g->c, (size_t)g->ldc * size, 0, (size_t)g->cols * size, (size_t)g->rows, cuda_stream()),
            "clearing a product over nothing", f);
    }
    problem p;
    TRY(describe(&p, g, f));
    gemm_key key = key_of(g);
    known_algo *known = find(&key);
    if (known && run_known(g, &p, known)) return true;
    if (known && known->unchecked) known->key.v[0] = -1, known = NULL; /* damaged: chosen again */
    cublasLtMatmulAlgo_t algo;
    if (!known) {
        TRY(choose(g, &p, &key, &algo, f));
        if (start(g, &p, &algo, g->alpha) == CUBLAS_STATUS_SUCCESS) return true;
    }
    cublasLtMatmulHeuristicResult_t first; /* for exactly these rows */
    int n;
    TRY(propose(g, &p, &first, 1, &n, f));
    cublasStatus_t s = start(g, &p, &first.algo, g->alpha);
    return s ? complain(g, "did not start", s, f) : true;
}

void gemm(const gemm_call *g) {
    failure *f = cuda_failure();
    if (f->kind == FAIL_NONE) gemm_run(g, f);
}
