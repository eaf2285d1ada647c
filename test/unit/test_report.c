/* test_report.c - what a run writes: metrics.jsonl, summary.json, lines to a file, the line on a (pseudo) terminal. */
#include "unit.h"

#include "base/file.h"
#include "base/json.h"
#include "report/progress.h"
#include "report/report.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char folder[64], output[96], captured[96], path[160];
    arena a;
    config c;
    failure f;
    int saved; /* the real standard output while it is redirected */
} fixture;

static const char *in_output(fixture *x, const char *name) {
    snprintf(x->path, sizeof x->path, "%s/%s", x->output, name);
    return x->path;
}

static int set_up(void **state) {
    fixture *x = xcalloc(1, sizeof *x);
    snprintf(x->folder, sizeof x->folder, "/tmp/test_report-XXXXXX");
    assert_non_null(mkdtemp(x->folder));
    snprintf(x->output, sizeof x->output, "%s/deep/out put", x->folder);
    snprintf(x->captured, sizeof x->captured, "%s/stdout", x->folder);
    char flag[128], steps[] = "--logging_steps=3";
    snprintf(flag, sizeof flag, "--output_dir=%s", x->output);
    char *argv[] = {flag, steps};
    assert_true(config_read(&x->c, 2, argv, &x->a, &x->f));
    *state = x;
    return 0;
}

static int tear_down(void **state) {
    fixture *x = *state;
    static const char *const names[] = {"metrics.jsonl", "summary.json", "adapter_model.safetensors", "."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_output(x, names[i]));
    rmdir(x->output);
    snprintf(x->path, sizeof x->path, "%s/deep", x->folder);
    rmdir(x->path);
    unlink(x->captured);
    assert_int_equal(rmdir(x->folder), 0);
    arena_free(&x->a);
    free(x);
    return 0;
}

static void redirect(fixture *x, int to) {
    fflush(stdout);
    x->saved = dup(STDOUT_FILENO);
    assert_int_equal(dup2(to, STDOUT_FILENO), STDOUT_FILENO);
    close(to);
}

static void redirect_to_file(fixture *x) {
    int fd = open(x->captured, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    redirect(x, fd);
}

static void restore(fixture *x) {
    fflush(stdout);
    dup2(x->saved, STDOUT_FILENO);
    close(x->saved);
}

static char *read_all(fixture *x, const char *path) {
    char *text;
    size_t n;
    assert_done(file_read(&text, &n, 1 << 20, path, &x->f), &x->f);
    return text;
}

static step_metrics metrics_at(int64_t step, int64_t steps) {
    return (step_metrics){.step = step,
                          .steps = steps,
                          .epoch = 0.25 * (double)step,
                          .loss = 2.0 / (double)step,
                          .learning_rate = 1e-5,
                          .grad_norm = 0.5,
                          .tokens = 9,
                          .label_tokens = 6,
                          .slots = 12,
                          .tokens_per_second = 1234.56,
                          .mfu = NAN,
                          .gpu_util = NAN,
                          .memory_gib = 1.5,
                          .step_seconds = 0.25};
}

static const run_summary finished = {.steps = 8,
                                     .first_loss = 2,
                                     .loss = 0.25,
                                     .tokens = 72,
                                     .label_tokens = 48,
                                     .slots = 96,
                                     .skipped_steps = 1,
                                     .tokens_per_second = 1234.56,
                                     .label_tokens_per_second = 800,
                                     .slots_per_second = 1600,
                                     .packing_efficiency = 0.75,
                                     .gpu_util = NAN,
                                     .peak_memory_gib = 1.5,
                                     .seconds = 2.125,
                                     .start_seconds = 0.5,
                                     .eval_loss = NAN};

static void run_to_end(fixture *x) {
    report *r;
    assert_done(report_open(&r, &x->c, x->c.resume_from_checkpoint[0] != 0, &x->f), &x->f);
    for (int64_t step = 1; step <= 8; step++) {
        step_metrics m = metrics_at(step, 8);
        assert_done(report_step(r, &m, &x->f), &x->f);
        if (step == 4) assert_done(report_eval(r, step, 1, 0.5, &x->f), &x->f);
    }
    assert_done(report_done(r, &finished, &x->f), &x->f);
    report_close(r);
}

static void test_lines_to_a_file(void **state) {
    fixture *x = *state;
    char want[256];
    redirect_to_file(x);
    run_to_end(x);
    restore(x);
    char *text = read_all(x, x->captured), *line = text;
    static const char *const begins[] = {
        "step=1 steps=8 epoch=0.2500 loss=2.000000 learning_rate=1e-05 grad_norm=0.5 tokens_per_second=1234.6 mfu=na "
        "gpu_util=na memory_gib=1.500 step_seconds=0.250 seconds_left=",
        "step=3 steps=8 ", "step=4 eval_loss=1.000000 eval_perplexity=2.71828 eval_seconds=0.500\n", "step=6 steps=8 ",
        "step=8 steps=8 epoch=2.0000 loss=0.250000 "};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        if (strncmp(line, begins[i], strlen(begins[i])) != 0) test_fail("found %s, expected %s", line, begins[i]);
        line = strchr(line, '\n') + 1;
    }
    snprintf(want, sizeof want,
             "done steps=8 loss=0.250000 tokens_per_second=1234.6 gpu_util=na peak_memory_gib=1.500 seconds=2.125 "
             "output_dir=%s\n",
             x->output);
    assert_string_equal(line, want);
    assert_null(strchr(text, '\r'));
    free(text);
}

