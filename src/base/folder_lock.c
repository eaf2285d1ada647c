/* folder_lock.c - a lock that the kernel drops when its process ends; see folder_lock.h.
 *
 * flock on an open file, so nothing has to be told about dead processes.  The text of the file, "pid 123 on host", is
 * for the message alone.  The file is removed while it is still locked: who opened it in between finds that the name no
 * longer leads to what was locked, and tries again. */
#include "base/folder_lock.h"
#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ATTEMPTS = 100 };

/* The folder or its nearest parent that is there. */
static char *nearest_there(const char *folder) {
    arena a = {0};
    const char *at = folder;
    while (!file_exists(at) && strcmp(at, ".") != 0) at = path_folder(&a, at);
    char *out = xstrdup(at);
    arena_free(&a);
    return out;
}

static bool held_by_another(const folder_lock *l, failure *f) {
    char holder[128] = "";
    ssize_t n = pread(l->fd, holder, sizeof holder - 1, 0);
    holder[n > 0 ? n : 0] = 0;
    holder[strcspn(holder, "\n")] = 0;
    return fail(f, FAIL_INPUT, "%s: another run writes here (%s); wait for it, end it, or name another folder",
                l->folder, holder[0] ? holder : "its pid is not known yet");
}

static void write_holder(const folder_lock *l) {
    char host[65] = "", text[128];
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "pid %ld on %s\n", (long)getpid(), host[0] ? host : "this host");
    if (ftruncate(l->fd, 0) != 0 || pwrite(l->fd, text, (size_t)n, 0) != n)
        log_warning("%s: cannot write: %s", l->path, strerror(errno)); /* the lock itself stands */
}

/* The name still leads to the file that is open. */
static bool still_there(const folder_lock *l) {
    struct stat mine, named;
    return fstat(l->fd, &mine) == 0 && stat(l->path, &named) == 0 && mine.st_ino == named.st_ino &&
           mine.st_dev == named.st_dev;
}

/* Makes the folder; sets *again, with the failure in f, where nothing lasting is seen to be in the way: another run
 * that ends may remove a part of the path between two looks at it. */
static bool make_folder(const folder_lock *l, bool *again, failure *f) {
    failure lasting = {0};
    if (file_make_folders(l->folder, f)) return true;
    return *again = file_check_folder(l->folder, &lasting);
}

/* One attempt: sets *again when the file went away meanwhile. */
static bool try_lock(folder_lock *l, bool *again, failure *f) {
    *again = false;
    TRY(make_folder(l, again, f));
    if (*again) return true;
    l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (l->fd < 0 && errno == ENOENT) return *again = true; /* another run ended and removed the folder */
    if (l->fd < 0) return fail_errno(f, FAIL_MACHINE, "%s: cannot write", l->path);
    if (flock(l->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return held_by_another(l, f);
        log_warning("%s: cannot be locked (%s): a second run here would not be noticed", l->path, strerror(errno));
        return true;
    }
    if (still_there(l)) return write_holder(l), true;
    close(l->fd);
    l->fd = -1;
    return *again = true;
}

static void forget(folder_lock *l) {
    if (l->fd >= 0) close(l->fd);
    for (char *at = l->folder; at && strcmp(at, l->kept) != 0 && rmdir(at) == 0;) { /* stops at one that is not empty */
        arena a = {0};
        char *parent = path_folder(&a, at);
        size_t n = strlen(parent);
        memcpy(at, parent, n + 1);
        arena_free(&a);
    }
    free(l->folder);
    free(l->path);
    free(l->kept);
    *l = (folder_lock){.fd = -1};
}

bool folder_lock_take(folder_lock *l, const char *folder, failure *f) {
    *l = (folder_lock){.fd = -1};
    TRY(file_check_folder(folder, f));
    arena a = {0};
    l->folder = xstrdup(folder);
    l->path = xstrdup(path_join(&a, folder, FOLDER_LOCK_NAME));
    l->kept = nearest_there(folder);
    arena_free(&a);
    bool ok = true, again = true;
    for (int i = 0; ok && again && i < ATTEMPTS; i++) {
        if (i) nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
        *f = (failure){0};
        ok = try_lock(l, &again, f);
    }
    if (ok && again) ok = false;
    if (!ok && f->kind == FAIL_NONE)
        fail(f, FAIL_MACHINE, "%s: is made and removed by other runs all the time", l->path);
    if (!ok) forget(l);
    return ok;
}

void folder_lock_release(folder_lock *l) {
    if (!l->folder) return;
    unlink(l->path);
    forget(l);
}
