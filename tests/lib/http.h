// A client of what the daemon serves over HTTP: one request a connection. Functions fail the test
// when something is not as they say.
#ifndef KVC_TESTS_LIB_HTTP_H
#define KVC_TESTS_LIB_HTTP_H

#include <netinet/in.h>
#include <stdbool.h>

#include "tests/lib/daemon.h"

#define HTTP_PAGE_MAX (256u << 10)

struct http {
    int code;
    const char *body; // in page
    char page[HTTP_PAGE_MAX];
};

// Starts the first daemon of a test, with metrics at a port of its own choice.
struct daemon *http_daemon(const char *const extra_args[], in_port_t *port);

// Where the n-th daemon of a test serves (from 1), which it says in its log.
in_port_t http_port(unsigned n);

// Sends a request as it is; whether an answer came.
bool http_ask(in_port_t port, const char *request, struct http *answer);

// GET path.
void http_get(in_port_t port, const char *path, struct http *answer);

// The value of a sample of metrics, named with its labels.
double http_value(const struct http *answer, const char *sample);

#endif
