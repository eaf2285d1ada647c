/* thin.cu - launches thin_kernel.cuh: tensor maps, which CTA sums up what, what is served; see thin.h. */
#include "thin_kernel.cuh"
#include "wgmma_gemm.h"
#include "wgmma_map.cuh"

namespace {
using namespace thin;

/* false: too many slabs for the card, or places for the counters. */
bool make_plan(plan *p, int64_t blocks, const int64_t *M, int adapters, int most_chain) {
    *p = {};
    p->adapters = adapters, p->blocks = (int)blocks;
    for (int i = 0; i < adapters; i++) {
        p->of[i].first_slab = p->slabs, p->of[i].slabs = (int)cuda_ceil(M[i], SLAB);
        p->slabs += p->of[i].slabs;
    }
    int most = p->slabs ? cuda_processors() / p->slabs : 0;
    if (!most || !blocks) return false;
    p->ranges = (int)cuda_ceil(blocks, cuda_ceil(blocks, most)); /* no more than the longest range needs */
    int shortest = (int)blocks / p->ranges;                      /* range: a chain has no two slabs at one block */
    int longest = most_chain ? most_chain : shortest / CHAIN_PAYS < CHAIN ? shortest / CHAIN_PAYS : CHAIN;
    longest = longest < 1 ? 1 : longest > shortest ? shortest : longest;
    for (int i = 0; i < adapters; i++) {
        place *at = &p->of[i];
        at->first_part = p->parts;
        at->chain = (int)cuda_ceil(at->slabs, cuda_ceil(at->slabs, longest));
        p->parts += p->parts_of(i);
    }
    return p->ds_tiles() <= MAX_TURNS;
}

bool plan_of(plan *p, const thin_call *c) {
    int64_t M[THIN_ADAPTERS];
    for (int i = 0; i < c->adapters; i++) M[i] = c->of[i].M;
    return make_plan(p, cuda_ceil(c->n, ROWS), M, c->adapters, c->chain);
}

bool aligned(const void *data, int64_t ld, int64_t of) { return (uintptr_t)data % 16 == 0 && ld % of == 0; }

bool fits(const thin_adapter *a) {
    return a->M % 8 == 0 && a->r % 8 == 0 && a->r > 0 && a->r <= THIN_RANK && a->M < INT32_MAX / 2 && a->dB &&
           aligned(a->dz, a->ld_dz, 8) && aligned(a->s, a->ld_s, 8) && aligned(a->B, a->ld_B, 8) &&
           aligned(a->ds, a->ld_ds, 8) && aligned(a->dB, a->ld_dB, 4);
}
} // namespace

bool thin_serves(const thin_call *c) {
    const char *why;
    plan p;
    bool ok = wgmma_here(&why) && c->adapters > 0 && c->n > 0 && c->n < INT32_MAX / 2 && plan_of(&p, c);
    for (int i = 0; ok && i < c->adapters; i++) ok = fits(&c->of[i]);
    return ok;
}

bool thin_run(const thin_call *c, void *scratch, cudaStream_t stream, failure *f) {
    plan p;
    maps m = {};
    result out = {};
    if (!plan_of(&p, c)) return fail(f, FAIL_MACHINE, "thin products of %lld rows are not served", (long long)c->n);
    out.n = c->n, out.scale = c->scale;
    for (int i = 0; i < c->adapters; i++) {
        const thin_adapter *a = &c->of[i];
        TRY(map_matrix(&m.dz[i], a->dz, c->n, a->M, a->ld_dz, 128, f));
        TRY(map_matrix(&m.s[i], a->s, c->n, a->r, a->ld_s, 128, f));
        TRY(map_matrix(&m.B[i], a->B, a->M, a->r, a->ld_B, 128, f));
        out.ds[i] = (bf16 *)a->ds, out.ld_ds[i] = a->ld_ds, out.dB[i] = a->dB, out.ld_dB[i] = a->ld_dB;
        out.M[i] = a->M, out.r[i] = (int)a->r, out.add[i] = a->add;
    }
    float *ds = (float *)scratch, *dB = ds + p.ds_tiles() * TILE;
    static bool ready;
    if (!ready)
        TRY(cuda_check(cudaFuncSetAttribute(thin_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
                       "shared memory of the thin products", f));
    ready = true;
    cudaLaunchAttribute together;
    together.id = cudaLaunchAttributeCooperative, together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(p.slabs * p.ranges)), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED_BYTES, config.stream = stream;
    config.attrs = &together, config.numAttrs = 1;
    TRY(cuda_check(cudaLaunchKernelEx(&config, thin_kernel, p, ds, dB, m), "launch of the thin products", f));
    unsigned tiles = (unsigned)(p.adapters * p.blocks + p.slabs * PAIRS);
    cuda_launch(combine_kernel, 4 * tiles, COMBINE_THREADS, p, (const float *)ds, (const float *)dB, out);
    return cuda_check(cudaGetLastError(), "launch of the thin products' sums", f);
}

size_t thin_scratch(int64_t n, const int64_t *M, int adapters, int64_t r) {
    const char *why;
    int64_t most = 0;
    if (!wgmma_here(&why) || r > THIN_RANK || r % 8) return 0;
    for (int64_t blocks = 1; blocks <= cuda_ceil(n, ROWS); blocks++) {
        plan p;
        if (make_plan(&p, blocks, M, adapters, 0) && p.ds_tiles() + p.dB_tiles() > most)
            most = p.ds_tiles() + p.dB_tiles();
    }
    return (size_t)most * TILE * sizeof(float);
}
