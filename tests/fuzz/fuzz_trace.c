/*
 * Traces: the first byte says whether the rest is one line (0) or a whole file, read with
 * --skip-bad or without and with a limit.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "client/ctl/trace.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "trace";

static void check(const struct trace *trace)
{
    size_t ids = 0;

    for (size_t i = 0; i < trace->n_requests; i++) {
        FUZZ_REQUIRE(trace->requests[i].first == ids);
        FUZZ_REQUIRE(trace->requests[i].n_ids <= trace->longest);
        ids += trace->requests[i].n_ids;
    }
    FUZZ_REQUIRE(trace->n_ids == ids);
    for (size_t i = 0; i < trace->n_ids; i++)
        FUZZ_REQUIRE(trace->ids[i] <= INT64_MAX);
}

static void one_line(const char *line, size_t len)
{
    struct trace trace = {0};

    for (size_t n = 0; n < 2; n++) {
        const char *wrong = trace_line(&trace, line, len);

        FUZZ_REQUIRE(trace.n_requests == (wrong == NULL ? n + 1 : 0));
        check(&trace);
    }
    trace_free(&trace);
}

static void file(uint32_t how, const uint8_t *data, size_t size)
{
    char path[48], error[256] = "";
    struct trace trace;
    const size_t limit = how >> 2;
    const bool skip_bad = how & 2;
    int fd = memfd_create("trace", MFD_CLOEXEC);

    FUZZ_REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    bool ok = trace_read(path, limit, skip_bad, &trace, error, sizeof(error));
    FUZZ_REQUIRE(ok || (!skip_bad && error[0] != '\0' && trace.n_requests == 0));
    FUZZ_REQUIRE(limit == 0 || trace.n_requests <= limit);
    check(&trace);
    trace_free(&trace);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] == 0)
        one_line((const char *)data + 1, size - 1);
    else
        file(data[0], data + 1, size - 1);
    return 0;
}
