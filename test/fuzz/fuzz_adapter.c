/* fuzz_adapter.c - adapter_config.json, and behind a 0x1E adapter_model.safetensors, on a small model. */
#include "base/array.h"
#include "fuzz/fuzz.h"
#include "model/model_weights.h"
#include "pass/pass.h"
#include "weights/adapter.h"

#include <string.h>

static void fit(const adapter_config *c, failure *f) {
    static const int window[2];
    model_config m = {.family = "llama",
                      .n_layer = 2,
                      .d_model = 32,
                      .n_head = 4,
                      .n_kv_head = 2,
                      .head_dim = 8,
                      .d_ff = 44,
                      .vocab = 67,
                      .rms_eps = 1e-5f,
                      .max_position = 256,
                      .window = (int *)(uintptr_t)window,
                      .stored = DTYPE_F32};
    lora_options o = {.rank = c->rank,
                      .alpha = (float)c->alpha,
                      .dropout = (float)c->dropout,
                      .use_rslora = c->use_rslora,
                      .targets = c->targets,
                      .n_targets = c->n_targets,
                      .regex = c->regex,
                      .layers = c->layers,
                      .n_layers = c->n_layers};
    graph g;
    graph_init(&g, DTYPE_F32);
    model_build(&g, &m, 16, NULL, NULL);
    st_set *s = NULL;
    if (fuzz_check(pass_lora(&g, &o, f), f) && fuzz_check(adapter_open(&s, fuzz_folder(), f), f)) {
        const st_tensor **by_value = xcalloc((size_t)arrlen(g.values), sizeof *by_value);
        fuzz_check(adapter_weights_find(&g, s, by_value, f), f);
        free(by_value);
        st_close(s);
    }
    graph_free(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    failure f = {0};
    arena a = {0};
    adapter_config c, again;
    fuzz_bytes rest, file = fuzz_cut((fuzz_bytes){data, size}, &rest);
    fuzz_file("adapter_config.json", file.data, file.size);
    fuzz_file("adapter_model.safetensors", rest.data, rest.size);
    if (fuzz_check(adapter_config_read(&c, fuzz_folder(), &a, &f), &f)) {
        fuzz_expect(c.rank >= 1 && adapter_scale(&c) >= 0, "rank and scale make sense");
        fit(&c, &f);
        fuzz_expect(adapter_config_write(&c, fuzz_folder(), &f), "the config can be written");
        if (!adapter_config_read(&again, fuzz_folder(), &a, &f)) fuzz_expect(false, f.text);
        fuzz_expect(again.rank == c.rank && again.alpha == c.alpha && again.n_layers == c.n_layers,
                    "a written config reads back the same");
    }
    arena_free(&a);
    return 0;
}
