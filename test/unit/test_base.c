/* test_base.c - JSON from outside, random numbers, files that are whole or absent, failures, arenas. */
#include "unit.h"

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/rng.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static failure f;

static void refuse_json(const char *text, size_t n, const char *part) {
    cJSON *root = NULL;
    f = (failure){0};
    assert_false(json_parse(&root, text, n, "file.json", &f));
    assert_int_equal(f.kind, FAIL_INPUT);
    if (!strstr(f.text, "file.json") || !strstr(f.text, part)) test_fail("\"%s\" is not in: %s", part, f.text);
}

static void test_json_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "empty"},
        {"{\"a\": 1} x", ":1:"},
        {"{\"a\": 1}{", ":1:"},
        {"{\n \"a\": 1,\n}", ":3:"},
        {"[1, 2", "not JSON"},
        {"{'a': 1}", "not JSON"},
        {"{\"a\": 01x}", "not JSON"},
        {"NaN", "not JSON"},
        {"{\"a\": 1, \"b\": 2, \"a\": 3}", "\"a\" stands twice"},
        {"[{\"x\": {\"k\": 1, \"k\": 1}}]", "\"k\" stands twice"},
        {"\"a\\u0000b\"", "NUL"},
        {"\"\\\\\\u0000\"", "NUL"},
        {"\"\xff\"", "not UTF-8"},
        {"\"\\ud83e\"", "not JSON"}, /* a lone surrogate */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse_json(cases[i].text, strlen(cases[i].text), cases[i].part);
    refuse_json("\"a\0b\"", 5, "NUL");
    text_buf deep = {0};
    for (int i = 0; i < 100000; i++) text_puts(&deep, "[");
    refuse_json(deep.data, deep.size, "not JSON");
    text_free(&deep);
}

static void test_json_taken(void **state) {
    (void)state;
    cJSON *root;
    const char *text = "\xEF\xBB\xBF{\"i\": 7, \"d\": 1e-5, \"t\": true, \"s\": \"\\ud83e\\udd99\", \"n\": null, "
                       "\"b\": \"\\\\u0000\"}\r\n";
    assert_done(json_parse(&root, text, strlen(text), "file.json", &f), &f);
    int64_t i = 0;
    double d = 0;
    bool t = false;
    const char *s = NULL;
    assert_done(json_get_int(root, "i", 0, 9, &i, "p", &f) && json_get_double(root, "d", &d, "p", &f), &f);
    assert_done(json_get_bool(root, "t", &t, "p", &f) && json_get_string(root, "s", &s, "p", &f), &f);
    assert_true(i == 7 && d == 1e-5 && t);
    assert_string_equal(s, "\xF0\x9F\xA6\x99");
    assert_done(json_get_string(root, "b", &s, "p", &f), &f);
    assert_string_equal(s, "\\u0000");
    i = 5; /* absent and null leave the value alone */
    assert_done(json_get_int(root, "none", 0, 9, &i, "p", &f) && json_get_int(root, "n", 0, 9, &i, "p", &f), &f);
    assert_int_equal(i, 5);
    assert_false(json_get_int(root, "i", 8, 9, &i, "place", &f));
    assert_string_equal(f.text, "place: i: found 7, expected 8 to 9");
    assert_false(json_get_int(root, "d", 0, 9, &i, "place", &f));
    assert_false(json_get_int(root, "s", 0, 9, &i, "place", &f));
    assert_string_equal(f.text, "place: s: found string, expected an integer");
    assert_false(json_get_bool(root, "i", &t, "place", &f));
    assert_false(json_need(root, "n", "place", &f));
    assert_null(json_find(root, "n"));
    cJSON_Delete(root);
}

static void test_json_many_keys(void **state) {
    (void)state;
    enum { KEYS = 200000 }; /* a search that is quadratic would take minutes */
    text_buf t = {0};
    text_puts(&t, "{");
    for (int i = 0; i < KEYS; i++) text_printf(&t, "%s\"key%d\": %d", i ? "," : "", i, i);
    text_puts(&t, ",\"key7\": 1}");
    refuse_json(t.data, t.size, "\"key7\" stands twice");
    text_free(&t);
}

static void test_json_written(void **state) {
    (void)state;
    text_buf t = {0};
    const char all[] = "\x01\x1f \"\\/\b\f\n\r\t\x7f\xC3\xA9\xF0\x9F\xA6\x99";
    json_put_string(&t, all, strlen(all));
    cJSON *root;
    assert_done(json_parse(&root, t.data, t.size, "written", &f), &f);
    assert_string_equal(root->valuestring, all);
    cJSON_Delete(root);
    static const struct {
        double x;
        const char *text;
    } numbers[] = {{0, "0"},
                   {0.1, "0.1"},
                   {1e-5, "1e-05"},
                   {1234.56, "1234.56"},
                   {1.0 / 3, "0.3333333333333333"},
                   {NAN, "null"},
                   {INFINITY, "null"},
                   {5e-324, "4.94066e-324"},
                   {1e23, "1e+23"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        text_clear(&t);
        json_put_double(&t, numbers[i].x);
        assert_string_equal(t.data, numbers[i].text);
    }
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t bits = rng_bits(1, i);
        double x, back;
        memcpy(&x, &bits, 8);
        if (!isfinite(x)) continue;
        text_clear(&t);
        json_put_double(&t, x);
        assert_true(text_to_double(t.data, &back) && back == x);
    }
    text_free(&t);
}

