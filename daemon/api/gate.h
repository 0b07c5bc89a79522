/*
 * What copies by the daemon wait for: what a save reads must have been computed, what a load
 * overwrites must not be in use. The worker's stream, or the worker, writes a number into a word of
 * its completion page, behind all that; a copy does not begin before, so that one worker's prefill
 * never holds up what others have asked for. Words are looked at when the request comes, and then
 * every KVC_POLL_MS.
 *
 * Not events of the GPU's driver: it keeps a mapping of each process whose interprocess event was
 * opened here, for as long as this one lives, also when the event was destroyed.
 */
#ifndef KVC_API_GATE_H
#define KVC_API_GATE_H

#include "daemon/api/session.h"

struct gates;

/* Part of whoever waits. */
struct gate_wait {
    struct list link;
    const struct session *session; /* NULL: it need not wait */
    uint32_t gate;
    uint64_t number;
    /* Called once, on the loop, never from inside gate_wait. */
    void (*passed)(struct gate_wait *wait);
};

kvc_status gates_create(struct api *api, struct gates **gates);
void gates_destroy(struct gates *gates); /* NULL is fine */

/* Numbers of one gate grow, in the order of what writes them. */
bool gate_is_open(const struct gate_wait *wait);
void gate_wait(struct gate_wait *wait);
/* passed is not called any more. Also for one that does not wait (zeroed), or has passed. */
void gate_forget(struct gate_wait *wait);

#endif
