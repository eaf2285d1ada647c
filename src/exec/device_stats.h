/* device_stats.h - how busy the device is and what it holds, for reports; sampled by a thread while a backend on a
 * device of its own is open (cuda/nvml.c).  Without one there is nothing to read (cuda/none.c). */
#ifndef EXEC_DEVICE_STATS_H
#define EXEC_DEVICE_STATS_H
#include <stdbool.h>

typedef struct {
    double util_percent;    /* share of the time in which a kernel ran; mean since the last reset */
    double memory_gib;      /* in use now by this process: what the device holds more than before it was opened */
    double peak_memory_gib; /* most of the samples since the device was opened */
} device_stats;

/* Bytes that the device holds now more than before it was opened; 0: not known. */
unsigned long long device_stats_held(void);
void device_stats_reset(void); /* the mean begins afresh */
/* false: there is no device, no NVML, or no sample since the reset yet. */
bool device_stats_read(device_stats *out);
#endif
