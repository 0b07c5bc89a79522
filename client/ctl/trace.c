#include "client/ctl/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "proto/limits.h"

#define TRACE_IDS_MAX    KVC_LEASE_KEYS_MAX /* of one request: what a lease can hold */
#define TRACE_TOKENS_MAX 1000000000

static bool grow(void **array, size_t used, size_t more, size_t size)
{
    size_t capacity = 1024;
    while (capacity < used)
        capacity *= 2;
    if (*array && used + more <= capacity)
        return true;
    while (capacity < used + more)
        capacity *= 2;
    void *bigger = realloc(*array, capacity * size);
    if (!bigger)
        return false;
    *array = bigger;
    return true;
}

static const char *read_length(const json_t *object, const char *name, uint32_t *length)
{
    json_t *value = json_object_get(object, name);
    if (!json_is_integer(value))
        return "input_length and output_length must be integers";
    json_int_t n = json_integer_value(value);
    if (n < 0 || n > TRACE_TOKENS_MAX)
        return "a length is out of range";
    *length = (uint32_t)n;
    return NULL;
}

static const char *add_request(struct trace *trace, const json_t *object)
{
    if (!json_is_object(object))
        return "not an object";
    if (!json_is_number(json_object_get(object, "timestamp")))
        return "timestamp must be a number";
    struct trace_request request = {.first = trace->n_ids};
    const char *wrong = read_length(object, "input_length", &request.input_length);
    if (!wrong)
        wrong = read_length(object, "output_length", &request.output_length);
    if (wrong)
        return wrong;
    json_t *ids = json_object_get(object, "hash_ids");
    if (!json_is_array(ids))
        return "hash_ids must be an array";
    size_t n = json_array_size(ids);
    if (n > TRACE_IDS_MAX)
        return "too many hash_ids";
    if (!grow((void **)&trace->ids, trace->n_ids, n, sizeof(*trace->ids)) ||
        !grow((void **)&trace->requests, trace->n_requests, 1, sizeof(*trace->requests)))
        return "out of memory";
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return "hash_ids must be integers of at least 0";
        trace->ids[trace->n_ids + i] = (uint64_t)json_integer_value(id);
    }
    request.n_ids = (uint32_t)n;
    trace->n_ids += n;
    trace->requests[trace->n_requests++] = request;
    if (request.n_ids > trace->longest)
        trace->longest = request.n_ids;
    return NULL;
}

const char *trace_line(struct trace *trace, const char *line, size_t len)
{
    json_error_t parse_error;
    json_t *object = json_loadb(line, len, JSON_REJECT_DUPLICATES, &parse_error);
    if (!object)
        return "not JSON";
    const char *wrong = add_request(trace, object);
    json_decref(object);
    return wrong;
}

bool trace_read(const char *path, size_t limit, bool skip_bad, struct trace *trace, char *error,
                size_t error_size)
{
    memset(trace, 0, sizeof(*trace));
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!file) {
        snprintf(error, error_size, "%s: %s", path, strerror(errno));
        return false;
    }
    char *line = NULL;
    size_t size = 0, number = 0;
    ssize_t len;
    bool ok = true;
    while ((!limit || trace->n_requests < limit) && (len = getline(&line, &size, file)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)len)
            continue;
        const char *wrong = trace_line(trace, line, (size_t)len);
        if (!wrong)
            continue;
        if (skip_bad) {
            trace->bad_lines++;
            continue;
        }
        snprintf(error, error_size, "%s: line %zu: %s", path, number, wrong);
        ok = false;
        break;
    }
    if (ok && ferror(file)) {
        snprintf(error, error_size, "%s: %s", path, strerror(errno));
        ok = false;
    }
    free(line);
    if (file != stdin)
        fclose(file);
    if (!ok)
        trace_free(trace);
    return ok;
}

void trace_free(struct trace *trace)
{
    free(trace->requests);
    free(trace->ids);
    memset(trace, 0, sizeof(*trace));
}
