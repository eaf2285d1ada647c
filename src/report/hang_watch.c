/* hang_watch.c - a thread that wakes four times in `least` seconds, so that the steps themselves cost a lock and no
 * more. See hang_watch.h. */
#include "report/hang_watch.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

struct hang_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* closing */
    double least, factor;
    bool closing, running, told; /* running: a step is */
    int64_t step;
    double began, usual;
    int count;
};

static void look(hang_watch *w) {
    double ran = clock_seconds() - w->began;
    if (!w->running || w->told || w->usual <= 0 || ran < w->least || ran < w->factor * w->usual) return;
    w->told = true;
    w->count++;
    log_warning("step %lld has been running for %.0f seconds, the steps before it took %.2g: the device, a disk or "
                "another rank may hang",
                (long long)w->step, ran, w->usual);
}

static void *watch(void *context) {
    hang_watch *w = context;
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t nanoseconds = (int64_t)(w->least / 4 * 1e9) + until.tv_nsec;
        until.tv_sec += nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
        if (!w->closing) look(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

hang_watch *hang_watch_open(double least, double factor) {
    hang_watch *w = xcalloc(1, sizeof *w);
    w->least = least;
    w->factor = factor;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&w->lock, NULL);
    sigset_t all, old; /* signals are for the thread that trains */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!error) return w;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return NULL;
}

void hang_watch_begin(hang_watch *w, int64_t step, double usual) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->running = true;
    w->told = false;
    w->step = step;
    w->usual = usual;
    w->began = clock_seconds();
    pthread_mutex_unlock(&w->lock);
}

void hang_watch_end(hang_watch *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->running = false;
    pthread_mutex_unlock(&w->lock);
}

int hang_watch_count(hang_watch *w) {
    if (!w) return 0;
    pthread_mutex_lock(&w->lock);
    int count = w->count;
    pthread_mutex_unlock(&w->lock);
    return count;
}

void hang_watch_close(hang_watch *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
