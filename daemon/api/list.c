/* LIST: rows for people, page by page. */
#include "daemon/api/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/mem.h"
#include "daemon/store/figures.h"

#define ROWS_MAX 64u
/* Places of a long list that a page looks at: no more work than a lookup of as many keys. */
#define STEPS_MAX KVC_KEYS_MAX
/* The same for those whose every row looks at all that there is: so many rows as it takes. */
#define LOOKS_MAX   (16u * KVC_KEYS_MAX)
#define VALUE_BYTES LIST_VALUE_BYTES

struct source {
    const char *what;
    const char *columns[MSG_LIST_COLUMNS];
    /* The row with the lowest id above `after` that the session may see; false: there is none. */
    bool (*next)(const struct session *asks, uint64_t after, struct row *row);
    uint64_t (*cost)(const struct api *api); /* how much it looks at for one; NULL: little */
    /* Instead of that, of a long list. */
    enum store_walk (*walk)(struct list_walk *walk, struct row *row);
    bool by_namespace, by_key; /* what a page of it can leave out */
};

bool list_may_name(const struct session *asks, const uint8_t digest[KVC_NAMESPACE_BYTES])
{
    return session_is_operator(asks) || access_has_namespace(session_door(asks), digest);
}

bool list_may_see(const struct session *asks, const char *tenant)
{
    return session_is_operator(asks) || strcmp(asks->grant.tenant, tenant) == 0;
}

static const char *state_name(const struct session *s)
{
    return s->state == SESSION_OPEN ? "connected" : "ended";
}

/* What it is allowed; a worker may be all but an operator. */
static void write_roles(uint32_t roles, char text[VALUE_BYTES])
{
    const bool worker = (roles & ACCESS_WORKER) == ACCESS_WORKER;

    snprintf(text, VALUE_BYTES, "%s%s%s%s", worker ? ",worker" : "",
             !worker && (roles & ACCESS_READER) ? ",reader" : "",
             !worker && (roles & ACCESS_SCHEDULER) ? ",scheduler" : "",
             (roles & ACCESS_OPERATOR) ? ",operator" : "");
    memmove(text, text + 1, strlen(text));
}

