/* Which family answers a packet, and who may ask. */
#include "daemon/api/session.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"

#define W   ACCESS_ROLE(STORE_ROLE_WORKER)
#define R   ACCESS_ROLE(STORE_ROLE_READER)
#define S   ACCESS_ROLE(STORE_ROLE_SCHEDULER)
#define O   ACCESS_ROLE(STORE_ROLE_OPERATOR)
#define ALL (W | R | S | O)

enum flag {
    BEGINS = 1 << 0,   /* begins something: refused while the daemon stops */
    NO_REPLY = 1 << 1, /* a refusal is counted and not told */
    FDS = 1 << 2,      /* descriptors may come with it */
    OPERATES = 1 << 3, /* concerns others, if an operator asks: it must have been granted that */
    LOOKS = 1 << 4,    /* what is complete by now counts in it, without a nudge */
};

struct route {
    uint16_t type;
    uint16_t roles;
    unsigned flags;
    handler *handle; /* NULL: not done here */
};

static const struct route routes[] = {
    {WIRE_HELLO, ALL, 0, session_hello},
    {WIRE_REGISTER, W | R | S, BEGINS, layout_register},
    {WIRE_UNREGISTER, W | R | S, 0, layout_unregister},
    {WIRE_MAP, W | R, 0, layout_map},
    {WIRE_UNMAP, W | R, 0, layout_unmap},
    {WIRE_REGION_BEGIN, W | R, BEGINS, memory_begin},
    {WIRE_REGION_PART, W | R, BEGINS | FDS, memory_part},
    {WIRE_REGION_END, W | R, BEGINS, memory_end},
    {WIRE_REGION_DROP, W | R, 0, memory_drop},
    {WIRE_LOOKUP, W | R | S, BEGINS | LOOKS, lookup_lookup},
    {WIRE_SAVE, W, BEGINS | LOOKS, save_save},
    {WIRE_ABORT, W | R, 0, save_abort},
    {WIRE_LOAD, W | R, BEGINS, load_load},
    {WIRE_EXTEND, W | R | S, 0, lookup_extend},
    {WIRE_RELEASE, W | R | S, 0, lookup_release},
    {WIRE_ADOPT, W | R | S, BEGINS, lookup_adopt},
    {WIRE_DRAINED, W | R, 0, save_drained},
    {WIRE_SUSPEND, W | R, 0, memory_suspend},
    {WIRE_RESUME, W | R, 0, memory_resume},
    {WIRE_NUDGE, W | R, NO_REPLY, load_nudge},
    {WIRE_STATS, ALL, LOOKS, inspect_stats},
    {WIRE_PIN, W | S | O, OPERATES | LOOKS, flush_pin},
    {WIRE_FLUSH, W | S | O, OPERATES | LOOKS, flush_flush},
    {WIRE_QUOTA, O, OPERATES, quota_quota},
    {WIRE_LIST, ALL, 0, list_list},
    {WIRE_CONFIG, O, OPERATES, settings_config},
    {WIRE_WATCH, ALL, 0, watch_watch},
    {WIRE_PING, ALL, 0, inspect_ping},
    {WIRE_DRAIN, O, OPERATES, drain_drain},
    {WIRE_VERIFY, O, OPERATES, verify_verify},
    {WIRE_REPORT, W | R, NO_REPLY, load_report},
    {WIRE_REMOTE, W | R | S, 0, remote_remote},
#ifdef KVC_DEBUG
    {WIRE_DEBUG, ALL, 0, debug_debug},
#endif
};

static const struct route unknown = {.roles = ALL};

static const struct route *find(uint16_t type)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (routes[i].type == type)
            return &routes[i];
    return &unknown;
}

/* What no correct client sends ends the connection; a text, or NULL. */
static const char *malformed(const struct session *s, const struct wire_packet *packet,
                             const struct route *route)
{
    if (packet->type >= WIRE_NOTICE)
        return "a reply or notice sent as a request";
    if (packet->type == 0)
        return "type 0";
    if (s->state == SESSION_NEW && packet->type != WIRE_HELLO)
        return "a request before HELLO";
    /* Of what is not done a later client may know better. */
    if (packet->n_fds > 0 && route->handle != NULL && !(route->flags & FDS))
        return "descriptors with a message that takes none";
    return NULL;
}

static kvc_status handle(struct session *s, const struct route *route,
                         const struct request *request, struct refusal *why)
{
    if (route->handle == NULL)
        return refuse(why, KVC_E_UNSUPPORTED, "not done by this daemon", "%s", "");
    if (s->state == SESSION_OPEN && !(route->roles & ACCESS_ROLE(s->role)))
        return refuse(why, KVC_E_DENIED, "not for sessions of this role", "%s", "");
    if ((route->flags & OPERATES) && s->role == STORE_ROLE_OPERATOR && !session_is_operator(s))
        return refuse(why, KVC_E_DENIED, "only for those who may be operators here", "%s", "");
    if ((route->flags & BEGINS) && s->api->stopping)
        return refuse(why, KVC_E_STOPPING, "the daemon is shutting down", "%s", "");
    if (drain_refuses(s, request))
        return refuse(why, KVC_E_STOPPING, "the daemon drains: nothing new begins", "%s", "");
    if (route->flags & LOOKS)
        store_look(s->api->store, s->owner);
    return route->handle(s, request, why);
}

static void note_latency(struct api *api, uint16_t type, uint64_t since_us)
{
    struct histogram *h = type == WIRE_LOOKUP ? &api->latencies[API_LATENCY_LOOKUP]
                          : type == WIRE_SAVE ? &api->latencies[API_LATENCY_SAVE]
                          : type == WIRE_LOAD ? &api->latencies[API_LATENCY_LOAD]
                                              : NULL;

    if (h != NULL)
        histogram_add(h, clock_now_us() - since_us);
}

const struct histogram *api_latency(const struct api *api, enum api_latency of)
{
    return &api->latencies[of];
}

/* Descriptors cost the daemon much and a client that sends them in vain nothing: it waits. */
static bool too_many_in_vain(struct session *s, uint32_t n_fds)
{
    s->refused_fds += n_fds;
    if (n_fds > 0)
        connection_in_vain(s->connection, n_fds);
    return s->refused_fds > KVC_SESSION_REFUSED_FDS_MAX;
}

void session_packet(void *arg, struct wire_packet *packet)
{
    struct session *s = arg;
    const struct route *route = find(packet->type);
    const char *wrong = malformed(s, packet, route);
    struct request request = {
        .type = packet->type, .seq = packet->seq, .fds = packet->fds, .n_fds = packet->n_fds};
    struct refusal why = {0};
    kvc_status status;
    const uint32_t n_fds = packet->n_fds;
    const uint64_t since_us = clock_now_us();
    struct api *const api = s->api; /* which outlives the session */

    s->requests++;
    if (wrong == NULL && route->handle != NULL)
        wrong = codec_unpack(s->api->codec, packet, &request);
    if (wrong != NULL) {
        connection_malformed(s->connection, wrong);
        return;
    }
    status = handle(s, route, &request, &why);
    if (status == KVC_OK) {
        note_latency(api, request.type, since_us);
        return;
    }
    if (too_many_in_vain(s, n_fds)) {
        connection_malformed(s->connection, "too many descriptors with refused requests");
        return;
    }
    log_debug("api", "refused request=%u type=%s status=\"%s\" field=%s pid=%d", packet->seq,
              wire_type_name(packet->type), kvc_status_text(status), why.field,
              (int)process_pid(s->process));
    if (route->flags & NO_REPLY)
        s->api->refused_requests++;
    else
        session_refuse(s, packet->seq, status, &why);
}
