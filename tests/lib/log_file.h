// The log of a program under test, judged at its end: a warning or an error that no test announced
// is a failure, and so is anything that is no log line (an assertion, a sanitizer's report).
#ifndef KVC_TESTS_LIB_LOG_FILE_H
#define KVC_TESTS_LIB_LOG_FILE_H

#include <stdbool.h>
#include <stddef.h>

#define LOG_FILE_ANNOUNCED_MAX 16

struct log_announced {
    char text[96];
    bool must_come;
    int came;
};

struct log_file {
    char path[128];
    struct log_announced announced[LOG_FILE_ANNOUNCED_MAX];
    size_t n_announced;
};

void log_file_init(struct log_file *log, const char *path);

// Warnings and errors that contain `text` are fine; with must_come there is to be one at least.
void log_file_announce(struct log_file *log, const char *text, bool must_come);

// Lines of any level that contain `text`.
int log_file_count(const struct log_file *log, const char *text);

// Whether the log is as announced; otherwise ret_why says what is not.
bool log_file_ok(struct log_file *log, char *ret_why, size_t size);

// Fails the test, and prints the log, unless the log is as announced.
void log_file_judge(struct log_file *log);

// Fails the test unless the last line contains `text`.
void log_file_expect_last(const struct log_file *log, const char *text);

// All of it, or its first size - 1 bytes.
void log_file_read(const struct log_file *log, char *ret_text, size_t size);

// To standard output; the last part of it when it is long.
void log_file_print(const struct log_file *log);

#endif
