/* test_merge.c - W + scale * B * A against double arithmetic (A01), shards and index, side files, what is refused. */
#include "unit/scratch.h"

#include "weights/adapter.h"
#include "weights/merge.h"

#include <math.h>

enum { M = 150, K = 6, R = 4 }; /* more rows than a thread takes at once */

#define Q "model.layers.0.self_attn.q_proj"

static float weight_at(int i) { return (float)((i * 37 % 101) - 50) / 64; }
static float half_at(int i) { return (float)((i * 29 % 53) - 26) / 512; }

static void put_model(void **state, dtype type) {
    float values[M * K];
    uint8_t W[M * K * 4];
    const float norm[K] = {1, 2, 3, 4, 5, 6};
    for (int i = 0; i < M * K; i++) values[i] = weight_at(i);
    dtype_from_f32(W, type, values, M * K);
    const st_entry entries[] = {{"model.norm.weight", DTYPE_F32, 1, {K}, norm},
                                {Q ".weight", type, 2, {M, K}, W},
                                {"lm_head.weight", type, 2, {M, K}, W}};
    failure f = {0};
    scratch_puts(state, "model/config.json", "{\"model_type\":\"llama\"}");
    scratch_puts(state, "model/tokenizer.json", "{}");
    scratch_puts(state, "model/README.md", "card");
    scratch_puts(state, "model/pytorch_model.bin", "weights");
    assert_done(st_write(scratch_path(state, "model/model.safetensors"), entries, 3, &f), &f);
}

static void put_adapter(void **state, bool use_rslora, const char *name_B, int rank_B) {
    float A[R * K], B[M * R];
    for (int i = 0; i < R * K; i++) A[i] = half_at(i);
    for (int i = 0; i < M * R; i++) B[i] = half_at(i + 1000);
    const st_entry entries[] = {{"base_model.model." Q ".lora_A.weight", DTYPE_F32, 2, {R, K}, A},
                                {name_B, DTYPE_F32, 2, {M * R / rank_B, rank_B}, B}};
    const char *targets[] = {"q_proj"};
    adapter_config c = {
        .base_model = "", .rank = R, .alpha = 16, .use_rslora = use_rslora, .targets = targets, .n_targets = 1};
    failure f = {0};
    scratch_puts(state, "adapter/adapter_config.json", "");
    assert_done(adapter_config_write(&c, scratch_path(state, "adapter"), &f), &f);
    assert_done(st_write(scratch_path(state, "adapter/adapter_model.safetensors"), entries, 2, &f), &f);
}

static merge_options options(void **state) {
    return (merge_options){.model = scratch_path(state, "model"),
                           .adapter = scratch_path(state, "adapter"),
                           .output = scratch_path(state, "out"),
                           .shard_bytes = 5000000000};
}

#define GOOD_B "base_model.model." Q ".lora_B.weight"

static void check_merged(void **state, dtype type, double scale, double tolerance) {
    failure f = {0};
    st_set *s;
    assert_done(st_open_folder(&s, scratch_path(state, "out"), &f), &f);
    assert_int_equal(st_count(s), 3);
    const st_tensor *W = st_find(s, Q ".weight"), *head = st_find(s, "lm_head.weight");
    assert_true(W->type == type && W->dim[0] == M && W->dim[1] == K);
    float merged[M * K], base[M * K];
    dtype_to_f32(merged, W->data, type, M * K);
    dtype_to_f32(base, head->data, type, M * K); /* not targeted: as it was */
    double change = 0;
    for (int i = 0; i < M * K; i++) {
        double sum = 0;
        for (int r = 0; r < R; r++) sum += (double)half_at(i / K * R + r + 1000) * half_at(r * K + i % K);
        double expected = base[i] + scale * sum;
        if (fabs(merged[i] - expected) > tolerance) test_fail("%d: %.9g, expected %.9g", i, merged[i], expected);
        change = fmax(change, fabs(scale * sum));
        if (type == DTYPE_F32) assert_true(base[i] == weight_at(i));
    }
    assert_true(change > 10 * tolerance); /* the adapter shows */
    float norm[K];
    memcpy(norm, st_find(s, "model.norm.weight")->data, sizeof norm);
    assert_true(norm[0] == 1 && norm[5] == 6);
    st_close(s);
}

static void test_scales(void **state) {
    failure f = {0};
    merge_report r;
    merge_options o = options(state);
    o.overwrite = true;
    put_model(state, DTYPE_F32);
    put_adapter(state, false, GOOD_B, R);
    assert_done(merge_adapter(&o, &r, &f), &f);
    assert_true(r.tensors == 3 && r.merged == 1 && r.files == 1 && r.bytes == (M * K * 2 + K) * 4);
    check_merged(state, DTYPE_F32, 16.0 / R, 1e-7);
    put_adapter(state, true, GOOD_B, R); /* A01: alpha / sqrt(r) */
    assert_done(merge_adapter(&o, &r, &f), &f);
    check_merged(state, DTYPE_F32, 16.0 / 2, 1e-7);
    put_model(state, DTYPE_BF16);
    assert_done(merge_adapter(&o, &r, &f), &f);
    check_merged(state, DTYPE_BF16, 16.0 / 2, 0x1p-9); /* half a step below 1 */
    assert_true(r.rounding > 1e-4 && r.rounding < 0.1);
    put_model(state, DTYPE_F16);
    assert_done(merge_adapter(&o, &r, &f), &f);
    check_merged(state, DTYPE_F16, 16.0 / 2, 0x1p-12);
}

