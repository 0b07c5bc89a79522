// The ring of events: what it keeps, what it says of what it no longer has, and who sees what.
#include <string.h>

#include "daemon/api/feed.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tablekit.h"

#define ALL 2 // of the parts: everybody's

static struct table *table;
static struct feed *feed;
static uint32_t parts[2]; // of two tenants
static struct msg_watch_reply reply;

static uint32_t add_part(const char *tenant, uint8_t digest, uint32_t window)
{
    const uint8_t bytes[KVC_NAMESPACE_BYTES] = {digest};
    const uint32_t slice_bytes = 4096;
    struct table_part part = {.tenant = tablekit_tenant(table, tenant, UINT32_MAX),
                              .rule = window > 0 ? STORE_RULE_WINDOW : STORE_RULE_FULL,
                              .window = window};
    uint32_t index;

    ck_assert_int_eq(table_add_namespace(table, part.tenant, bytes, "model", &part.namespace_),
                     KVC_OK);
    ck_assert_int_eq(table_add_layout(table, 16, &slice_bytes, 1, NULL, &part.layout), KVC_OK);
    ck_assert_int_eq(table_add_part(table, &part, &index), KVC_OK);
    return index;
}

static void begin(void)
{
    table = tablekit_create(tablekit_small);
    parts[0] = add_part("a", 1, 0);
    parts[1] = add_part("b", 2, 0);
    ck_assert_int_eq(feed_create(&feed), KVC_OK);
}

static void end(void)
{
    feed_destroy(feed);
    table_destroy(table);
}

static void note(uint32_t part, enum store_event_kind kind, uint64_t key)
{
    uint8_t bytes[KVC_KEY_BYTES] = {0}, parent[KVC_KEY_BYTES] = {0};
    const uint64_t before = key - 1;

    memcpy(bytes, &key, sizeof(key));
    memcpy(parent, &before, sizeof(before));
    feed_note(feed, &(struct store_event){kind, part, TIER_HOST, bytes, key > 1 ? parent : NULL});
}

static uint64_t key_at(const uint8_t *keys, uint32_t i)
{
    uint64_t key;

    memcpy(&key, keys + (size_t)i * KVC_KEY_BYTES, sizeof(key));
    return key;
}

static struct feed_reader reader_of(int part, uint64_t after)
{
    return (struct feed_reader){.after = after,
                                .tenant = part == ALL ? TABLE_NONE
                                                      : table_part(table, parts[part])->tenant};
}

START_TEST(the_latest_are_kept_and_the_number_of_the_others_is_told)
{
    struct feed_reader reader;
    uint64_t expected;

    begin();
    for (uint64_t i = 1; i <= KVC_EVENTS_KEPT + 1000; i++)
        note(parts[0], STORE_EVENT_STORED, i);
    reader = reader_of(0, 0);
    expected = 1001;
    do {
        feed_read(feed, table, &reader, KVC_EVENTS_MAX, &reply);
        ck_assert_uint_eq(reply.lost, expected == 1001 ? 1000 : 0);
        ck_assert_uint_gt(reply.n, 0);
        for (uint32_t i = 0; i < reply.n; i++, expected++) {
            ck_assert_uint_eq(reply.sequences[i], expected);
            ck_assert_uint_eq(key_at(reply.keys, i), expected);
            ck_assert_uint_eq(key_at(reply.parents, i), expected - 1);
            ck_assert_uint_eq(reply.types[i], STORE_EVENT_STORED);
            ck_assert_uint_eq(reply.tiers[i], TIER_HOST);
        }
        ck_assert_uint_eq(reply.after, expected - 1);
    } while (reply.more);
    ck_assert_uint_eq(expected, feed_last(feed) + 1);
    end();
}
END_TEST

