/* test_examples.c - rows to messages: the three layouts, and every reason for which a row is refused (D04, D05, D06).
 */
#include "base/array.h"
#include "data/examples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* "S:text|U:text|A:text|" with a small letter for an answer that is not trained, or "BAD reason". */
static const char *read_bytes(const char *row, size_t n, unsigned *notes, char detail[2048]) {
    static char out[4096];
    example e = {0};
    failure f = {0};
    size_t used = 0;
    data_row r = {row, n, 1, 100};
    out[0] = 0;
    if (example_read(&e, &r, NULL, &f))
        for (int i = 0; i < (int)arrlen(e.messages); i++)
            used += (size_t)snprintf(
                out + used, sizeof out - used, "%c:%.*s|",
                e.messages[i].role == CHAT_ASSISTANT && !e.messages[i].train ? 'a' : "SUAT"[e.messages[i].role],
                (int)e.messages[i].size, e.messages[i].content);
    else snprintf(out, sizeof out, "BAD %s", e.reason);
    if (notes) *notes = e.notes;
    if (detail) memcpy(detail, f.text, sizeof f.text);
    example_free(&e);
    return out;
}

static const char *read_row(const char *row) { return read_bytes(row, strlen(row), NULL, NULL); }

typedef struct {
    const char *row, *expected;
} pair;

static void check(const pair *pairs, size_t n) {
    for (size_t i = 0; i < n; i++) assert_string_equal(read_row(pairs[i].row), pairs[i].expected);
}
#define CHECK(pairs) check(pairs, sizeof pairs / sizeof pairs[0])

static void alpaca(void **state) {
    (void)state;
    static const pair pairs[] = {
        {"{\"instruction\":\"q\",\"input\":\"i\",\"output\":\"a\"}", "U:q\ni|A:a|"},
        {"{\"instruction\":\"q\",\"input\":\"\",\"output\":\"a\"}", "U:q|A:a|"},
        {"{\"instruction\":\"q\",\"input\":null,\"output\":\"a\"}", "U:q|A:a|"},
        {"{\"instruction\":\"q\",\"output\":\"a\"}", "U:q|A:a|"},
        {"{\"instruction\":\"\",\"input\":\"i\",\"output\":\"a\"}", "U:i|A:a|"},
        {"{\"instruction\":\"q\"}", "BAD the output is missing"},
        {"{\"input\":\"q\"}", "BAD the output is missing"},
        {"{\"instruction\":\"q\",\"output\":null}", "BAD the output is missing"},
        {"{\"instruction\":\"q\",\"output\":\"\"}", "BAD the output is empty"},
        {"{\"instruction\":\"q\",\"output\":[\"a\"]}", "BAD a list or object where text is expected"},
        {"{\"instruction\":\"q\",\"output\":{}}", "BAD a list or object where text is expected"},
        {"{\"instruction\":\"q\",\"output\":12}", "U:q|A:12|"},
        {"{\"instruction\":\"q\",\"output\":1000000}", "U:q|A:1000000|"},
        {"{\"instruction\":\"q\",\"output\":-2.5}", "U:q|A:-2.5|"},
        {"{\"instruction\":\"q\",\"output\":true}", "U:q|A:true|"},
        {"{\"instruction\":\"q\",\"output\":12345678901234567890}", "BAD a number too large to keep exactly"},
        {"{\"instruction\":\"\",\"output\":\"a\"}", "BAD the instruction is empty"},
        {"{\"output\":\"a\"}", "BAD the instruction is empty"},
        {"{\"system\":\"s\",\"instruction\":\"q\",\"output\":\"a\",\"history\":[[\"x\",\"y\"],[\"v\",\"w\"]]}",
         "S:s|U:x|A:y|U:v|A:w|U:q|A:a|"},
        {"{\"system\":\"\",\"instruction\":\"q\",\"output\":\"a\",\"history\":[]}", "U:q|A:a|"},
        {"{\"instruction\":\"q\",\"output\":\"a\",\"history\":[[\"x\"]]}", "BAD a history that is no list of pairs"},
        {"{\"instruction\":\"q\",\"output\":\"a\",\"history\":[[\"x\",\"\"]]}", "BAD an empty text in the history"},
        {"{\"instruction\":\"q\",\"output\":\"a\",\"history\":\"x\"}", "BAD a history that is no list of pairs"},
    };
    CHECK(pairs);
}

