/* test_generate.c - greedy answers of the tiny chat model against transformers' and PEFT's (chat_answers.jsonl), and
 * what must not change them: the prompt's way through the program, what the caches hold from before. */
#include "unit.h"

#include "base/array.h"
#include "base/json.h"
#include "eval/generate.h"
#include "train/session.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define FOLDER TEST_DIR "/fixtures/models/tiny-chat"

typedef struct {
    arena memory;
    config c;
    session s;
    generator g;
} setup;

static void setup_open(setup *t, bool adapter, int n_rows, int n_context) {
    failure f = {0};
    char *argv[] = {"--model", FOLDER, "--device", "cpu", "--adapter", FOLDER "/adapter"};
    *t = (setup){0};
    assert_done(config_read(&t->c, adapter ? 6 : 4, argv, &t->memory, &f), &f);
    assert_done(session_open_model(&t->s, &t->c, &f), &f);
    assert_done(session_open_text(&t->s, &f), &f);
    assert_done(session_open_weights(&t->s, &f), &f);
    t->s.n_context = n_context;
    assert_done(session_build(&t->s, SESSION_GENERATE, n_rows, RECOMPUTE_NONE, &f), &f);
    assert_done(session_start(&t->s, true, &f), &f);
    generator_open(&t->g, t->s.x, &t->s.g, &t->s.io, n_context);
}

static void setup_close(setup *t) {
    generator_close(&t->g);
    session_close(&t->s);
    arena_free(&t->memory);
}

typedef struct {
    bool adapter;
    int32_t *prompt, *answer; /* stb_ds */
    double logits[8];         /* after the prompt, of ids 0 to 7 */
} golden;

static int32_t *read_ids(const cJSON *line, const char *key) {
    int32_t *ids = NULL;
    const cJSON *item;
    cJSON_ArrayForEach(item, json_find(line, key)) arrput(ids, (int32_t)item->valuedouble);
    return ids;
}

static golden *read_golden(void) {
    failure f = {0};
    char *text;
    size_t n;
    golden *list = NULL;
    assert_done(file_read(&text, &n, 1 << 20, FOLDER "/chat_answers.jsonl", &f), &f);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        cJSON *row;
        *end = 0;
        assert_done(json_parse(&row, line, (size_t)(end - line), "chat_answers.jsonl", &f), &f);
        golden g = {.prompt = read_ids(row, "prompt"), .answer = read_ids(row, "answer")};
        assert_done(json_get_bool(row, "adapter", &g.adapter, "chat_answers.jsonl", &f), &f);
        for (int i = 0; i < 8; i++) g.logits[i] = cJSON_GetArrayItem(json_find(row, "logits"), i)->valuedouble;
        arrput(list, g);
        cJSON_Delete(row);
    }
    free(text);
    assert_true(arrlen(list) >= 16);
    return list;
}

static void free_golden(golden *list) {
    for (int i = 0; i < arrlen(list); i++) {
        arrfree(list[i].prompt);
        arrfree(list[i].answer);
    }
    arrfree(list);
}

static const generate_options greedy = {.sample = {.top_p = 1}, .max_new_tokens = 40};

static int32_t *answer(setup *t, const golden *g, const generate_options *o, answer_end *end) {
    failure f = {0};
    int32_t *ids = NULL;
    assert_done(generate_answer(&t->g, g->prompt, arrlen(g->prompt), o, NULL, NULL, &ids, end, &f), &f);
    return ids;
}

static void check_answers(bool adapter, int n_rows) {
    golden *list = read_golden();
    setup t;
    setup_open(&t, adapter, n_rows, 128);
    int32_t *stop = generate_stop_ids(&t.s.model, t.s.chat);
    assert_int_equal(arrlen(stop), 1); /* the chat format's end of turn is the model's eos here */
    int checked = 0;
    for (int i = 0; i < arrlen(list); i++) {
        if (list[i].adapter != adapter) continue;
        generate_options o = greedy;
        o.stop = stop;
        o.n_stop = 1;
        answer_end end;
        int32_t *ids = answer(&t, &list[i], &o, &end);
        assert_int_equal(arrlen(ids), arrlen(list[i].answer));
        assert_memory_equal(ids, list[i].answer, sizeof *ids * (size_t)arrlen(ids));
        assert_int_equal(end, arrlen(ids) < 40 ? ANSWER_STOPPED : ANSWER_FULL);
        arrfree(ids);
        o.max_new_tokens = 1; /* leaves the logits after the prompt */
        ids = answer(&t, &list[i], &o, &end);
        for (int k = 0; k < 8; k++) assert_true(fabs(t.g.logits[k] - list[i].logits[k]) < 1e-5);
        arrfree(ids);
        checked++;
    }
    assert_true(checked >= 8);
    arrfree(stop);
    setup_close(&t);
    free_golden(list);
}