START_TEST(a_tenant_sees_its_own_and_a_reader_of_all_every_one)
{
    begin();
    for (uint64_t i = 1; i <= 300; i++)
        note(parts[i % 3 == 0], STORE_EVENT_STORED, i);
    for (int who = 0; who <= ALL; who++) {
        struct feed_reader reader = reader_of(who, 0);
        uint32_t n = 0;

        do {
            feed_read(feed, table, &reader, 7, &reply);
            ck_assert_uint_le(reply.n, 7);
            n += reply.n;
            for (uint32_t i = 0; i < reply.n && who != ALL; i++)
                ck_assert_uint_eq(reply.parts[i], parts[who]);
            ck_assert_uint_le(reply.n_parts, who == ALL ? 2 : 1);
        } while (reply.more);
        ck_assert_uint_eq(n, who == ALL ? 300 : who == 0 ? 200 : 100);
        ck_assert_uint_eq(reader.after, 300);
    }
    end();
}
END_TEST

START_TEST(a_namespace_alone)
{
    struct feed_reader reader;

    begin();
    note(parts[0], STORE_EVENT_STORED, 1);
    note(parts[1], STORE_EVENT_REMOVED, 2);
    note(parts[1], STORE_EVENT_CLEARED, 3);
    reader = reader_of(ALL, 0);
    reader.has_digest = true;
    reader.digest[0] = 2;
    feed_read(feed, table, &reader, KVC_EVENTS_MAX, &reply);
    ck_assert_uint_eq(reply.n, 2);
    ck_assert_uint_eq(reply.types[0], STORE_EVENT_REMOVED);
    ck_assert_uint_eq(reply.types[1], STORE_EVENT_CLEARED);
    ck_assert_uint_eq(reply.n_parts, 1);
    ck_assert_uint_eq(reply.named[0].part, parts[1]);
    ck_assert_uint_eq(reply.named[0].block_tokens, 16);
    ck_assert_str_eq(reply.named[0].namespace_name, "model");
    ck_assert_str_eq(reply.named[0].tenant, "b");
    ck_assert_int_eq(memcmp(reply.named[0].namespace_digest, reader.digest, KVC_NAMESPACE_BYTES),
                     0);
    end();
}
END_TEST

// Its number goes to a part of another tenant, who must not learn what happened before.
START_TEST(what_happened_to_a_forgotten_part_is_not_told)
{
    struct feed_reader reader;
    uint32_t again;

    begin();
    note(parts[0], STORE_EVENT_STORED, 1);
    feed_note(feed, &(struct store_event){.kind = STORE_EVENT_FORGOTTEN, .part = parts[0]});
    table_remove_part(table, parts[0]);
    again = add_part("b", 3, 0);
    ck_assert_uint_eq(again, parts[0]);
    note(again, STORE_EVENT_STORED, 2);
    for (int who = 1; who <= ALL; who++) {
        reader = reader_of(who, 0);
        feed_read(feed, table, &reader, KVC_EVENTS_MAX, &reply);
        ck_assert_uint_eq(reply.n, 1);
        ck_assert_uint_eq(reply.sequences[0], 2);
        ck_assert_uint_eq(reply.after, 2);
        ck_assert_uint_eq(reply.lost, 0);
    }
    end();
}
END_TEST

// A reply names a bounded number of parts, and the rest comes with the next.
START_TEST(a_reply_fits_into_a_packet)
{
    struct feed_reader reader;
    uint32_t n = 0, replies = 0;

    begin();
    for (uint32_t i = 1; i <= 3 * MSG_WATCH_PARTS; i++)
        note(add_part("b", 2, i), STORE_EVENT_STORED, i);
    reader = reader_of(1, 0);
    do {
        feed_read(feed, table, &reader, KVC_EVENTS_MAX, &reply);
        ck_assert_uint_le(reply.n_parts, MSG_WATCH_PARTS);
        n += reply.n;
        replies++;
    } while (reply.more);
    ck_assert_uint_eq(n, 3 * MSG_WATCH_PARTS);
    ck_assert_uint_eq(replies, 3);
    end();
}
END_TEST

CHECK_MAIN("api/feed", CHECK_UNIT_S, the_latest_are_kept_and_the_number_of_the_others_is_told,
           a_tenant_sees_its_own_and_a_reader_of_all_every_one, a_namespace_alone,
           what_happened_to_a_forgotten_part_is_not_told, a_reply_fits_into_a_packet)
