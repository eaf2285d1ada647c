/* family.h - what sets one model family apart from another when its config.json is read. */
#ifndef MODEL_FAMILY_H
#define MODEL_FAMILY_H
#include "base/failure.h"
#include <stdbool.h>

typedef enum {
    WINDOW_NONE,  /* full attention, whatever the config says */
    WINDOW_ALL,   /* sliding_window holds for every layer; null: full */
    WINDOW_GATED, /* only with use_sliding_window, from layer max_window_layers on */
} window_rule;

typedef struct {
    const char *model_type;
    bool qkv_bias;             /* q, k and v always have a bias; o has none */
    bool reads_attention_bias; /* attention_bias gives q, k, v and o a bias */
    bool reads_mlp_bias;
    bool qk_norm; /* RMS norm of each head of q and k before the rotation */
    window_rule window;
    int head_dim;  /* when the key is absent; 0: hidden_size / num_attention_heads */
    int n_kv_head; /* when the key is absent; 0: as many as query heads */
} family;

/* The row of a model_type; fails with the reason for a known one that cannot be run, else with the list. */
bool family_find(const family **out, const char *model_type, const char *place, failure *f);
#endif