static void answers_equal_transformers(void **state) {
    (void)state;
    check_answers(false, 128);
}

static void answers_with_adapter_equal_peft(void **state) {
    (void)state;
    check_answers(true, 128);
}

static void prompt_in_pieces_gives_the_same(void **state) {
    (void)state;
    check_answers(true, 7);
    check_answers(false, 1);
}

static void stops_where_it_must(void **state) {
    (void)state;
    golden *list = read_golden();
    setup t;
    int n = (int)arrlen(list[0].prompt);
    setup_open(&t, false, 16, n + 4);
    answer_end end;
    generate_options o = greedy;
    int32_t *ids = answer(&t, &list[0], &o, &end); /* the cache takes 4 more tokens; the fifth needs no row */
    assert_int_equal(arrlen(ids), 5);
    assert_int_equal(end, ANSWER_FULL);
    arrfree(ids);
    o.stop = &list[0].answer[3];
    o.n_stop = 1;
    ids = answer(&t, &list[0], &o, &end);
    assert_int_equal(arrlen(ids), 3);
    assert_int_equal(end, ANSWER_STOPPED);
    arrfree(ids);
    failure f = {0};
    int32_t *none = NULL;
    assert_false(generate_answer(&t.g, list[0].prompt, 0, &o, NULL, NULL, &none, &end, &f));
    assert_int_equal(f.kind, FAIL_INPUT);
    int32_t *longer = NULL;
    for (int i = 0; i < n + 4; i++) arrput(longer, 5);
    assert_false(generate_answer(&t.g, longer, n + 4, &o, NULL, NULL, &none, &end, &f));
    assert_non_null(strstr(f.text, "no room"));
    arrfree(longer);
    setup_close(&t);
    free_golden(list);
}

static bool stop_after_two(int32_t id, void *context, failure *f) {
    (void)id;
    (void)f;
    return ++*(int *)context < 2;
}

static void sampling_follows_the_seed_and_the_sink_can_stop(void **state) {
    (void)state;
    golden *list = read_golden();
    setup t;
    setup_open(&t, false, 32, 128);
    generate_options o = {.sample = {.temperature = 1, .top_p = 1}, .seed = 5, .max_new_tokens = 20};
    answer_end end;
    int32_t *a = answer(&t, &list[0], &o, &end), *b = answer(&t, &list[0], &o, &end);
    o.seed = 6;
    int32_t *other = answer(&t, &list[0], &o, &end);
    assert_int_equal(arrlen(a), 20);
    assert_memory_equal(a, b, 20 * sizeof *a);
    assert_memory_not_equal(a, other, 20 * sizeof *a);
    failure f = {0};
    int calls = 0;
    int32_t *two = NULL;
    assert_true(
        generate_answer(&t.g, list[0].prompt, arrlen(list[0].prompt), &o, stop_after_two, &calls, &two, &end, &f));
    assert_int_equal(arrlen(two), 2);
    arrfree(a);
    arrfree(b);
    arrfree(other);
    arrfree(two);
    setup_close(&t);
    free_golden(list);
}

int main(void) {
    omp_set_num_threads(1); /* the models are tiny: threads would only wait for each other */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_equal_transformers),
        cmocka_unit_test(answers_with_adapter_equal_peft),
        cmocka_unit_test(prompt_in_pieces_gives_the_same),
        cmocka_unit_test(stops_where_it_must),
        cmocka_unit_test(sampling_follows_the_seed_and_the_sink_can_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
