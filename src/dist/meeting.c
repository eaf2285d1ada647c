/* meeting.c - a small file through which rank 0 hands something to the other ranks of its machine before they have any
 * other way; see launcher.h. Written under another name and renamed, so that it is there whole or not at all. Only a
 * file of our own user's counts: its folder may be everybody's. */
#include "base/clock.h"
#include "dist/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool meeting_put(const char *path, const void *data, size_t bytes, failure *f) {
    char temporary[600];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    unlink(temporary);
    int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return fail_errno(f, FAIL_MACHINE, "%s", temporary);
    bool ok = write(file, data, bytes) == (ssize_t)bytes;
    ok = (close(file) == 0) && ok;
    ok = ok && rename(temporary, path) == 0;
    return ok || fail_errno(f, FAIL_MACHINE, "%s", path);
}

/* 1: read; 0: not there yet; -1: failed. */
static int try_get(const char *path, void *data, size_t bytes, failure *f) {
    struct stat s;
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) return 0;
    if (file < 0) return fail_errno(f, FAIL_MACHINE, "%s", path), -1;
    bool ours = fstat(file, &s) == 0 && s.st_uid == geteuid() && S_ISREG(s.st_mode);
    bool whole = ours && read(file, data, bytes) == (ssize_t)bytes;
    close(file);
    if (whole) return 1;
    fail(f, FAIL_MACHINE, "%s: found %s, expected %zu bytes written by rank 0 of this run", path,
         ours ? "another length" : "a file of another user", bytes);
    return -1;
}

bool meeting_get(const char *path, void *data, size_t bytes, double seconds, failure *f) {
    const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    double end = clock_seconds() + seconds;
    for (;;) {
        int got = try_get(path, data, bytes, f);
        if (got) return got > 0;
        if (clock_seconds() > end)
            return fail(f, FAIL_MACHINE, "%s: rank 0 has not written it within %g s (ddp_timeout)", path, seconds);
        nanosleep(&pause, NULL);
    }
}

void meeting_end(const char *path) { unlink(path); }
