/* test_shared_rows.c - the shared Alpaca rows on a real tokenizer: how full packed rows of 2048 are, and that every
 * token and every label comes out of the loader once in each epoch. */
#include "shared_tokenizer.h"

#include "base/array.h"
#include "data/dataset.h"

static void packed(void **state) {
    const char *paths[] = {SHARED_DIR "/data/alpaca_en_demo.json", SHARED_DIR "/data/alpaca_zh_demo.json"};
    const char *folder = shared_tokenizer(state, "llama3");
    if (!folder || !shared_is_here(paths[0]) || !shared_is_here(paths[1])) skip();
    tokenizer *t;
    chat_format *c;
    dataset d;
    loader *l;
    failure f = {0};
    assert_done(tokenizer_open(&t, folder, &f), &f);
    assert_done(chat_format_open(&c, "auto", folder, t, &f), &f);
    dataset_options o = {.paths = paths, .n_paths = 2, .max_length = 2048, .threads = 2};
    assert_done(dataset_load(&d, &o, t, c, &f), &f);
    assert_int_equal(dataset_count(&d), 1999);
    assert_int_equal(arrlen(d.tokens), 172722 + 166175); /* golden/chat.json */

    loader_options lo = {.batch_size = 2,
                         .max_length = 2048,
                         .grad_accumulation = 4,
                         .epochs = 2,
                         .max_steps = -1,
                         .packed = true,
                         .shuffle = true,
                         .seed = 42};
    assert_done(loader_open(&l, &d, &lo, &f), &f);
    micro_batch b[4];
    for (int i = 0; i < 4; i++) micro_batch_init(&b[i], 4096);
    int64_t tokens = 0, labels = 0, slots = 0, expected = 0;
    for (int n; loader_next(l, b, &n);)
        for (int i = 0; i < n; i++) {
            tokens += b[i].info.rows;
            labels += b[i].info.labels;
            slots += 4096;
        }
    for (int64_t i = 0; i < arrlen(d.labels); i++) expected += d.labels[i];
    assert_int_equal(tokens, 2 * arrlen(d.tokens));
    assert_int_equal(labels, 2 * expected);
    double filled = (double)tokens / (double)slots;
    printf("packed rows of 2048: %.2f %% of the slots are tokens, the last row included\n", 100 * filled);
    assert_true(filled >= 0.98);
    for (int i = 0; i < 4; i++) micro_batch_free(&b[i]);
    loader_close(l);
    dataset_free(&d);
    chat_format_close(c);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {SCRATCH_TEST(packed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
