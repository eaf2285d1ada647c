/* progress.h - the lines about a step on standard output, as text.  Only files in this folder and tests include it. */
#ifndef REPORT_PROGRESS_H
#define REPORT_PROGRESS_H
#include "base/text.h"
#include "report/report.h"

/* "step=5 steps=100 epoch=0.5 loss=1.25 ... seconds_left=95\n" */
void progress_put_pairs(text_buf *out, const step_metrics *m, double seconds_left);
/* One line of at most `width` columns for a terminal, no line end. The fields that matter least go first when there is
 * not room for all; figures that do not exist are left out. */
void progress_put_line(text_buf *out, const step_metrics *m, double seconds_left, int width);
/* "key=NUMBER", or "key=na" for NAN, with a blank before it unless out is empty. */
void progress_put_pair(text_buf *out, const char *key, double x, int digits, bool fixed);
#endif
