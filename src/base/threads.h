/* threads.h - how OpenMP's threads wait for work. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H
#include "base/failure.h"

/* Makes waiting threads spin for a fraction of a millisecond, then sleep.  libgomp's default is about a hundred times
 * longer: on a machine with other work that eats the time slices which the threads waited for would need, and a
 * training step takes several times as long.  libgomp reads this setting only while it is loaded, so the program is
 * started again, once, in the same process; `argv` is main's.  Does nothing where the user has chosen a setting. */
void threads_wait_briefly(char *const *argv);

/* Whether n threads can run at once. OpenMP would end the program by itself, with exit code 1, where they cannot. */
bool threads_check(int n, failure *f);
#endif
