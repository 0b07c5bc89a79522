/* The replay trace's reader, and what blocks of a replay hold. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/content.h"
#include "client/ctl/trace.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tmpdir.h"

#define LINE(ids)                                                                                  \
    "{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 2, \"hash_ids\": " ids "}"

static const char *write_file(const char *text)
{
    const char *path = tmpdir_file("trace");
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

START_TEST(a_trace_is_read)
{
    struct trace trace;
    char error[128];
    const char *path = write_file(LINE("[1, 2]") "\n\n" LINE("[]") "\r\n" LINE("[7, 8, 9]"));

    ck_assert(trace_read(path, 0, false, &trace, error, sizeof(error)));
    ck_assert_uint_eq(trace.n_requests, 3);
    ck_assert_uint_eq(trace.n_ids, 5);
    ck_assert_uint_eq(trace.longest, 3);
    ck_assert_uint_eq(trace.requests[1].n_ids, 0);
    ck_assert_uint_eq(trace.requests[2].first, 2);
    ck_assert_uint_eq(trace.ids[4], 9);
    ck_assert_uint_eq(trace.requests[0].input_length, 600);
    trace_free(&trace);
    ck_assert(trace_read(path, 1, false, &trace, error, sizeof(error)));
    ck_assert_uint_eq(trace.n_requests, 1);
    trace_free(&trace);
}
END_TEST

START_TEST(an_empty_file_is_an_empty_trace)
{
    struct trace trace;
    char error[128];

    ck_assert(trace_read(write_file(""), 0, false, &trace, error, sizeof(error)));
    ck_assert_uint_eq(trace.n_requests, 0);
    trace_free(&trace);
}
END_TEST

START_TEST(a_bad_line_is_named_or_counted)
{
    struct trace trace;
    char error[128];
    const char *path = write_file(LINE("[1]") "\n" LINE("[-1]") "\nnonsense\n" LINE("[2]") "\n");

    ck_assert(!trace_read(path, 0, false, &trace, error, sizeof(error)));
    ck_assert_ptr_nonnull(strstr(error, "line 2: hash_ids"));
    ck_assert_ptr_null(trace.requests);
    ck_assert(trace_read(path, 0, true, &trace, error, sizeof(error)));
    ck_assert_uint_eq(trace.n_requests, 2);
    ck_assert_uint_eq(trace.n_ids, 2);
    ck_assert_uint_eq(trace.bad_lines, 2);
    trace_free(&trace);
}
END_TEST

static const char *const bad_lines[] = {
    "",
    "{",
    "[]",
    "3",
    "{}",
    "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}",
    "{\"timestamp\": \"1\", \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}",
    "{\"timestamp\": 1, \"input_length\": -1, \"output_length\": 1, \"hash_ids\": []}",
    "{\"timestamp\": 1, \"input_length\": 1.5, \"output_length\": 1, \"hash_ids\": []}",
    "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 9999999999, \"hash_ids\": []}",
    "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": {}}",
    LINE("[1, null]"),
    LINE("[1, 2.5]"),
    LINE("[1, \"2\"]"),
    LINE("[99999999999999999999999]"),
    LINE("[1]") " trailing",
    ("{\"timestamp\": 1, \"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, "
     "\"hash_ids\": []}"),
};

START_TEST(each_bad_line_is_refused)
{
    struct trace trace = {0};

    ck_assert_ptr_nonnull(trace_line(&trace, bad_lines[_i], strlen(bad_lines[_i])));
    ck_assert_uint_eq(trace.n_requests, 0);
    ck_assert_uint_eq(trace.n_ids, 0);
    trace_free(&trace);
}
END_TEST

START_TEST(a_missing_file_is_an_error)
{
    struct trace trace;
    char error[128];

    ck_assert(!trace_read(tmpdir_file("absent"), 0, false, &trace, error, sizeof(error)));
    ck_assert_ptr_nonnull(strstr(error, "No such file"));
}
END_TEST

/* Every byte of it depends on key, slice and offset, and every changed byte is seen. */
START_TEST(content_is_of_key_slice_and_offset)
{
    uint8_t keys[2][KVC_KEY_BYTES] = {{1}, {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
    uint8_t bytes[77], other[77];

    content_write(keys[0], 3, bytes, sizeof(bytes));
    ck_assert(content_matches(keys[0], 3, bytes, sizeof(bytes)));
    ck_assert(!content_matches(keys[1], 3, bytes, sizeof(bytes)));
    ck_assert(!content_matches(keys[0], 4, bytes, sizeof(bytes)));
    content_write(keys[0], 3, other, sizeof(other));
    ck_assert_mem_eq(bytes, other, sizeof(bytes));
    ck_assert(!content_matches(keys[0], 3, bytes + 8, sizeof(bytes) - 8));
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] ^= 0x10;
        ck_assert(!content_matches(keys[0], 3, bytes, sizeof(bytes)));
        bytes[i] ^= 0x10;
    }
}
END_TEST

CHECK_MAIN_LOOPS("ctl/trace", CHECK_UNIT_S, {a_trace_is_read, 0, 0},
                 {an_empty_file_is_an_empty_trace, 0, 0}, {a_bad_line_is_named_or_counted, 0, 0},
                 {each_bad_line_is_refused, 0, sizeof(bad_lines) / sizeof(bad_lines[0]) - 1},
                 {a_missing_file_is_an_error, 0, 0}, {content_is_of_key_slice_and_offset, 0, 0})
