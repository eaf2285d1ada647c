/* test_rows.c - cutting JSON lists and JSONL into rows, and what is said about files that are broken between rows. */
#include "data/rows.h"
#include "temp_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Rows joined with "|", or "FAIL text" after those that came before. */
static void cut(const char *bytes, size_t n, const char *limit, char *out, size_t room) {
    temp_file t = temp_file_make(bytes, n);
    char name[128];
    snprintf(name, sizeof name, "%s%s", t.path, limit);
    row_reader *r = NULL;
    failure f = {0};
    size_t used = 0;
    out[0] = 0;
    bool ok = row_reader_open(&r, name, &f);
    for (data_row row; ok;) {
        ok = row_reader_next(r, &row, &f);
        if (!ok || !row.text) break;
        used += (size_t)snprintf(out + used, room - used, "%lld@%zu=%.*s|", (long long)row.number, row.offset,
                                 (int)row.size, row.text);
    }
    if (!ok) snprintf(out + used, room - used, "FAIL %s", f.text + strlen(t.path));
    row_reader_close(r);
    unlink(t.path);
}

static void expect(const char *bytes, const char *limit, const char *expected) {
    char out[4096];
    cut(bytes, strlen(bytes), limit, out, sizeof out);
    assert_string_equal(out, expected);
}

static void list_and_lines(void **state) {
    (void)state;
    expect("[{\"a\":1}, {\"b\":\"]}\\\"\"}\n]\n", "", "1@1={\"a\":1}|2@10={\"b\":\"]}\\\"\"}|");
    expect("{\"a\":1}\n\n  {\"b\":2} \n", "", "1@0={\"a\":1}|2@11={\"b\":2}|");
    expect("{\"a\":1}\r\n{\"b\":2}\r\n", "", "1@0={\"a\":1}|2@9={\"b\":2}|");
    expect("{\"a\":1}\n{\"b\":2}", "", "1@0={\"a\":1}|2@8={\"b\":2}|"); /* no line end at the end */
    expect("\xEF\xBB\xBF[1, \"x,]\" ,null]", "", "1@4=1|2@7=\"x,]\"|3@14=null|");
    expect("\xEF\xBB\xBF{\"a\":1}\r\n", "", "1@3={\"a\":1}|");
    expect("[]", "", "");
    expect(" [ \r\n ] \r\n", "", "");
}

static void limits(void **state) {
    (void)state;
    expect("[1,2,3]", "#2", "1@1=1|2@3=2|");
    expect("1\n2\n3\n", "#2", "1@0=1|2@2=2|");
    expect("[1,2]", "#9", "1@1=1|2@3=2|");
    expect("[1,2,,]", "#2", "1@1=1|2@3=2|"); /* what comes after is not read */
    expect("[1]", "#0", "FAIL #0: found \"#0\", expected # and a count of rows, at least 1");
    expect("[1]", "#99999999999999999999",
           "FAIL #99999999999999999999: found \"#99999999999999999999\", expected # and a count of rows, at least 1");
}

static void broken_between_rows(void **state) {
    (void)state;
    expect("", "", "FAIL : the file is empty, expected rows");
    expect("\xEF\xBB\xBF \n", "", "FAIL : the file is empty, expected rows");
    expect("[1,]", "", "1@1=1|FAIL : row 2, byte 3: found \"]\" after a comma, expected a row; take it out");
    expect("[1,,2]", "", "1@1=1|FAIL : row 2, byte 3: found a comma, expected a row");
    expect("[,1]", "", "FAIL : row 1, byte 1: found a comma, expected a row");
    expect("[1 2]", "", "1@1=1|FAIL : row 2, byte 3: expected \",\" or \"]\" after a row");
    expect("[1,", "", "1@1=1|FAIL : row 2, byte 3: the file ends after a comma, expected a row");
    expect("[1, 2 ", "", "1@1=1|2@4=2|FAIL : row 3, byte 6: the file ends inside the list, expected \",\" or \"]\"");
    expect("[{\"a\":\"x]", "",
           "FAIL : row 1, byte 1: the row that begins here never ends: a quote or a bracket is not closed");
    expect("[{\"a\":\"x\\", "",
           "FAIL : row 1, byte 1: the row that begins here never ends: a quote or a bracket is not closed");
    expect("[{\"a\":[1}", "",
           "FAIL : row 1, byte 1: the row that begins here never ends: a quote or a bracket is not closed");
    expect("[}]", "", "FAIL : row 1, byte 1: found a closing bracket, expected a row");
    expect("[1] [2]", "", "1@1=1|FAIL : byte 4: found text after the list's closing \"]\", expected the end");
    char out[256];
    cut("\xFF\xFE[\0", 4, "", out, sizeof out);
    assert_string_equal(out, "FAIL : found UTF-16, expected UTF-8; save the file as UTF-8");
}

/* A million brackets that never close are one pass over the file, not a deep recursion. */
static void deep(void **state) {
    (void)state;
    size_t n = 1000000;
    char *text = malloc(n), out[256];
    memset(text, '[', n);
    cut(text, n, "", out, sizeof out);
    assert_string_equal(
        out, "FAIL : row 1, byte 1: the row that begins here never ends: a quote or a bracket is not closed");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_and_lines),
        cmocka_unit_test(limits),
        cmocka_unit_test(broken_between_rows),
        cmocka_unit_test(deep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
