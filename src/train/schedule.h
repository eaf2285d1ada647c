/* schedule.h - the learning rate of each optimizer step. */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H
#include "config/config.h"

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_CONSTANT_WARMUP } schedule_kind;

typedef struct {
    schedule_kind kind;
    double peak;
    int64_t warmup, total; /* optimizer steps */
} schedule;

/* From lr_scheduler_type, learning_rate, warmup_steps (wins) or warmup_ratio (ceil(ratio * total)). */
schedule schedule_from_config(const config *c, int64_t total);
/* Learning rate of the step with this index (from 0). With a warm-up the first step's rate is 0, as in transformers'
 * get_cosine_schedule_with_warmup. */
double schedule_rate(const schedule *s, int64_t step);
#endif
