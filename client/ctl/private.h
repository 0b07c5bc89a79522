/*
 * A private daemon: kvcached in a temporary folder of its own, for replay and demo. It lives in a
 * process group of its own, dies with its maker, and leaves nothing behind: after private_stop, or,
 * when the maker is killed, once it has ended itself.
 */
#ifndef KVC_CTL_PRIVATE_H
#define KVC_CTL_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct private_daemon {
    pid_t pid;
    pid_t janitor; /* removes the folder of a maker that was killed; 0: there is none */
    int alive;     /* the maker's end of a pipe, which ends with it */
    char folder[96];
    char socket[96 + 8]; /* less than what an address holds */
    char log[128];
};

/* Of private daemons that are to know each other, directly or, with a directory, by it. */
struct private_peers {
    char listen[32], list[32];
    const char *directory; /* HOST:PORT of one that runs; NULL: none */
};

/*
 * Starts kvcached (beside this program, else from PATH) and waits until it answers. sizes are the
 * values of its options, NULL for its defaults; without peers it knows nobody. false: error says
 * why, and nothing is left.
 */
bool private_start(const char *device, const char *gpu_bytes, const char *host_bytes,
                   const struct private_peers *peers, struct private_daemon *daemon, char *error,
                   size_t error_size);

/*
 * Waits until a daemon has a link to the other one. false: it found none in the time that a start
 * may take.
 */
bool private_wait_linked(const struct private_daemon *daemon);

/* Waits until its tiers have all of their memory, so that finding it is no part of what follows. */
bool private_wait_populated(const struct private_daemon *daemon);

/* Two addresses of this host that nobody listens on now, each the other's peer. */
bool private_peers_choose(const char *directory, struct private_peers peers[2]);

/*
 * Stops it in order and removes the folder. false when it had to be killed or did not exit with 0;
 * its log then goes to standard error. A zeroed daemon is fine.
 */
bool private_stop(struct private_daemon *daemon);

/* Kills it, as a host that fails would, and removes the folder. */
void private_kill(struct private_daemon *daemon);

#endif
