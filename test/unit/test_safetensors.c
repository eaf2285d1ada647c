/* test_safetensors.c - headers that lie (R01), cut files (R02), index against shards (R03), odd alignment (R04), and
 * the writer. Every bad file is under 1 KB and made here. */
#include "base/rng.h"
#include "unit/scratch.h"
#include "weights/safetensors.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static void put_file(const char *path, uint64_t length, const char *header, size_t header_bytes, size_t data_bytes) {
    char file[4096];
    assert_true(8 + header_bytes + data_bytes <= sizeof file);
    for (int i = 0; i < 8; i++) file[i] = (char)(length >> 8 * i);
    memcpy(file + 8, header, header_bytes);
    memset(file + 8 + header_bytes, 0x3F, data_bytes);
    scratch_write(path, file, 8 + header_bytes + data_bytes);
}

static void put_header(const char *path, const char *header, size_t data_bytes) {
    put_file(path, strlen(header), header, strlen(header), data_bytes);
}

static void expect_refusal(const char *path, const char *reason) {
    failure f = {0};
    st_set *s = NULL;
    if (st_open_file(&s, path, &f)) test_fail("opened, expected: %s", reason);
    assert_int_equal(f.kind, FAIL_INPUT);
    if (!strstr(f.text, reason)) test_fail("\"%s\" does not say \"%s\"", f.text, reason);
    if (!strstr(f.text, path)) test_fail("\"%s\" does not name the file", f.text);
    if (strchr(f.text, '\n')) test_fail("\"%s\" is more than one line", f.text);
}

#define T(type, shape, begin, end) "{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static const struct {
    const char *header;
    size_t data;
    const char *reason;
} lies[] = {
    {"[]", 0, "does not begin with '{'"},
    {" {}", 0, "does not begin with '{'"},
    {"{\"a\":", 0, "not JSON"},
    {"{} {}", 0, "not JSON"},
    {"{\"a\xFF\":" T("F32", "[1]", "0", "4") "}", 4, "not UTF-8"},
    {"{\"a\":" T("F32", "[1]", "0", "4") ",\"a\":" T("F32", "[1]", "4", "8") "}", 8, "stands twice"},
    {"{\"a\":" T("F32", "[1]", "0", "4") ",\"\\u0061\":" T("F32", "[1]", "4", "8") "}", 8, "stands twice"},
    {"{\"a\":" T("F32", "[1]", "4", "0") "}", 4, "tensor \"a\": its data begins at 4, behind its end 0"},
    {"{\"a\":" T("F32", "[2]", "0", "8") "}", 4, "the file has only 4 bytes of data"},
    {"{\"a\":" T("F32", "[2]", "0", "4") "}", 4, "2 elements of F32 need 8 bytes, its data range has 4"},
    {"{\"a\":" T("F32", "[1]", "0", "8") "}", 8, "1 elements of F32 need 4 bytes"},
    {"{\"a\":" T("F32", "[4294967296,4294967296]", "0", "0") "}", 0, "overflows 64 bits"},
    {"{\"a\":" T("F32", "[4611686018427387904]", "0", "0") "}", 0, "no whole number"},
    {"{\"a\":" T("F32", "[4503599627370496,1024]", "0", "0") "}", 0, "size in bytes overflows"},
    {"{\"a\":" T("F32", "[-1]", "0", "4") "}", 4, "no whole number"},
    {"{\"a\":" T("F32", "[1.5]", "0", "6") "}", 6, "no whole number"},
    {"{\"a\":" T("F32", "[\"1\"]", "0", "4") "}", 4, "no whole number"},
    {"{\"a\":" T("F32", "1", "0", "4") "}", 4, "shape: found number, expected a list"},
    {"{\"a\":" T("F32", "[1,1,1,1,1]", "0", "4") "}", 4, "more than 4 dimensions"},
    {"{\"a\":" T("F32", "[1]", "-4", "0") "}", 4, "two whole numbers"},
    {"{\"a\":" T("F32", "[1]", "0", "1e300") "}", 4, "two whole numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "two whole numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape: found nothing"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype: found nothing"},
    {"{\"a\":" T("F64", "[1]", "0", "8") "}", 8, "tensor \"a\": the type F64 is not supported"},
    {"{\"a\":" T("I8", "[4]", "0", "4") "}", 4, "the type I8 is not supported"},
    {"{\"a\":" T("F8_E4M3", "[4]", "0", "4") "}", 4, "the type F8_E4M3 is not supported"},
    {"{\"a\":" T("float32", "[1]", "0", "4") "}", 4, "the type float32 is not supported"},
    {"{\"a\":[0,4]}", 4, "found list, expected an object"},
    {"{\"a\":" T("F32", "[2]", "0", "8") ",\"b\":" T("F32", "[2]", "4", "12") "}", 12,
     "tensor \"b\": its data overlaps"},
    {"{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "0", "4") "}", 4, "overlaps"},
    {"{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "8", "12") "}", 12,
     "tensor \"b\": 4 bytes in front of its data"},
    {"{\"a\":" T("F32", "[1]", "4", "8") "}", 8, "4 bytes in front of its data belong to no tensor"},
    {"{\"a\":" T("F32", "[2]", "0", "8") ",\"z\":" T("F32", "[0]", "4", "4") "}", 8, "overlaps"},
    {"{\"a\":" T("F32", "[1]", "0", "4") "}", 5, "1 bytes behind the last tensor"},
    {"{}", 3, "3 bytes behind the last tensor"},
    {"{\"__metadata__\":{\"n\":1}}", 0, "a value is a number"},
    {"{\"__metadata__\":[]}", 0, "__metadata__: found list"},
    {"{\"a\\n\\u001b[2J\":" T("F32", "[1]", "0", "8") "}", 8, "tensor \"a\\n\\u001b[2J\""},
    {"{\"a\\u0000b\":" T("F32", "[1]", "0", "4") "}", 4, "NUL"},
};

