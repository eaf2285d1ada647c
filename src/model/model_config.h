/* model_config.h - config.json of a model folder, in Hugging Face's old and new spellings.
 *
 * Families are rows in a table (family.c) and differ by flags; a model that cannot be run exactly is refused by name
 * with the reason. */
#ifndef MODEL_MODEL_CONFIG_H
#define MODEL_MODEL_CONFIG_H
#include "base/dtype.h"
#include "base/failure.h"
#include "base/memory.h"
#include "graph/graph.h"

typedef enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 } rope_kind;

typedef struct {
    rope_kind kind;
    double theta, factor, low_freq_factor, high_freq_factor;
    int original_max_position;
} rope_config;

typedef struct {
    const char *family; /* model_type: "llama", "qwen2", "qwen3", "mistral" */
    int n_layer, d_model, n_head, n_kv_head, head_dim, d_ff, vocab;
    float rms_eps;
    rope_config rope;
    int max_position;
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied_head;
    glu_kind glu;
    int *window;  /* [n_layer]; 0: full attention */
    dtype stored; /* torch_dtype / dtype; what bench and plan assume for the weights */
    int bos, pad; /* -1: none */
    int eos[8], n_eos;
} model_config;

/* Reads FOLDER/config.json (and eos ids from generation_config.json when it is there). Strings and arrays live in a. */
bool model_config_read(model_config *m, const char *folder, arena *a, failure *f);
/* Inverse frequencies of the rotary embedding with its scaling applied: out[head_dim / 2]. */
void model_rope_frequencies(const model_config *m, float *out);
#endif
