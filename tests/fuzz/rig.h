/*
 * A whole daemon in this process, but for main, configuration and signals: loop, tiers of a few
 * MiB on the host device, mover, copier, store and api, listening on an abstract address. The loop
 * runs only when it is told to.
 */
#ifndef KVC_TESTS_FUZZ_RIG_H
#define KVC_TESTS_FUZZ_RIG_H

#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

#include "daemon/api/api.h"
#include "daemon/store/store.h"
#include "daemon/tier/mover.h"

#define RIG_GPU_BYTES  (4ull << 20)
#define RIG_HOST_BYTES (6ull << 20)

struct rig {
    uv_loop_t loop;
    struct tier *tiers[TIER_COUNT];
    struct mover *mover;
    struct copier *copier;
    struct api *api;
    struct store *store;
    int listener;
    struct sockaddr_un address;
    socklen_t address_len;
    uint64_t live_allocations; /* before it */
    int fds;
};

void rig_open(struct rig *rig);
/* Ends everything in the daemon's order; nothing may be left of it. */
void rig_close(struct rig *rig);

/* A connected socket that does not block; the daemon accepts it when the loop runs. */
int rig_connect(struct rig *rig);
/* Turns of the loop that wait for nothing. */
void rig_turn(struct rig *rig, unsigned turns);
/* Until no copy is under way. */
void rig_settle(struct rig *rig);

#endif
