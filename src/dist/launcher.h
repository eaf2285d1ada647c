/* launcher.h - how this process was started: alone, or as one of several ranks; and starting ranks on this machine.
 *
 * The one place that reads the environment of launchers: mpirun and srun (MPI then says who is who), torchrun's names
 * (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), which --gpus N also gives to the ranks that it starts. */
#ifndef DIST_LAUNCHER_H
#define DIST_LAUNCHER_H
#include "base/failure.h"
#include <stddef.h>

typedef enum {
    LAUNCH_ALONE,
    LAUNCH_MPI, /* by mpirun, or by srun through PMI or PMIx */
    LAUNCH_ENV, /* torchrun's names are set */
} launch_kind;

typedef struct {
    launch_kind kind;
    int rank, size, local_rank, local_size; /* of LAUNCH_ENV; else 0, 1 (or what Open MPI says), 0, 1 until MPI says */
    char meeting[512]; /* LAUNCH_ENV: the file through which NCCL's id passes; "" when there is none that all see */
} launch_place;

/* Names that contradict each other, or a launcher that does not say who is who, are failures. */
bool launch_find(launch_place *out, failure *f);
const char *launch_folder(void); /* for files that live as long as a run: TMPDIR, or /tmp */

/* Starts this program n times on this machine, as ranks 0 .. n-1 with torchrun's names in their environment and a
 * meeting file of their own; argv: the arguments behind the program's name, NULL-terminated. Waits for them. When one
 * fails, names it on standard error and ends the others: asked to stop, killed 10 s later. Signals to stop are handed
 * on. *code: 0, or that of the rank that failed first (3 when a signal ended it). */
bool launch_local(int n, char *const *argv, int *code, failure *f);
/* Becomes `mpirun -n N` of this program; returns only when it could not. */
bool launch_mpirun(int n, char *const *argv, failure *f);

/* The meeting: rank 0 writes, the others wait for the file; seconds at most. */
bool meeting_put(const char *path, const void *data, size_t bytes, failure *f);
bool meeting_get(const char *path, void *data, size_t bytes, double seconds, failure *f);
void meeting_end(const char *path); /* by rank 0, when all have read */
#endif
