/* test_folder_lock.c - one run in a folder: a second is refused by name, a dead one does not block, and what was made
 * for the lock goes again. */
#include "unit.h"

#include "base/file.h"
#include "base/folder_lock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    char folder[64], output[96], file[128];
    failure f;
} fixture;

static int set_up(void **state) {
    fixture *x = xcalloc(1, sizeof *x);
    snprintf(x->folder, sizeof x->folder, "/tmp/test_folder_lock-XXXXXX");
    assert_non_null(mkdtemp(x->folder));
    snprintf(x->output, sizeof x->output, "%s/deep/out put", x->folder);
    snprintf(x->file, sizeof x->file, "%s/run.lock", x->output);
    *state = x;
    return 0;
}

static int tear_down(void **state) {
    fixture *x = *state;
    int left = rmdir(x->folder); /* nothing may be in it */
    free(x);
    return left;
}

static void test_made_and_removed(void **state) {
    fixture *x = *state;
    folder_lock l;
    assert_done(folder_lock_take(&l, x->output, &x->f), &x->f);
    assert_true(file_exists(x->file));
    folder_lock_release(&l);
    char deep[96];
    snprintf(deep, sizeof deep, "%s/deep", x->folder);
    assert_false(file_exists(deep));
    assert_true(file_is_folder(x->folder));
    folder_lock_release(&l); /* once more does nothing */

    /* A folder that was there stays; one with a result stays too. */
    assert_int_equal(mkdir(deep, 0755), 0);
    assert_done(folder_lock_take(&l, x->output, &x->f), &x->f);
    char result[160];
    snprintf(result, sizeof result, "%s/result", x->output);
    assert_done(file_write(result, "x", 1, &x->f), &x->f);
    folder_lock_release(&l);
    assert_true(file_exists(result));
    assert_false(file_exists(x->file));
    assert_int_equal(unlink(result), 0);
    assert_done(folder_lock_take(&l, x->output, &x->f), &x->f);
    folder_lock_release(&l);
    assert_true(file_is_folder(x->output));
    assert_int_equal(rmdir(x->output), 0);
    assert_int_equal(rmdir(deep), 0);
}

/* A child that takes the lock, says so through the pipe and waits to be killed. */
static pid_t start_holder(fixture *x) {
    int ends[2];
    char ready;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        folder_lock l;
        if (!folder_lock_take(&l, x->output, &x->f) || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &ready, 1), 1);
    close(ends[0]);
    return child;
}

static void test_second_and_dead(void **state) {
    fixture *x = *state;
    folder_lock l;
    char want[64];
    pid_t child = start_holder(x);
    assert_false(folder_lock_take(&l, x->output, &x->f));
    assert_int_equal(x->f.kind, FAIL_INPUT);
    snprintf(want, sizeof want, "another run writes here (pid %ld on ", (long)child);
    assert_non_null(strstr(x->f.text, want));
    assert_non_null(strstr(x->f.text, x->output));
    assert_true(file_exists(x->file)); /* the refused one removes nothing */
    assert_false(folder_lock_take(&l, x->output, &x->f));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(file_exists(x->file)); /* the dead one's */
    assert_done(folder_lock_take(&l, x->output, &x->f), &x->f);
    char *text;
    size_t n;
    assert_done(file_read(&text, &n, 256, x->file, &x->f), &x->f);
    snprintf(want, sizeof want, "pid %ld on ", (long)getpid());
    assert_memory_equal(text, want, strlen(want));
    free(text);
    folder_lock_release(&l);
    assert_int_equal(rmdir(x->output), 0); /* was there when the lock was taken: it stayed */
    char deep[96];
    snprintf(deep, sizeof deep, "%s/deep", x->folder);
    assert_int_equal(rmdir(deep), 0);
}

/* Many at once: never two inside. A child that gets the lock makes a file that must not be there, and removes it. */
static void test_race(void **state) {
    fixture *x = *state;
    enum { CHILDREN = 8, ROUNDS = 50 };
    char inside[128];
    snprintf(inside, sizeof inside, "%s/inside", x->folder);
    pid_t child[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        child[i] = fork();
        if (child[i]) continue;
        int taken = 0, tries = 0;
        for (; taken < ROUNDS && tries < 1000000; tries++) {
            folder_lock l;
            if (!folder_lock_take(&l, x->output, &x->f)) {
                if (x->f.kind != FAIL_INPUT) _exit(2);
                continue;
            }
            taken++;
            if (mkdir(inside, 0700) != 0 || rmdir(inside) != 0) _exit(3);
            folder_lock_release(&l);
        }
        _exit(taken == ROUNDS ? 0 : 4);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    rmdir(x->output); /* stays when one found it made by another */
    char deep[96];
    snprintf(deep, sizeof deep, "%s/deep", x->folder);
    rmdir(deep);
}

static void test_no_place(void **state) {
    fixture *x = *state;
    folder_lock l;
    assert_false(folder_lock_take(&l, "", &x->f));
    assert_int_equal(x->f.kind, FAIL_INPUT);
    assert_false(folder_lock_take(&l, "/proc/self/no", &x->f)); /* nothing can be made there, not even by root */
    assert_int_equal(x->f.kind, FAIL_MACHINE);
    assert_non_null(strstr(x->f.text, "/proc/self"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_made_and_removed), TEST(test_second_and_dead), TEST(test_race),
                                       TEST(test_no_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
