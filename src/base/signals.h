/* signals.h - SIGINT and SIGTERM as a question that a loop asks between two pieces of work.
 *
 * A signal that the program was started with as ignored (nohup, a shell's background jobs) stays ignored. */
#ifndef BASE_SIGNALS_H
#define BASE_SIGNALS_H
#include <stdbool.h>

/* Both signals end the program at once, with exit code 130 and a line, until signals_hold(true). */
void signals_catch(void);
/* true: there is something to save, so the first signal is only remembered; the second ends the program at once. */
void signals_hold(bool hold);
/* The run has ended and said how: nothing is left but to tidy up, which no signal needs to hurry. */
void signals_ignore(void);
int signals_caught(void);             /* the signal that waits for an answer; 0: none */
const char *signals_name(int number); /* "SIGINT" */
#endif
