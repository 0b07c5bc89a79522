/*
 * When a process that used GPUs can no longer write: not when it has ended, since what it launched
 * may run on while a child that it forked lives, but when the driver lists it no more. That counts
 * only for one that was listed while it lived; another may be one that cannot be seen from here,
 * and what it was writing to waits for other proof.
 *
 * The driver is asked on a thread of its own, one process at a time: it may hang, and then nobody
 * is declared gone and nothing else waits.
 */
#ifndef KVC_API_GONE_H
#define KVC_API_GONE_H

#include <stdint.h>
#include <uv.h>

#include "daemon/base/list.h"
#include "daemon/device/device.h"

#define GONE_DEVICES_MAX 8u

struct gone;

enum gone_state {
    GONE_UNWATCHED, /* zeroed memory is that */
    GONE_UNSEEN,    /* it lives and has not been listed yet */
    GONE_SEEN,
    GONE_ENDING, /* was seen and has ended: asked about until it is listed no more */
    GONE_HIDDEN, /* has ended and never was seen: nothing will be known */
    GONE_GONE,
};

/* A process; part of a session. */
struct gone_process {
    struct list link; /* gone::asking */
    enum gone_state state;
    int32_t pid;
    uint32_t n_uuids;
    uint8_t uuids[GONE_DEVICES_MAX][KVC_UUID_BYTES];
    uint64_t due_us;
    uint32_t wait_ms; /* until the next question */
};

/* Called once for a process that was expected to go, on the loop, from no call of this header. */
typedef void gone_cb(struct gone_process *process);

/* The device has lists_process, and stays until gone_destroy. */
kvc_status gone_create(uv_loop_t *loop, const struct device *device, gone_cb *cb,
                       struct gone **gone);
void gone_destroy(struct gone *gone); /* NULL is fine */

void gone_watch(struct gone *gone, struct gone_process *process);
/* It has ended. */
void gone_expect(struct gone *gone, struct gone_process *process);
/* Its memory goes away. Also for one that is not watched. */
void gone_forget(struct gone *gone, struct gone_process *process);

#endif
