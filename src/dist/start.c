/* start.c - starts ranks on this machine and sees to their end; see launcher.h.
 *
 * The ranks are one process group of their own, so that a signal from the terminal reaches them once, through us. Each
 * asks the kernel to be stopped when we are gone. */
#include "base/log.h"
#include "base/memory.h"
#include "dist/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long the others have to end when one has failed, and when one has ended because it was asked to: they then may be
 * writing a checkpoint. */
enum { GRACE_SECONDS = 10, LAST_SAVE_SECONDS = 300, TICK_MS = 20 };

/* argv behind `program` and before NULL. */
static char **command_line(const char *program, const char *const *before, char *const *argv) {
    int n = 0, at = 0;
    while (argv[n]) n++;
    for (int i = 0; before[i]; i++) n++;
    char **line = xcalloc((size_t)n + 2, sizeof *line);
    line[at++] = (char *)(uintptr_t)program;
    for (int i = 0; before[i]; i++) line[at++] = (char *)(uintptr_t)before[i];
    for (int i = 0; argv[i]; i++) line[at++] = argv[i];
    return line;
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* In the child: becomes rank `rank`. Returns only when it could not. */
static void become_rank(int rank, int n, pid_t parent, const char *meeting, char *const *line, const sigset_t *mask) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) return; /* it is gone already */
    set_number("RANK", rank);
    set_number("WORLD_SIZE", n);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", n);
    setenv("LIGER_SFT_MEETING", meeting, 1);
    int nothing = rank ? open("/dev/null", O_RDONLY) : -1;
    if (nothing >= 0) dup2(nothing, 0), close(nothing);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execv("/proc/self/exe", line);
}

typedef struct {
    int n, running;
    pid_t *process, group; /* process[n]: 0 once it has ended */
    int code;              /* of the first that failed */
} ranks;

static bool start_all(ranks *r, const char *meeting, char *const *argv, const sigset_t *mask, failure *f) {
    static const char *const none[] = {NULL};
    pid_t parent = getpid();
    char **line = command_line("liger-sft", none, argv);
    bool ok = true;
    for (int i = 0; i < r->n && ok; i++) {
        pid_t child = fork();
        if (child == 0) {
            setpgid(0, r->group);
            become_rank(i, r->n, parent, meeting, line, mask);
            kill(getpid(), SIGKILL); /* what is left of a rank that could not start */
        }
        ok = child > 0 || fail_errno(f, FAIL_MACHINE, "starting rank %d of %d", i, r->n);
        if (!ok) break;
        if (!r->group) r->group = child;
        setpgid(child, r->group);
        r->process[i] = child;
        r->running++;
    }
    free(line);
    return ok;
}

static void say_ended(const ranks *r, int rank, int status) {
    const char *rest = r->running ? "; ending the others" : "";
    if (WIFSIGNALED(status))
        log_error("rank %d of %d was ended by signal %d (%s)%s", rank, r->n, WTERMSIG(status),
                  strsignal(WTERMSIG(status)), rest);
    else log_error("rank %d of %d ended with exit code %d%s", rank, r->n, WEXITSTATUS(status), rest);
}

/* Notes every rank that has ended. True when one has failed, now or before. */
static bool reap(ranks *r) {
    int status;
    for (int i = 0; i < r->n; i++) {
        if (!r->process[i] || waitpid(r->process[i], &status, WNOHANG) != r->process[i]) continue;
        r->process[i] = 0;
        r->running--;
        bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (well || r->code) continue;
        r->code = WIFEXITED(status) ? WEXITSTATUS(status) : FAIL_MACHINE;
        if (r->code != FAIL_INTERRUPT) say_ended(r, i, status);
    }
    return r->code != 0;
}

/* Waits for the ranks; a signal of `stop` is handed on to them. */
static void see_to_the_end(ranks *r, const sigset_t *stop) {
    const struct timespec tick = {.tv_nsec = TICK_MS * 1000000L};
    int left = -1; /* ticks until they are killed; -1: none has failed */
    while (r->running) {
        int signal = sigtimedwait(stop, NULL, &tick);
        if (signal > 0 && signal != SIGCHLD) kill(-r->group, signal);
        if (!reap(r) || !r->running) continue;
        if (left < 0 && r->code == FAIL_INTERRUPT) left = LAST_SAVE_SECONDS * 1000 / TICK_MS;
        else if (left < 0) {
            left = GRACE_SECONDS * 1000 / TICK_MS;
            kill(-r->group, SIGTERM);
        }
        if (signal < 0 && errno == EAGAIN && --left == 0) kill(-r->group, SIGKILL);
    }
}

bool launch_local(int n, char *const *argv, int *code, failure *f) {
    char name[512], meeting[600];
    snprintf(name, sizeof name, "%.400s/liger-sft-XXXXXX", launch_folder());
    if (!mkdtemp(name)) return fail_errno(f, FAIL_MACHINE, "%s: the folder where ranks meet", name);
    snprintf(meeting, sizeof meeting, "%s/id", name);
    sigset_t stop, before;
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT), sigaddset(&stop, SIGTERM), sigaddset(&stop, SIGHUP), sigaddset(&stop, SIGCHLD);
    sigprocmask(SIG_BLOCK, &stop, &before);
    ranks r = {.n = n, .process = xcalloc((size_t)n, sizeof(pid_t))};
    bool ok = start_all(&r, meeting, argv, &before, f);
    if (!ok && r.group) r.code = FAIL_MACHINE, kill(-r.group, SIGTERM);
    see_to_the_end(&r, &stop);
    unlink(meeting);
    rmdir(name);
    free(r.process);
    sigprocmask(SIG_SETMASK, &before, NULL);
    *code = r.code;
    return ok;
}

bool launch_mpirun(int n, char *const *argv, failure *f) {
    char count[16], self[512];
    snprintf(count, sizeof count, "%d", n);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) return fail_errno(f, FAIL_MACHINE, "/proc/self/exe");
    self[length] = 0;
    /* Open MPI's settings, for others without effect: more ranks than processors are what was asked for, and threads
     * are not to be bound to one. Whether it runs as root is for the user to say: it explains itself. */
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);
    const char *const before[] = {"-n", count, self, NULL};
    char **line = command_line("mpirun", before, argv);
    execvp("mpirun", line);
    free(line);
    return fail_errno(f, FAIL_MACHINE, "mpirun, which starts ranks on the CPU (Debian: openmpi-bin)");
}
