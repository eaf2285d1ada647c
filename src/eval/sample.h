/* sample.h - the next token out of logits. */
#ifndef EVAL_SAMPLE_H
#define EVAL_SAMPLE_H
#include <stdint.h>

typedef struct {
    double temperature; /* 0: the likeliest token, the lowest id where several are */
    double top_p;       /* keep the likeliest tokens until their probabilities reach this; 1: all */
    int64_t top_k;      /* keep the k likeliest tokens; 0: all */
} sample_options;

/* `uniform` in [0, 1) decides among the kept tokens; it is not looked at when temperature is 0. -1 when no logit is
 * finite. */
int32_t sample_token(const float *logits, int n, const sample_options *o, double uniform);
#endif
