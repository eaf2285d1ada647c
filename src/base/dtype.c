/* dtype.c - bf16 and f16 by their bits: rounding to the nearest, ties to even, subnormals kept. */
#include "base/dtype.h"

#include <assert.h>
#include <math.h>

static const struct {
    const char *name, *torch;
    size_t size;
} info[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", "float32", 4},
    [DTYPE_BF16] = {"BF16", "bfloat16", 2},
    [DTYPE_F16] = {"F16", "float16", 2},
    [DTYPE_I32] = {"I32", "int32", 4},
};

size_t dtype_size(dtype t) { return info[t].size; }
const char *dtype_name(dtype t) { return info[t].name; }

bool dtype_parse(const char *name, dtype *out) {
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (dtype t = 0; t < DTYPE_COUNT; t++)
        if (strcmp(name, info[t].name) == 0 || strcmp(name, info[t].torch) == 0) return *out = t, true;
    return false;
}

uint16_t bf16_from_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40); /* NaN: keep it quiet */
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float x = exponent == 31 ? (mantissa ? NAN : INFINITY)
              : exponent     ? ldexpf((float)(mantissa + 1024), exponent - 25)
                             : ldexpf((float)mantissa, -24);
    return h & 0x8000 ? -x : x;
}

uint16_t f16_from_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    float a = fabsf(x);
    if (isnan(x)) return sign | 0x7E00;
    if (a >= 65520.0f) return sign | 0x7C00;                                 /* rounds to infinity */
    if (a < 6.103515625e-05f) return sign | (uint16_t)lrintf(ldexpf(a, 24)); /* subnormal: units of 2^-24 */
    bits = (bits & 0x7FFFFFFFu) + 0xFFFu + (bits >> 13 & 1);
    return sign | (uint16_t)((bits >> 13) - (112u << 10));
}

void dtype_to_f32(float *out, const void *in, dtype t, size_t n) {
    assert(t != DTYPE_I32);
    if (t == DTYPE_F32) {
        memcpy(out, in, n * 4);
        return;
    }
    const char *bytes = in;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, bytes + 2 * i, 2);
        out[i] = t == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
    }
}

void dtype_from_f32(void *out, dtype t, const float *in, size_t n) {
    assert(t != DTYPE_I32);
    if (t == DTYPE_F32) {
        memcpy(out, in, n * 4);
        return;
    }
    char *bytes = out;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = t == DTYPE_BF16 ? bf16_from_f32(in[i]) : f16_from_f32(in[i]);
        memcpy(bytes + 2 * i, &h, 2);
    }
}
