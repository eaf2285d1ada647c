/* test_dtype.c - every bf16 and f16 value there and back, and every rounding between two neighbours. */
#include "unit.h"

#include "base/dtype.h"

#include <math.h>

enum { VALUES = 65536 };

/* What the bits mean, by the definition of the format. */
static double meaning(unsigned bits, int mantissa_bits) {
    int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double fraction = (double)(bits & ((1u << mantissa_bits) - 1)), unit = ldexp(1, -mantissa_bits), x;
    if (exponent == (1 << exponent_bits) - 1) x = fraction != 0 ? NAN : INFINITY;
    else if (exponent == 0) x = ldexp(fraction * unit, 1 - bias);
    else x = ldexp(1 + fraction * unit, exponent - bias);
    return bits & 0x8000 ? -x : x;
}

typedef struct {
    dtype type;
    int mantissa_bits;
    float (*to)(uint16_t);
    uint16_t (*from)(float);
} format;

static float bf16_to(uint16_t b) { return bf16_to_f32(b); }

static const format formats[] = {
    {DTYPE_BF16, 7, bf16_to, bf16_from_f32},
    {DTYPE_F16, 10, f16_to_f32, f16_from_f32},
};

static void test_all_values(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (unsigned bits = 0; bits < VALUES; bits++) {
            const format *f = &formats[k];
            double want = meaning(bits, f->mantissa_bits);
            float x = f->to((uint16_t)bits);
            if (isnan(want)) {
                assert_true(isnan(x) && isnan(f->to(f->from(x))));
                continue;
            }
            assert_true(x == want && !signbit(x) == !signbit(want));
            assert_int_equal(f->from(x), bits);
        }
}

/* Between each two positive neighbours: the middle goes to the even one, what is nearer to one goes to that one. */
static void test_all_roundings(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const format *f = &formats[k];
        unsigned infinity = f->from(INFINITY);
        for (unsigned low = 0; low + 1 < infinity; low++) {
            float a = f->to((uint16_t)low), b = f->to((uint16_t)(low + 1)), middle = a + (b - a) / 2;
            assert_true(middle > a && middle < b);
            unsigned even = low % 2 ? low + 1 : low;
            assert_int_equal(f->from(middle), even);
            assert_int_equal(f->from(-middle), even | 0x8000);
            assert_int_equal(f->from(nextafterf(middle, 0)), low);
            assert_int_equal(f->from(nextafterf(middle, INFINITY)), low + 1);
        }
        float largest = f->to((uint16_t)(infinity - 1)), before = f->to((uint16_t)(infinity - 2));
        float edge = largest + (largest - before) / 2; /* halfway to the value that would come next */
        assert_int_equal(f->from(edge), infinity);
        assert_int_equal(f->from(nextafterf(edge, 0)), infinity - 1);
        assert_int_equal(f->from(-INFINITY), infinity | 0x8000);
    }
}

static void test_arrays(void **state) {
    (void)state;
    static uint16_t in[VALUES], back[VALUES];
    static float values[VALUES];
    static char shifted[2 * VALUES + 1];
    for (size_t k = 0; k < 2; k++) {
        for (unsigned i = 0; i < VALUES; i++) in[i] = (uint16_t)i;
        memcpy(shifted + 1, in, sizeof in); /* an odd address, as in a file */
        dtype_to_f32(values, shifted + 1, formats[k].type, VALUES);
        dtype_from_f32(back, formats[k].type, values, VALUES);
        for (unsigned i = 0; i < VALUES; i++)
            if (!isnan(values[i])) assert_int_equal(back[i], i);
    }
    const float x[3] = {1.5f, -0.0f, INFINITY};
    float y[3];
    dtype_to_f32(y, x, DTYPE_F32, 3);
    assert_memory_equal(x, y, sizeof x);
    dtype_from_f32(y, DTYPE_F32, x, 3);
    assert_memory_equal(x, y, sizeof x);
}

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        dtype type;
    } names[] = {{"F32", DTYPE_F32},          {"BF16", DTYPE_BF16},   {"F16", DTYPE_F16},
                 {"I32", DTYPE_I32},          {"float32", DTYPE_F32}, {"torch.bfloat16", DTYPE_BF16},
                 {"torch.float16", DTYPE_F16}};
    dtype type;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(dtype_parse(names[i].name, &type));
        assert_int_equal(type, names[i].type);
    }
    assert_false(dtype_parse("F64", &type));
    assert_false(dtype_parse("", &type));
    assert_false(dtype_parse("bf16 ", &type));
    assert_int_equal(dtype_size(DTYPE_BF16), 2);
    assert_int_equal(dtype_size(DTYPE_F32), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_values),
        cmocka_unit_test(test_all_roundings),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
