// What every hostile client is tried against: a daemon, and a worker whose lookups must go on being
// answered, with the figures that must come back to what they were: descriptors, allocations, and
// anonymous memory of the daemon's process.
#ifndef KVC_TESTS_LIB_NEIGHBOUR_H
#define KVC_TESTS_LIB_NEIGHBOUR_H

#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"

#define NEIGHBOUR_KEYS 64u // of a lookup, all published

struct neighbour {
    struct daemon *daemon;
    const char *socket;
    struct talk_worker worker;
    int fds;
    uint64_t allocations;
    long anonymous_kb;
};

// args as for daemon_start().
void neighbour_open(struct neighbour *n, const char *const args[]);

// A lookup with a lease, which finds all of its keys; and its release.
void neighbour_works(struct neighbour *n);

// A log line of one place is muted when there are many; from now on it is not.
void neighbour_unmute(struct neighbour *n);

// Waits until nothing is left of the others: figures are what they were, every invariant of the
// store holds. Then the neighbour works.
void neighbour_alone(struct neighbour *n);

// Microseconds that so many lookups took, sorted.
void neighbour_time(struct neighbour *n, uint32_t *us, int lookups);

// Alone again, and the daemon stops in order.
void neighbour_close(struct neighbour *n);

#endif