static void test_lying_headers(void **state) {
    const char *path = scratch_path(state, "model.safetensors");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        put_header(path, lies[i].header, lies[i].data);
        expect_refusal(path, lies[i].reason);
    }
}

static void test_lying_lengths(void **state) {
    const char *path = scratch_path(state, "model.safetensors");
    static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63, 100000001, 3, 1000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        put_file(path, lengths[i], "{}", 2, 0);
        expect_refusal(path, "the header is said to have");
    }
    put_file(path, 0, "", 0, 0);
    expect_refusal(path, "does not begin with '{'");
    put_file(path, 1, "{}", 2, 0);
    expect_refusal(path, "not JSON");
    char deep[900];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    put_file(path, sizeof deep, deep, sizeof deep, 0);
    expect_refusal(path, "not JSON");
}

/* A sparse file: the limit on the header's length is checked before anything of that size is read. */
static void test_huge_header(void **state) {
    const char *path = scratch_path(state, "model.safetensors");
    put_file(path, 100000001, "{}", 2, 0);
    assert_int_equal(truncate(path, 200000000), 0);
    expect_refusal(path, "at most 100000000 are allowed");
}

static void test_allowed_oddities(void **state) {
    const char *path = scratch_path(state, "model.safetensors");
    put_header(path,
               "{\"s\":" T("F32", "[]", "0", "4") ",\"z\":" T(
                   "BF16", "[3,0,2]", "4", "4") ",\"__metadata__\":{\"format\":\"pt\"},\"i\":" T("I32", "[1,2]", "4",
                                                                                                 "12") "}    ",
               12);
    failure f = {0};
    st_set *s;
    assert_done(st_open_file(&s, path, &f), &f);
    assert_int_equal(st_count(s), 3);
    const st_tensor *scalar = st_find(s, "s"), *empty = st_find(s, "z"), *i = st_find(s, "i");
    assert_true(scalar->n_dims == 0 && scalar->count == 1 && scalar->type == DTYPE_F32);
    assert_true(empty->n_dims == 3 && empty->count == 0 && empty->dim[0] == 3 && empty->dim[3] == 1);
    assert_true(i->type == DTYPE_I32 && i->dim[1] == 2);
    assert_string_equal(st_metadata(s, "format"), "pt");
    assert_null(st_metadata(s, "other"));
    assert_null(st_find(s, "t"));
    assert_string_equal(st_path(s, scalar), path);
    st_close(s);
    put_header(path, "{}", 0);
    assert_done(st_open_file(&s, path, &f), &f);
    assert_int_equal(st_count(s), 0);
    assert_null(st_find(s, "s"));
    st_close(s);
}