static void test_metrics_file(void **state) {
    fixture *x = *state;
    redirect_to_file(x);
    run_to_end(x);
    restore(x);
    char *text = read_all(x, in_output(x, "metrics.jsonl"));
    static const char first[] =
        "{\"step\": 1, \"epoch\": 0.25, \"loss\": 2, \"learning_rate\": 1e-05, \"grad_norm\": 0.5, \"tokens\": 9, "
        "\"label_tokens\": 6, \"slots\": 12, \"tokens_per_second\": 1234.56, \"mfu\": null, \"gpu_util\": null, "
        "\"memory_gib\": 1.5, \"step_seconds\": 0.25}\n";
    assert_memory_equal(text, first, sizeof first - 1);
    int lines = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
        cJSON *root;
        *end = 0;
        assert_done(json_parse(&root, line, (size_t)(end - line), "metrics.jsonl", &x->f), &x->f);
        assert_int_equal(cJSON_GetArraySize(root), lines == 4 ? 4 : 13);
        cJSON_Delete(root);
    }
    assert_int_equal(lines, 9); /* eight steps and an evaluation */
    free(text);
}

static void test_summary_file(void **state) {
    fixture *x = *state;
    redirect_to_file(x);
    run_to_end(x);
    restore(x);
    cJSON *root;
    assert_done(json_read(&root, in_output(x, "summary.json"), &x->f), &x->f);
    static const char *const numbers[] = {"steps",
                                          "loss",
                                          "tokens_per_second",
                                          "peak_memory_gib",
                                          "seconds",
                                          "first_loss",
                                          "skipped_steps",
                                          "tokens",
                                          "label_tokens",
                                          "slots",
                                          "label_tokens_per_second",
                                          "slots_per_second",
                                          "packing_efficiency",
                                          "start_seconds"};
    const double want[] = {8, 0.25, 1234.56, 1.5, 2.125, 2, 1, 72, 48, 96, 800, 1600, 0.75, 0.5};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const cJSON *item = json_find(root, numbers[i]);
        assert_true(cJSON_IsNumber(item) && item->valuedouble == want[i]);
    }
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(root, "gpu_util")));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(root, "eval_loss")));
    assert_string_equal(json_find(root, "output_dir")->valuestring, x->output);
    assert_int_equal(json_find(json_find(root, "config"), "logging_steps")->valueint, 3);
    cJSON_Delete(root);
}

