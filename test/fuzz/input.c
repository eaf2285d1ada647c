/* input.c - the folder of a fuzz target, and the checks that hold for every parser. */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[512];

static void remove_folder(void) {
    DIR *dir = opendir(folder);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.') unlink(fuzz_path(e->d_name));
    if (dir) closedir(dir);
    rmdir(folder);
}

const char *fuzz_folder(void) {
    if (folder[0]) return folder;
    snprintf(folder, sizeof folder, "%s/liger-fuzz-%ld", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             (long)getpid());
    fuzz_expect(mkdir(folder, 0700) == 0, "the folder for inputs can be made");
    atexit(remove_folder);
    return folder;
}

const char *fuzz_path(const char *name) {
    snprintf(path, sizeof path, "%s/%.300s", fuzz_folder(), name);
    return path;
}

void fuzz_file(const char *name, const void *data, size_t size) {
    int fd = open(fuzz_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_expect(fd >= 0, "the input can be written");
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        fuzz_expect(n > 0, "the input can be written");
        done += (size_t)n;
    }
    close(fd);
}

void fuzz_no_file(const char *name) { unlink(fuzz_path(name)); }

fuzz_bytes fuzz_cut(fuzz_bytes all, fuzz_bytes *rest) {
    const uint8_t *mark = all.size ? memchr(all.data, 0x1E, all.size) : NULL;
    *rest = (fuzz_bytes){0};
    if (!mark) return all;
    size_t n = (size_t)(mark - all.data);
    *rest = (fuzz_bytes){mark + 1, all.size - n - 1};
    return (fuzz_bytes){all.data, n};
}

bool fuzz_check(bool ok, const failure *f) {
    if (ok) return true;
    fuzz_expect(f->kind == FAIL_INPUT, "a failure is the user's input");
    fuzz_expect(memchr(f->text, 0, sizeof f->text) && f->text[0], "a failure says what is wrong");
    return false;
}

void fuzz_expect(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}