/* The published first outputs of SplitMix64 with seed 0: rng_mix of 0, g, 2g with g its increment. */
static void test_rng_mixer(void **state) {
    (void)state;
    const uint64_t g = 0x9E3779B97F4A7C15u;
    assert_true(rng_mix(0) == 0xE220A8397B1DCDAFu);
    assert_true(rng_mix(g) == 0x6E789E6AA1B965F4u);
    assert_true(rng_mix(2 * g) == 0x06C45D188009454Fu);
}

static void test_rng_moments(void **state) {
    (void)state;
    enum { N = 200000 };
    double mean = 0, square = 0, cube = 0, fourth = 0, uniform = 0, neighbours = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(7, i), x = rng_normal(7, i);
        assert_true(u >= 0 && u < 1 && isfinite(x));
        uniform += u;
        mean += x;
        square += x * x;
        cube += x * x * x;
        fourth += x * x * x * x;
        neighbours += (u - 0.5) * (rng_uniform(8, i) - 0.5);
    }
    const double tolerance = 5 / sqrt(N); /* five standard errors */
    assert_true(fabs(uniform / N - 0.5) < tolerance * 0.2887);
    assert_true(fabs(neighbours / N) < tolerance / 12);
    assert_true(fabs(mean / N) < tolerance);
    assert_true(fabs(square / N - 1) < tolerance * 1.4143);
    assert_true(fabs(cube / N) < tolerance * 3.873);
    assert_true(fabs(fourth / N - 3) < tolerance * 9.8);
}

static void test_rng_below_and_shuffle(void **state) {
    (void)state;
    rng r = {3, 0};
    int64_t count[7] = {0};
    for (int i = 0; i < 70000; i++) count[rng_below(&r, 7)]++;
    double chi = 0;
    for (int i = 0; i < 7; i++) chi += (double)((count[i] - 10000) * (count[i] - 10000)) / 10000;
    assert_true(chi < 22.5); /* one in a thousand, 6 degrees of freedom */
    for (int i = 0; i < 100; i++) assert_int_equal(rng_below(&r, 1), 0);
    for (int i = 0; i < 100; i++) assert_true(rng_below(&r, (1ull << 63) + 1) <= 1ull << 63);
    int32_t list[1000], again[1000];
    bool seen[1000] = {false};
    for (int32_t i = 0; i < 1000; i++) list[i] = again[i] = i;
    rng_shuffle(&(rng){9, 0}, list, 1000);
    rng_shuffle(&(rng){9, 0}, again, 1000);
    assert_memory_equal(list, again, sizeof list);
    int moved = 0;
    for (int32_t i = 0; i < 1000; i++) {
        assert_false(seen[list[i]]);
        seen[list[i]] = true;
        moved += list[i] != i;
    }
    assert_true(moved > 980);
    int64_t first[3] = {0}; /* all places equally likely, the first too */
    for (uint64_t key = 0; key < 30000; key++) {
        int32_t three[3] = {0, 1, 2};
        rng_shuffle(&(rng){rng_mix(key), 0}, three, 3);
        first[three[0]]++;
    }
    for (int i = 0; i < 3; i++) assert_true(llabs(first[i] - 10000) < 450);
}

static int set_up(void **state) {
    char *folder = xstrdup("/tmp/test_base-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    *state = folder;
    return 0;
}

static int tear_down(void **state) {
    unlink("file");
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(*state), 0); /* fails when a test left a temporary file */
    free(*state);
    return 0;
}

static int entries(void) {
    int n = 0;
    DIR *folder = opendir(".");
    while (readdir(folder)) n++;
    closedir(folder);
    return n - 2;
}

static void expect_file(const char *want) {
    char *text;
    size_t n;
    assert_done(file_read(&text, &n, 100, "file", &f), &f);
    assert_string_equal(text, want);
    assert_int_equal(n, strlen(want));
    free(text);
}