static void turns(void **state) {
    (void)state;
#define M(list)       "{\"messages\":[" list "]}"
#define T(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define V(from, text) "{\"from\":\"" from "\",\"value\":\"" text "\"}"
    static const pair pairs[] = {
        {M(T("user", "q") "," T("assistant", "a")), "U:q|A:a|"},
        {M(T("system", "s") "," T("user", "q") "," T("assistant", "a") "," T("user", "r") "," T("assistant", "b")),
         "S:s|U:q|A:a|U:r|A:b|"},
        {M(T("user", "q") "," T("assistant", "a") "," T("tool", "t") "," T("assistant", "b")), "U:q|A:a|T:t|A:b|"},
        {M(T("user", "q") ",{\"role\":\"assistant\",\"content\":\"a\",\"loss\":false}," T("user",
                                                                                          "r") "," T("assistant", "b")),
         "U:q|a:a|U:r|A:b|"},
        {M(T("user", "q") ",{\"role\":\"assistant\",\"content\":\"a\",\"weight\":0}"),
         "BAD no answer is to be trained"},
        {M(T("user", "q") ",{\"role\":\"assistant\",\"content\":\"a\",\"weight\":0.5}"), "BAD a wrong loss or weight"},
        {"{\"system\":\"s\",\"conversations\":[" V("human", "q") "," V("gpt", "a") "]}", "S:s|U:q|A:a|"},
        {"{\"conversations\":[" V("system", "s") "," V("user", "q") "," V("assistant", "a") "]}", "S:s|U:q|A:a|"},
        {"{\"conversations\":[" V("human", "q") "," V("function_call", "a") "]}",
         "BAD a call of a tool, which is not supported"},
        {M(T("user", "q") ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[1]}"),
         "BAD a call of a tool, which is not supported"},
        {M(T("user", "q") ",{\"role\":\"assistant\",\"content\":null}"), "BAD a turn without content"},
        {M(T("user", "q") ",{\"role\":\"assistant\",\"content\":[{}]}"), "BAD a list or object where text is expected"},
        {M(T("user", "q") ",7"), "BAD a turn that is no object"},
        {M(T("user", "q") "," T("assistant", "")), "BAD an answer is empty"},
        {M(T("user", "q") "," T("system", "s") "," T("assistant", "a")), "BAD a system message after the first turn"},
        {"{\"messages\":{}}", "BAD turns that are no list"},
        {"{\"text\":\"x\"}", "BAD an unknown layout"},
        {"{}", "BAD an unknown layout"},
        {"[]", "BAD not an object"},
        {"7", "BAD not an object"},
    };
    CHECK(pairs);
}

/* D04: one good row and five that are rejected, each for its own reason. */
static void role_order(void **state) {
    (void)state;
    static const pair pairs[] = {
        {M(T("user", "q") "," T("assistant", "a")), "U:q|A:a|"},
        {M(T("assistant", "a") "," T("user", "q") "," T("assistant", "a")), "BAD the first turn is not the user's"},
        {M(T("user", "q") "," T("user", "q") "," T("assistant", "a")), "BAD turns do not alternate"},
        {M(T("user", "q") "," T("assistant", "a") "," T("user", "q")), "BAD the last turn is no answer"},
        {M(""), "BAD no turns"},
        {"{\"conversations\":[" V("human", "q") "," V("chatgpt", "a") "]}", "BAD an unknown role"},
    };
    CHECK(pairs);
}

static void encoding(void **state) {
    (void)state;
    unsigned notes;
    char detail[2048];
#define ROW(output) "{\"instruction\":\"q\",\"output\":\"" output "\"}"
#define READ(row)   read_bytes(row, sizeof row - 1, &notes, detail)
    assert_string_equal(READ(ROW("\\ud83e\\udd99")), "U:q|A:\xF0\x9F\xA6\x99|");
    assert_int_equal(notes, 0);
    assert_string_equal(READ(ROW("x\\ud83ey")), "U:q|A:x\xEF\xBF\xBDy|"); /* half a pair */
    assert_int_equal(notes, NOTE_SURROGATE);
    assert_string_equal(READ(ROW("\\udd99")), "U:q|A:\xEF\xBF\xBD|");
    assert_string_equal(READ(ROW("\\ud83e\\ud83e\\udd99")), "U:q|A:\xEF\xBF\xBD\xF0\x9F\xA6\x99|");
    assert_string_equal(READ(ROW("\\ud83e\\n")), "U:q|A:\xEF\xBF\xBD\n|");
    assert_string_equal(READ(ROW("\\\\ud83e")), "U:q|A:\\ud83e|"); /* an escaped backslash, no escape of a character */
    assert_int_equal(notes, 0);
    assert_string_equal(READ(ROW("\xEF\xBB\xBFhi")), "U:q|A:\xEF\xBB\xBFhi|"); /* U+FEFF inside text stays */
    assert_string_equal(READ(ROW("a\xFF")), "BAD not UTF-8");
    assert_non_null(strstr(detail, "byte 130: 0xFF"));               /* row at 100, 30 bytes into it */
    assert_string_equal(READ(ROW("\xED\xA0\x80")), "BAD not UTF-8"); /* CESU */
    assert_string_equal(READ(ROW("a\\u12")), "BAD not valid JSON");
    assert_string_equal(READ(ROW("a\\uZZZZ")), "BAD not valid JSON");
    assert_string_equal(READ(ROW("a\\u0000b")), "BAD not valid JSON");
    assert_string_equal(READ(ROW("a\0b")), "BAD not valid JSON");
    assert_string_equal(READ(ROW("a\nb")), "BAD not valid JSON");
    assert_non_null(strstr(detail, "byte 130: a raw control character 0x0A"));
    assert_string_equal(READ("{\"instruction\":\"q\",}"), "BAD not valid JSON");
    assert_string_equal(READ("{\"output\":\"a\",\"output\":\"b\"}"), "BAD not valid JSON"); /* one key twice */
    assert_string_equal(READ("{\"instruction\":\"q"), "BAD not valid JSON");
    assert_string_equal(READ(""), "BAD not valid JSON");
}