static bool next_client(const struct session *asks, uint64_t after, struct row *row)
{
    char(*t)[VALUE_BYTES] = row->text;
    const struct session *s, *best = NULL;

    list_for_each(s, &asks->api->sessions, link)
        if (s->state != SESSION_NEW && owner_id(s->owner) > after &&
            list_may_see(asks, s->grant.tenant) &&
            (best == NULL || owner_id(s->owner) < owner_id(best->owner)))
            best = s;
    if (best == NULL)
        return false;
    s = best;
    row->id = owner_id(s->owner);
    snprintf(t[0], VALUE_BYTES, "%" PRIu64, row->id);
    snprintf(t[1], VALUE_BYTES, "%d", (int)process_pid(s->process));
    snprintf(t[2], VALUE_BYTES, "%u", process_uid(s->process));
    snprintf(t[3], VALUE_BYTES, "%s", s->grant.tenant);
    snprintf(t[4], VALUE_BYTES, "%s", api_role_name(s->role));
    snprintf(t[5], VALUE_BYTES, "%s", s->name);
    snprintf(t[6], VALUE_BYTES, "%s", state_name(s));
    snprintf(t[7], VALUE_BYTES, "%" PRIu64, (clock_now_us() - s->connected_us) / 1000);
    snprintf(t[8], VALUE_BYTES, "%" PRIu64, s->requests);
    snprintf(t[9], VALUE_BYTES, "%" PRIu64,
             s->connection != NULL ? (uint64_t)connection_queued_bytes(s->connection) : 0);
    write_roles(s->grant.roles, t[10]);
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
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        snprintf(t[8 + tier], VALUE_BYTES, "%" PRIu64, usage.hits[tier]);
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
        if (!list_may_see(asks, tenant) || !list_may_name(asks, ns->digest))
            continue;
        for (uint32_t p = 1; p < TABLE_PARTS && table_part(table, p)->used != ROW_NEVER; p++)
            parts +=
                table_part(table, p)->used == ROW_USED && table_part(table, p)->namespace_ == i;
        row->id = i + 1;
        list_write_hex(ns->digest, KVC_NAMESPACE_BYTES, t[0]);
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
        if (s == NULL || !list_may_see(asks, s->grant.tenant))
            continue;
        row->id = q.save;
        snprintf(t[0], VALUE_BYTES, "%" PRIu64, q.save);
        snprintf(t[1], VALUE_BYTES, "%" PRIu64, owner_id(q.owner));
        snprintf(t[2], VALUE_BYTES, "%d", (int)process_pid(s->process));
        snprintf(t[3], VALUE_BYTES, "%s", s->grant.tenant);
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

    if (asks->api->peers == NULL || !session_is_operator(asks) ||
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
    snprintf(t[12], VALUE_BYTES, "%s", peer.tenant);
    snprintf(t[13], VALUE_BYTES, "%" PRIu64, peer.small);
    return true;
}

static uint64_t count_sessions(const struct api *api)
{
    return api->n_connections + 1u; /* and some that have ended */
}

static uint64_t count_parts(const struct api *api)
{
    (void)api;
    return TABLE_PARTS;
}

static uint64_t count_extents(const struct api *api)
{
    const struct table_tier *tiers = table_header(store_table(api->store))->tiers;

    return 4 * ((uint64_t)tiers[TIER_GPU].extents + tiers[TIER_HOST].extents) + 1;
}

static uint64_t count_quarantine(const struct api *api)
{
    (void)api;
    return STORE_QUARANTINE_MAX;
}

static const struct source sources[] = {
    {.what = "clients",
     .columns = {"session", "pid", "uid", "tenant", "role", "name", "state", "connected_ms",
                 "requests", "queued_bytes", "may_be"},
     .next = next_client,
     .cost = count_sessions},
    {.what = "namespaces",
     .columns = {"namespace", "tenant", "name", "epoch", "parts", "gpu_bytes", "gpu_quota",
                 "gpu_share", "host_bytes", "host_quota", "host_share", "leased", "leases_quota",
                 "gpu_hits", "host_hits"},
     .next = next_namespace,
     .cost = count_parts},
    {.what = "layouts",
     .columns = {"part", "namespace", "tenant", "name", "rule", "window", "block_tokens", "slices",
                 "block_bytes", "slot_bytes", "fingerprint"},
     .walk = list_walk_layouts,
     .by_namespace = true},
    {.what = "leases",
     .columns = {"lease", "session", "pid", "tenant", "name", "part", "parts", "blocks", "ends_ms"},
     .walk = list_walk_leases},
    {.what = "blocks",
     .columns = {"key", "namespace", "tenant", "part", "tier", "state", "slot_bytes", "idle_ms",
                 "leases", "loads", "pinned", "checked"},
     .walk = list_walk_blocks,
     .by_namespace = true,
     .by_key = true},
    {.what = "quarantine",
     .columns = {"save", "session", "pid", "tenant", "name", "state", "part", "slots", "bytes",
                 "age_ms", "reason"},
     .next = next_quarantine,
     .cost = count_quarantine},
    {.what = "extents",
     .columns = {"tier", "tenant", "slot_bytes", "extents", "slots", "used_slots", "state"},
     .next = list_next_extents,
     .cost = count_extents},
    {.what = "peers",
     .columns = {"peer", "way", "state", "mode", "lanes", "reason", "epoch", "batches",
                 "useful_bytes", "wire_bytes", "registrations", "dropped", "tenant",
                 "small_batches"},
     .next = next_peer},
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

/* "aB3" of a key; lower case in prefix. */
static bool read_prefix(const char *from, char prefix[2 * KVC_KEY_BYTES + 1])
{
    size_t n = strlen(from);

    if (n > (size_t)2 * KVC_KEY_BYTES || strspn(from, "0123456789abcdefABCDEF") != n)
        return false;
    for (size_t i = 0; i <= n; i++)
        prefix[i] = from[i] >= 'A' && from[i] <= 'F' ? (char)(from[i] - 'A' + 'a') : from[i];
    return true;
}

static kvc_status read_query(const struct source *source, const struct msg_list *list,
                             char prefix[2 * KVC_KEY_BYTES + 1], struct refusal *why)
{
    if (list->namespace_digest.len != 0 && !source->by_namespace)
        return refuse(why, KVC_E_INVALID, "not of this list", "namespace_digest");
    if (list->namespace_digest.len != 0 && list->namespace_digest.len != KVC_NAMESPACE_BYTES)
        return refuse(why, KVC_E_INVALID, "not 32 bytes", "namespace_digest");
    if (list->key_prefix[0] != '\0' && !source->by_key)
        return refuse(why, KVC_E_INVALID, "not of this list", "key_prefix");
    if (!read_prefix(list->key_prefix, prefix))
        return refuse(why, KVC_E_INVALID, "not up to 32 hex digits", "key_prefix");
    return KVC_OK;
}

/* Rows from the cursor on, up to limit of them. *more: there may be others. */
static uint32_t fill_page(const struct source *source, struct list_walk *walk, struct row *rows,
                          uint32_t limit, bool *more)
{
    const uint64_t cost = source->cost != NULL ? source->cost(walk->asks->api) : 1;
    struct row spare;
    uint32_t n = 0;

    if (limit > LOOKS_MAX / cost)
        limit = LOOKS_MAX / cost > 0 ? (uint32_t)(LOOKS_MAX / cost) : 1;

    if (source->walk != NULL) {
        enum store_walk found = STORE_WALK_FOUND;

        while (n < limit && (found = source->walk(walk, &rows[n])) == STORE_WALK_FOUND)
            n++;
        *more = found != STORE_WALK_END;
        return n;
    }
    while (n < limit && source->next(walk->asks, walk->cursor, &rows[n]))
        walk->cursor = rows[n++].id;
    *more = source->next(walk->asks, walk->cursor, &spare);
    return n;
}

kvc_status list_list(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_list *list = &request->list;
    const struct source *source = find(list->what);
    uint32_t limit = list->limit == 0 || list->limit > ROWS_MAX ? ROWS_MAX : list->limit;
    char prefix[2 * KVC_KEY_BYTES + 1];
    struct list_walk walk = {
        .asks = s,
        .cursor = list->after,
        .steps = STEPS_MAX,
        .namespace_digest = list->namespace_digest.len > 0 ? list->namespace_digest.data : NULL,
        .key_prefix = prefix,
    };
    struct msg_list_reply reply = {0};
    struct msg_list_row values[ROWS_MAX];
    struct row *rows;
    kvc_status status;

    if (strcmp(list->what, "config") == 0)
        return settings_list(s, request, why);
    if (source == NULL)
        return refuse(why, KVC_E_UNSUPPORTED, "no such list", "what");
    status = read_query(source, list, prefix, why);
    if (status != KVC_OK)
        return status;
    rows = mem_array(limit, sizeof(*rows));
    if (rows == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    reply.columns = source->columns;
    reply.n_columns = count_columns(source);
    reply.n_rows = fill_page(source, &walk, rows, limit, &reply.more);
    reply.after = walk.cursor;
    for (uint32_t r = 0; r < reply.n_rows; r++)
        for (uint32_t i = 0; i < reply.n_columns; i++)
            values[r].values[i] = rows[r].text[i];
    reply.rows = values;
    session_reply(s, WIRE_LIST, request->seq, codec_list(s->api->codec, &reply));
    mem_free(rows);
    return KVC_OK;
}
