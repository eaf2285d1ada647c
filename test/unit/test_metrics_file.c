/* test_metrics_file.c - metrics.jsonl stays whole: torn last lines, lines that a resumed run does again, a full disk.
 */
#include "unit.h"

#include "base/file.h"
#include "report/metrics_file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char path[] = "/tmp/test_metrics_file-XXXXXX";

static int set_up(void **state) {
    (void)state;
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int tear_down(void **state) {
    (void)state;
    return unlink(path);
}

static void holds(const char *want) {
    failure f;
    char *text;
    size_t n;
    assert_done(file_read(&text, &n, 1 << 20, path, &f), &f);
    assert_string_equal(text, want);
    free(text);
}

static void append(metrics_file *m, const char *line) {
    failure f;
    assert_done(metrics_file_append(m, line, strlen(line), &f), &f);
}

static void test_torn_line(void **state) {
    (void)state;
    static const struct {
        const char *before, *after;
    } cases[] = {{"", ""},
                 {"{\"step\": 1}\n", "{\"step\": 1}\n"},
                 {"{\"step\": 1}\n{\"st", "{\"step\": 1}\n"},
                 {"{\"step\": 1}\n{\"step\": 2}", "{\"step\": 1}\n"},
                 {"{\"step", ""},
                 {"\n\n", "\n\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        failure f;
        metrics_file m;
        char want[128];
        assert_done(file_write(path, cases[i].before, strlen(cases[i].before), &f), &f);
        assert_done(metrics_file_open(&m, path, true, &f), &f);
        append(&m, "{\"step\": 3}\n");
        snprintf(want, sizeof want, "%s{\"step\": 3}\n", cases[i].after);
        holds(want);
        metrics_file_close(&m);
        assert_done(metrics_file_open(&m, path, false, &f), &f);
        holds("");
        metrics_file_close(&m);
    }
}

static void test_lines_done_again(void **state) {
    (void)state;
    static const char lines[] =
        "{\"step\": 9, \"loss\": 1}\n{\"step\": 10, \"loss\": 2}\n{\"step\": 10, \"eval_loss\": 2}\n"
        "{\"step\": 11, \"loss\": 3}\n{\"step\": 12, \"loss\": 4}\n";
    static const struct {
        int64_t step;
        size_t kept; /* lines */
    } cases[] = {{12, 5}, {100, 5}, {11, 4}, {10, 3}, {9, 1}, {8, 0}, {0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        failure f;
        metrics_file m;
        char want[sizeof lines];
        size_t n = 0;
        for (size_t line = 0; line < cases[i].kept; line++) n += strcspn(lines + n, "\n") + 1;
        memcpy(want, lines, n);
        want[n] = 0;
        assert_done(file_write(path, lines, strlen(lines), &f), &f);
        assert_done(metrics_file_open(&m, path, true, &f), &f);
        assert_done(metrics_file_keep(&m, cases[i].step, true, &f), &f);
        holds(want);
        append(&m, "{\"step\": 13}\n");
        metrics_file_close(&m);
    }
}

/* 40 bytes of disk: the line that does not fit leaves no piece. */
static void test_full_disk(void **state) {
    (void)state;
    failure f;
    metrics_file m;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = 40, .rlim_max = old.rlim_max};
    assert_done(metrics_file_open(&m, path, false, &f), &f);
    append(&m, "{\"step\": 1, \"loss\": 1.25}\n");
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    bool ok = metrics_file_append(&m, "{\"step\": 2, \"loss\": 1.25}\n", 26, &f);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    assert_false(ok);
    assert_int_equal(f.kind, FAIL_MACHINE);
    assert_non_null(strstr(f.text, path));
    assert_non_null(strstr(f.text, "File too large"));
    holds("{\"step\": 1, \"loss\": 1.25}\n");
    append(&m, "{\"step\": 2}\n");
    holds("{\"step\": 1, \"loss\": 1.25}\n{\"step\": 2}\n");
    metrics_file_close(&m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_torn_line), TEST(test_lines_done_again), TEST(test_full_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