/* A run that goes on adds to metrics.jsonl; another one begins anew and leaves no summary of the run before. */
static void test_earlier_files(void **state) {
    fixture *x = *state;
    report *r;
    assert_done(file_make_folders(x->output, &x->f), &x->f);
    assert_done(file_write(in_output(x, "summary.json"), "{}", 2, &x->f), &x->f);
    assert_done(file_write(in_output(x, "metrics.jsonl"), "{}\n", 3, &x->f), &x->f);
    x->c.resume_from_checkpoint = "auto";
    assert_done(report_open(&r, &x->c, x->c.resume_from_checkpoint[0] != 0, &x->f), &x->f);
    step_metrics m = metrics_at(1, 8);
    redirect_to_file(x);
    bool ok = report_step(r, &m, &x->f);
    restore(x);
    assert_done(ok, &x->f);
    report_close(r);
    assert_false(file_exists(in_output(x, "summary.json")));
    char *text = read_all(x, in_output(x, "metrics.jsonl"));
    static const char both[] = "{}\n{\"step\": 1, ";
    assert_memory_equal(text, both, sizeof both - 1);
    free(text);
    x->c.resume_from_checkpoint = "";
    assert_done(report_open(&r, &x->c, x->c.resume_from_checkpoint[0] != 0, &x->f), &x->f);
    report_close(r);
    text = read_all(x, in_output(x, "metrics.jsonl"));
    assert_string_equal(text, "");
    free(text);
}

static void test_unwritable_output(void **state) {
    fixture *x = *state;
    report *r;
    assert_done(file_write(x->captured, "x", 1, &x->f), &x->f);
    x->c.output_dir = x->captured; /* a file where a folder should be */
    assert_false(report_open(&r, &x->c, x->c.resume_from_checkpoint[0] != 0, &x->f));
    assert_int_equal(x->f.kind, FAIL_MACHINE);
    assert_non_null(strstr(x->f.text, x->captured));
}

/* Standard output is a pseudo terminal of 40 columns from now on; returns the other end. */
static int redirect_to_terminal(fixture *x) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        print_message("skip: no pseudo terminals here\n");
        skip();
    }
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    ioctl(slave, TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = 40});
    redirect(x, slave);
    return master;
}

/* All that came through the terminal since. */
static size_t restore_terminal(fixture *x, int master, char *text, size_t room) {
    restore(x);
    size_t used = 0;
    for (ssize_t n; used < room - 1 && (n = read(master, text + used, room - 1 - used)) > 0;) used += (size_t)n;
    text[used] = 0;
    close(master);
    return used;
}

/* What goes to standard error stands on lines of its own, also behind a run that ends without its last line. */
static void test_terminal_lines(void **state) {
    fixture *x = *state;
    report *r;
    char text[2048];
    int master = redirect_to_terminal(x);
    assert_done(report_open(&r, &x->c, false, &x->f), &x->f);
    for (int64_t step = 1; step <= 2; step++) {
        step_metrics m = metrics_at(step, 8);
        assert_done(report_step(r, &m, &x->f), &x->f);
        if (step == 1) {
            report_pause(r);
            report_pause(r); /* once is enough */
            printf("warning\n");
        }
    }
    report_close(r);
    size_t used = restore_terminal(x, master, text, sizeof text);
    const char *warning = strstr(text, "\r\nwarning\r\n\rstep 2/8 | ");
    assert_non_null(warning);
    assert_ptr_equal(strchr(text, '\n'), warning + 1);
    assert_memory_equal(text + used - 2, "\r\n", 2);
}

static void test_terminal(void **state) {
    fixture *x = *state;
    char text[8192];
    int master = redirect_to_terminal(x);
    run_to_end(x);
    size_t used = restore_terminal(x, master, text, sizeof text);
    assert_memory_equal(text, "\rstep 1/8 | loss 2.0000 | ", 26);
    for (const char *at = text; (at = strstr(at, "\rstep ")); at++) { /* no rewritten line reaches the last column */
        size_t n = strcspn(at + 1, "\r\n");
        assert_true(n <= 39);
    }
    assert_non_null(strstr(text, "\rstep=4 eval_loss=1.000000"));
    const char *done = strstr(text, "\r\ndone steps=8 loss=0.250000"); /* the terminal makes \r\n of \n */
    assert_non_null(done);
    assert_ptr_equal(strstr(done + 2, "\r\n") + 2, text + used);
}

