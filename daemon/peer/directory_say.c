/* What this node says in the directory, and who else is there. */
#ifdef KVC_DIRECTORY

#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/directory_internal.h"

#define WALK_MS    1u
#define WALK_SLOTS 2048u /* looked at in one turn of the loop */

void directory_set_name(const struct directory *d, const char *node, uint32_t index,
                        char name[SET_NAME_MAX])
{
    const struct table *table = store_table(d->config.peers->config.store);
    const struct table_part *part = table_part(table, index);
    const uint8_t *digest = table_namespace(table, part->namespace_)->digest;
    const uint8_t *print = table_layout(table, part->layout)->fingerprint;
    size_t n = (size_t)snprintf(name, SET_NAME_MAX, "kvcached:keys:%s:", node);

    for (uint32_t i = 0; i < KVC_NAMESPACE_BYTES; i++)
        n += (size_t)snprintf(name + n, SET_NAME_MAX - n, "%02x", digest[i]);
    n += (size_t)snprintf(name + n, SET_NAME_MAX - n, ":");
    for (uint32_t i = 0; i < KVC_FINGERPRINT_BYTES; i++)
        n += (size_t)snprintf(name + n, SET_NAME_MAX - n, "%02x", print[i]);
    if (part->rule == STORE_RULE_WINDOW)
        snprintf(name + n, SET_NAME_MAX - n, ":window:%u", part->window);
    else if (part->rule == STORE_RULE_STATE)
        snprintf(name + n, SET_NAME_MAX - n, ":state");
}

static void said_cb(redisAsyncContext *redis, void *reply, void *arg)
{
    (void)reply, (void)arg;
    (void)directory_answered(redis);
}

#define SAY(d, ...)                                                                                \
    do {                                                                                           \
        if (redisAsyncCommand((d)->redis, said_cb, NULL, __VA_ARGS__) == REDIS_OK)                 \
            (d)->owed++;                                                                           \
    } while (0)

/* Only what peers can ask for. */
static bool is_shared(const struct directory *d, uint32_t index)
{
    const struct table_part *part = table_part(store_table(d->config.peers->config.store), index);

    return part->used && part->tenant == d->config.peers->tenant;
}

static void say_key(struct directory *d, uint32_t part, const uint8_t *key, bool here)
{
    char name[SET_NAME_MAX];

    if (d->quiet)
        return;
    directory_set_name(d, d->config.name, part, name);
    if (!here) {
        SAY(d, "SREM %s %b", name, key, (size_t)KVC_KEY_BYTES);
        return;
    }
    SAY(d, "SADD %s %b", name, key, (size_t)KVC_KEY_BYTES);
    if (d->told[part / 64] & 1ull << part % 64)
        return;
    d->told[part / 64] |= 1ull << part % 64;
    SAY(d, "PEXPIRE %s %u", name, d->config.ttl_ms);
}

void directory_note(struct directory *d, uint32_t part, const uint8_t *key, bool here)
{
    if (!directory_is_connected(d) || !is_shared(d, part))
        return;
    if (d->owed > OWED_MAX)
        redisAsyncDisconnect(d->redis); /* and begin anew: nothing may be left out */
    else
        say_key(d, part, key, here);
}

/* Living. */

static void alive_cb(redisAsyncContext *redis, void *arg, void *name)
{
    struct directory *d = directory_answered(redis);
    const redisReply *reply = arg;

    if (d == NULL) {
        mem_free(name);
        return;
    }
    if (reply != NULL && reply->type == REDIS_REPLY_INTEGER && !d->stopping) {
        if (reply->integer != 0)
            d->config.node(d->config.peers, name);
        else
            SAY(d, "SREM kvcached:nodes %s", name);
    }
    mem_free(name);
}

static void nodes_cb(redisAsyncContext *redis, void *arg, void *unused)
{
    struct directory *d = directory_answered(redis);
    const redisReply *reply = arg;

    (void)unused;
    if (d == NULL)
        return;
    for (size_t i = 0; reply != NULL && reply->type == REDIS_REPLY_ARRAY && i < reply->elements;
         i++) {
        const redisReply *name = reply->element[i];
        char *copy;

        if (name->type != REDIS_REPLY_STRING || name->len >= PEER_NAME_MAX || d->stopping ||
            strcmp(name->str, d->config.name) == 0 || i >= 4 * PEERS_MAX)
            continue;
        copy = mem_strdup(name->str);
        if (copy == NULL)
            continue;
        if (redisAsyncCommand(redis, alive_cb, copy, "EXISTS kvcached:node:%s", copy) == REDIS_OK)
            d->owed++;
        else
            mem_free(copy);
    }
}

