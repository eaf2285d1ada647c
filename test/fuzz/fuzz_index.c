/* fuzz_index.c - model.safetensors.index.json beside two whole shards; a third whole file lies outside the folder's
 * reach and must never be opened through the index. */
#include "base/memory.h"
#include "fuzz/fuzz.h"
#include "weights/safetensors.h"

#include <string.h>

static void make_shard(const char *name, const char *tensor) {
    failure f = {0};
    float values[2] = {1, 2};
    st_entry entry = {tensor, DTYPE_F32, 1, {2, 1, 1, 1}, values};
    fuzz_expect(st_write(fuzz_path(name), &entry, 1, &f), "a shard can be written");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool made;
    if (!made) {
        make_shard("a.safetensors", "x");
        make_shard("b.safetensors", "y");
        made = true;
    }
    failure f = {0};
    st_set *s = NULL;
    fuzz_file("model.safetensors.index.json", data, size);
    if (!fuzz_check(st_open_folder(&s, fuzz_folder(), &f), &f)) return 0;
    for (int i = 0; i < st_count(s); i++) {
        const st_tensor *t = st_at(s, i);
        const char *path = st_path(s, t), *name = strrchr(path, '/');
        size_t n = strlen(fuzz_folder());
        fuzz_expect(strncmp(path, fuzz_folder(), n) == 0 && path + n == name, "a shard lies in the folder");
        fuzz_expect(((const float *)t->data)[1] == 2, "its data is there");
    }
    st_close(s);
    return 0;
}
