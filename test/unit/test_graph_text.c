/* test_graph_text.c - the printed program of some variants, compared with test/golden/graph-X.txt: a refactor that
 * changes none of them is a refactor.  `test_graph_text --write` writes them anew. */
#include "unit.h"

#include "base/file.h"
#include "unit/program.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    program_kind kind;
} variants[] = {
    {"llama-lora-unfused", {.rank = 4}},
    {"llama-lora-fused", {.rank = 4, .fused = true}},
    {"llama-lora-fused-cheap", {.rank = 4, .fused = true, .level = RECOMPUTE_CHEAP}},
    {"llama-lora-fused-full-recompute", {.rank = 4, .fused = true, .level = RECOMPUTE_FULL}},
    {"llama-lora-fold", {.rank = 4, .fused = true, .fold = true}},
    {"llama-lora-fold-cheap", {.rank = 4, .fused = true, .fold = true, .level = RECOMPUTE_CHEAP}},
    {"llama-lora-fold-full-recompute", {.rank = 4, .fused = true, .fold = true, .level = RECOMPUTE_FULL}},
    {"llama-lora-fold-offload", {.rank = 4, .fused = true, .fold = true, .level = RECOMPUTE_OFFLOAD}},
    {"llama-dropout", {.rank = 4, .fused = true, .dropout = 0.1f}},
    {"qwen-lora-fused", {.rank = 4, .fused = true, .qk_norm = true, .bias = true, .tied = true, .window = true}},
    {"llama-full-unfused", {.full = true, .tied = true}},
    {"llama-full-fused", {.full = true, .fused = true}},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static char *print_variant(int i, size_t *n) {
    graph g;
    failure f = {0};
    char *text = NULL;
    program_build(&g, &variants[i].kind, 16, &f);
    FILE *out = open_memstream(&text, n);
    graph_print(&g, out, false);
    fclose(out);
    graph_free(&g);
    return text;
}

static char *golden_path(arena *a, int i) { return arena_printf(a, TEST_DIR "/golden/graph-%s.txt", variants[i].name); }

static void programs_print_as_before(void **state) {
    (void)state;
    arena a = {0};
    for (int i = 0; i < VARIANTS; i++) {
        failure f = {0};
        size_t n, m;
        char *now = print_variant(i, &n), *before;
        assert_done(file_read(&before, &m, 1 << 20, golden_path(&a, i), &f), &f);
        if (n != m || memcmp(now, before, n) != 0)
            test_fail("the program of %s changed; if it should, run test_graph_text --write and read the difference",
                      variants[i].name);
        free(now);
        free(before);
    }
    arena_free(&a);
}

static int write_all(void) {
    arena a = {0};
    failure f = {0};
    bool ok = true;
    for (int i = 0; i < VARIANTS && ok; i++) {
        size_t n;
        char *text = print_variant(i, &n);
        ok = file_write(golden_path(&a, i), text, n, &f);
        free(text);
    }
    if (!ok) fprintf(stderr, "%s\n", f.text);
    arena_free(&a);
    return !ok;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--write") == 0) return write_all();
    const struct CMUnitTest tests[] = {cmocka_unit_test(programs_print_as_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
