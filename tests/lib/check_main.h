// The frame of a test program: START_TEST(...)s, then one line
//
//     CHECK_MAIN("base/list", CHECK_UNIT_S, test_empty, test_remove)
//
// Each test runs in its own process with a time limit. At its end it fails when it leaves behind an
// open descriptor, memory of daemon/base/mem, or a process, and the program when a test that passed
// left its temporary folder. When it dies, what it started dies.
// `PROGRAM name...` runs only the tests of that name; CK_FORK=no keeps them in one process for gdb
// (and then nothing is checked at the end).
#ifndef KVC_TESTS_LIB_CHECK_MAIN_H
#define KVC_TESTS_LIB_CHECK_MAIN_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

// Time limits in seconds, before the multiplier KVC_TEST_TIMEOUT_MULTIPLIER, on a machine that has
// nothing else to do. On a busy one everything that is only waited for may take CHECK_PATIENCE
// times as long: limits and deadlines end what hangs, and measure nothing.
#define CHECK_PATIENCE 10
#define CHECK_UNIT_S   5
#define CHECK_LIFE_S   30
#define CHECK_LONG_S   120

// Who copies blocks makes no difference to what must hold: tests for which it could run twice, the
// second time in a test case whose name ends in ", copies by the daemon".
enum check_ways {
    CHECK_ONE_WAY, // the worker copies, or it does not matter
    CHECK_BOTH_WAYS,
    CHECK_DAEMON_COPIES, // the second time only
};

// A test with loop bounds runs once for each _i from first to last.
struct check_test {
    const TTest *test;
    int first, last;
    enum check_ways ways;
};

// Whether this is the second time. tests/lib's kv and storekit then let the daemon copy.
bool check_copies_by_daemon(void);

int check_main(int argc, char **argv, const char *suite, double limit_s,
               const struct check_test *tests, size_t n);

// 1, or what KVC_TEST_TIMEOUT_MULTIPLIER says: sanitizers and valgrind are slow.
double check_time_multiplier(void);

// Sanitizers keep freed memory, and need to look into this process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHECK_SANITIZED true
#else
#define CHECK_SANITIZED false
#endif

// Whether the long form of the tests was asked for (make check-long).
bool check_long(void);
// Whether all processes of the tests run under valgrind, 20 to 50 times slower than by themselves.
bool check_valgrind(void);

// Ends a test without a result: `TEST_SKIP("no second uid")` in the body of a test.
#define TEST_SKIP(...)                                                                             \
    do {                                                                                           \
        check_skip(__func__, __VA_ARGS__);                                                         \
        return;                                                                                    \
    } while (0)

void check_skip(const char *function, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// All tests run for both ways to copy.
#define CHECK_MAIN_BOTH_WAYS(suite, limit_s, ...)                                                  \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        const TTest *const plain[] = {__VA_ARGS__};                                                \
        struct check_test tests[sizeof(plain) / sizeof(plain[0])];                                 \
                                                                                                   \
        for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)                              \
            tests[i] = (struct check_test){.test = plain[i], .ways = CHECK_BOTH_WAYS};             \
        return check_main(argc, argv, suite, limit_s, tests, sizeof(tests) / sizeof(tests[0]));    \
    }

#define CHECK_MAIN(suite, limit_s, ...)                                                            \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        const TTest *const plain[] = {__VA_ARGS__};                                                \
        struct check_test tests[sizeof(plain) / sizeof(plain[0])];                                 \
                                                                                                   \
        for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)                              \
            tests[i] = (struct check_test){.test = plain[i]};                                      \
        return check_main(argc, argv, suite, limit_s, tests, sizeof(tests) / sizeof(tests[0]));    \
    }

// With loops: CHECK_MAIN_LOOPS("x", CHECK_UNIT_S, {test_a, 0, 0}, {test_each, 0, 7}), and a fourth
// member for those that run for both ways to copy.
#define CHECK_MAIN_LOOPS(suite, limit_s, ...)                                                      \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        _Pragma("GCC diagnostic push")                                                             \
            _Pragma("GCC diagnostic ignored \"-Wmissing-field-initializers\"")                     \
                const struct check_test tests[] = {__VA_ARGS__};                                   \
        _Pragma("GCC diagnostic pop")                                                              \
                                                                                                   \
            return check_main(argc, argv, suite, limit_s, tests,                                   \
                              sizeof(tests) / sizeof(tests[0]));                                   \
    }

#endif
