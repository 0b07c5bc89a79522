#include "daemon/api/feed.h"

#include <string.h>

#include "daemon/base/mem.h"

struct entry {
    uint8_t key[KVC_KEY_BYTES], parent[KVC_KEY_BYTES];
    uint32_t serial; /* of the part, when it happened */
    uint16_t part;
    uint8_t type, tier;
};

struct feed {
    struct entry *ring; /* number n is at n % KVC_EVENTS_KEPT */
    uint64_t last;
    uint32_t serials[TABLE_PARTS]; /* how often its number went to another part */
};

_Static_assert(TABLE_PARTS <= UINT16_MAX, "entry::part");
_Static_assert(sizeof(struct entry) == 40, "one event");
/* As the protocol numbers them. */
_Static_assert(STORE_EVENT_STORED == 1 && STORE_EVENT_REMOVED == 2 && STORE_EVENT_CLEARED == 3,
               "EventType");

kvc_status feed_create(struct feed **feed)
{
    struct feed *made = mem_zalloc(sizeof(*made));

    if (made == NULL)
        return KVC_E_NO_MEMORY;
    made->ring = mem_array(KVC_EVENTS_KEPT, sizeof(made->ring[0]));
    if (made->ring == NULL) {
        mem_free(made);
        return KVC_E_NO_MEMORY;
    }
    *feed = made;
    return KVC_OK;
}

void feed_destroy(struct feed *feed)
{
    if (feed != NULL)
        mem_free(feed->ring);
    mem_free(feed);
}

static void copy_key(uint8_t *to, const uint8_t *key)
{
    if (key != NULL)
        memcpy(to, key, KVC_KEY_BYTES);
    else
        memset(to, 0, KVC_KEY_BYTES);
}

void feed_note(struct feed *feed, const struct store_event *event)
{
    struct entry *entry;

    if (event->kind == STORE_EVENT_FORGOTTEN) {
        feed->serials[event->part]++;
        return;
    }
    entry = &feed->ring[++feed->last % KVC_EVENTS_KEPT];
    copy_key(entry->key, event->key);
    copy_key(entry->parent, event->parent);
    entry->serial = feed->serials[event->part];
    entry->part = (uint16_t)event->part;
    entry->type = (uint8_t)event->kind;
    entry->tier = (uint8_t)event->tier;
}

uint64_t feed_last(const struct feed *feed)
{
    return feed->last;
}

/* What a part that was forgotten meant cannot be told any more, and whose it was neither. */
static bool is_for(const struct feed *feed, const struct table *table,
                   const struct feed_reader *reader, const struct entry *entry)
{
    const struct table_part *part = table_part(table, entry->part);
    const uint8_t *digest;

    if (entry->serial != feed->serials[entry->part] ||
        (reader->tenant != TABLE_NONE && part->tenant != reader->tenant))
        return false;
    digest = table_namespace(table, part->namespace_)->digest;
    if (reader->door != NULL && !access_has_namespace(reader->door, digest))
        return false;
    return !reader->has_digest || memcmp(digest, reader->digest, KVC_NAMESPACE_BYTES) == 0;
}

/* Names a part in the reply; false: there are too many. */
static bool name_part(const struct table *table, uint32_t part, struct msg_watch_reply *reply)
{
    const struct table_part *record = table_part(table, part);
    const struct table_namespace *ns = table_namespace(table, record->namespace_);

    for (uint32_t i = reply->n_parts; i-- > 0;)
        if (reply->named[i].part == part)
            return true;
    if (reply->n_parts == MSG_WATCH_PARTS)
        return false;
    reply->named[reply->n_parts++] = (struct msg_watch_part){
        .part = part,
        .block_tokens = table_layout(table, record->layout)->block_tokens,
        .namespace_digest = ns->digest,
        .namespace_name = ns->name,
        .tenant = table_tenant(table, record->tenant)->name,
    };
    return true;
}

static void add(const struct entry *entry, uint64_t sequence, struct msg_watch_reply *reply)
{
    const uint32_t i = reply->n++;

    reply->sequences[i] = sequence;
    reply->parts[i] = entry->part;
    reply->types[i] = entry->type;
    reply->tiers[i] = entry->tier;
    memcpy(reply->keys + (size_t)i * KVC_KEY_BYTES, entry->key, KVC_KEY_BYTES);
    memcpy(reply->parents + (size_t)i * KVC_KEY_BYTES, entry->parent, KVC_KEY_BYTES);
}

uint32_t feed_read(const struct feed *feed, const struct table *table, struct feed_reader *reader,
                   uint32_t limit, struct msg_watch_reply *reply)
{
    const uint64_t gone = feed->last > KVC_EVENTS_KEPT ? feed->last - KVC_EVENTS_KEPT : 0;
    uint32_t looked = 0;

    reply->n = reply->n_parts = 0;
    reply->lost = reader->after < gone ? gone - reader->after : 0;
    reader->after += reply->lost;
    while (reader->after < feed->last && looked < FEED_READ_MAX && reply->n < limit) {
        const struct entry *entry = &feed->ring[(reader->after + 1) % KVC_EVENTS_KEPT];

        if (is_for(feed, table, reader, entry)) {
            if (!name_part(table, entry->part, reply))
                break;
            add(entry, reader->after + 1, reply);
        }
        reader->after++;
        looked++;
    }
    reply->after = reader->after;
    reply->more = reader->after < feed->last;
    return looked;
}
