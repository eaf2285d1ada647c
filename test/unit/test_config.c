/* test_config.c - settings from a file and from flags: what is taken, what is refused and in which words (case Z01). */
#include "unit.h"

#include "base/array.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "config/config.h"

#include <glob.h>
#include <locale.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char folder[64], file[96];
    arena a;
    config c;
    failure f;
} fixture;

static int set_up(void **state) {
    fixture *x = xcalloc(1, sizeof *x);
    snprintf(x->folder, sizeof x->folder, "/tmp/test_config-XXXXXX");
    assert_non_null(mkdtemp(x->folder));
    snprintf(x->file, sizeof x->file, "%s/c.json", x->folder);
    *state = x;
    return 0;
}

static int tear_down(void **state) {
    fixture *x = *state;
    setlocale(LC_ALL, "C");
    unlink(x->file);
    rmdir(x->folder);
    arena_free(&x->a);
    free(x);
    return 0;
}

enum { MOST_WORDS = 12 };

/* Reads the NULL-ended flags; `text`, when not NULL, is the config file. */
static bool read_config(fixture *x, const char *text, const char *const *words) {
    char *argv[MOST_WORDS + 2], config_flag[] = "--config";
    int argc = 0;
    if (text) {
        unlink(
            x->file); /* a file that is cut to nothing and written anew goes to the disk at once; a new one does not */
        FILE *file = fopen(x->file, "w");
        assert_non_null(file);
        fputs(text, file);
        assert_int_equal(fclose(file), 0);
        argv[argc++] = config_flag;
        argv[argc++] = x->file;
    }
    for (; *words; words++) {
        assert_true(argc < MOST_WORDS + 2);
        argv[argc++] = arena_strdup(&x->a, *words);
    }
    x->f = (failure){0};
    return config_read(&x->c, argc, argv, &x->a, &x->f);
}
#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_FLAGS   ((const char *const[]){NULL})

static void expect_failure(fixture *x, failure_kind kind, const char *const *parts) {
    assert_int_equal(x->f.kind, kind);
    for (; *parts; parts++)
        if (!strstr(x->f.text, *parts)) test_fail("\"%s\" is not in: %s", *parts, x->f.text);
}
#define EXPECT(x, kind, ...) expect_failure(x, kind, FLAGS(__VA_ARGS__))

static void test_defaults(void **state) {
    fixture *x = *state;
    assert_true(read_config(x, NULL, NO_FLAGS));
    const config *c = &x->c;
    assert_string_equal(c->model, "");
    assert_string_equal(c->config_file, "");
    assert_int_equal(c->max_length, 2048);
    assert_int_equal(c->max_steps, -1);
    assert_true(c->packing && c->use_liger_kernel && !c->strict);
    assert_int_equal(c->target_modules.n, 1);
    assert_string_equal(c->target_modules.items[0], "all-linear");
    assert_int_equal(c->dataset.n, 0);
    assert_true(c->learning_rate == 1e-4 && c->adam_epsilon == 1e-8);
    assert_int_equal(c->gradient_accumulation_steps, 16);
    assert_true(read_config(x, NULL, FLAGS("--tuner_type", "full", "--per_device_train_batch_size", "5")));
    assert_true(c->learning_rate == 1e-5);
    assert_int_equal(c->gradient_accumulation_steps, 4); /* 4 * 5 is the least that reaches 16 */
}

static void test_file_then_flags(void **state) {
    fixture *x = *state;
    const char *text =
        "{\"lora_rank\": 16, \"seed\": 7, \"packing\": false, \"template\": \"llama3\","
        " \"target_modules\": [\"q_proj\", \"v_proj\"], \"max_steps\": null, \"layers_to_transform\": [0, 3]}";
    assert_true(read_config(x, text, FLAGS("--seed=8", "--lora-alpha", "64", "--packing", "--strict", "true")));
    const config *c = &x->c;
    assert_string_equal(c->config_file, x->file);
    assert_int_equal(c->lora_rank, 16);
    assert_int_equal(c->seed, 8);
    assert_true(c->lora_alpha == 64 && c->packing && c->strict);
    assert_string_equal(c->template, "llama3");
    assert_int_equal(c->max_steps, -1);
    assert_int_equal(c->target_modules.n, 2);
    assert_string_equal(c->target_modules.items[1], "v_proj");
    assert_int_equal(c->layers_to_transform.n, 2);
    assert_string_equal(c->layers_to_transform.items[1], "3");
}