/* A step whose loss is 5 times the others' and one that takes 9 times as long: both have their lines, out of turn. */
static void test_odd_steps(void **state) {
    fixture *x = *state;
    report *r;
    redirect_to_file(x);
    assert_done(report_open(&r, &x->c, false, &x->f), &x->f);
    for (int64_t step = 1; step <= 20; step++) {
        step_metrics m = metrics_at(step, 20);
        m.loss = step == 13 ? 5 : 1;
        m.step_seconds = step == 16 ? 2.25 : 0.25;
        assert_done(report_step(r, &m, &x->f), &x->f);
    }
    report_close(r);
    restore(x);
    char *text = read_all(x, x->captured);
    int lines = 0;
    for (const char *c = text; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, 10); /* 1, 3, 6, 9, 12, 13, 15, 16, 18, 20 */
    assert_non_null(strstr(text, "\nstep=13 "));
    assert_non_null(strstr(text, " loss_spike=5.00\nstep=15 "));
    assert_non_null(strstr(text, "\nstep=16 "));
    assert_non_null(strstr(text, " stall=9.0\nstep=18 "));
    free(text);
    text = read_all(x, in_output(x, "metrics.jsonl"));
    assert_non_null(strstr(text, "\"step_seconds\": 0.25, \"loss_spike\": 5}\n{\"step\": 14,"));
    assert_non_null(strstr(text, "\"step_seconds\": 2.25, \"stall\": 9}\n{\"step\": 17,"));
    free(text);
}

static void test_line_width(void **state) {
    (void)state;
    step_metrics m = metrics_at(12, 300);
    m.mfu = 34.21;
    m.gpu_util = 97;
    text_buf line = {0};
    progress_put_line(&line, &m, 3725, 200);
    assert_string_equal(line.data,
                        "step 12/300 | loss 0.1667 | lr 1.00e-05 | norm 0.5 | 1235 tok/s | mfu 34.2% | gpu 97% | "
                        "1.5 GiB | left 1:02:05");
    for (int width = 1; width < 130; width++) {
        text_clear(&line);
        progress_put_line(&line, &m, 65, width);
        assert_true(line.size <= (size_t)width);
        assert_int_equal(strncmp(line.data, "step 12/300", line.size < 11 ? line.size : 11), 0);
    }
    text_clear(&line);
    progress_put_line(&line, &m, 65, 50);
    assert_string_equal(line.data, "step 12/300 | loss 0.1667 | 1235 tok/s | left 1:05");
    m.loss_spike = 4.72;
    m.stall = 12.34;
    text_clear(&line);
    progress_put_line(&line, &m, 65, 60);
    assert_string_equal(line.data, "step 12/300 | loss 0.1667 | SPIKE 4.7x | STALL 12.3x");
    m.loss_spike = m.stall = 0;
    m.mfu = m.gpu_util = m.grad_norm = NAN;
    text_clear(&line);
    progress_put_line(&line, &m, NAN, 200);
    assert_string_equal(line.data, "step 12/300 | loss 0.1667 | lr 1.00e-05 | 1235 tok/s | 1.5 GiB");
    text_free(&line);
}

static void test_peak_memory(void **state) {
    (void)state;
    double before = report_peak_memory_gib();
    size_t bytes = 64 << 20;
    char *block = xmalloc(bytes);
    for (size_t i = 0; i < bytes; i += 1024) block[i] = (char)(i >> 10);
    assert_int_equal(block[bytes / 2], (char)(bytes >> 11));
    free(block);
    double grown = report_peak_memory_gib() - before;
    assert_true(before > 0.0005 && before < 64);
    assert_true(grown > 0.05 && grown < 0.25);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_lines_to_a_file),
        TEST(test_metrics_file),
        TEST(test_summary_file),
        TEST(test_earlier_files),
        TEST(test_unwritable_output),
        TEST(test_terminal),
        TEST(test_odd_steps),
        TEST(test_terminal_lines),
        cmocka_unit_test(test_line_width),
        cmocka_unit_test(test_peak_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
