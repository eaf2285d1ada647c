/* adapter.h - a PEFT LoRA adapter folder: adapter_config.json + adapter_model.safetensors. */
#ifndef WEIGHTS_ADAPTER_H
#define WEIGHTS_ADAPTER_H
#include "weights/safetensors.h"

typedef struct {
    const char *base_model; /* base_model_name_or_path */
    int rank;
    double alpha, dropout;
    bool use_rslora;
    const char **targets; /* target_modules: last name parts; or one regular expression over whole module paths */
    int n_targets;
    bool regex;
    int *layers; /* layers_to_transform; NULL: all */
    int n_layers;
} adapter_config;

/* Refuses what cannot be run exactly (use_dora, bias != none, modules_to_save, rank_pattern, fan_in_fan_out ...), by
 * name. Strings live in a. */
bool adapter_config_read(adapter_config *c, const char *folder, arena *a, failure *f);
/* Writes adapter_config.json with the whole set of keys PEFT writes. */
bool adapter_config_write(const adapter_config *c, const char *folder, failure *f);
/* What B * A is multiplied by: alpha / rank, with use_rslora alpha / sqrt(rank). */
double adapter_scale(const adapter_config *c);
/* Opens adapter_model.safetensors. */
bool adapter_open(st_set **out, const char *folder, failure *f);
#endif
