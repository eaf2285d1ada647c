/* bench_kernels.h - `liger-sft bench --kernels`: every fused op at a model's shapes, alone. */
#ifndef CLI_BENCH_KERNELS_H
#define CLI_BENCH_KERNELS_H
#include "config/config.h"

bool bench_kernels(const config *c, failure *f);
#endif
