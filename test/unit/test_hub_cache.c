/* test_hub_cache.c - a folder, or a hub id in the caches' layouts; the places that were looked at in the message. */
#include "unit/scratch.h"

#include "weights/hub_cache.h"

static arena strings;

static void set_cache(const char *name, const char *value) {
    static const char *const names[] = {"HF_HUB_CACHE",   "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                        "XDG_CACHE_HOME", "MODELSCOPE_CACHE",      "HOME"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    if (name) setenv(name, value, 1);
}

static void expect(void **state, const char *model, const char *folder) {
    failure f = {0};
    const char *found = NULL;
    arena_free(&strings);
    assert_done(hub_find_model(&found, model, &strings, &f), &f);
    assert_string_equal(found, scratch_path(state, folder));
}

static void expect_nothing(const char *model, const char *reason) {
    failure f = {0};
    const char *found = NULL;
    arena_free(&strings);
    if (hub_find_model(&found, model, &strings, &f)) test_fail("%s: found at %s", model, found);
    if (!strstr(f.text, reason)) test_fail("\"%s\" does not say \"%s\"", f.text, reason);
}

static void test_folder(void **state) {
    set_cache(NULL, NULL);
    scratch_puts(state, "m/config.json", "{}");
    expect(state, scratch_path(state, "m"), "m");
    expect_nothing(scratch_folder(state), "no config.json in it");
    expect_nothing("/nowhere/at/all", "no such folder");
    expect_nothing("", "no model is given");
    expect_nothing("../nowhere/at/all", "no such folder");
}

static void test_hugging_face(void **state) {
    const char *root = "hub/models--org--name/";
    char path[200];
    snprintf(path, sizeof path, "%ssnapshots/abc/config.json", root);
    scratch_puts(state, path, "{}");
    set_cache("HF_HUB_CACHE", scratch_path(state, "hub"));
    expect(state, "org/name", "hub/models--org--name/snapshots/abc"); /* the only snapshot */
    snprintf(path, sizeof path, "%ssnapshots/def/config.json", root);
    scratch_puts(state, path, "{}");
    expect_nothing("org/name", "neither refs/main nor a single snapshot");
    snprintf(path, sizeof path, "%srefs/main", root);
    scratch_puts(state, path, "def\n");
    expect(state, "org/name", "hub/models--org--name/snapshots/def");
    set_cache("HF_HOME", scratch_folder(state));
    expect(state, "org/name", "hub/models--org--name/snapshots/def");
    scratch_puts(state, path, "../../../../other");
    expect_nothing("org/name", "neither refs/main");
    scratch_puts(state, path, "fff");
    expect_nothing("org/name", "snapshots/fff: no such folder");
    scratch_puts(state, "hub/models--gpt2/snapshots/1/config.json", "{}");
    expect(state, "gpt2", "hub/models--gpt2/snapshots/1");
    scratch_puts(state, ".cache/huggingface/hub/models--a--b/snapshots/1/config.json", "{}");
    set_cache("HOME", scratch_folder(state));
    expect(state, "a/b", ".cache/huggingface/hub/models--a--b/snapshots/1");
    expect_nothing("a/../b", "no such folder");
    scratch_puts(state, ".cache/huggingface/hub/models--a--c/snapshots/1/model.safetensors", "");
    expect_nothing("a/c", "no config.json in it (download not finished?)");
}

static void test_modelscope(void **state) {
    scratch_puts(state, "ms/models/Qwen/Qwen2.5-0.5B/config.json", "{}");
    scratch_puts(state, "ms/old/Qwen/Qwen2___5-7B/config.json", "{}");
    set_cache("MODELSCOPE_CACHE", scratch_path(state, "ms"));
    expect(state, "Qwen/Qwen2.5-0.5B", "ms/models/Qwen/Qwen2.5-0.5B");
    set_cache("MODELSCOPE_CACHE", scratch_path(state, "ms/old"));
    expect(state, "Qwen/Qwen2.5-7B", "ms/old/Qwen/Qwen2___5-7B");
    scratch_puts(state, ".cache/modelscope/hub/models/o/n/config.json", "{}");
    set_cache("HOME", scratch_folder(state));
    expect(state, "o/n", ".cache/modelscope/hub/models/o/n");
}

static void test_message(void **state) {
    set_cache("HOME", scratch_folder(state));
    expect_nothing("org/name", ".cache/huggingface/hub/models--org--name: no such folder");
    expect_nothing("org/name", ".cache/modelscope/hub/models/org/name: no such folder");
    expect_nothing("org/name", "nothing is downloaded");
}

static int free_strings(void **state) {
    (void)state;
    arena_free(&strings);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_folder),
        SCRATCH_TEST(test_hugging_face),
        SCRATCH_TEST(test_modelscope),
        SCRATCH_TEST(test_message),
    };
    return cmocka_run_group_tests(tests, NULL, free_strings);
}
