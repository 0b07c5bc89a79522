/* LIST: rows for people, page by page. */
#include "daemon/api/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/mem.h"

#define ROWS_MAX    64u
#define VALUE_BYTES LIST_VALUE_BYTES

struct source {
    const char *what;
    const char *columns[MSG_LIST_COLUMNS];
    /* The row with the lowest id above `after` that the session may see; false: there is none. */
    bool (*next)(const struct session *asks, uint64_t after, struct row *row);
};

bool list_may_see(const struct session *asks, const char *tenant)
{
    return session_is_trusted(asks) || strcmp(asks->tenant, tenant) == 0;
}

static const char *state_name(const struct session *s)
{
    return s->state == SESSION_OPEN ? "connected" : "ended";
}

static const char *const role_names[] = {"none", "worker", "reader", "scheduler", "operator"};

static bool next_client(const struct session *asks, uint64_t after, struct row *row)
{
    char(*t)[VALUE_BYTES] = row->text;
    const struct session *s, *best = NULL;

    list_for_each(s, &asks->api->sessions, link)
        if (s->state != SESSION_NEW && owner_id(s->owner) > after &&
            list_may_see(asks, s->tenant) &&
            (best == NULL || owner_id(s->owner) < owner_id(best->owner)))
            best = s;
    if (best == NULL)
        return false;
    s = best;
    row->id = owner_id(s->owner);
    snprintf(t[0], VALUE_BYTES, "%" PRIu64, row->id);
    snprintf(t[1], VALUE_BYTES, "%d", (int)process_pid(s->process));
    snprintf(t[2], VALUE_BYTES, "%u", process_uid(s->process));
    snprintf(t[3], VALUE_BYTES, "%s", s->tenant);
    snprintf(t[4], VALUE_BYTES, "%s", role_names[s->role]);
    snprintf(t[5], VALUE_BYTES, "%s", s->name);
    snprintf(t[6], VALUE_BYTES, "%s", state_name(s));
    snprintf(t[7], VALUE_BYTES, "%" PRIu64, (clock_now_us() - s->connected_us) / 1000);
    snprintf(t[8], VALUE_BYTES, "%" PRIu64, s->requests);
    snprintf(t[9], VALUE_BYTES, "%" PRIu64,
             s->connection != NULL ? (uint64_t)connection_queued_bytes(s->connection) : 0);
    return true;
}

/* "-": there is none. */
static void write_quota(uint64_t quota, char text[VALUE_BYTES])
{
    if (quota == 0)
        snprintf(text, VALUE_BYTES, "-");
    else
        snprintf(text, VALUE_BYTES, "%" PRIu64, quota);
}

static void write_usage(const struct store *store, uint32_t namespace_, char (*t)[VALUE_BYTES])
{
    struct store_namespace_usage usage;

    store_namespace_usage(store, namespace_, &usage);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        snprintf(t[3 * tier], VALUE_BYTES, "%" PRIu64, usage.used[tier]);
        write_quota(usage.quota.bytes[tier], t[3 * tier + 1]);
        snprintf(t[3 * tier + 2], VALUE_BYTES, "%" PRIu64, usage.share[tier]);
    }
    snprintf(t[6], VALUE_BYTES, "%" PRIu64, usage.leased);
    write_quota(usage.quota.leases, t[7]);
}

static bool next_namespace(const struct session *asks, uint64_t after, struct row *row)
{
    const struct table *table = store_table(asks->api->store);
    char(*t)[VALUE_BYTES] = row->text;

    for (uint64_t i = after; i < TABLE_NAMESPACES; i++) {
        const struct table_namespace *ns = table_namespace(table, (uint32_t)i);
        const char *tenant;
        uint32_t parts = 0;

        if (ns->used == ROW_NEVER)
            return false;
        if (ns->used != ROW_USED)
            continue;
        tenant = table_tenant(table, ns->tenant)->name;
        if (!list_may_see(asks, tenant))
            continue;
        for (uint32_t p = 1; p < TABLE_PARTS && table_part(table, p)->used != ROW_NEVER; p++)
            parts +=
                table_part(table, p)->used == ROW_USED && table_part(table, p)->namespace_ == i;
        row->id = i + 1;
        for (uint32_t b = 0; b < KVC_NAMESPACE_BYTES; b++)
            snprintf(t[0] + (size_t)2 * b, 3, "%02x", ns->digest[b]);
        snprintf(t[1], VALUE_BYTES, "%s", tenant);
        snprintf(t[2], VALUE_BYTES, "%s", ns->name);
        snprintf(t[3], VALUE_BYTES, "%u", ns->epoch);
        snprintf(t[4], VALUE_BYTES, "%u", parts);
        write_usage(asks->api->store, (uint32_t)i, t + 5);
        return true;
    }
    return false;
}