static void test_windows_file(void **state) {
    fixture *x = *state;
    assert_true(read_config(x, "\xEF\xBB\xBF{\r\n  \"lora_rank\": 4,\r\n  \"learning_rate\": 1e-5\r\n}\r\n", NO_FLAGS));
    assert_int_equal(x->c.lora_rank, 4);
    assert_true(x->c.learning_rate == 1e-5);
}

static void test_lists(void **state) {
    fixture *x = *state;
    assert_true(
        read_config(x, "{\"target_modules\": \"q_proj, v_proj ,o_proj\", \"dataset\": [\"a,b.json\"]}", NO_FLAGS));
    assert_int_equal(x->c.target_modules.n, 3);
    assert_string_equal(x->c.target_modules.items[1], "v_proj");
    assert_string_equal(x->c.target_modules.items[2], "o_proj");
    assert_int_equal(x->c.dataset.n, 1); /* a JSON list is taken as it is: commas may stand in a name */
    assert_true(read_config(x, NULL, FLAGS("--dataset", "a.json#5", "b.json,c.json", "--seed", "1")));
    assert_int_equal(x->c.dataset.n, 3);
    assert_string_equal(x->c.dataset.items[0], "a.json#5");
    assert_string_equal(x->c.dataset.items[2], "c.json");
    assert_true(read_config(x, NULL, FLAGS("--target_modules=")));
    assert_int_equal(x->c.target_modules.n, 0);
    assert_false(read_config(x, NULL, FLAGS("--dataset", "a.json,,b.json")));
    EXPECT(x, FAIL_USAGE, "command line: --dataset", "an empty entry", "a list of paths");
    assert_false(read_config(x, NULL, FLAGS("--dataset", "a.json,")));
    assert_false(read_config(x, "{\"dataset\": [\"a\", [\"b\"]]}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, x->file, "dataset", "a list with list in it");
}

static void test_paths(void **state) {
    fixture *x = *state;
    char there[128], want[160];
    snprintf(there, sizeof there, "%s/model", x->folder);
    assert_int_equal(mkdir(there, 0755), 0);
    const char *text = "{\"model\": \"model\", \"dataset\": [\"d.json#3\", \"/abs/e.json\"], \"output_dir\": \"out\","
                       " \"adapter\": \"org/name\", \"resume_from_checkpoint\": \"auto\"}";
    assert_true(read_config(x, text, FLAGS("--val_dataset", "v.json")));
    rmdir(there);
    assert_string_equal(x->c.model, there);
    snprintf(want, sizeof want, "%s/d.json#3", x->folder);
    assert_string_equal(x->c.dataset.items[0], want);
    assert_string_equal(x->c.dataset.items[1], "/abs/e.json");
    snprintf(want, sizeof want, "%s/out", x->folder);
    assert_string_equal(x->c.output_dir, want);
    assert_string_equal(x->c.adapter, "org/name"); /* a hub id survives */
    assert_string_equal(x->c.resume_from_checkpoint, "auto");
    assert_string_equal(x->c.val_dataset.items[0], "v.json"); /* a flag's path belongs to the working folder */
    assert_true(read_config(x, "{\"model\": \"./none\", \"adapter\": \"a/b/c\"}", FLAGS("--output_dir", "out")));
    snprintf(want, sizeof want, "%s/./none", x->folder);
    assert_string_equal(x->c.model, want);
    snprintf(want, sizeof want, "%s/a/b/c", x->folder);
    assert_string_equal(x->c.adapter, want);
    assert_string_equal(x->c.output_dir, "out");
}

static void check_numbers(fixture *x) {
    static const char *const equal[] = {"1e-5", "1.0e-5", ".00001", "1E-05", "+1e-5", "0.00001"};
    static const char *const wrong[] = {"1e-5x", "",   "nan",    "inf", "-inf",  "-1",  "1,5", "1.0.0",
                                        " 1",    "1 ", "0x1p-3", "e5",  "1e999", "--1", "true"};
    for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
        assert_true(read_config(x, NULL, FLAGS("--learning_rate", equal[i])));
        assert_true(x->c.learning_rate == 1e-5);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *word = arena_printf(&x->a, "--learning_rate=%s", wrong[i]);
        assert_false(read_config(x, NULL, FLAGS(word)));
        EXPECT(x, FAIL_USAGE, "command line", "--learning_rate", "expected a number from 0 to 10");
    }
    static const char *const json_equal[] = {"1e-5", "1.0e-5", "1E-05", "0.00001"};
    for (size_t i = 0; i < sizeof json_equal / sizeof *json_equal; i++) {
        assert_true(read_config(x, arena_printf(&x->a, "{\"learning_rate\": %s}", json_equal[i]), NO_FLAGS));
        assert_true(x->c.learning_rate == 1e-5);
    }
    static const char *const json_wrong[] = {"\"1e-5\"", "1e-5x", "",      "nan",  "NaN", "inf",
                                             "-1",       "1,5",   "1e999", "true", "[1]", "{}"};
    for (size_t i = 0; i < sizeof json_wrong / sizeof *json_wrong; i++) {
        assert_false(read_config(x, arena_printf(&x->a, "{\"learning_rate\": %s}", json_wrong[i]), NO_FLAGS));
        EXPECT(x, FAIL_INPUT, x->file);
    }
}

static void test_numbers(void **state) { check_numbers(*state); }

static void test_numbers_in_comma_locale(void **state) {
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) found = setlocale(LC_ALL, names[i]) != NULL;
    if (!found) {
        print_message("skip: no locale with a decimal comma is installed\n");
        skip();
    }
    check_numbers(*state);
    text_buf json = {0};
    assert_true(read_config(*state, NULL, FLAGS("--warmup_ratio", "0.25")));
    config_put_json(&((fixture *)*state)->c, &json);
    assert_non_null(strstr(json.data, "\"warmup_ratio\": 0.25,"));
    text_free(&json);
}

