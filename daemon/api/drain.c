/* DRAIN: an operator's, before the daemon is replaced. Nothing new begins, and it can be undone. */
#include "daemon/api/session.h"

#include "daemon/base/log.h"
#include "daemon/store/figures.h"

/*
 * What is refused meanwhile: what a lease, a save or a session begins with. A lease is not extended
 * either, so that all of them come to an end; what was leased can be loaded until then. Peers find
 * nothing here, and nothing is fetched from them: a worker could not look it up.
 */
bool drain_refuses(const struct session *s, const struct request *request)
{
    if (!s->api->draining)
        return false;
    switch (request->type) {
    case WIRE_HELLO:
        return request->hello.role != STORE_ROLE_OPERATOR;
    case WIRE_SAVE:
        return request->save.save == 0;
    case WIRE_REGISTER:
    case WIRE_REGION_BEGIN:
    case WIRE_LOOKUP:
    case WIRE_ADOPT:
    case WIRE_EXTEND:
        return true;
    default:
        return false;
    }
}

static uint64_t count_sessions(const struct api *api)
{
    const struct session *s;
    uint64_t n = 0;

    list_for_each(s, &api->sessions, link)
        n += s->state == SESSION_OPEN && s->role != STORE_ROLE_OPERATOR;
    return n;
}

/* Slots in quarantine wait for proof that may never come, and hold up nobody. */
static bool is_drained(const struct api *api, const struct msg_drain_reply *left)
{
    return api->draining && list_empty(&api->waiting) && left->filling_slots == 0 &&
           left->open_loads == 0 && left->leases == 0 && left->moving_blocks == 0 &&
           left->fetches == 0;
}

static void set(struct session *s, bool draining)
{
    if (s->api->draining == draining)
        return;
    s->api->draining = draining;
    if (s->api->peers != NULL)
        peers_drain(s->api->peers, draining);
    log_info("api", "drain %s pid=%d", draining ? "begins" : "is undone",
             (int)process_pid(s->process));
}

kvc_status drain_drain(struct session *s, const struct request *request, struct refusal *why)
{
    const uint32_t action = request->job.action;
    struct msg_drain_reply reply;
    struct store_stats stats;

    if (action > MSG_ACTION_END)
        return refuse(why, KVC_E_INVALID, "no such action", "action");
    if (action != MSG_ACTION_LOOK)
        set(s, action == MSG_ACTION_BEGIN);
    store_stats(s->api->store, &stats);
    reply = (struct msg_drain_reply){
        .draining = s->api->draining,
        .filling_slots = stats.filling_slots,
        .open_loads = stats.open_loads,
        .leases = stats.leases,
        .moving_blocks = stats.moving_blocks,
        .sessions = count_sessions(s->api),
        .quarantined_slots = stats.quarantined_slots,
        .fetches = s->api->peers != NULL ? peers_fetching(s->api->peers) : 0,
    };
    reply.drained = is_drained(s->api, &reply);
    session_reply(s, WIRE_DRAIN, request->seq, codec_drain(s->api->codec, &reply));
    return KVC_OK;
}
