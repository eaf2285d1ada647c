/* folder_lock.h - one run at a time in an output folder. */
#ifndef BASE_FOLDER_LOCK_H
#define BASE_FOLDER_LOCK_H
#include "base/failure.h"

#define FOLDER_LOCK_NAME "run.lock"

typedef struct {
    int fd;
    char *folder, *path;
    char *kept; /* the nearest folder that was there before; those below it were made */
} folder_lock;

/* Makes the folder with its parents, and run.lock in it with this process's id. Fails when the folder cannot be made or
 * written, and when another live process holds the lock: the failure names its id. The lock of a process that ended,
 * however it ended, does not block. Where files cannot be locked (some network file systems) a warning says so and the
 * run goes on without. One process of a run takes it. */
bool folder_lock_take(folder_lock *l, const char *folder, failure *f);
/* Removes run.lock, and the folders that were made for it if nothing else came into them. */
void folder_lock_release(folder_lock *l);
#endif
