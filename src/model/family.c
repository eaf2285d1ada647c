/* family.c - the table of model families, and of those that are refused, with the reason.
 *
 * A row says how its config.json differs; the program is built by the one builder in model.c.  Defaults are those of
 * transformers' configuration class. */
#include "model/family.h"
#include "base/text.h"

#include <string.h>

static const family families[] = {
    {.model_type = "llama", .reads_attention_bias = true, .reads_mlp_bias = true},
    {.model_type = "qwen2", .qkv_bias = true, .window = WINDOW_GATED, .n_kv_head = 32},
    {.model_type = "qwen3",
     .reads_attention_bias = true,
     .qk_norm = true,
     .window = WINDOW_GATED,
     .head_dim = 128,
     .n_kv_head = 32},
    {.model_type = "mistral", .window = WINDOW_ALL, .n_kv_head = 8},
};

static const char experts[] = "its feed-forward layers are mixtures of experts";
static const char gemma[] = "its norms multiply by 1 + weight and its embeddings are scaled, which is not built yet";
static const char pictures[] = "it reads pictures or sound besides text";
static const char encoder[] = "it is no decoder-only language model";
static const char fused_qkv[] = "its q, k and v projections are one fused matrix";
static const char recurrent[] = "its layers are recurrent, not attention";
static const char multipliers[] = "it scales embeddings, residuals and logits by multipliers of its own";
static const char layer_norm[] = "it uses LayerNorm with biases, not RMS norm";

static const struct {
    const char *model_type, *reason;
} refused[] = {
    {"falcon", "it uses LayerNorm with parallel attention and, in part, ALiBi positions"},
    {"bloom", "it uses LayerNorm and ALiBi positions"},
    {"mpt", "it uses LayerNorm and ALiBi positions"},
    {"gpt2", "it uses LayerNorm and learned positions"},
    {"opt", "it uses LayerNorm and learned positions"},
    {"gpt_neo", "it uses LayerNorm and learned positions"},
    {"gpt_bigcode", "it uses LayerNorm and learned positions"},
    {"gptj", layer_norm},
    {"gpt_neox", layer_norm},
    {"phi", layer_norm},
    {"starcoder2", layer_norm},
    {"stablelm", layer_norm},
    {"nemotron", layer_norm},
    {"cohere", layer_norm},
    {"cohere2", layer_norm},
    {"olmo", "its LayerNorm has no weights"},
    {"olmo2", "its norms come behind attention and feed-forward"},
    {"olmo3", "its norms come behind attention and feed-forward"},
    {"gemma", gemma},
    {"gemma2", gemma},
    {"gemma3", gemma},
    {"gemma3_text", gemma},
    {"mixtral", experts},
    {"qwen2_moe", experts},
    {"qwen3_moe", experts},
    {"qwen3_next", experts},
    {"phimoe", experts},
    {"olmoe", experts},
    {"dbrx", experts},
    {"jamba", experts},
    {"gpt_oss", experts},
    {"llama4", experts},
    {"llama4_text", experts},
    {"granitemoe", experts},
    {"deepseek_v2", "its attention is latent (MLA) and its feed-forward layers are mixtures of experts"},
    {"deepseek_v3", "its attention is latent (MLA) and its feed-forward layers are mixtures of experts"},
    {"kimi_k2", "its attention is latent (MLA) and its feed-forward layers are mixtures of experts"},
    {"minicpm3", "its attention is latent (MLA)"},
    {"phi3", fused_qkv},
    {"chatglm", fused_qkv},
    {"glm", fused_qkv},
    {"glm4", "its norms come before and behind each block"},
    {"qwen", fused_qkv},
    {"internlm2", fused_qkv},
    {"baichuan", fused_qkv},
    {"granite", multipliers},
    {"minicpm", multipliers},
    {"smollm3", "some of its layers have no rotary positions"},
    {"ministral", "it is not checked against transformers yet"},
    {"mamba", recurrent},
    {"mamba2", recurrent},
    {"rwkv", recurrent},
    {"recurrent_gemma", recurrent},
    {"mllama", pictures},
    {"llava", pictures},
    {"llava_next", pictures},
    {"mistral3", pictures},
    {"pixtral", pictures},
    {"qwen2_vl", pictures},
    {"qwen2_5_vl", pictures},
    {"qwen3_vl", pictures},
    {"qwen2_audio", pictures},
    {"phi4_multimodal", pictures},
    {"whisper", pictures},
    {"bert", encoder},
    {"roberta", encoder},
    {"t5", encoder},
    {"bart", encoder},
    {"modernbert", encoder},
};

enum { N_FAMILIES = sizeof families / sizeof *families, N_REFUSED = sizeof refused / sizeof *refused };

bool family_find(const family **out, const char *model_type, const char *place, failure *f) {
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].model_type, model_type) == 0) return *out = &families[i], true;
    for (int i = 0; i < N_REFUSED; i++)
        if (strcmp(refused[i].model_type, model_type) == 0)
            return fail(f, FAIL_INPUT, "%s: model_type: \"%s\" models cannot be run exactly: %s", place, model_type,
                        refused[i].reason);
    text_buf names = {0};
    for (int i = 0; i < N_FAMILIES; i++) text_printf(&names, "%s%s", i ? ", " : "", families[i].model_type);
    fail(f, FAIL_INPUT, "%s: model_type: found \"%.100s\", supported are %s", place, model_type, names.data);
    text_free(&names);
    return false;
}
