/* model_weights.h - which stored tensor belongs to which param of the program. */
#ifndef MODEL_MODEL_WEIGHTS_H
#define MODEL_MODEL_WEIGHTS_H
#include "model/model.h"
#include "weights/safetensors.h"

/* Before model_build: settles the head from the files. Tied by config.json and absent from them, or equal to the
 * embedding there: stays tied. Tied but stored apart with other values: the stored head is used, as an untied one, with
 * a warning. Untied and absent: a failure, never a random head. */
bool model_weights_settle_head(model_config *m, const st_set *s, failure *f);

/* A stored_type for model_build, with the set as context. For a name that the set lacks (model_weights_find will say
 * so) it is F32. */
dtype model_weights_stored(const char *name, void *set);

/* For each param of the program that is no adapter's: by_value[v] = its tensor (by_value has as many entries as the
 * graph has values; others are left alone). A missing tensor or one of another shape is a failure with both sides;
 * tensors that nothing needs are named in one warning. */
bool model_weights_find(const graph *g, const st_set *s, const model_config *m, const st_tensor **by_value, failure *f);
/* The same for the adapter's params ("base_model.model. ..."). A tensor too many is a failure too: it would have been
 * part of what was trained. */
bool adapter_weights_find(const graph *g, const st_set *adapter, const st_tensor **by_value, failure *f);
#endif
