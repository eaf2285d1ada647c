/* test_start.c - what the environment says of ranks, the meeting file, and ranks that are started here: this program
 * itself, which plays the part that its argument names. */
#include "scratch.h"

#include "base/clock.h"
#include "base/log.h"
#include "dist/launcher.h"

#include <signal.h>
#include <time.h>

static const char *const names[] = {
    "RANK",      "WORLD_SIZE", "LOCAL_RANK",          "LOCAL_WORLD_SIZE", "LIGER_SFT_MEETING", "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK", "PMI_RANK",   "SLURM_STEP_NUM_TASKS"};

static void clear(void) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

static void set(const char *rank, const char *size, const char *local_rank, const char *local_size) {
    const char *const values[] = {rank, size, local_rank, local_size};
    clear();
    for (int i = 0; i < 4; i++)
        if (values[i]) setenv(names[i], values[i], 1);
}

static launch_place find(void) {
    launch_place place;
    failure f = {0};
    assert_done(launch_find(&place, &f), &f);
    return place;
}

static void environments(void **state) {
    (void)state;
    clear();
    launch_place p = find();
    assert_true(p.kind == LAUNCH_ALONE && p.rank == 0 && p.size == 1 && p.local_size == 1);
    set("0", "1", "0", "1");
    assert_int_equal(find().kind, LAUNCH_ALONE);
    set(NULL, "4", NULL, NULL); /* one name alone is nobody's launcher */
    assert_int_equal(find().kind, LAUNCH_ALONE);
    set("5", "8", "1", "4"); /* the second machine of two: no file that both see */
    p = find();
    assert_true(p.kind == LAUNCH_ENV && p.rank == 5 && p.size == 8 && p.local_rank == 1 && p.local_size == 4);
    assert_string_equal(p.meeting, "");
    set("1", "2", "1", "2");
    p = find();
    assert_true(strstr(p.meeting, "/liger-sft-") != NULL);
    setenv("LIGER_SFT_MEETING", "/somewhere/id", 1);
    setenv("PMIX_RANK", "0", 1); /* around ranks that --gpus started */
    p = find();
    assert_int_equal(p.kind, LAUNCH_ENV);
    assert_string_equal(p.meeting, "/somewhere/id");
    clear();
    setenv("PMIX_RANK", "0", 1);
    assert_int_equal(find().kind, LAUNCH_MPI);
    setenv("SLURM_STEP_NUM_TASKS", "1", 1); /* a shell of srun's */
    assert_int_equal(find().kind, LAUNCH_ALONE);
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    p = find();
    assert_true(p.kind == LAUNCH_MPI && p.size == 3);
    clear();
}

static void contradictions(void **state) {
    static const char *const wrong[][4] = {{"2", "2", "0", "2"}, {"1", "2", NULL, NULL},     {"1", "2", "1", "1"},
                                           {"0", "2", "1", "2"}, {"-1", "2", "0", "2"},      {"one", "2", "0", "2"},
                                           {"0", "2", "0", "x"}, {"0", "99999999", "0", "2"}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        launch_place place;
        failure f = {0};
        set(wrong[i][0], wrong[i][1], wrong[i][2], wrong[i][3]);
        assert_false(launch_find(&place, &f));
        assert_int_equal(f.kind, FAIL_USAGE);
        assert_non_null(strstr(f.text, "environment: "));
    }
    clear();
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    launch_place place;
    failure f = {0};
    assert_false(launch_find(&place, &f));
    assert_non_null(strstr(f.text, "srun --mpi=pmix"));
    clear();
}

static void meeting(void **state) {
    const char *path = scratch_path(state, "id");
    char data[128], got[128] = {0};
    failure f = {0};
    memset(data, 7, sizeof data);
    double started = clock_seconds();
    assert_false(meeting_get(path, got, sizeof got, 0.1, &f));
    assert_true(clock_seconds() - started < 5 && strstr(f.text, "rank 0 has not written it within 0.1 s"));
    scratch_puts(state, "id", "a few bytes");
    assert_false(meeting_get(path, got, sizeof got, 5, &f));
    assert_non_null(strstr(f.text, "found another length, expected 128 bytes"));
    assert_done(meeting_put(path, data, sizeof data, &f), &f);
    assert_done(meeting_get(path, got, sizeof got, 5, &f), &f);
    assert_memory_equal(data, got, sizeof got);
    meeting_end(path);
    assert_int_equal(scratch_count(state), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0); /* nobody's link is followed */
    assert_false(meeting_get(path, got, sizeof got, 5, &f));
    assert_false(meeting_put(scratch_path(state, "none/id"), data, sizeof data, &f));
}

/* ---- ranks ---- */

static int start(int n, const char *part, double *seconds) {
    char *argv[] = {(char *)(uintptr_t)part, NULL};
    failure f = {0};
    int code = -1;
    double started = clock_seconds();
    clear();
    assert_done(launch_local(n, argv, &code, &f), &f);
    *seconds = clock_seconds() - started;
    return code;
}

static void ranks_end(void **state) {
    double seconds;
    setenv("TMPDIR", scratch_folder(state), 1);
    assert_int_equal(start(1, "meet", &seconds), 0);
    assert_int_equal(start(4, "meet", &seconds), 0);
    assert_int_equal(start(3, "code 1", &seconds), 1); /* the others would sleep a minute */
    assert_true(seconds < 9);
    assert_int_equal(start(3, "killed 2", &seconds), FAIL_MACHINE);
    assert_true(seconds < 9);
    assert_int_equal(start(3, "stubborn 0", &seconds), 1); /* the others do not heed SIGTERM: killed */
    assert_true(seconds > 9 && seconds < 25);
    assert_int_equal(start(2, "saving", &seconds), FAIL_INTERRUPT); /* rank 1 takes its time, and is left to it */
    assert_true(seconds > 1 && seconds < 9);
    assert_int_equal(scratch_count(state), 0); /* no meeting folder stays */
    unsetenv("TMPDIR");
}

static void pause_for(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    while (nanosleep(&t, &t) != 0) {}
}

static int meet(const launch_place *p) {
    char id[128] = "from rank 0", got[128] = "";
    failure f = {0};
    if (p->size != p->local_size || p->rank != p->local_rank) return 9;
    if (p->rank == 0) return meeting_put(p->meeting, id, sizeof id, &f) ? 0 : 8;
    return meeting_get(p->meeting, got, sizeof got, 20, &f) && strcmp(got, id) == 0 ? 0 : 7;
}

static int play(const char *part) {
    failure f = {0};
    launch_place p;
    if (!launch_find(&p, &f)) return 99;
    bool mine = part[strlen(part) - 1] == '0' + p.rank;
    if (strcmp(part, "meet") == 0) return p.size == 1 ? 0 : meet(&p);
    if (strcmp(part, "saving") == 0) {
        if (p.rank) pause_for(1.5);
        return FAIL_INTERRUPT;
    }
    if (strncmp(part, "stubborn", 8) == 0 && !mine) signal(SIGTERM, SIG_IGN);
    if (strncmp(part, "stubborn", 8) == 0 && mine) pause_for(0.5);
    if (mine && strncmp(part, "killed", 6) == 0) raise(SIGKILL);
    if (mine) return 1;
    pause_for(60);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return play(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(environments), cmocka_unit_test(contradictions),
                                       SCRATCH_TEST(meeting), SCRATCH_TEST(ranks_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
