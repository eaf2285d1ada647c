/* attention_turn.cu - behind the backward of attention: dq and dk turned back through rope, in place, and dot = <dq, q>
 * + <dk, k> + <dv, v> by row, which rope leaves as it is.
 *
 * The angle is rounded to float first, as in rope.cu.  Reads every element of the six operands once and writes dq and
 * dk; without dot, q, k, v and dv are not read. */
#include "attention.h"
#include "attention_launch.cuh"
#include "cuda.cuh"

namespace {
enum { WARPS = 4, AHEAD = 2 };

template <typename T> struct pair {
    span<T> dz, z, out;
    int heads;
};

template <typename T> struct operands {
    pair<T> turned[2]; /* q, k */
    span<T> dv, v;
    int v_cols;
    const int32_t *pos;
    const float *freq;
    float *dot; /* NULL: not wanted */
    int half;
    int64_t n;
};

/* W places of some heads of one row: turned back and stored; the sum of dz z. */
template <typename T, int W>
__device__ float turn_back(const pair<T> &p, int64_t row, int place, int first, int step, int half, bool dot,
                           const float (&cosine)[W], const float (&sine)[W]) {
    const T *dz = p.dz.data + row * p.dz.ld + place, *z = p.z.data + row * p.z.ld + place;
    T *out = p.out.data + row * p.out.ld + place;
    float sum = 0;
    for (int head = first; head < p.heads; head += step * AHEAD) {
        pack<T, W> low[AHEAD], high[AHEAD], z_low[AHEAD], z_high[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int at = (head + u * step) * 2 * half;
            if (head + u * step >= p.heads) continue;
            low[u] = load<T, W>(dz + at), high[u] = load<T, W>(dz + at + half);
            if (dot) z_low[u] = load<T, W>(z + at), z_high[u] = load<T, W>(z + at + half);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int at = (head + u * step) * 2 * half;
            if (head + u * step >= p.heads) continue;
            float a[W], b[W], c[W], d[W];
            unpack<T, W>(a, low[u]);
            unpack<T, W>(b, high[u]);
            if (dot) {
                unpack<T, W>(c, z_low[u]);
                unpack<T, W>(d, z_high[u]);
#pragma unroll
                for (int i = 0; i < W; i++) sum += a[i] * c[i] + b[i] * d[i];
            }
#pragma unroll
            for (int i = 0; i < W; i++) {
                float turned = a[i] * cosine[i] + b[i] * sine[i];
                b[i] = b[i] * cosine[i] - a[i] * sine[i];
                a[i] = turned;
            }
            store<T, W>(out + at, packed<T, W>(a));
            store<T, W>(out + at + half, packed<T, W>(b));
        }
    }
    return sum;
}

/* One warp: one row.  A lane keeps the sines of W places of a head; narrow heads share the warp.
 * Grid: ceil(n / WARPS). */
template <typename T, int W> __global__ void __launch_bounds__(32 * WARPS) turn_kernel(operands<T> o) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= o.n) return;
    const int lane = threadIdx.x % 32, of_head = o.half / W, lanes = of_head < 32 ? of_head : 32;
    const int at_once = 32 / lanes;
    const float position = (float)o.pos[row];
    float sum = 0;
    for (int place = lane % lanes; place < of_head && lane < lanes * at_once; place += 32) {
        float cosine[W], sine[W];
#pragma unroll
        for (int i = 0; i < W; i++) sincosf(position * o.freq[place * W + i], &sine[i], &cosine[i]);
#pragma unroll
        for (int k = 0; k < 2; k++)
            sum += turn_back<T, W>(o.turned[k], row, place * W, lane / lanes, at_once, o.half, o.dot != NULL, cosine,
                                   sine);
    }
    if (!o.dot) return;
    const T *dv = o.dv.data + row * o.dv.ld, *v = o.v.data + row * o.v.ld;
    for (int col = lane * W; col < o.v_cols; col += 32 * W) {
        float a[W], b[W];
        unpack<T, W>(a, load<T, W>(dv + col));
        unpack<T, W>(b, load<T, W>(v + col));
#pragma unroll
        for (int i = 0; i < W; i++) sum += a[i] * b[i];
    }
    sum = group_sum(sum, 32, NULL);
    if (lane == 0) o.dot[row] = sum;
}
} // namespace

bool attention_turn(const attention_shape *s, const attention_operands *x, attention_rows dq, dtype type,
                    cudaStream_t stream, failure *f) {
    const attention_rows *rows[] = {&x->q, &x->k, &x->v, &x->dq, &x->dk, &x->dv, &dq};
    const int half = s->d / 2;
    auto launch = [&](auto zero) {
        using T = decltype(zero);
        bool is_wide = half % wide<T>() == 0;
        for (const attention_rows *r : rows)
            is_wide = is_wide && (uintptr_t)r->data % 16 == 0 && r->ld % wide<T>() == 0;
        auto at = [](const attention_rows &r) { return span<T>{(T *)r.data, r.ld}; };
        operands<T> o = {};
        o.turned[0] = {at(x->dq), at(x->q), at(dq), s->H};
        o.turned[1] = {at(x->dk), at(x->k), at(x->dk), s->G};
        o.dv = at(x->dv), o.v = at(x->v), o.v_cols = s->G * s->d;
        o.pos = x->pos, o.freq = x->freq, o.dot = x->dot, o.half = half, o.n = s->N;
        cuda_with_width<T>(is_wide, [&](auto W) {
            turn_kernel<T, W()><<<(unsigned)cuda_ceil(o.n, WARPS), 32 * WARPS, 0, stream>>>(o);
        });
    };
    if (!s->N) return true;
    if (type == DTYPE_BF16) launch(bf16());
    else launch(float());
    return attention_launched("attention backward, turning dq and dk", f);
}
