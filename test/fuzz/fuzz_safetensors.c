/* fuzz_safetensors.c - one file: its header, and that every tensor's data lies inside. */
#include "fuzz/fuzz.h"
#include "weights/safetensors.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    failure f = {0};
    st_set *s = NULL;
    fuzz_file("model.safetensors", data, size);
    if (!fuzz_check(st_open_file(&s, fuzz_path("model.safetensors"), &f), &f)) return 0;
    unsigned sum = 0;
    for (int i = 0; i < st_count(s); i++) {
        const st_tensor *t = st_at(s, i);
        fuzz_expect(st_find(s, t->name) == t, "a tensor is found by its name");
        int64_t count = 1;
        for (int d = 0; d < 4; d++) count *= t->dim[d];
        fuzz_expect(count == t->count, "the dimensions make the count");
        const uint8_t *bytes = t->data;
        if (count) sum += bytes[0] + (unsigned)bytes[(size_t)count * dtype_size(t->type) - 1];
    }
    const char *format = st_metadata(s, "format");
    fuzz_expect(!format || strlen(format) <= size || sum, "metadata ends");
    st_close(s);
    return 0;
}
