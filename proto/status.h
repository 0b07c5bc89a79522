/*
 * Status codes of libkvcache, of the wire and of the daemon, grouped by the largest thing that a
 * code says is broken, so that a caller knows what to build again. Numbers travel in error
 * replies and are never reused.
 */
#ifndef KVC_STATUS_H
#define KVC_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvc_status {
    KVC_OK = 0,

    /* The request: it was refused and nothing changed; the session lives. */
    KVC_E_INVALID = 1,     /* a field is malformed or out of range */
    KVC_E_LIMIT = 2,       /* more than a documented limit */
    KVC_E_UNSUPPORTED = 3, /* known to the protocol, not done by this daemon */
    KVC_E_UNKNOWN = 4,     /* no such part, lease, save or session */
    KVC_E_DENIED = 5,      /* it belongs to somebody else, or the role forbids it */
    KVC_E_STALE = 6,       /* an epoch or a generation that has passed */
    KVC_E_EXPIRED = 7,     /* the lease has ended */
    KVC_E_NO_ROOM = 8,     /* a table of the daemon is full */
    KVC_E_DUPLICATE = 9,   /* the same key, slice or destination twice */
    KVC_E_CANCELLED = 10,  /* ended by its owner */
    KVC_E_DEADLINE = 11,   /* not done in time */
    KVC_E_CHECKSUM = 12,   /* loaded bytes are not the published ones: a miss */
    KVC_E_BUSY = 13,       /* something in flight must end first */

    /* The session: connect again. */
    KVC_E_PROTOCOL = 32,     /* the other side broke the protocol */
    KVC_E_DISCONNECTED = 33, /* no daemon, or it went away */
    KVC_E_VERSION = 34,      /* protocol versions do not meet */
    KVC_E_FORKED = 35,       /* used in a child of the process that connected */

    /* The device. */
    KVC_E_DEVICE = 64,    /* the device failed */
    KVC_E_NO_DEVICE = 65, /* it is not there */
    KVC_E_MAP = 66,       /* memory could not be mapped */

    /* A peer. */
    KVC_E_PEER = 96, /* a peer failed; the rest is a miss */

    /* The daemon or this process. */
    KVC_E_NO_MEMORY = 128, /* an allocation failed */
    KVC_E_NO_FDS = 129,    /* no number for a descriptor is left */
    KVC_E_SYSTEM = 130,    /* a system call failed */
    KVC_E_STOPPING = 131,  /* the daemon is shutting down */
} kvc_status;

/*
 * A short lower-case text for a status; never NULL, never freed. Any thread. The library exports
 * it, hence its visibility.
 */
__attribute__((visibility("default"))) const char *kvc_status_text(kvc_status status);

#ifdef __cplusplus
}
#endif

#endif
