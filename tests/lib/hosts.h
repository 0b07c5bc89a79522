// Two hosts on this machine: network namespaces joined by a pair of virtual links, for tests that
// run as root. Processes that the test starts after hosts_enter() are on that host.
//
//     struct hosts h;
//     if (!hosts_open(&h))
//         TEST_SKIP("no network namespaces");
//     hosts_enter(&h, 0);
//     ... daemon_start() ...
//     hosts_leave(&h);
//     hosts_close(&h);
#ifndef KVC_TESTS_LIB_HOSTS_H
#define KVC_TESTS_LIB_HOSTS_H

#include <stdbool.h>

struct hosts {
    char names[2][32];
    const char *addresses[2];
    int own; // the namespace that the test began in
};

// false: not root, no `ip`, or the kernel does not let us.
bool hosts_open(struct hosts *h);
void hosts_close(struct hosts *h);

void hosts_enter(const struct hosts *h, int host);
void hosts_leave(const struct hosts *h);

// Takes the link of a host down, and up again.
void hosts_link(const struct hosts *h, int host, bool up);
// Delay and loss of what host 0 sends ("delay 2ms loss 1%"); false: there is no tc, or not this.
bool hosts_worsen(const struct hosts *h, const char *how);

#endif