static void default_system_and_tools(void **state) {
    (void)state;
    example e = {0};
    failure f = {0};
    const char *plain = "{\"instruction\":\"q\",\"output\":\"a\",\"tools\":\"[{}]\"}";
    const char *own = "{\"system\":\"mine\",\"instruction\":\"q\",\"output\":\"a\",\"tools\":\"[]\"}";
    assert_true(example_read(&e, &(data_row){plain, strlen(plain), 1, 0}, "given", &f));
    assert_int_equal(arrlen(e.messages), 3);
    assert_string_equal(e.messages[0].content, "given");
    assert_int_equal(e.notes, NOTE_TOOLS);
    assert_true(example_read(&e, &(data_row){own, strlen(own), 2, 0}, "given", &f));
    assert_int_equal(arrlen(e.messages), 3);
    assert_string_equal(e.messages[0].content, "mine");
    assert_int_equal(e.notes, 0);
    example_free(&e);
}

/* Rows made for DPO and KTO are not taken for plain ones in silence. */
static void preference_rows(void **state) {
    (void)state;
    example e = {0};
    failure f = {0};
    const char *bad = "{\"instruction\":\"q\",\"output\":\"a\",\"label\":false}";
    const char *good = "{\"instruction\":\"q\",\"output\":\"a\",\"label\":true}";
    assert_true(example_read(&e, &(data_row){bad, strlen(bad), 1, 0}, NULL, &f));
    assert_int_equal(e.notes, NOTE_LABEL);
    assert_true(example_read(&e, &(data_row){good, strlen(good), 2, 0}, NULL, &f));
    assert_int_equal(e.notes, 0);
    example_free(&e);
    const pair pairs[] = {
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"}],"
         "\"chosen\":{\"from\":\"gpt\",\"value\":\"a\"},\"rejected\":{\"from\":\"gpt\",\"value\":\"b\"}}",
         "BAD chosen and rejected answers, for preference training"}};
    CHECK(pairs);
}

static void deep_and_long(void **state) {
    (void)state;
    size_t n = 4 << 20;
    char *row = malloc(n + 64);
    int used = snprintf(row, 64, "{\"instruction\":\"q\",\"output\":");
    memset(row + used, '[', n);
    assert_string_equal(read_bytes(row, used + n, NULL, NULL), "BAD not valid JSON");
    memset(row + used, 'x', n);
    row[used] = '"';
    memcpy(row + used + n, "\"}", 2);
    example e = {0};
    failure f = {0};
    assert_true(example_read(&e, &(data_row){row, used + n + 2, 1, 0}, NULL, &f));
    assert_int_equal(e.messages[1].size, n - 1);
    example_free(&e);
    free(row);
}

/* Every single-byte change of a row is either read or refused with a reason; the sanitizers watch. */
static void mutated(void **state) {
    (void)state;
    static const char row[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\ud83e\\udd99\"},"
                              "{\"role\":\"assistant\",\"content\":1.5e3}],\"tools\":[]}";
    static const char bytes[] = "\"\\{}[],:u0\x80\xC3\xFF\n ";
    char copy[sizeof row];
    int good = 0, bad = 0;
    for (size_t i = 0; i < sizeof row - 1; i++)
        for (size_t k = 0; k < sizeof bytes; k++) {
            memcpy(copy, row, sizeof row);
            copy[i] = bytes[k];
            const char *out = read_bytes(copy, sizeof row - 1, NULL, NULL);
            assert_int_not_equal(out[0], 0);
            if (strncmp(out, "BAD ", 4) == 0) {
                assert_string_not_equal(out, "BAD (null)");
                bad++;
            } else good++;
        }
    for (size_t n = 0; n < sizeof row - 1; n++) assert_memory_equal(read_bytes(row, n, NULL, NULL), "BAD ", 4);
    assert_true(good > 50 && bad > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alpaca),          cmocka_unit_test(turns),         cmocka_unit_test(role_order),
        cmocka_unit_test(encoding),        cmocka_unit_test(deep_and_long), cmocka_unit_test(default_system_and_tools),
        cmocka_unit_test(preference_rows), cmocka_unit_test(mutated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
