/* fuzz_model_config.c - config.json, and behind a 0x1E generation_config.json; a small model is then built. */
#include "fuzz/fuzz.h"
#include "model/model.h"

#include <math.h>

static void build(const model_config *m) {
    graph g;
    graph_init(&g, DTYPE_F32);
    model_build(&g, m, 16, NULL, NULL);
    graph_free(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    failure f = {0};
    arena a = {0};
    model_config m;
    fuzz_bytes rest, main_file = fuzz_cut((fuzz_bytes){data, size}, &rest);
    fuzz_file("config.json", main_file.data, main_file.size);
    if (rest.data) fuzz_file("generation_config.json", rest.data, rest.size);
    else fuzz_no_file("generation_config.json");
    if (fuzz_check(model_config_read(&m, fuzz_folder(), &a, &f), &f)) {
        float frequency[512];
        fuzz_expect(m.head_dim <= 1024 && m.head_dim > 0, "a head is at most 1024 wide");
        model_rope_frequencies(&m, frequency);
        for (int i = 0; i < m.head_dim / 2; i++) fuzz_expect(!isnan(frequency[i]), "a frequency is a number");
        if (m.n_layer <= 4) build(&m);
    }
    arena_free(&a);
    return 0;
}
