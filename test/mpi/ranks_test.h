/* ranks_test.h - checks for tests that are ranks: each runs every check; the first that is wrong is printed with its
 * rank and ends all ranks. Static: a test is one file. */
#ifndef RANKS_TEST_H
#define RANKS_TEST_H
#include "dist/comm.h"

#include <stdio.h>
#include <stdlib.h>

/* The ranks of the test; limit: seconds. */
static inline comm *ranks_test_open(double limit) {
    launch_place place;
    comm *c = NULL;
    failure f = {0};
    if (launch_find(&place, &f) && place.kind == LAUNCH_MPI && comm_open(&c, &place, limit, &f)) return c;
    printf("this test is for mpirun: %s\n", f.text);
    abort();
}

#define RIGHT(c, condition)                                                                                            \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("FAILED: %s:%d: rank %d: %s\n", __FILE__, __LINE__, comm_rank(c), #condition);                      \
            fflush(stdout);                                                                                            \
            comm_abort(c, 1);                                                                                          \
        }                                                                                                              \
    } while (0)
#define DONE(c, call, f)                                                                                               \
    do {                                                                                                               \
        if (!(call)) {                                                                                                 \
            printf("FAILED: %s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, comm_rank(c), #call, (f)->text);            \
            fflush(stdout);                                                                                            \
            comm_abort(c, 1);                                                                                          \
        }                                                                                                              \
    } while (0)
#endif
