// Closes descriptors that came from outside, on threads of its own. The last close of a file can
// wait for whoever made it: a file system in a process of its own (FUSE), a server that is gone
// (NFS), a socket with SO_LINGER, a driver. Nothing that a client sends may make the loop wait for
// that, so what came from clients, and the sockets that may hold more of it, ends here.
//
// One thread closes. When it has been at one descriptor for CLOSER_LATE_US, that descriptor is
// stuck, and another thread goes on with the rest; of CLOSER_LANES descriptors that are stuck, no
// more than CLOSER_LANES_OF_USER are one user's, whose others wait until one of them has ended.
#ifndef KVC_DAEMON_BASE_CLOSER_H
#define KVC_DAEMON_BASE_CLOSER_H

#include <stdbool.h>
#include <stdint.h>

#define CLOSER_QUEUE         8192u
#define CLOSER_LANES         32u
#define CLOSER_LANES_OF_USER 4u
#define CLOSER_LATE_US       500000u
// A process with so many in the queue should send no more; nor should a user with twice as many, or
// one with any when there is room for no more than that.
#define CLOSER_SHARE ((CLOSER_QUEUE) / 4)

struct closer;

// Where a descriptor came from. A user is a uid, or another number for those who share a fate.
struct closer_source {
    uint32_t user;
    int32_t process;
};
#define CLOSER_NOBODY ((struct closer_source){UINT32_MAX, 0}) // it is not known

struct closer_stats {
    uint64_t waiting;   // to be closed: in the queue, or at hand
    uint64_t stuck;     // at hand for longer than CLOSER_LATE_US, and no longer counted above
    uint64_t left_open; // since the start: there was no room in the queue
};

// 0, or -ENOMEM or -EAGAIN. Fault sites: "closer.thread"; "closer.late", which keeps a thread that
// begins waiting; "closer.stuck", which keeps a close waiting as long as it fires; "closer.linger",
// as if a client had been quicker than we.
int closer_create(struct closer **ret);

// Waits for what is in the queue; behind wait_us no longer for a close that is under way. What is
// left then stays open, and is said in the log. NULL is fine.
void closer_destroy(struct closer *closer, uint64_t wait_us);

// Takes the descriptor over and returns at once; a negative one is fine. With no room in the queue
// it stays open for good, which is counted, and said in the log once: a number is less than the
// loop. Keeps errno.
void closer_close(struct closer *closer, int fd, struct closer_source source);

// Whether nothing more should be received from there for now.
bool closer_is_pressed(struct closer *closer, struct closer_source source);

void closer_figures(struct closer *closer, struct closer_stats *ret);

#endif
