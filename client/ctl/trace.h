/*
 * A replay trace in JSON lines: {"timestamp": ms, "input_length": tokens, "output_length": tokens,
 * "hash_ids": [ids of 512-token blocks, each naming its whole prefix]}.
 */
#ifndef KVC_CTL_TRACE_H
#define KVC_CTL_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trace_request {
    size_t first; /* in trace.ids */
    uint32_t n_ids;
    uint32_t input_length, output_length;
};

struct trace {
    struct trace_request *requests;
    size_t n_requests;
    uint64_t *ids;
    size_t n_ids;
    uint32_t longest; /* ids of one request */
    size_t bad_lines; /* skipped */
};

/*
 * Reads a whole file ("-": standard input), at most limit requests (0: all). A bad line ends it:
 * error gets "line N: what is wrong", unless skip_bad, which counts it. Blank lines are skipped.
 * false on error; the trace is then empty. trace_free takes a zeroed trace too.
 */
bool trace_read(const char *path, size_t limit, bool skip_bad, struct trace *trace, char *error,
                size_t error_size);

/* One line, without its newline, appended to the trace; NULL, or what is wrong with it. */
const char *trace_line(struct trace *trace, const char *line, size_t len);
void trace_free(struct trace *trace);

#endif
