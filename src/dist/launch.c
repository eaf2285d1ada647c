/* launch.c - what the environment says of how this process was started; see launcher.h. */
#include "base/text.h"
#include "dist/launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A number from the environment; -1 when it is not set. */
static bool find_number(const char *name, int *out, failure *f) {
    const char *text = getenv(name);
    int64_t value;
    *out = -1;
    if (!text || !text[0]) return true;
    if (!text_to_int(text, &value) || value < 0 || value > 1 << 20)
        return fail(f, FAIL_USAGE, "environment: %s: found \"%.64s\", expected a number of ranks", name, text);
    *out = (int)value;
    return true;
}

static bool is_set(const char *name) {
    const char *text = getenv(name);
    return text && text[0];
}

/* By a launcher that MPI can ask: Open MPI's, MPICH's (PMI), or Slurm's with PMI or PMIx. A shell that srun started as
 * its only task is no launcher of ranks; nor is whatever stands around ranks that --gpus started. */
static bool has_mpi_launcher(int tasks) {
    if (is_set("LIGER_SFT_MEETING")) return false;
    if (is_set("OMPI_COMM_WORLD_SIZE")) return true;
    return tasks != 1 && (is_set("PMIX_RANK") || is_set("PMI_RANK") || is_set("PMI_FD"));
}

const char *launch_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder && folder[0] ? folder : "/tmp";
}

/* When the process started, in clock ticks since boot: with its number a name that is not used twice. */
static unsigned long long start_of(pid_t process) {
    char path[64], text[1024];
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)process);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[n] = 0;
    const char *p = strrchr(text, ')'); /* the name in front of it may hold blanks; the start is field 22 */
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    if (p) start = strtoull(p, NULL, 10);
    return start;
}

/* torchrun starts the ranks of a machine as children of one process, which names their file. */
static void find_meeting(launch_place *place) {
    const char *given = getenv("LIGER_SFT_MEETING"), *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    if (given && strlen(given) < sizeof place->meeting) {
        snprintf(place->meeting, sizeof place->meeting, "%s", given);
        return;
    }
    if (place->local_size != place->size) return;
    snprintf(place->meeting, sizeof place->meeting, "%.300s/liger-sft-%lu-%ld-%llu-%.20s", launch_folder(),
             (unsigned long)geteuid(), (long)getppid(), start_of(getppid()), restart ? restart : "0");
}

static bool find_env(launch_place *out, failure *f) {
    int rank, size, local_rank, local_size;
    TRY(find_number("RANK", &rank, f) && find_number("WORLD_SIZE", &size, f));
    TRY(find_number("LOCAL_RANK", &local_rank, f) && find_number("LOCAL_WORLD_SIZE", &local_size, f));
    if (rank < 0 || size < 1 || (size == 1 && rank == 0)) return true; /* one variable alone is nobody's launcher */
    if (local_rank < 0 || rank >= size || local_rank > rank || (local_size >= 0 && local_rank >= local_size))
        return fail(f, FAIL_USAGE,
                    "environment: RANK %d of WORLD_SIZE %d with LOCAL_RANK %d of LOCAL_WORLD_SIZE %d (-1: not set), "
                    "expected RANK below WORLD_SIZE and LOCAL_RANK below LOCAL_WORLD_SIZE; unset RANK and WORLD_SIZE "
                    "to run as one process",
                    rank, size, local_rank, local_size);
    out->kind = LAUNCH_ENV;
    out->rank = rank, out->size = size;
    out->local_rank = local_rank, out->local_size = local_size > 0 ? local_size : size;
    find_meeting(out);
    return true;
}

bool launch_find(launch_place *out, failure *f) {
    int tasks;
    *out = (launch_place){.size = 1, .local_size = 1};
    TRY(find_number("SLURM_STEP_NUM_TASKS", &tasks, f));
    if (has_mpi_launcher(tasks)) {
        out->kind = LAUNCH_MPI;
        TRY(find_number("OMPI_COMM_WORLD_SIZE", &out->size, f));
        if (out->size < 1) out->size = 1; /* MPI says it later */
        return true;
    }
    TRY(find_env(out, f));
    if (out->kind == LAUNCH_ALONE && tasks > 1)
        return fail(f, FAIL_USAGE,
                    "srun started %d tasks and does not tell them of each other: use srun --mpi=pmix (srun --mpi=list "
                    "says what there is), or one task with --gpus N",
                    tasks);
    return true;
}