static void test_cut_files(void **state) {
    const char *path = scratch_path(state, "model.safetensors");
    const char *header = "{\"a\":" T("F32", "[2]", "0", "8") ",\"b\":" T("F32", "[1]", "8", "12") "}";
    long whole = 8 + (long)strlen(header) + 12;
    for (long size = 0; size < whole; size++) { /* every length there is */
        put_header(path, header, 12);
        assert_int_equal(truncate(path, size), 0);
        expect_refusal(path, size < 8 ? "at least 8" : size < 8 + (long)strlen(header) ? "copied in full" : "has only");
    }
    put_header(path, header, 12);
    assert_int_equal(truncate(path, whole + 1), 0);
    expect_refusal(path, "behind the last tensor");
    const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4976698672\n";
    scratch_write(path, pointer, sizeof pointer - 1);
    expect_refusal(path, "Git LFS pointer");
}

/* R04: BF16[3] before F32, after a header of n = `rest` mod 4 bytes, so that types stand at odd places; read bytewise.
 */
static void check_misaligned(const char *path, int rest) {
    char file[512], header[400];
    int n = snprintf(header, sizeof header, "{\"a\":%s,\"b\":%s,\"c\":%s,\"d\":%s}", T("BF16", "[3]", "0", "6"),
                     T("F32", "[2]", "6", "14"), T("F16", "[1]", "14", "16"), T("BF16", "[2]", "16", "20"));
    while (n % 4 != rest) header[n++] = ' ';
    for (int i = 0; i < 8; i++) file[i] = (char)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    const uint16_t a[] = {0x3F80, 0xC000, 0x4049}, c[] = {0x3555}, d[] = {0x0080, 0xFF80};
    const float b[] = {0.1f, -3e38f};
    char *at = file + 8 + n;
    memcpy(at, a, 6), memcpy(at + 6, b, 8), memcpy(at + 14, c, 2), memcpy(at + 16, d, 4);
    scratch_write(path, file, 8 + n + 20);
    failure f = {0};
    st_set *s;
    assert_done(st_open_file(&s, path, &f), &f);
    assert_int_equal((uintptr_t)st_find(s, "b")->data % 4, (rest + 6) % 4);
    float out[3];
    dtype_to_f32(out, st_find(s, "b")->data, st_find(s, "b")->type, 2);
    assert_memory_equal(out, b, 8);
    dtype_to_f32(out, st_find(s, "a")->data, st_find(s, "a")->type, 3);
    assert_true(out[0] == 1.0f && out[1] == -2.0f && out[2] == 3.140625f);
    dtype_to_f32(out, st_find(s, "c")->data, st_find(s, "c")->type, 1);
    assert_true(out[0] == 0.333251953125f);
    dtype_to_f32(out, st_find(s, "d")->data, st_find(s, "d")->type, 2);
    assert_true(out[0] == 0x1p-126f && out[1] == -INFINITY);
    st_close(s);
}

static void test_misaligned(void **state) {
    for (int rest = 0; rest < 4; rest++) check_misaligned(scratch_path(state, "model.safetensors"), rest);
}

/* R03: two shards and their index. */
static void put_shards(void **state, const char *index) {
    put_header(scratch_path(state, "one.safetensors"), "{\"a\":" T("F32", "[1]", "0", "4") "}", 4);
    put_header(scratch_path(state, "two.safetensors"),
               "{\"b\":" T("F32", "[1]", "0", "4") ",\"c\":" T("F32", "[1]", "4", "8") "}", 8);
    scratch_write(scratch_path(state, "model.safetensors.index.json"), index, strlen(index));
}

static const char good_index[] =
    "{\"metadata\":{\"total_size\":12},"
    "\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"two.safetensors\"}}";

static void expect_folder_refusal(void **state, const char *reason) {
    failure f = {0};
    st_set *s = NULL;
    if (st_open_folder(&s, scratch_folder(state), &f)) test_fail("opened, expected: %s", reason);
    assert_int_equal(f.kind, FAIL_INPUT);
    if (!strstr(f.text, reason)) test_fail("\"%s\" does not say \"%s\"", f.text, reason);
}

static void expect_index_refusal(void **state, const char *weight_map, const char *reason) {
    char index[600];
    snprintf(index, sizeof index, "{\"weight_map\":%s}", weight_map);
    put_shards(state, index);
    expect_folder_refusal(state, reason);
}

static void test_sharded_folder(void **state) {
    put_shards(state, good_index);
    /* A stray file is not merged over the shards. */
    put_header(scratch_path(state, "model.safetensors"), "{\"a\":" T("F32", "[2]", "0", "8") "}", 8);
    failure f = {0};
    st_set *s;
    assert_done(st_open_folder(&s, scratch_folder(state), &f), &f);
    assert_int_equal(st_count(s), 3);
    assert_int_equal(st_find(s, "a")->count, 1);
    assert_string_equal(st_path(s, st_find(s, "a")), scratch_path(state, "one.safetensors"));
    assert_string_equal(st_path(s, st_find(s, "b")), scratch_path(state, "two.safetensors"));
    assert_string_equal(st_path(s, st_at(s, 2)), scratch_path(state, "two.safetensors"));
    st_close(s);
}

