/* hang_watch.h - says that a step hangs while it hangs: a device or a disk that does not answer, a rank that is gone.
 */
#ifndef REPORT_HANG_WATCH_H
#define REPORT_HANG_WATCH_H
#include <stdint.h>

typedef struct hang_watch hang_watch;
/* A thread looks from time to time; a step that runs for longer than `least` seconds and than `factor` times the usual
 * gets one warning. NULL when the thread cannot be started: the other functions then do nothing. */
hang_watch *hang_watch_open(double least, double factor);
void hang_watch_begin(hang_watch *w, int64_t step, double usual); /* usual: seconds; 0: not known, not watched */
void hang_watch_end(hang_watch *w);
int hang_watch_count(hang_watch *w); /* warnings so far */
void hang_watch_close(hang_watch *w);
#endif