static void test_file_writer(void **state) {
    (void)state;
    file_writer *w;
    assert_done(file_write("file", "old", 3, &f), &f);
    assert_done(file_writer_open(&w, "file", &f) && file_writer_write(w, "ne", 2, &f), &f);
    expect_file("old"); /* until the commit */
    assert_int_equal(entries(), 2);
    assert_done(file_writer_write(w, "w", 1, &f) && file_writer_commit(w, &f), &f);
    expect_file("new");
    assert_done(file_writer_open(&w, "file", &f) && file_writer_write(w, "bad", 3, &f), &f);
    file_writer_abort(w);
    file_writer_abort(NULL);
    expect_file("new");
    assert_int_equal(entries(), 1);
    assert_false(file_writer_open(&w, "none/file", &f));
    assert_int_equal(f.kind, FAIL_MACHINE);
    assert_non_null(strstr(f.text, "none/file"));
}

/* A disk that is full: the old file stays, the temporary goes, the failure says why. */
static void test_file_writer_full(void **state) {
    (void)state;
    struct rlimit before, small = {1000, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_done(file_write("file", "old", 3, &f), &f);
    char block[4096] = {0};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    bool ok = file_write("file", block, sizeof block, &f);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_false(ok);
    assert_int_equal(f.kind, FAIL_MACHINE);
    assert_non_null(strstr(f.text, "File too large"));
    expect_file("old");
    assert_int_equal(entries(), 1);
}

static void test_file_reading(void **state) {
    (void)state;
    char *text;
    size_t n;
    file_map m;
    assert_false(file_read(&text, &n, 10, "none", &f));
    assert_int_equal(f.kind, FAIL_INPUT);
    assert_false(file_read(&text, &n, 10, ".", &f));
    assert_non_null(strstr(f.text, "not a regular file"));
    assert_done(file_write("file", "12345", 5, &f), &f);
    assert_false(file_read(&text, &n, 4, "file", &f));
    assert_done(file_map_open(&m, "file", &f), &f);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "12345", 5);
    file_map_close(&m);
    assert_done(file_write("file", "", 0, &f), &f);
    assert_done(file_map_open(&m, "file", &f), &f);
    assert_true(m.size == 0 && m.data == NULL);
    file_map_close(&m);
    expect_file("");
    assert_false(file_map_open(&m, ".", &f));
}

static void test_paths(void **state) {
    arena a = {0};
    assert_string_equal(path_join(&a, "a", "b"), "a/b");
    assert_string_equal(path_join(&a, "a/", "b"), "a/b");
    assert_string_equal(path_join(&a, "a", "/b"), "/b");
    assert_string_equal(path_folder(&a, "a/b/c"), "a/b");
    assert_string_equal(path_folder(&a, "/c"), "/");
    assert_string_equal(path_folder(&a, "c"), ".");
    char *deep = path_join(&a, *state, "x/y");
    assert_done(file_make_folders(deep, &f) && file_make_folders(deep, &f), &f);
    assert_true(file_is_folder("x/y") && file_exists("x") && !file_exists("z"));
    rmdir("x/y");
    rmdir("x");
    assert_done(file_write("file", "", 0, &f), &f);
    assert_false(file_make_folders("file/x", &f));
    assert_int_equal(f.kind, FAIL_MACHINE);
    arena_free(&a);
}

static void test_failure_places(void **state) {
    (void)state;
    assert_false(fail(&f, FAIL_INPUT, "found %d", 3));
    assert_false(fail_in(&f, "key %s", "k"));
    assert_string_equal(f.text, "key k: found 3");
    assert_int_equal(f.kind, FAIL_INPUT);
    char longest[3 * sizeof f.text];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    fail(&f, FAIL_USAGE, "%s", longest);
    fail_in(&f, "%s", longest);
    fail_in(&f, "place");
    assert_memory_equal(f.text, "place: xxx", 10);
    assert_true(strlen(f.text) < sizeof f.text);
}

static void test_arena(void **state) {
    (void)state;
    arena a = {0};
    char *blocks[300];
    for (size_t i = 0; i < 300; i++) {
        blocks[i] = arena_alloc(&a, i * 997);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t k = 0; k < i * 997; k++) assert_true(blocks[i][k] == 0);
        memset(blocks[i], (int)i & 127, i * 997);
    }
    for (size_t i = 0; i < 300; i++)
        for (size_t k = 0; k < i * 997; k += 101) assert_int_equal(blocks[i][k], i & 127);
    assert_string_equal(arena_strndup(&a, "abcdef", 3), "abc");
    assert_string_equal(arena_printf(&a, "%d-%s", 5, "x"), "5-x");
    arena_free(&a);
    assert_null(a.head);
}

#define IN_FOLDER(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_refused),
        cmocka_unit_test(test_json_taken),
        cmocka_unit_test(test_json_many_keys),
        cmocka_unit_test(test_json_written),
        cmocka_unit_test(test_rng_mixer),
        cmocka_unit_test(test_rng_moments),
        cmocka_unit_test(test_rng_below_and_shuffle),
        IN_FOLDER(test_file_writer),
        IN_FOLDER(test_file_writer_full),
        IN_FOLDER(test_file_reading),
        IN_FOLDER(test_paths),
        cmocka_unit_test(test_failure_places),
        cmocka_unit_test(test_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
