/* file.c - mapping and reading regular files, writing through a temporary file, and the little path arithmetic there
 * is.
 *
 * A temporary carries the process id, so that two runs in one folder do not write into one another's. */
#include "base/file.h"
#include "base/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool open_regular(int *fd, struct stat *st, const char *path, failure *f) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
    if (*fd < 0) return fail_errno(f, FAIL_INPUT, "%s", path);
    if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode)) return true;
    close(*fd);
    return fail(f, FAIL_INPUT, "%s: not a regular file", path);
}

bool file_map_open(file_map *m, const char *path, failure *f) {
    int fd;
    struct stat st;
    TRY(open_regular(&fd, &st, path, f));
    *m = (file_map){.size = (size_t)st.st_size};
    if (m->size) {
        void *at = mmap(NULL, m->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED) {
            fail_errno(f, FAIL_MACHINE, "%s: cannot map %zu bytes", path, m->size);
            close(fd);
            return false;
        }
        m->data = at;
        mapped_add(at, m->size, path);
    }
    close(fd);
    return true;
}

void file_map_close(file_map *m) {
    if (m->data) {
        mapped_remove(m->data);
        munmap((void *)(uintptr_t)m->data, m->size);
    }
    *m = (file_map){0};
}

bool file_read(char **text, size_t *n, size_t max_bytes, const char *path, failure *f) {
    int fd;
    struct stat st;
    TRY(open_regular(&fd, &st, path, f));
    size_t size = (size_t)st.st_size, got = 0;
    if (size > max_bytes) {
        close(fd);
        return fail(f, FAIL_INPUT, "%s: %zu bytes, at most %zu are read", path, size, max_bytes);
    }
    char *block = xmalloc(size + 1);
    while (got < size) {
        ssize_t r = read(fd, block + got, size - got);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) break;
        got += (size_t)r;
    }
    close(fd);
    if (got < size) {
        free(block);
        return fail(f, FAIL_MACHINE, "%s: %zu of %zu bytes could be read", path, got, size);
    }
    block[size] = 0;
    *text = block;
    *n = size;
    return true;
}

struct file_writer {
    int fd;
    char *path, *temporary;
};

static void writer_free(file_writer *w) {
    if (w->fd >= 0) close(w->fd);
    free(w->path);
    free(w->temporary);
    free(w);
}

bool file_writer_open(file_writer **out, const char *path, failure *f) {
    file_writer *w = xcalloc(1, sizeof *w);
    size_t room = strlen(path) + 32;
    w->path = xstrdup(path);
    w->temporary = xmalloc(room);
    snprintf(w->temporary, room, "%s.tmp-%ld", path, (long)getpid());
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        fail_errno(f, FAIL_MACHINE, "%s: cannot write", w->temporary);
        writer_free(w);
        return false;
    }
    *out = w;
    return true;
}

bool file_writer_write(file_writer *w, const void *data, size_t bytes, failure *f) {
    for (size_t done = 0; done < bytes;) {
        ssize_t r = write(w->fd, (const char *)data + done, bytes - done);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return fail_errno(f, FAIL_MACHINE, "%s: write failed", w->temporary);
        done += (size_t)r;
    }
    return true;
}

/* The rename itself must reach the disk, or a power cut could undo it. */
static bool sync_folder(const char *path, failure *f) {
    arena a = {0};
    const char *folder = path_folder(&a, path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (!ok) fail_errno(f, FAIL_MACHINE, "%s: fsync failed", folder);
    if (fd >= 0) close(fd);
    arena_free(&a);
    return ok;
}

bool file_writer_commit(file_writer *w, failure *f) {
    bool ok = fsync(w->fd) == 0 || fail_errno(f, FAIL_MACHINE, "%s: fsync failed", w->temporary);
    if (close(w->fd) != 0 && ok) ok = fail_errno(f, FAIL_MACHINE, "%s: close failed", w->temporary);
    w->fd = -1;
    if (ok && rename(w->temporary, w->path) != 0) ok = fail_errno(f, FAIL_MACHINE, "%s: rename failed", w->path);
    if (!ok) unlink(w->temporary);
    if (ok) ok = sync_folder(w->path, f);
    writer_free(w);
    return ok;
}

void file_writer_abort(file_writer *w) {
    if (!w) return;
    unlink(w->temporary);
    writer_free(w);
}

bool file_write(const char *path, const void *data, size_t bytes, failure *f) {
    file_writer *w;
    TRY(file_writer_open(&w, path, f));
    if (file_writer_write(w, data, bytes, f)) return file_writer_commit(w, f);
    file_writer_abort(w);
    return false;
}

bool file_rename(const char *from, const char *to, failure *f) {
    if (rename(from, to) != 0) return fail_errno(f, FAIL_MACHINE, "%s: cannot become %s", from, to);
    return sync_folder(to, f);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

bool file_remove(const char *path, failure *f) {
    struct stat st;
    if (lstat(path, &st) != 0 && errno == ENOENT) return true;
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0) return true;
    return fail_errno(f, FAIL_MACHINE, "%s: cannot remove", path);
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool file_is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool file_make_folders(const char *path, failure *f) {
    char *part = xstrdup(path);
    bool ok = true;
    for (char *at = part + 1; ok; at++) {
        if (*at != '/' && *at != 0) continue;
        char end = *at;
        *at = 0;
        if (mkdir(part, 0755) != 0 && !(errno == EEXIST && file_is_folder(part)))
            ok = fail_errno(f, FAIL_MACHINE, "%s: cannot make this folder", part);
        *at = end;
        if (!end) break;
    }
    free(part);
    return ok;
}

bool file_check_folder(const char *path, failure *f) {
    if (!path[0]) return fail(f, FAIL_INPUT, "found \"\", expected a folder's path");
    arena a = {0};
    const char *at = path;
    struct stat s = {0};
    while (stat(at, &s) != 0 && strcmp(at, ".") != 0) at = path_folder(&a, at);
    bool ok = true;
    if (!S_ISDIR(s.st_mode)) ok = fail(f, FAIL_INPUT, "%s is a file, expected a folder", at);
    else if (access(at, W_OK) != 0 && errno != ENOENT) /* else another run that ended removed it since */
        ok = fail_errno(f, FAIL_MACHINE, "%s", at);
    arena_free(&a);
    return ok;
}

char *path_join(arena *a, const char *folder, const char *name) {
    if (name[0] == '/' || !folder[0]) return arena_strdup(a, name);
    return arena_printf(a, "%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/", name);
}

char *path_folder(arena *a, const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return arena_strdup(a, ".");
    return arena_strndup(a, path, slash == path ? 1 : (size_t)(slash - path));
}