static void test_broken_indexes(void **state) {
    expect_index_refusal(state, "{\"a\":\"one.safetensors\",\"b\":\"three.safetensors\",\"c\":\"four.safetensors\"}",
                         "2 of its 3 files are missing in the folder: four.safetensors, three.safetensors");
    expect_index_refusal(state, "{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"d\":\"two.safetensors\"}",
                         "tensor \"d\": listed in two.safetensors, but that file has no such tensor");
    expect_index_refusal(state, "{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}",
                         "tensor \"a\": listed in two.safetensors, found in");
    expect_index_refusal(state, "{\"a\":\"../one.safetensors\"}", "not a plain name");
    expect_index_refusal(state, "{\"a\":\"/etc/passwd\"}", "not a plain name");
    expect_index_refusal(state, "{\"a\":\"..\"}", "not a plain name");
    expect_index_refusal(state, "{\"a\":1}", "expected a file name");
    expect_index_refusal(state, "{}", "weight_map is empty");
    expect_index_refusal(state, "[]", "weight_map: found list");
    expect_index_refusal(state, "{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}", "stands twice");
    /* The same tensor in two shards. */
    put_shards(state, good_index);
    put_header(scratch_path(state, "one.safetensors"),
               "{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "4", "8") "}", 8);
    expect_folder_refusal(state, "tensor \"b\": also stands in");
    /* One shard cut by a byte. */
    put_shards(state, good_index);
    assert_int_equal(truncate(scratch_path(state, "one.safetensors"), 8 + 51), 0);
    expect_folder_refusal(state, "one.safetensors");
}

static void test_folder_without_index(void **state) {
    expect_folder_refusal(state, "no weights here");
    put_shards(state, good_index);
    assert_int_equal(unlink(scratch_path(state, "model.safetensors.index.json")), 0);
    expect_folder_refusal(state, "2 other files");
    put_header(scratch_path(state, "model.safetensors"), "{\"a\":" T("F32", "[2]", "0", "8") "}", 8);
    failure f = {0};
    st_set *s;
    assert_done(st_open_folder(&s, scratch_folder(state), &f), &f);
    assert_int_equal(st_count(s), 1);
    st_close(s);
    assert_false(st_open_folder(&s, "/nowhere/at/all", &f));
    assert_non_null(strstr(f.text, "no such folder"));
}

static void test_many_tensors(void **state) { /* 20,000 names: a look-up by list would take minutes */
    enum { N = 20000 };
    st_entry *entries = calloc(N, sizeof *entries);
    char(*names)[40] = calloc(N, sizeof *names);
    float value = 1;
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.%d.x.weight", i);
        entries[i] = (st_entry){names[i], DTYPE_F32, 1, {1}, &value};
    }
    const char *path = scratch_path(state, "many.safetensors");
    failure f = {0};
    st_set *s;
    assert_true(st_write(path, entries, N, &f));
    assert_done(st_open_file(&s, path, &f), &f);
    for (int i = 0; i < N; i++) assert_ptr_equal(st_find(s, names[i]), st_at(s, i));
    st_close(s);
    free(entries);
    free(names);
}

