/* test_host_memory.c - the free host memory under each kind of limit; control groups from a made-up tree. */
#include "scratch.h"

#include "base/host_memory.h"

#include <sys/resource.h>

static void put(void **state, const char *name, const char *text) {
    failure f;
    arena a = {0};
    const char *path = scratch_path(state, name);
    assert_done(file_make_folders(path_folder(&a, path), &f), &f);
    assert_done(file_write(path, text, strlen(text), &f), &f);
    arena_free(&a);
}

static size_t room(void **state) {
    return host_cgroup_room(scratch_path(state, "cgroup"), scratch_path(state, "self"));
}

static void control_groups_v2(void **state) {
    put(state, "self", "0::/job/step\n");
    assert_true(room(state) == SIZE_MAX);
    put(state, "cgroup/job/step/memory.max", "max\n");
    put(state, "cgroup/job/step/memory.current", "700\n");
    put(state, "cgroup/job/step/memory.stat", "anon 600\nfile 100\ninactive_file 80\n");
    assert_true(room(state) == SIZE_MAX);
    put(state, "cgroup/job/memory.max", "1000\n"); /* the job's limit holds for its steps */
    put(state, "cgroup/job/memory.current", "900\n");
    assert_int_equal(room(state), 100);
    put(state, "cgroup/job/memory.stat", "anon 500\ninactive_anon 7\nfile 400\ninactive_file 300\n");
    assert_int_equal(room(state), 400); /* file cache is given back */
    put(state, "cgroup/job/step/memory.max", "750\n");
    assert_int_equal(room(state), 130);
    put(state, "cgroup/memory.max", "50\n"); /* the root of a container's own tree */
    put(state, "cgroup/memory.current", "49\n");
    assert_int_equal(room(state), 1);
    put(state, "cgroup/memory.current", "60\n");
    assert_int_equal(room(state), 0);
    put(state, "self", "0::/\n");
    assert_int_equal(room(state), 0);
}

static void control_groups_v1(void **state) {
    put(state, "self", "12:cpu,cpuacct:/x\n9:memory:/docker/abc\n1:name=systemd:/x\n");
    put(state, "cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put(state, "cgroup/memory/docker/abc/memory.usage_in_bytes", "500\n");
    put(state, "cgroup/memory/docker/abc/memory.stat", "inactive_file 5\ntotal_inactive_file 200\n");
    assert_true(room(state) == SIZE_MAX);
    put(state, "cgroup/memory/docker/abc/memory.limit_in_bytes", "600\n");
    assert_int_equal(room(state), 300);
    put(state, "self", "");
    assert_true(room(state) == SIZE_MAX);
}

static void address_space(void **state) {
    (void)state;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    if (old.rlim_cur != RLIM_INFINITY) {
        print_message("skip: there is a limit already\n");
        skip();
    }
    assert_true(host_address_room() == SIZE_MAX);
    size_t before = host_memory_room(0).bytes;
    assert_true(before > 0 && before < (size_t)1 << 50);
    small = (struct rlimit){.rlim_cur = (rlim_t)1 << 46, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    size_t first = host_address_room();
    char *block = xmalloc((size_t)1 << 28);
    block[0] = 1;
    size_t second = host_address_room();
    host_room mapped = host_memory_room((size_t)1 << 46);
    free(block);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_true(first < (size_t)1 << 46);
    assert_true(mapped.bytes < (size_t)1 << 45 && strcmp(mapped.why, "under ulimit -v") != 0); /* the machine binds */
    assert_true(first - second >= (size_t)1 << 28 && first - second < (size_t)1 << 29);
}

int main(void) {
    const struct CMUnitTest tests[] = {SCRATCH_TEST(control_groups_v2), SCRATCH_TEST(control_groups_v1),
                                       cmocka_unit_test(address_space)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
