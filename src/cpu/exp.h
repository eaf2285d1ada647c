/* exp.h - e^x for float that the compiler can vectorise; within 2 units in the last place for -87.3 <= x <= 88.
 * Outside, the argument is clamped (1.2e-38 and 1.65e38); NaN stays NaN. */
#ifndef CPU_EXP_H
#define CPU_EXP_H
#include <stdint.h>
#include <string.h>

static inline float cpu_exp(float x) {
    x = x < -87.33f ? -87.33f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + 0x1.8p23f; /* round(x / ln 2) in the low bits */
    float n = shifted - 0x1.8p23f;
    float r = x - n * 0.693359375f; /* exact: the first 10 bits of ln 2 */
    r = r + n * 2.12194440e-4f;     /* ... minus ln 2 */
    float p = 1.9875691500e-4f;     /* e^r = 1 + r + r^2 p(r) on |r| <= ln(2)/2 (minimax, Cephes) */
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float y = p * (r * r) + r + 1.0f;
    uint32_t bits, power;
    memcpy(&power, &shifted, 4);
    memcpy(&bits, &y, 4);
    bits += power << 23; /* times 2^n: the exponent field grows by n */
    memcpy(&y, &bits, 4);
    return y;
}
#endif
