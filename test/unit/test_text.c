/* test_text.c - UTF-8 against a table of the standard's limits, numbers, the nearest name, the growing string. */
#include "unit.h"

#include "base/text.h"

#include <string.h>

static void test_utf8_all_codes(void **state) {
    (void)state;
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        char bytes[4];
        uint32_t back = 0;
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        int n = utf8_put(bytes, code);
        assert_int_equal(n, code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_next(bytes, (size_t)n, &back), n);
        assert_int_equal(back, code);
        if (n > 1) assert_int_equal(utf8_next(bytes, (size_t)n - 1, &back), 0);
    }
}

/* All two-byte texts, against the rule written the other way round: both ASCII, or one well-formed pair. */
static void test_utf8_two_bytes(void **state) {
    (void)state;
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++) {
            const char bytes[2] = {(char)a, (char)b};
            size_t want = a < 0x80 ? (b < 0x80 ? 2 : 1) : (a >= 0xC2 && a <= 0xDF && b >= 0x80 && b <= 0xBF) ? 2 : 0;
            assert_int_equal(utf8_check(bytes, 2), want);
        }
}

static void test_utf8_limits(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t valid; /* how many bytes are valid from the start */
    } cases[] = {
        {"", 0},
        {"a\xC3\xA9z", 4},
        {"\xED\x9F\xBF", 3},     /* U+D7FF */
        {"\xED\xA0\x80", 0},     /* a surrogate */
        {"\xEE\x80\x80", 3},     /* U+E000 */
        {"\xE0\x9F\xBF", 0},     /* U+07FF in three bytes */
        {"\xE0\xA0\x80", 3},     /* U+0800 */
        {"\xF0\x8F\xBF\xBF", 0}, /* U+FFFF in four bytes */
        {"\xF0\x90\x80\x80", 4}, /* U+10000 */
        {"\xF4\x8F\xBF\xBF", 4}, /* U+10FFFF */
        {"\xF4\x90\x80\x80", 0}, /* one more */
        {"\xF5\x80\x80\x80", 0},
        {"\xFF", 0},
        {"ab\x80", 2},
        {"ab\xE2\x82", 2}, /* cut short */
        {"ab\xE2\x82z", 2},
        {"\xF0\x9F\xA6\x99!", 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(utf8_check(cases[i].bytes, strlen(cases[i].bytes)), cases[i].valid);
}

static void test_numbers(void **state) {
    (void)state;
    double x;
    int64_t n;
    assert_true(text_to_double("-1.5e3", &x) && x == -1500);
    assert_true(text_to_double(".5", &x) && x == 0.5);
    assert_true(text_to_double("5.", &x) && x == 5);
    assert_true(text_to_double("4.9e-324", &x) && x > 0);
    static const char *const no_double[] = {"",   ".",   "-",   "e",   "1e",  "1e+",   "1 ",
                                            " 1", "1,5", "0x1", "nan", "inf", "1e309", "1-2"};
    for (size_t i = 0; i < sizeof no_double / sizeof *no_double; i++) assert_false(text_to_double(no_double[i], &x));
    assert_true(text_to_int("-9223372036854775808", &n) && n == INT64_MIN);
    assert_true(text_to_int("+7", &n) && n == 7);
    assert_true(text_to_int("007", &n) && n == 7);
    static const char *const no_int[] = {"",   "-",     "+-1", "9223372036854775808", "1.0", "1e3", "0x10",
                                         " 1", "1_000", "1-1"};
    for (size_t i = 0; i < sizeof no_int / sizeof *no_int; i++) assert_false(text_to_int(no_int[i], &n));
}

static void test_nearest(void **state) {
    (void)state;
    static const char *const names[] = {"lora_rank", "lora_alpha", "seed", "max_steps"};
    assert_string_equal(text_nearest("lora_rnak", names, 4), "lora_rank");
    assert_string_equal(text_nearest("lora_alpa", names, 4), "lora_alpha");
    assert_string_equal(text_nearest("seeds", names, 4), "seed");
    assert_string_equal(text_nearest("seed", names, 4), "seed");
    assert_string_equal(text_nearest("maxsteps", names, 4), "max_steps");
    assert_null(text_nearest("zzzz", names, 4));
    assert_null(text_nearest("", names, 0));
    char longest[300];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_null(text_nearest(longest, names, 4));
}

static void test_growing_text(void **state) {
    (void)state;
    text_buf t = {0};
    for (int i = 0; i < 1000; i++) text_printf(&t, "%d,", i);
    assert_int_equal(t.size, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(strlen(t.data), t.size);
    assert_memory_equal(t.data + t.size - 8, "998,999,", 9);
    text_clear(&t);
    assert_string_equal(t.data, "");
    text_add(&t, "a\0b", 3);
    text_puts(&t, "");
    assert_int_equal(t.size, 3);
    assert_memory_equal(t.data, "a\0b", 4);
    text_free(&t);
    assert_null(t.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_all_codes), cmocka_unit_test(test_utf8_two_bytes),
        cmocka_unit_test(test_utf8_limits),    cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_nearest),        cmocka_unit_test(test_growing_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
