// Daemons that know each other: each listens on a port of its own on loopback and has the others
// as its peers.
//
//     struct pair p;
//     pair_open(&p, 2, NULL);
//     ... engine_open_with_peers(&e, daemon_socket(p.daemons[1]), 5000) ...
//     pair_close(&p);
#ifndef KVC_TESTS_LIB_PAIR_H
#define KVC_TESTS_LIB_PAIR_H

#include "tests/lib/daemon.h"

#define PAIR_MAX 6u

// A row of `kvcachectl peers`.
struct pair_row {
    char state[32], mode[24], lanes[96], reason[96], tenant[64];
    uint64_t epoch, batches, small, useful, wire, registrations, dropped;
    unsigned running, waiting; // batches of one that asks
};

struct pair {
    uint32_t n;
    struct daemon *daemons[PAIR_MAX]; // NULL: stopped by the test
    int ports[PAIR_MAX];
    char lists[PAIR_MAX][96], listens[PAIR_MAX][32]; // what they were started with
};

// args as for daemon_start(), of all of them. Returns when every one is linked with every other.
// None is taken for dead because it is silent, which on a busy machine it is for seconds, unless
// they say --peer-time.
void pair_open(struct pair *p, uint32_t n, const char *const args[]);
// The same with arguments that only the last one gets, too.
void pair_open_with(struct pair *p, uint32_t n, const char *const args[],
                    const char *const last_args[]);
void pair_close(struct pair *p);
// The same, and each daemon is at rest then.
void pair_end(struct pair *p);
// Waits until every one is linked with every other, again.
void pair_linked(const struct pair *p);

// What a daemon says of its i-th peer that it asks ("serves"), or that asks it ("asks"); false:
// there is none.
bool pair_look(const struct daemon *d, const char *way, uint32_t i, struct pair_row *row);
// The same; there must be one.
struct pair_row pair_row(const struct daemon *d, const char *way, uint32_t i);

// What `kvcachectl peers` prints, with --json or without; free() it.
char *pair_ctl(const struct daemon *d, bool json);

// Nothing is being filled, loaded, leased or in quarantine at a daemon, and its store is as it
// should be.
void pair_settled(const struct daemon *d);
// The same after the moment in which what was fetched is held for its waiter.
void pair_at_rest(struct daemon *d);

#endif
