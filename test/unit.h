/* unit.h - cmocka for unit tests, with the headers it needs before it.  Include it first.
 *
 * cmocka has a macro fail(), which would hide base/failure.h's function; here fail() is ours and test_fail() ends a
 * test with a message. */
#ifndef TEST_UNIT_H
#define TEST_UNIT_H
/* clang-format off */
#include "base/failure.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */
#undef fail
#define test_fail(...)                                                                                                 \
    do {                                                                                                               \
        print_error("ERROR: ");                                                                                        \
        print_error(__VA_ARGS__);                                                                                      \
        print_error("\n");                                                                                             \
        _fail(__FILE__, __LINE__);                                                                                     \
    } while (0)
/* A call with a failure * that must work; prints the failure's text when it does not. */
#define assert_done(call, f)                                                                                           \
    do {                                                                                                               \
        if (!(call)) test_fail("%s: %s", #call, (f)->text);                                                            \
    } while (0)
#endif
