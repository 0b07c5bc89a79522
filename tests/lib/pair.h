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

#define PAIR_MAX 3u

struct pair {
    uint32_t n;
    struct daemon *daemons[PAIR_MAX]; // NULL: stopped by the test
    int ports[PAIR_MAX];
};

// A port that nobody listens on now.
int pair_port(void);

// args as for daemon_start(), of all of them. Returns when every one is linked with every other.
void pair_open(struct pair *p, uint32_t n, const char *const args[]);
// The same with arguments that only the last one gets, too.
void pair_open_with(struct pair *p, uint32_t n, const char *const args[],
                    const char *const last_args[]);
void pair_close(struct pair *p);

#endif
