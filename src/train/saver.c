/* saver.c - one thread at a time, which owns a snapshot and a copy of the state; see saver.h. */
#include "train/saver.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

struct saver {
    const session *s;
    const optimizer *o;
    pthread_t thread;
    bool running; /* there is a thread to join */
    atomic_bool failed;
    snapshot p;
    run_state state;
    failure f;
};

saver *saver_open(const session *s, const optimizer *o) {
    saver *v = xcalloc(1, sizeof *v);
    v->s = s;
    v->o = o;
    return v;
}

static void *write_checkpoint(void *context) {
    saver *v = context;
    if (!checkpoint_write(&v->p, &v->state, &v->f)) atomic_store(&v->failed, true);
    return NULL;
}

/* The signals that ask to stop are for the thread that trains. */
static bool start_thread(saver *v, failure *f) {
    sigset_t stops, old;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stops, &old);
    int error = pthread_create(&v->thread, NULL, write_checkpoint, v);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    v->running = error == 0;
    return v->running || fail(f, FAIL_MACHINE, "saving a checkpoint: cannot start a thread (error %d)", error);
}

bool saver_start(saver *v, const run_state *state, failure *f) {
    TRY(saver_wait(v, f));
    snapshot sizes;
    TRY(snapshot_open(&sizes, v->s, v->o, false, f));
    size_t room = cpu_backend.memory();
    bool hold = room > 0 && (size_t)snapshot_bytes(&sizes) < room / 4;
    if (!hold) {
        bool ok = checkpoint_write(&sizes, state, f);
        snapshot_close(&sizes);
        return ok;
    }
    snapshot_close(&sizes);
    TRY(snapshot_open(&v->p, v->s, v->o, true, f));
    run_state_copy(&v->state, state);
    return start_thread(v, f);
}

bool saver_failed(const saver *v) { return atomic_load(&v->failed); }

bool saver_wait(saver *v, failure *f) {
    if (v->running) pthread_join(v->thread, NULL);
    v->running = false;
    snapshot_close(&v->p);
    run_state_free(&v->state);
    if (!atomic_exchange(&v->failed, false)) return true;
    *f = v->f;
    return false;
}

void saver_close(saver *v) {
    if (!v) return;
    failure ignored;
    saver_wait(v, &ignored);
    free(v);
}