static bool next_quarantine(const struct session *asks, uint64_t after, struct row *row)
{
    struct store_quarantine q;
    char(*t)[VALUE_BYTES] = row->text;

    while (store_next_quarantine(asks->api->store, after, &q)) {
        const struct session *s = owner_user(q.owner);

        after = q.save;
        /* One of the daemon's own waits for a peer's endpoint to close: no session has it. */
        if (s == NULL || !list_may_see(asks, s->tenant))
            continue;
        row->id = q.save;
        snprintf(t[0], VALUE_BYTES, "%" PRIu64, q.save);
        snprintf(t[1], VALUE_BYTES, "%" PRIu64, owner_id(q.owner));
        snprintf(t[2], VALUE_BYTES, "%d", (int)process_pid(s->process));
        snprintf(t[3], VALUE_BYTES, "%s", s->tenant);
        snprintf(t[4], VALUE_BYTES, "%s", s->name);
        snprintf(t[5], VALUE_BYTES, "%s", state_name(s));
        snprintf(t[6], VALUE_BYTES, "%u", q.part);
        snprintf(t[7], VALUE_BYTES, "%u", q.slots);
        snprintf(t[8], VALUE_BYTES, "%" PRIu64, q.bytes);
        snprintf(t[9], VALUE_BYTES, "%" PRIu64, q.age_us / 1000);
        snprintf(t[10], VALUE_BYTES, "%s", kvc_status_text(q.status));
        return true;
    }
    return false;
}

static bool next_peer(const struct session *asks, uint64_t after, struct row *row)
{
    char(*t)[VALUE_BYTES] = row->text;
    struct peers_row peer;

    if (asks->api->peers == NULL || !session_is_trusted(asks) ||
        !peers_row(asks->api->peers, (uint32_t)after, &peer))
        return false;
    row->id = after + 1;
    snprintf(t[0], VALUE_BYTES, "%s", peer.address);
    snprintf(t[1], VALUE_BYTES, "%s", peer.way);
    snprintf(t[2], VALUE_BYTES, "%.64s", peer.state);
    snprintf(t[3], VALUE_BYTES, "%s", peer.mode);
    snprintf(t[4], VALUE_BYTES, "%.64s", peer.lanes);
    snprintf(t[5], VALUE_BYTES, "%.64s", peer.reason);
    snprintf(t[6], VALUE_BYTES, "%" PRIu64, peer.epoch);
    snprintf(t[7], VALUE_BYTES, "%" PRIu64, peer.batches);
    snprintf(t[8], VALUE_BYTES, "%" PRIu64, peer.useful);
    snprintf(t[9], VALUE_BYTES, "%" PRIu64, peer.wire);
    snprintf(t[10], VALUE_BYTES, "%" PRIu64, peer.registrations);
    snprintf(t[11], VALUE_BYTES, "%" PRIu64, peer.dropped);
    return true;
}

static const struct source sources[] = {
    {"clients",
     {"session", "pid", "uid", "tenant", "role", "name", "state", "connected_ms", "requests",
      "queued_bytes"},
     next_client},
    {"namespaces",
     {"namespace", "tenant", "name", "epoch", "parts", "gpu_bytes", "gpu_quota", "gpu_share",
      "host_bytes", "host_quota", "host_share", "leased", "leases_quota"},
     next_namespace},
    {"quarantine",
     {"save", "session", "pid", "tenant", "name", "state", "part", "slots", "bytes", "age_ms",
      "reason"},
     next_quarantine},
    {"extents",
     {"tier", "tenant", "slot_bytes", "extents", "slots", "used_slots", "state"},
     list_next_extents},
    {"peers",
     {"peer", "way", "state", "mode", "lanes", "reason", "epoch", "batches", "useful_bytes",
      "wire_bytes", "registrations", "dropped"},
     next_peer},
};

static const struct source *find(const char *what)
{
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (strcmp(sources[i].what, what) == 0)
            return &sources[i];
    return NULL;
}

static uint32_t count_columns(const struct source *source)
{
    uint32_t n = 0;

    while (n < MSG_LIST_COLUMNS && source->columns[n] != NULL)
        n++;
    return n;
}

kvc_status list_list(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_list *list = &request->list;
    const struct source *source = find(list->what);
    uint32_t limit = list->limit == 0 || list->limit > ROWS_MAX ? ROWS_MAX : list->limit;
    struct msg_list_reply reply = {.after = list->after};
    struct msg_list_row values[ROWS_MAX];
    struct row *rows, spare;

    if (strcmp(list->what, "config") == 0)
        return settings_list(s, request, why);
    if (source == NULL)
        return refuse(why, KVC_E_UNSUPPORTED, "no such list", "what");
    rows = mem_array(limit, sizeof(*rows));
    if (rows == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    reply.columns = source->columns;
    reply.n_columns = count_columns(source);
    while (reply.n_rows < limit && source->next(s, reply.after, &rows[reply.n_rows])) {
        for (uint32_t i = 0; i < reply.n_columns; i++)
            values[reply.n_rows].values[i] = rows[reply.n_rows].text[i];
        reply.after = rows[reply.n_rows++].id;
    }
    reply.rows = values;
    reply.more = source->next(s, reply.after, &spare);
    session_reply(s, WIRE_LIST, request->seq, codec_list(s->api->codec, &reply));
    mem_free(rows);
    return KVC_OK;
}