static void test_files(void **state) {
    failure f = {0};
    merge_report r;
    merge_options o = options(state);
    put_model(state, DTYPE_F32);
    put_adapter(state, false, GOOD_B, R);
    assert_done(merge_adapter(&o, &r, &f), &f);
    assert_true(file_exists(scratch_path(state, "out/config.json")));
    assert_true(file_exists(scratch_path(state, "out/tokenizer.json")));
    assert_false(file_exists(scratch_path(state, "out/README.md")));
    assert_false(file_exists(scratch_path(state, "out/pytorch_model.bin")));
    assert_false(merge_adapter(&o, &r, &f));
    assert_non_null(strstr(f.text, "not empty; choose another folder or set overwrite_output_dir"));
    o.overwrite = true;
    o.shard_bytes = M * K * 4; /* the norm alone, then one matrix a file */
    assert_done(merge_adapter(&o, &r, &f), &f);
    assert_int_equal(r.files, 3);
    assert_false(file_exists(scratch_path(state, "out/model.safetensors"))); /* the older result is gone */
    assert_true(file_exists(scratch_path(state, "out/model.safetensors.index.json")));
    assert_true(file_exists(scratch_path(state, "out/model-00003-of-00003.safetensors")));
    check_merged(state, DTYPE_F32, 16.0 / R, 1e-7);
    o.shard_bytes = 5000000000; /* and back to one file: no index is left to point elsewhere */
    assert_done(merge_adapter(&o, &r, &f), &f);
    assert_false(file_exists(scratch_path(state, "out/model.safetensors.index.json")));
    assert_false(file_exists(scratch_path(state, "out/model-00001-of-00003.safetensors")));
    check_merged(state, DTYPE_F32, 16.0 / R, 1e-7);
}

static void refuse(const merge_options *o, const char *reason) {
    failure f = {0};
    merge_report r;
    if (merge_adapter(o, &r, &f)) test_fail("merged, expected: %s", reason);
    if (!strstr(f.text, reason)) test_fail("\"%s\" does not say \"%s\"", f.text, reason);
    assert_int_equal(f.kind, FAIL_INPUT);
}

static void test_refused(void **state) {
    merge_options o = options(state);
    put_model(state, DTYPE_F32);
    put_adapter(state, false, GOOD_B, R / 2);
    refuse(&o, "they do not fit");
    put_adapter(state, false, "base_model.model." Q ".lora_B.default.weight", R);
    refuse(&o, "is no lora_A or lora_B of a weight");
    put_adapter(state, false, "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", R);
    refuse(&o, "is no lora_A or lora_B of a weight");
    put_adapter(state, false, "base_model.model.lm_head.lora_B.weight", R);
    refuse(&o, "has a lora_A but no lora_B");
    put_adapter(state, false, "base_model.model", R);
    refuse(&o, "is no lora_A or lora_B of a weight");
    put_adapter(state, false, GOOD_B, R);
    o.overwrite = true;
    o.output = o.adapter;
    refuse(&o, "holds an adapter");
    o.output = o.model;
    refuse(&o, "the model's own folder");
    o = options(state);
    o.model = scratch_path(state, "nowhere");
    refuse(&o, "nowhere: no such folder");
    assert_false(file_exists(scratch_path(state, "out"))); /* nothing was begun */
}

static void test_range(void **state) { /* a float16 weight pushed over 65504 is an error, not an infinity in the file */
    failure f = {0};
    float W[M * K], A[R * K] = {0}, B[M * R] = {0};
    uint16_t stored[M * K];
    for (int i = 0; i < M * K; i++) W[i] = 65000;
    A[0] = 100, B[0] = 100;
    put_adapter(state, false, GOOD_B, R);
    put_model(state, DTYPE_F16);
    dtype_from_f32(stored, DTYPE_F16, W, M * K);
    const st_entry model = {Q ".weight", DTYPE_F16, 2, {M, K}, stored};
    const st_entry adapter[] = {{"base_model.model." Q ".lora_A.weight", DTYPE_F32, 2, {R, K}, A},
                                {GOOD_B, DTYPE_F32, 2, {M, R}, B}};
    assert_done(st_write(scratch_path(state, "model/model.safetensors"), &model, 1, &f), &f);
    assert_done(st_write(scratch_path(state, "adapter/adapter_model.safetensors"), adapter, 2, &f), &f);
    merge_options o = options(state);
    refuse(&o, "leave the range of F16");
    assert_false(file_exists(scratch_path(state, "out/model.safetensors")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_scales),
        SCRATCH_TEST(test_files),
        SCRATCH_TEST(test_refused),
        SCRATCH_TEST(test_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
