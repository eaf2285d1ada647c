/* dtype.h - element types of stored arrays, under the names safetensors uses, and conversion to and from float. */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_COUNT } dtype;

size_t dtype_size(dtype t);
const char *dtype_name(dtype t);                /* "F32", "BF16", "F16", "I32" */
bool dtype_parse(const char *name, dtype *out); /* safetensors' names, and torch's ("bfloat16", "torch.float32") */

static inline float bf16_to_f32(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
uint16_t bf16_from_f32(float x); /* nearest, ties to even; NaN stays NaN */
float f16_to_f32(uint16_t h);
uint16_t f16_from_f32(float x);

/* n elements; `in` may have any alignment. I32 is refused by assert. */
void dtype_to_f32(float *out, const void *in, dtype t, size_t n);
void dtype_from_f32(void *out, dtype t, const float *in, size_t n);
#endif