/* Its time was over before it was refreshed: so was that of its sets, and what they had is gone. */
static void lapse_cb(redisAsyncContext *redis, void *arg, void *unused)
{
    struct directory *d = directory_answered(redis);
    const redisReply *reply = arg;

    (void)unused;
    if (d == NULL)
        return;
    if (reply == NULL || reply->type != REDIS_REPLY_NIL || d->state != DIRECTORY_OPEN || d->quiet)
        return;
    log_info("directory", "everything is said anew: this node was silent for too long name=%s",
             d->config.name);
    directory_set_state(d, DIRECTORY_TELLING);
    directory_tell(d);
}

static void say_alive(struct directory *d)
{
    char name[SET_NAME_MAX];

    if (d->quiet)
        return;
    if (d->state == DIRECTORY_TELLING)
        SAY(d, "SET kvcached:node:%s 1 PX %u", d->config.name, d->config.ttl_ms);
    else if (redisAsyncCommand(d->redis, lapse_cb, NULL, "SET kvcached:node:%s 1 XX PX %u",
                               d->config.name, d->config.ttl_ms) == REDIS_OK)
        d->owed++;
    SAY(d, "SADD kvcached:nodes %s", d->config.name);
    for (uint32_t part = 1; part < TABLE_PARTS; part++) {
        if (!(d->told[part / 64] & 1ull << part % 64))
            continue;
        directory_set_name(d, d->config.name, part, name);
        SAY(d, "PEXPIRE %s %u", name, d->config.ttl_ms);
    }
}

static void refresh(struct directory *d)
{
    say_alive(d);
    if (redisAsyncCommand(d->redis, nodes_cb, NULL, "SMEMBERS kvcached:nodes") == REDIS_OK)
        d->owed++;
}

static void refresh_cb(uv_timer_t *timer)
{
    struct directory *d = container_of(timer, struct directory, timer);

    if (directory_gives_up(d, d->config.ttl_ms / 3))
        return;
    refresh(d);
    uv_timer_start(&d->timer, refresh_cb, d->config.ttl_ms / 3, 0);
}

/* What is here already, some slots a turn; what comes and goes meanwhile says so itself. */
static void walk_cb(uv_timer_t *timer)
{
    struct directory *d = container_of(timer, struct directory, timer);
    const struct table *table = store_table(d->config.peers->config.store);
    const struct table_tier *tiers = table_header(table)->tiers;
    uint32_t left = WALK_SLOTS;

    if (directory_gives_up(d, WALK_MS))
        return;
    while (d->walk_tier < TIER_COUNT && left > 0 && d->owed < OWED_MAX / 2) {
        const uint32_t n = tiers[d->walk_tier].extents * tiers[d->walk_tier].slots_per_extent;
        const struct table_slot *slot;

        if (d->walk_slot >= n) {
            d->walk_tier++;
            d->walk_slot = 0;
            continue;
        }
        slot = table_slot(table, d->walk_tier, d->walk_slot++);
        left--;
        if (slot->state == SLOT_READY && is_shared(d, slot->part))
            say_key(d, slot->part, slot->key, true);
    }
    if (d->walk_tier < TIER_COUNT) {
        uv_timer_start(&d->timer, walk_cb, WALK_MS, 0);
        return;
    }
    directory_set_state(d, DIRECTORY_OPEN);
    refresh_cb(timer);
}

/* All, and nothing. */

void directory_tell(struct directory *d)
{
    char name[SET_NAME_MAX];

    /* What an earlier life of this node has said means nothing. */
    for (uint32_t part = 1; part < TABLE_PARTS; part++) {
        if (!is_shared(d, part))
            continue;
        directory_set_name(d, d->config.name, part, name);
        SAY(d, "DEL %s", name);
    }
    memset(d->told, 0, sizeof(d->told));
    d->walk_tier = 0;
    d->walk_slot = 0;
    refresh(d);
    uv_timer_start(&d->timer, walk_cb, 0, 0);
}

void directory_take_back(struct directory *d)
{
    char name[SET_NAME_MAX];

    for (uint32_t part = 1; part < TABLE_PARTS; part++) {
        if (!(d->told[part / 64] & 1ull << part % 64))
            continue;
        directory_set_name(d, d->config.name, part, name);
        SAY(d, "DEL %s", name);
    }
    memset(d->told, 0, sizeof(d->told));
    SAY(d, "DEL kvcached:node:%s", d->config.name);
    SAY(d, "SREM kvcached:nodes %s", d->config.name);
}

void directory_drain(struct directory *d, bool drain)
{
    if (d->quiet == drain)
        return;
    d->quiet = drain;
    if (!directory_is_connected(d))
        return;
    if (drain) {
        directory_take_back(d);
        return;
    }
    if (d->state == DIRECTORY_OPEN)
        directory_set_state(d, DIRECTORY_TELLING);
    directory_tell(d);
}

#endif
