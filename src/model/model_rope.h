/* model_rope.h - the rotary part of config.json; used by model_config.c. */
#ifndef MODEL_MODEL_ROPE_H
#define MODEL_MODEL_ROPE_H
#include "base/json.h"
#include "model/model_config.h"

bool model_rope_read(const cJSON *root, rope_config *out, int max_position, const char *place, failure *f);
#endif
