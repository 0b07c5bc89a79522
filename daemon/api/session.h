/*
 * A session: one connection, the process behind it, and the store's owner that it opened with
 * HELLO. It outlives its connection as long as the owner owes something.
 */
#ifndef KVC_API_SESSION_H
#define KVC_API_SESSION_H

#include "daemon/api/api.h"
#include "daemon/api/gone.h"
#include "daemon/base/list.h"
#include "daemon/base/window.h"
#include "daemon/conn/codec.h"
#include "daemon/conn/connection.h"
#include "daemon/conn/listener.h"
#include "daemon/conn/process.h"
#include "daemon/tier/copier.h"
#include "daemon/tier/errands.h"

struct gates;
struct loss;
struct silence;
struct verify;
struct wake;
struct watch;
struct watches;

/* A listening socket. */
struct api_door {
    struct api *api;
    struct listener *listener; /* NULL: it is closed, or was never open */
};

struct api {
    struct api_config config;
    struct access access;
    struct store *store;
    struct peers *peers; /* NULL: there are none */
    struct tier *tiers[TIER_COUNT];
    struct connection_hub hub;
    struct codec *codec;
    struct api_door doors[ACCESS_DOORS_MAX]; /* those of access */
    struct wake *wake;
    struct silence *silence;
    struct watches *watches;
    struct loss *loss; /* NULL: no GPU */
    struct gone *gone; /* NULL: no device that processes could outlive themselves on */
    struct errands *errands[DEVICE_GPUS_MAX]; /* of each GPU on which the daemon copies */
    struct errand calibrate[DEVICE_GPUS_MAX]; /* their first */
    struct gates *gates;
    uv_timer_t room_timer; /* runs while a save waits for room */
    struct list sessions;
    struct list waiting; /* saves that wait for room, first come first served */
    uint32_t n_connections;
    uint64_t started_us;
    uint64_t refused_requests;
    struct histogram latencies[API_LATENCIES];
    struct window hits;
    struct verify *verify;
    uint64_t last_region, last_fetch;
    uint32_t n_pieces; /* of regions, of all sessions */
    bool stopping;
    bool draining; /* an operator's wish, unlike stopping */
    struct save_scratch *scratch;
};

enum session_state {
    SESSION_NEW,   /* connected, has not said HELLO */
    SESSION_OPEN,  /* has an owner */
    SESSION_ENDED, /* its connection is over; the owner still owes something */
};

struct session {
    struct list link;
    struct api *api;
    uint32_t door; /* through which it came */
    uint32_t user; /* with whom it shares what one user may have */
    enum session_state state;
    struct connection *connection; /* NULL when it is over */
    struct process *process;
    struct gone_process on_gpu; /* unwatched unless its HELLO named devices */
    struct owner *owner;
    bool has_gpu; /* of the daemon's: the first that its HELLO named */
    uint32_t gpu;
    uint32_t role;
    struct access_grant grant; /* from HELLO on */
    char name[KVC_NAME_MAX + 1];
    char build[KVC_NAME_MAX + 1];
    uint64_t connected_us;
    uint64_t requests;
    uint32_t refused_fds;
    struct list aborts; /* replies to ABORT that wait for save_done */
    uint32_t n_aborts;
    struct list memories;       /* its own memory, for copies by the daemon */
    struct list transfers;      /* saves and loads that the daemon copies */
    struct copier_queue copies; /* their chunks */
    uint32_t n_loads;           /* of the transfers */
    uint32_t n_copies;          /* what the others count for, of KVC_SESSION_COPIES_MAX */
    struct list remotes;        /* what peers are asked for */
    uint32_t n_remotes;
    struct watch *watch; /* its WATCH that waits, or NULL */
    uint32_t n_pieces;
};

/* A connection was accepted; the socket is the session's, or closed. */
void session_accept(void *door, int sock);
/* Whether it is as access would have it now: else it is cut. */
void session_judge(struct session *session);
/* Frees a session whose connection is over and whose owner, if any, is freed. */
void session_free(struct session *session);
/* The process of a session can write no more: what it owes is free. */
void session_gone(struct gone_process *process);

/* Hands a packet to its family; dispatch.c. */
void session_packet(void *session, struct wire_packet *packet);

/* Replies and notices. A reply to a session whose connection is over goes nowhere. */
void session_reply(struct session *session, uint16_t type, uint32_t seq, struct bytes body);
void session_notice(struct session *session, uint16_t type, struct bytes body);
void session_refuse(struct session *session, uint32_t seq, kvc_status status,
                    const struct refusal *why);

/* Fills *why; the field is a format. Returns status. */
kvc_status refuse(struct refusal *why, kvc_status status, const char *detail, const char *field,
                  ...) __attribute__((format(printf, 4, 5)));
/* An analyser of one file at a time does not see that it returns what it is given. */
#ifdef KVC_LINT
#define refuse(why, status, ...) ((refuse)(why, status, __VA_ARGS__), (status))
#endif

/* Lookups have found blocks, or not: for the figures of the last minutes. */
void inspect_note_hits(struct api *api);

/* Handlers of the families: KVC_OK, and the reply was sent or will be; else the request is refused.
 */
typedef kvc_status handler(struct session *session, const struct request *request,
                           struct refusal *why);
handler session_hello;
handler layout_register, layout_unregister, layout_map, layout_unmap;
handler remote_remote;
handler lookup_lookup, lookup_extend, lookup_release, lookup_adopt;
handler save_save, save_abort, save_drained;
handler load_load, load_report, load_nudge;
handler settings_config, settings_list;
handler memory_begin, memory_part, memory_end, memory_drop, memory_suspend, memory_resume;
handler inspect_ping, inspect_stats;
handler list_list;
handler flush_flush, flush_pin;
handler quota_quota;
handler watch_watch;
handler debug_debug;
handler drain_drain;
handler verify_verify;

/* Whether a drain is in force and this request begins something. */
bool drain_refuses(const struct session *session, const struct request *request);

/* Names are for people and their tools: printable UTF-8 of at most KVC_NAME_MAX bytes. */
kvc_status name_check(const char *name, struct refusal *why, const char *field);

/* Whether it may see and do what concerns others. */
bool session_is_operator(const struct session *session);
/* The door whose namespaces are all that it may see and name. */
const struct access_door *session_door(const struct session *session);

/* Keys on the wire: bytes to a count. Refuses what is no multiple of a key, naming the field. */
kvc_status keys_count(struct bytes keys, uint32_t *n, struct refusal *why, const char *field, ...)
    __attribute__((format(printf, 4, 5)));

/* Extents that a session is to unmap, or may map. */
void layout_extents(struct session *session, const uint32_t *withdrawn, uint32_t n, bool granted);

/* The key in the slot that begins at an offset of a tier, or NULL: there is no such slot. */
const uint8_t *load_key_at(const struct api *api, enum tier_kind tier, uint64_t offset);

/* The saves of a session that wait for room, and the replies that are owed, end with it. */
void save_forget_session(struct session *session);
void save_room(struct api *api);
void save_done(struct session *session, const struct save_outcome *outcome);
kvc_status save_scratch_create(struct api *api);
void save_scratch_destroy(struct api *api);

#endif