static void test_integers(void **state) {
    fixture *x = *state;
    static const char *const wrong[] = {"1.5", "1e3", "", "x", "0", "4097", "99999999999999999999", "-1", "1_000"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(read_config(x, NULL, FLAGS("--lora_rank", wrong[i])));
        EXPECT(x, FAIL_USAGE, "--lora_rank", "expected an integer from 1 to 4096");
    }
    assert_false(read_config(x, "{\"lora_rank\": 2.5}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, x->file, "lora_rank: found 2.5", "expected an integer from 1 to 4096");
    assert_true(read_config(x, NULL, FLAGS("--seed", "9007199254740991", "--max_steps", "-1")));
    assert_true(x->c.seed == 9007199254740991);
    assert_false(read_config(x, NULL, FLAGS("--seed", "9007199254740993")));
}

static void test_wrong_types(void **state) {
    fixture *x = *state;
    assert_false(read_config(x, "{\"packing\": \"yes\"}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, x->file, "packing", "found the text \"yes\"", "expected true or false");
    assert_false(read_config(x, "{\"packing\": 1}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, "packing: found number", "true or false");
    assert_false(read_config(x, "{\"template\": 3}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, "template: found number, expected text");
    assert_false(read_config(x, "{\"device\": \"gpu\"}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, "device: found \"gpu\", expected one of auto, cuda, cpu");
    assert_false(read_config(x, NULL, FLAGS("--device", "c")));
    assert_false(read_config(x, NULL, FLAGS("--device", "auto|cuda")));
    assert_false(read_config(x, NULL, FLAGS("--device", "")));
    assert_false(read_config(x, NULL, FLAGS("--packing", "maybe")));
    EXPECT(x, FAIL_USAGE, "--packing: found \"maybe\", expected true or false");
    assert_false(read_config(x, "[1]", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, x->file, "found list, expected an object");
    assert_false(read_config(x, NULL, FLAGS("--system", "\xff")));
    EXPECT(x, FAIL_USAGE, "--system", "not UTF-8");
}

static void test_unknown_and_duplicate(void **state) {
    fixture *x = *state;
    assert_false(read_config(x, "{\"lora_rnak\": 8}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, x->file, "unknown key lora_rnak", "the nearest known key is lora_rank");
    assert_false(read_config(x, NULL, FLAGS("--learning_rat", "1")));
    EXPECT(x, FAIL_USAGE, "command line", "unknown key --learning_rat;", "--learning_rate");
    assert_false(read_config(x, NULL, FLAGS("--zzzzzzzzzzzz", "1")));
    EXPECT(x, FAIL_USAGE, "--zzzzzzzzzzzz", "--help");
    assert_false(read_config(x, "{\"seed\": 1, \"seed\": 1}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, x->file, "seed", "twice");
    assert_false(read_config(x, NULL, FLAGS("--seed", "1", "--seed=2")));
    EXPECT(x, FAIL_USAGE, "--seed stands twice");
    assert_false(read_config(x, "{\"tuner_type\": \"lora\", \"train_type\": \"lora\"}", NO_FLAGS));
    EXPECT(x, FAIL_INPUT, x->file, "tuner_type and train_type are one setting");
    assert_false(read_config(x, "{}", FLAGS("--config", "other.json")));
    EXPECT(x, FAIL_USAGE, "--config stands twice");
}

static void test_malformed_line(void **state) {
    fixture *x = *state;
    assert_false(read_config(x, NULL, FLAGS("seed", "1")));
    EXPECT(x, FAIL_USAGE, "found \"seed\", expected --key value");
    assert_false(read_config(x, NULL, FLAGS("-s")));
    assert_false(read_config(x, NULL, FLAGS("--")));
    assert_false(read_config(x, NULL, FLAGS("--seed", "1", "2")));
    EXPECT(x, FAIL_USAGE, "found \"2\"");
    assert_false(read_config(x, NULL, FLAGS("--seed")));
    EXPECT(x, FAIL_USAGE, "--seed: found nothing behind it");
    assert_false(read_config(x, NULL, FLAGS("--seed", "--packing")));
    assert_true(read_config(x, NULL, FLAGS("--prompt=--help me")));
    assert_string_equal(x->c.prompt, "--help me");
    assert_false(read_config(x, NULL, FLAGS("--config")));
    assert_false(read_config(x, NULL, FLAGS("--config=")));
    assert_false(read_config(x, NULL, FLAGS("--config", "/nonexistent/c.json")));
    EXPECT(x, FAIL_INPUT, "/nonexistent/c.json", "No such file");
}

static void test_aliases(void **state) {
    fixture *x = *state;
    assert_true(read_config(x, "{\"train_type\": \"full\", \"gradient_checkpointing\": true}",
                            FLAGS("--max_seq_length", "64")));
    assert_string_equal(x->c.tuner_type, "full");
    assert_string_equal(x->c.gradient_checkpointing, "full");
    assert_int_equal(x->c.max_length, 64);
    assert_true(read_config(x, "{\"gradient_checkpointing\": false}", NO_FLAGS));
    assert_string_equal(x->c.gradient_checkpointing, "none");
    assert_true(read_config(x, "{\"gradient_checkpointing\": false}", FLAGS("--gradient_checkpointing")));
    assert_string_equal(x->c.gradient_checkpointing, "full");
    assert_false(read_config(x, "{\"tuner_type\": true}", NO_FLAGS)); /* only where the table says so */
}

static void test_need(void **state) {
    fixture *x = *state;
    assert_true(read_config(x, NULL, FLAGS("--model", "m")));
    assert_true(config_need(&x->c, "model", &x->f));
    assert_false(config_need(&x->c, "dataset", &x->f));
    EXPECT(x, FAIL_USAGE, "dataset is needed", "--dataset");
}

/* Every setting stands in the printed JSON, which reads back as a config file. */
static void test_json_round_trip(void **state) {
    fixture *x = *state;
    text_buf first = {0}, second = {0};
    assert_true(read_config(x, NULL,
                            FLAGS("--learning_rate", "3.3e-5", "--system", "a \"b\"\n\xC3\xA9", "--dataset=/a,/b",
                                  "--strict", "--output_dir=/o")));
    config_put_json(&x->c, &first);
    cJSON *root;
    assert_true(json_parse(&root, first.data, first.size, "printed", &x->f));
    assert_true(cJSON_GetArraySize(root) > 50);
    cJSON_DeleteItemFromObject(root, "config_file");
    char *text = cJSON_Print(root);
    assert_true(read_config(x, text, NO_FLAGS));
    x->c.config_file = "";
    config_put_json(&x->c, &second);
    assert_string_equal(first.data, second.data);
    cJSON_free(text);
    cJSON_Delete(root);
    text_free(&first);
    text_free(&second);
}

/* A damaged file or line is taken or refused, never worse; the sanitizers watch. */
static void test_damaged(void **state) {
    fixture *x = *state;
    static const char whole[] =
        "{\"model\": \"a/b\", \"dataset\": [\"x.json#3\", \"y\"], \"lora_rank\": 16, \"packing\": true,"
        "\"learning_rate\": 1.5e-5, \"layers_to_transform\": [1, 2], \"device\": \"cpu\", \"seed\": null}";
    static const char with[] = "\"\\{}[],:-.0e9\n\xff#|/u";
    rng r = {11, 0};
    int taken = 0;
    for (int i = 0; i < 4000; i++) {
        char text[sizeof whole + 16];
        size_t n = sizeof whole - 1;
        memcpy(text, whole, sizeof whole);
        for (uint64_t k = rng_below(&r, 3) + 1; k > 0; k--) {
            size_t at = rng_below(&r, n);
            char c = with[rng_below(&r, sizeof with - 1)];
            if (rng_below(&r, 2)) memmove(text + at, text + at + 1, n - at), n--;
            else memmove(text + at + 1, text + at, n - at + 1), n++, text[at] = c;
        }
        if (read_config(x, text, NO_FLAGS)) taken++;
        else assert_true(x->f.kind == FAIL_INPUT && strstr(x->f.text, x->file));
        char *argv[] = {text, text + n / 2};
        x->f = (failure){0};
        memcpy(text, "--", 2);
        if (!config_read(&x->c, 2, argv, &x->a, &x->f)) assert_int_equal(x->f.kind, FAIL_USAGE);
        arena_free(&x->a);
    }
    assert_true(taken > 100 && taken < 3000);
}

/* The examples in configs/ are read without a complaint. */
static void test_example_configs(void **state) {
    fixture *x = *state;
    glob_t found;
    assert_int_equal(glob(TEST_DIR "/../configs/*.json", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        assert_done(read_config(x, NULL, FLAGS("--config", found.gl_pathv[i])), &x->f);
    globfree(&found);
    assert_done(read_config(x, NULL, FLAGS("--config", TEST_DIR "/../configs/llama3-8b.json")), &x->f);
    assert_string_equal(x->c.model, "meta-llama/Meta-Llama-3-8B-Instruct");
    assert_int_equal(x->c.lora_rank, 64);
    assert_string_equal(x->c.dataset.items[0], TEST_DIR "/../configs/alpaca.json");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_defaults),
        TEST(test_file_then_flags),
        TEST(test_windows_file),
        TEST(test_lists),
        TEST(test_paths),
        TEST(test_numbers),
        TEST(test_integers),
        TEST(test_numbers_in_comma_locale),
        TEST(test_wrong_types),
        TEST(test_unknown_and_duplicate),
        TEST(test_malformed_line),
        TEST(test_aliases),
        TEST(test_need),
        TEST(test_json_round_trip),
        TEST(test_example_configs),
        TEST(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
