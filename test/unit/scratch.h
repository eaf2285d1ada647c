/* scratch.h - a folder of its own for each test, removed afterwards: SCRATCH_TEST(name). Include it first: it brings
 * unit.h. */
#ifndef UNIT_SCRATCH_H
#define UNIT_SCRATCH_H
#include "unit.h"

#include "base/file.h"
#include "base/rng.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char folder[64];
    arena paths;
} scratch;

static inline int scratch_setup(void **state) {
    scratch *s = xcalloc(1, sizeof *s);
    snprintf(s->folder, sizeof s->folder, "/tmp/liger-test-XXXXXX");
    if (!mkdtemp(s->folder)) return -1;
    *state = s;
    return 0;
}

static inline void scratch_remove(const char *folder) {
    DIR *dir = opendir(folder);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        arena a = {0};
        const char *path = path_join(&a, folder, e->d_name);
        struct stat st;
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) scratch_remove(path);
        else unlink(path);
        arena_free(&a);
    }
    if (dir) closedir(dir);
    rmdir(folder);
}

static inline int scratch_teardown(void **state) {
    scratch *s = *state;
    scratch_remove(s->folder);
    arena_free(&s->paths);
    free(s);
    return 0;
}

static inline const char *scratch_folder(void **state) { return ((scratch *)*state)->folder; }

/* Lives as long as the test. */
static inline const char *scratch_path(void **state, const char *name) {
    scratch *s = *state;
    return path_join(&s->paths, s->folder, name);
}

/* Makes the folders of the path too. A new file each time, without fsync: some file systems flush a rewritten one. */
static inline void scratch_write(const char *path, const void *data, size_t bytes) {
    failure f = {0};
    arena a = {0};
    assert_done(file_make_folders(path_folder(&a, path), &f), &f);
    arena_free(&a);
    unlink(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void scratch_puts(void **state, const char *name, const char *text) {
    scratch_write(scratch_path(state, name), text, strlen(text));
}

/* Files and folders in the test's folder. */
static inline int scratch_count(void **state) {
    DIR *dir = opendir(scratch_folder(state));
    int n = 0;
    for (const struct dirent *e; dir && (e = readdir(dir));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (dir) closedir(dir);
    return n;
}

/* The text with a few characters changed and perhaps its end cut; text[n] stays NUL. */
static inline size_t scratch_mutate(char *text, size_t n, rng *r) {
    static const char marks[] = "{}[],:\"\\0123456789-+.eEntf\x00\x7F\x80\xFF \n";
    for (int k = (int)rng_below(r, 4); k >= 0; k--) text[rng_below(r, n)] = marks[rng_below(r, sizeof marks - 1)];
    if (rng_below(r, 8) == 0) n = rng_below(r, n);
    text[n] = 0;
    return n;
}

#define SCRATCH_TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
#endif
