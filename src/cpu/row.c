/* row.c - loops over one row, built for several instruction sets.
 *
 * exp and sin/cos are own polynomials because libm's cannot be vectorised by the compiler without giving up strict
 * arithmetic everywhere.  Both are within 2 units in the last place (test/ops checks it).  Sums run over as many
 * lanes as the vector has: the same bits on every run of one machine. */
#include "base/simd.h"
#include "cpu/cpu.h"

#include <assert.h>

static inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

#include "cpu/exp.h"

SIMD_CLONES static void convert_bf16(float *restrict out, const uint16_t *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = float_of_bits((uint32_t)in[i] << 16);
}

/* Exponent and mantissa moved into place and scaled by 2^112 (which also makes subnormals right); infinities and NaN
 * have their exponent set. */
SIMD_CLONES static void convert_f16(float *restrict out, const uint16_t *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = in[i], magnitude = h & 0x7FFF;
        uint32_t finite = bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f);
        uint32_t bits = magnitude >= 0x7C00 ? magnitude << 13 | 0x7F800000u : finite;
        out[i] = float_of_bits(bits | (h & 0x8000) << 16);
    }
}

void cpu_convert(float *out, const void *in, dtype type, int64_t n) {
    if ((uintptr_t)in % dtype_size(type) != 0) { /* a mapped file may put a tensor anywhere */
        dtype_to_f32(out, in, type, (size_t)n);
        return;
    }
    switch (type) {
    case DTYPE_F32: memcpy(out, in, (size_t)n * 4); break;
    case DTYPE_BF16: convert_bf16(out, in, n); break;
    case DTYPE_F16: convert_f16(out, in, n); break;
    case DTYPE_I32:
    case DTYPE_COUNT: assert(!"a weight of floats");
    }
}

const float *cpu_vector(const tensor *w, float **scratch) {
    if (!w->data || w->type == DTYPE_F32) return w->data;
    float *out = cpu_take(scratch, w->rows * w->cols);
    cpu_convert(out, w->data, w->type, w->rows * w->cols);
    return out;
}

SIMD_CLONES float cpu_dot(const float *a, const float *b, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

SIMD_CLONES float cpu_dot_bf16(const float *a, const uint16_t *b, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * float_of_bits((uint32_t)b[i] << 16);
    return sum;
}

SIMD_CLONES void cpu_dot4(float *out, const float *a, const float *b, int64_t n) {
    const float *b1 = b + n, *b2 = b1 + n, *b3 = b2 + n;
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t i = 0; i < n; i++) {
        s0 += a[i] * b[i];
        s1 += a[i] * b1[i];
        s2 += a[i] * b2[i];
        s3 += a[i] * b3[i];
    }
    out[0] = s0, out[1] = s1, out[2] = s2, out[3] = s3;
}

SIMD_CLONES void cpu_dot4_bf16(float *out, const float *a, const uint16_t *b, int64_t n) {
    const uint16_t *b1 = b + n, *b2 = b1 + n, *b3 = b2 + n;
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t i = 0; i < n; i++) {
        s0 += a[i] * float_of_bits((uint32_t)b[i] << 16);
        s1 += a[i] * float_of_bits((uint32_t)b1[i] << 16);
        s2 += a[i] * float_of_bits((uint32_t)b2[i] << 16);
        s3 += a[i] * float_of_bits((uint32_t)b3[i] << 16);
    }
    out[0] = s0, out[1] = s1, out[2] = s2, out[3] = s3;
}

SIMD_CLONES float cpu_max(const float *x, int64_t n) {
    float max = x[0];
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

SIMD_CLONES float cpu_exp_sum(float *y, const float *x, float shift, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float e = cpu_exp(x[i] - shift);
        y[i] = e;
        sum += e;
    }
    return sum;
}

SIMD_CLONES float cpu_exp_sum_only(const float *x, float shift, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += cpu_exp(x[i] - shift);
    return sum;
}

SIMD_CLONES void cpu_scale(float *y, const float *x, float by, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * by;
}

SIMD_CLONES void cpu_add(float *y, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

/* The angle is rounded to float first, as Hugging Face computes it, then reduced by multiples of pi/2 in double. */
SIMD_CLONES void cpu_sincos(float *cosine, float *sine, const float *freq, float position, int64_t n) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float angle = position * freq[j];
        double turns = (double)angle * 0.63661977236758134308 + 0x1.8p52;
        uint64_t bits;
        memcpy(&bits, &turns, 8);
        uint32_t quadrant = (uint32_t)bits & 3;
        double x = (double)angle - (turns - 0x1.8p52) * 1.57079632679489661923, z = x * x;
        double s = x + x * z * (-1. / 6 + z * (1. / 120 + z * (-1. / 5040 + z * (1. / 362880))));
        double c = 1 + z * (-1. / 2 + z * (1. / 24 + z * (-1. / 720 + z * (1. / 40320 - z * (1. / 3628800)))));
        float sf = (float)s, cf = (float)c;
        float so = quadrant & 1 ? cf : sf, co = quadrant & 1 ? sf : cf;
        sine[j] = quadrant & 2 ? -so : so;
        cosine[j] = (quadrant + 1) & 2 ? -co : co;
    }
}
