/*
 * Events of workers that copies by the daemon wait for: what a save reads must have been computed,
 * what a load overwrites must not be in use. A copy does not begin before its event has passed, so
 * that one worker's prefill never holds up what others have asked for. The GPU's errands ask about
 * the events every KVC_POLL_MS; a session's events stay open until it ends, or others come.
 */
#ifndef KVC_API_GATE_H
#define KVC_API_GATE_H

#include "daemon/api/session.h"

struct gates;
struct gate_event;

/* Part of whoever waits. */
struct gate_wait {
    struct list link;
    struct gate_event *event; /* NULL: it needs not wait */
    bool asked;               /* the answer that is under way is for it */
    /* Called once, on the loop, never from inside gate_wait; not KVC_OK: it cannot be known. */
    void (*passed)(struct gate_wait *wait, kvc_status status);
};

/* For a GPU whose errands there are. */
kvc_status gates_create(struct api *api, uint32_t gpu, struct gates **gates);
void gates_destroy(struct gates *gates); /* NULL is fine */

/* Names the event. KVC_E_NO_MEMORY, or KVC_E_LIMIT: the session waits for more than it may. */
kvc_status gate_prepare(struct session *session, const uint8_t handle[DEVICE_HANDLE_BYTES],
                        struct gate_wait *wait);
void gate_wait(struct gate_wait *wait);
/* passed is not called any more. Also for one that was not prepared (zeroed), or has passed. */
void gate_forget(struct gate_wait *wait);

/* The session has ended, and nothing of it waits any more. */
void gate_forget_session(struct session *session);

#endif