static void test_round_trip(void **state) {
    const char *path = scratch_path(state, "out.safetensors");
    const float x[6] = {1, 2, 3, 4, 5, -0.0f};
    const uint16_t h[3] = {0x3F80, 0x7FC0, 0x0001};
    const int32_t k = -7;
    const st_entry entries[] = {{"x\"\xC3\xA9", DTYPE_F32, 2, {2, 3}, x},
                                {"h", DTYPE_BF16, 3, {3, 1, 1}, h},
                                {"empty", DTYPE_F16, 2, {0, 5}, NULL},
                                {"k", DTYPE_I32, 0, {0}, &k}};
    failure f = {0};
    st_set *s;
    scratch_write(path, "old", 3);
    assert_true(st_write(path, entries, 4, &f));
    assert_done(st_open_file(&s, path, &f), &f);
    assert_int_equal(st_count(s), 4);
    for (int i = 0; i < 4; i++) {
        const st_tensor *t = st_at(s, i);
        assert_string_equal(t->name, entries[i].name);
        assert_int_equal(t->type, entries[i].type);
        assert_int_equal(t->n_dims, entries[i].n_dims);
        for (int d = 0; d < t->n_dims; d++) assert_int_equal(t->dim[d], entries[i].dim[d]);
        if (t->count) assert_memory_equal(t->data, entries[i].data, (size_t)t->count * dtype_size(t->type));
    }
    assert_string_equal(st_metadata(s, "format"), "pt");
    assert_int_equal((uintptr_t)st_at(s, 0)->data % 8, 0);
    st_close(s);
    assert_int_equal(scratch_count(state), 1); /* no temporary is left */
    /* An abandoned file leaves the old one. */
    st_writer *w;
    assert_true(st_writer_open(&w, path, entries, 4, &f));
    assert_true(st_writer_add(w, x, 5, &f));
    st_writer_abort(w);
    assert_true(st_open_file(&s, path, &f));
    st_close(s);
    assert_int_equal(scratch_count(state), 1);
    assert_false(st_write(scratch_path(state, "no/such/folder.safetensors"), entries, 4, &f));
    assert_int_equal(f.kind, FAIL_MACHINE);
}

/* A disk that is full, played by a limit on the size of files: the older file stays, nothing is left beside it (K01).
 */
static void test_full_disk(void **state) {
    const char *path = scratch_path(state, "out.safetensors");
    static const float big[40000];
    const st_entry small = {"x", DTYPE_F32, 1, {4}, big}, large = {"x", DTYPE_F32, 1, {40000}, big};
    failure f = {0};
    assert_done(st_write(path, &small, 1, &f), &f);
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    bool done = st_write(path, &large, 1, &f);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_false(done);
    assert_int_equal(f.kind, FAIL_MACHINE);
    assert_non_null(strstr(f.text, "File too large"));
    assert_int_equal(scratch_count(state), 1);
    st_set *s;
    assert_done(st_open_file(&s, path, &f), &f);
    assert_int_equal(st_find(s, "x")->count, 4);
    st_close(s);
}

/* Mutations of a good file, the same every time: each is opened and read whole, or refused with one line. */
static void test_mutations(void **state) {
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" T("F32", "[2,1]", "0", "8") ",\"b\":" T(
        "BF16", "[]", "8", "10") ",\"c\":" T("I32", "[0,3]", "10", "10") "}";
    static const char bytes[] = "{}[],:\"\\0123456789-+.eEFBI\x00\x7F\x80\xFF \n";
    enum { SIZE = 8 + sizeof header - 1 + 10 };
    const char *path = scratch_path(state, "m.safetensors");
    rng r = {.key = 7};
    int opened = 0;
    for (int round = 0; round < 4000; round++) {
        char file[SIZE] = {(char)(sizeof header - 1)};
        memcpy(file + 8, header, sizeof header - 1);
        for (int k = (int)rng_below(&r, 4); k >= 0; k--)
            file[rng_below(&r, SIZE)] = bytes[rng_below(&r, sizeof bytes - 1)];
        size_t size = rng_below(&r, 8) ? SIZE : rng_below(&r, SIZE);
        scratch_write(path, file, size);
        failure f = {0};
        st_set *s = NULL;
        if (!st_open_file(&s, path, &f)) {
            if (f.kind != FAIL_INPUT || !f.text[0] || strchr(f.text, '\n'))
                test_fail("round %d: \"%s\"", round, f.text);
            continue;
        }
        unsigned sum = 0;
        for (int i = 0; i < st_count(s); i++) {
            const st_tensor *t = st_at(s, i);
            const uint8_t *data = t->data;
            for (int64_t b = 0; b < t->count * (int64_t)dtype_size(t->type); b++) sum += data[b];
        }
        opened += sum < UINT32_MAX;
        st_close(s);
    }
    assert_in_range(opened, 1, 3999); /* some hit names or data only */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_lying_headers),    SCRATCH_TEST(test_lying_lengths),  SCRATCH_TEST(test_huge_header),
        SCRATCH_TEST(test_allowed_oddities), SCRATCH_TEST(test_cut_files),      SCRATCH_TEST(test_misaligned),
        SCRATCH_TEST(test_sharded_folder),   SCRATCH_TEST(test_broken_indexes), SCRATCH_TEST(test_folder_without_index),
        SCRATCH_TEST(test_many_tensors),     SCRATCH_TEST(test_round_trip),     SCRATCH_TEST(test_mutations),
        SCRATCH_TEST(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
