/* fuzz_config.c - the config file of a run; what was read and printed must read back, and then print the same. */
#include "config/config.h"
#include "fuzz/fuzz.h"

#include <string.h>

static bool read_config(config *c, arena *a, failure *f) {
    static char flag[128];
    snprintf(flag, sizeof flag, "--config=%s", fuzz_path("config"));
    return config_read(c, 1, (char *[]){flag}, a, f);
}

/* The settings as text, and that text as the config file. */
static void print_config(const config *c, text_buf *out) {
    text_buf all = {0};
    config_put_json(c, &all);
    text_clear(out);
    text_printf(out, "{%s", strchr(all.data, ',') + 1); /* behind config_file, which is no setting */
    fuzz_file("config", out->data, out->size);
    text_free(&all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    failure f = {0};
    arena a = {0};
    config c;
    text_buf first = {0}, second = {0};
    fuzz_file("config", data, size);
    if (fuzz_check(read_config(&c, &a, &f), &f)) {
        print_config(&c, &first);
        if (!read_config(&c, &a, &f)) fuzz_expect(false, f.text);
        print_config(&c, &first); /* only now: in a file, a default path is relative to the file */
        if (!read_config(&c, &a, &f)) fuzz_expect(false, f.text);
        print_config(&c, &second);
        fuzz_expect(strcmp(first.data, second.data) == 0, "printed settings read back the same");
    }
    text_free(&first);
    text_free(&second);
    arena_free(&a);
    return 0;
}
