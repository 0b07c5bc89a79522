#include "tests/lib/neighbour.h"

#include <check.h>
#include <stdlib.h>
#include <time.h>

#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

#define SETTLE_MS     3000
#define LOG_WINDOW_US 6000000u // longer than the log's own
// Stacks, libuv's arrays and the allocator's own: they grow with the number of connections at once.
#define ANONYMOUS_KB 2048
// Where a sanitizer keeps freed memory for a while, anonymous memory says nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ANONYMOUS_TELLS 0
#else
#define ANONYMOUS_TELLS 1
#endif

static Kvcache__DebugReply *look(const struct neighbour *n)
{
    Kvcache__Debug debug = KVCACHE__DEBUG__INIT;

    debug.check = true;
    return talk_ask(n->worker.sock, WIRE_DEBUG, &debug.base, &kvcache__debug_reply__descriptor);
}

static void measure(const struct neighbour *n, int *fds, uint64_t *allocations)
{
    Kvcache__DebugReply *reply = look(n);

    ck_assert_msg(reply->broken[0] == '\0', "broken: %s", reply->broken);
    *fds = daemon_fds(n->daemon);
    *allocations = reply->live_allocations;
    talk_free(reply);
}

void neighbour_open(struct neighbour *n, const char *const args[])
{
    *n = (struct neighbour){.daemon = daemon_start(args)};
    n->socket = daemon_socket(n->daemon);
    n->worker = talk_worker(n->socket, KVCACHE__ROLE__ROLE_WORKER, 7);
    talk_publish(&n->worker, 0, NEIGHBOUR_KEYS);
    wait_for(daemon_log_count(n->daemon, "memory is populated") == 1, SETTLE_MS);
    for (int i = 0; i < 20; i++)
        neighbour_works(n);
    n->fds = talk_settled_fds(n->worker.sock, n->daemon);
    measure(n, &n->fds, &n->allocations);
    n->anonymous_kb = proc_anonymous_kb(daemon_pid(n->daemon));
}

void neighbour_works(struct neighbour *n)
{
    Kvcache__Release release = KVCACHE__RELEASE__INIT;
    Kvcache__LookupReply *reply = talk_lookup(&n->worker, 0, NEIGHBOUR_KEYS);

    ck_assert_uint_eq(reply->count, NEIGHBOUR_KEYS);
    release.lease = reply->lease;
    talk_free(reply);
    talk_free(talk_ask(n->worker.sock, WIRE_RELEASE, &release.base, &kvcache__empty__descriptor));
}

void neighbour_unmute(struct neighbour *n)
{
    daemon_clock_advance(n->daemon, LOG_WINDOW_US);
}

static bool is_as_before(const struct neighbour *n)
{
    uint64_t allocations;
    int fds;

    measure(n, &fds, &allocations);
    return fds == n->fds && allocations == n->allocations;
}

void neighbour_alone(struct neighbour *n)
{
    long kb;

    if (!wait_until(is_as_before(n), SETTLE_MS)) {
        uint64_t allocations;
        int fds;

        measure(n, &fds, &allocations);
        ck_abort_msg("%d descriptors, at first %d; %llu allocations, at first %llu", fds, n->fds,
                     (unsigned long long)allocations, (unsigned long long)n->allocations);
    }
    kb = proc_anonymous_kb(daemon_pid(n->daemon));
    ck_assert_msg(!ANONYMOUS_TELLS || kb <= n->anonymous_kb + ANONYMOUS_KB,
                  "%ld KiB of anonymous memory, at first %ld", kb, n->anonymous_kb);
    neighbour_unmute(n);
    neighbour_works(n);
}

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

void neighbour_time(struct neighbour *n, uint32_t *us, int lookups)
{
    for (int i = 0; i < lookups; i++) {
        uint64_t start = now_ns();
        uint32_t count = talk_probe(&n->worker, 0, NEIGHBOUR_KEYS);

        us[i] = (uint32_t)((now_ns() - start) / 1000);
        ck_assert_uint_eq(count, NEIGHBOUR_KEYS);
    }
    qsort(us, (size_t)lookups, sizeof(*us), compare);
}

void neighbour_close(struct neighbour *n)
{
    neighbour_alone(n);
    talk_worker_close(&n->worker);
    daemon_stop(n->daemon);
}
