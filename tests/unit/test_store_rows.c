/* Rows of the table that come back when nobody needs them, and those that do not. */
#include <stdio.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/store/rows.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;

/* Registers namespace number n with slots of 4 KiB, or another layout, and forgets it again. */
static kvc_status try_register(struct kit_owner *owner, uint32_t n, uint32_t slice,
                               struct store_part_info *info)
{
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0xee};
    const struct store_part part = {
        .namespace_digest = digest,
        .slice_bytes = &slice,
        .n_slices = 1,
        .block_tokens = 16,
    };
    kvc_status status;

    memcpy(digest + 1, &n, sizeof(n));
    status = store_register(kit.store, owner->owner, &part, info, &kit.why);
    if (status == KVC_OK)
        ck_assert_int_eq(store_unregister(kit.store, owner->owner, info->part, &kit.why), KVC_OK);
    return status;
}

static void go(struct kit_owner *owner)
{
    store_owner_end(kit.store, owner->owner);
    store_owner_gone(kit.store, owner->owner);
    kit_tick(&kit);
    ck_assert(owner->freed);
}

/* What the table says must be what another daemon would believe. */
static void check_table(void)
{
    const struct table *table = store_table(kit.store);
    const uint64_t budget[TIER_COUNT] = {table_header(table)->tiers[TIER_GPU].bytes,
                                         table_header(table)->tiers[TIER_HOST].bytes};
    struct table_header header = *table_header(table);
    const char *why = NULL;
    struct table *other;

    kit_check(&kit);
    ck_assert_msg(table_attach(table_fd(table), budget, 1, &other, &why) == KVC_OK, "%s", why);
    table_destroy(other);
    *table_header(table) = header;
}

static uint32_t count_namespaces(void)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < TABLE_NAMESPACES; i++)
        n += table_namespace(store_table(kit.store), i)->used == ROW_USED;
    return n;
}

/* One tenant, models come and go: there is always room for the next. */
START_TEST(namespaces_that_nobody_needs_make_room)
{
    struct kit_owner *first, *owner;
    struct store_part_info info;
    uint32_t n = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 32});
    first = kit_worker(&kit); /* it stays, with its blocks */
    kit_put(&kit, first, 0, 8);
    for (uint32_t round = 0; round < 3; round++) {
        owner = kit_owner(&kit, STORE_ROLE_SCHEDULER);
        while (try_register(owner, n, 4096, &info) == KVC_OK)
            n++;
        ck_assert_str_eq(kit.why.field, "namespace_digest");
        ck_assert_uint_eq(n, (round + 1) * (KVC_TENANT_NAMESPACES_MAX - 1));
        ck_assert_uint_eq(count_namespaces(), KVC_TENANT_NAMESPACES_MAX);
        /* As long as the session is there it may come back to each of them. */
        ck_assert_int_eq(try_register(owner, n - 5, 4096, &info), KVC_OK);
        go(owner);
        check_table();
    }
    ck_assert_uint_eq(kit_probe(&kit, first, 0, 8), 8);
    kit_close(&kit);
}
END_TEST

/* Nobody waits until all are gone. */
START_TEST(few_namespaces_make_room_at_a_time)
{
    struct kit_owner *owner;
    struct store_part_info info;
    uint32_t n = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 32});
    owner = kit_owner(&kit, STORE_ROLE_SCHEDULER);
    while (try_register(owner, n, 4096, &info) == KVC_OK)
        n++;
    ck_assert_uint_eq(count_namespaces(), KVC_TENANT_NAMESPACES_MAX);
    go(owner);
    owner = kit_owner(&kit, STORE_ROLE_SCHEDULER);
    ck_assert_int_eq(try_register(owner, n, 4096, &info), KVC_OK);
    ck_assert_uint_eq(count_namespaces(), KVC_TENANT_NAMESPACES_MAX - ROWS_SOME + 1);
    check_table();
    kit_close(&kit);
}
END_TEST

/* Blocks, whoever saved them, and quotas that somebody has set keep a namespace. */
START_TEST(namespaces_with_blocks_or_quotas_stay)
{
    const struct store_quota quota = {.bytes = {1u << 20, 0}};
    struct kit_owner *first, *owner, *again;
    struct store_part_info info, found;
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0xee};
    uint32_t n = 1, part, count;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 32});
    first = kit_worker(&kit);
    kit_put(&kit, first, 0, 8);
    part = kit.part;
    ck_assert_int_eq(try_register(first, 0, 4096, &info), KVC_OK);
    ck_assert_int_eq(store_set_quota(kit.store, digest, &quota, false, &count, &kit.why), KVC_OK);
    go(first);
    for (uint32_t round = 0; round < 2; round++) {
        owner = &kit.owners[kit.n_owners++];
        ck_assert_int_eq(store_owner_open(kit.store,
                                          &(struct owner_identity){.tenant = kit.tenant,
                                                                   .role = STORE_ROLE_SCHEDULER,
                                                                   .pid = 1},
                                          owner, &owner->owner),
                         KVC_OK);
        while (try_register(owner, n, 4096, &found) == KVC_OK)
            n++;
        go(owner);
    }
    again = kit_worker(&kit);
    ck_assert_uint_eq(kit.part, part);
    ck_assert_uint_eq(kit_probe(&kit, again, 0, 8), 8);
    ck_assert_int_eq(try_register(again, 0, 4096, &found), KVC_OK);
    ck_assert_uint_eq(found.part, info.part);
    check_table();
    kit_close(&kit);
}
END_TEST

/* The number that figures do not show apart any more, for whoever adds them up. */
static uint64_t all_hits(enum tier_kind tier)
{
    struct store_namespace_usage usage;
    struct store_stats stats;
    uint64_t hits;

    store_stats(kit.store, &stats);
    hits = stats.forgotten_hits[tier];
    for (uint32_t i = STORE_NAMED_NAMESPACES; i < TABLE_NAMESPACES; i++)
        if (table_namespace(store_table(kit.store), i)->used == ROW_USED) {
            store_namespace_usage(kit.store, i, &usage);
            hits += usage.hits[tier];
        }
    return hits;
}

/* A model comes, has hits, and goes; so does what it has saved. */
static void come_and_go(uint8_t namespace_)
{
    const uint32_t part = kit.part, epoch = kit.epoch;
    struct kit_owner *owner = kit_worker(&kit);
    struct store_part_info info;
    uint64_t lease, blocks;

    kit_register(&kit, owner, namespace_, kit.slot_bytes, &info);
    kit.part = info.part;
    kit.epoch = info.epoch;
    kit_put(&kit, owner, 100, 2);
    ck_assert_uint_eq(kit_lookup(&kit, owner, 100, 2, &lease), 2);
    kit_release(&kit, owner, lease);
    ck_assert_int_eq(store_flush(kit.store,
                                 &(struct store_scope){.owner = owner->owner, .part = info.part},
                                 &blocks, &kit.why),
                     KVC_OK);
    kit.part = part;
    kit.epoch = epoch;
    go(owner);
    *owner = (struct kit_owner){0};
    kit.n_owners--;
}

/* Nothing is left of models that come and go, long before there is no room; who is used stays. */
START_TEST(namespaces_out_of_use_go_when_others_come)
{
    struct kit_owner *first;
    uint64_t lease, before;
    uint32_t most = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 32});
    first = kit_worker(&kit);
    kit_put(&kit, first, 0, 8);
    for (uint32_t n = 2; n < 250; n++) {
        clock_advance(5 * CLOCK_S_US);
        before = all_hits(TIER_GPU);
        come_and_go((uint8_t)n);
        ck_assert_uint_ge(all_hits(TIER_GPU), before); /* a counter does not fall */
        most = count_namespaces() > most ? count_namespaces() : most;
    }
    /* Of the last five minutes, and little more. */
    ck_assert_uint_ge(most, 60);
    ck_assert_uint_le(most, 64);
    for (uint32_t n = 2; n < 100; n++) {
        clock_advance(KVC_NAMESPACE_IDLE_MS * CLOCK_MS_US);
        come_and_go((uint8_t)n);
    }
    ck_assert_uint_le(count_namespaces(), 4);
    ck_assert_uint_eq(kit_lookup(&kit, first, 0, 8, &lease), 8);
    kit_release(&kit, first, lease);
    check_table();
    kit_close(&kit);
}
END_TEST

START_TEST(layouts_come_back_with_their_parts)
{
    struct kit_owner *owner;
    struct store_part_info info;
    uint32_t n = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 32});
    for (uint32_t round = 0; round < 5; round++) {
        owner = kit_owner(&kit, STORE_ROLE_SCHEDULER);
        while (try_register(owner, n, 4096 + n * 16, &info) == KVC_OK)
            n++;
        ck_assert_str_eq(kit.why.field, "slice_bytes");
        ck_assert_uint_eq(n, (round + 1) * (KVC_TENANT_LAYOUTS_MAX - 1));
        go(owner);
        check_table();
    }
    kit_close(&kit);
}
END_TEST

/* Tenants that have gone: their rows, and the extents that they leave empty. */
START_TEST(tenants_that_have_gone_make_room)
{
    struct kit_owner *stays;
    uint32_t tenant;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 32});
    stays = kit_worker_of(&kit, "stays");
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t came = 0;
        char name[32];

        for (uint32_t i = 0; i < TABLE_TENANTS; i++) {
            kvc_status status;

            snprintf(name, sizeof(name), "round %u tenant %u", round, i);
            status = store_tenant(kit.store, name, UINT32_MAX, &tenant);
            came += status == KVC_OK;
            ck_assert(status == KVC_OK || status == KVC_E_NO_ROOM);
            for (uint32_t t = 0; t < 20; t++) {
                kit_tick(&kit);
                kit_renews(&kit, KVC_OK);
            }
        }
        ck_assert_uint_ge(came, TABLE_TENANTS - 1);
        check_table();
    }
    ck_assert_int_eq(store_tenant(kit.store, "stays", UINT32_MAX, &tenant), KVC_OK);
    ck_assert_uint_eq(tenant, stays->tenant);
    kit_close(&kit);
}
END_TEST

START_TEST(extents_of_a_tenant_that_has_gone_become_free)
{
    struct kit_owner *first, *late;
    uint32_t tenant;
    char name[32];

    kit_open(&kit, &(struct kit_config){.gpu_slots = 32});
    first = kit_worker_of(&kit, "first");
    go(first);
    for (uint32_t i = 0; i < 2 * TABLE_TENANTS; i++) {
        snprintf(name, sizeof(name), "tenant %u", i);
        if (store_tenant(kit.store, name, UINT32_MAX, &tenant) != KVC_OK)
            kit_tick(&kit);
        for (uint32_t t = 0; t < 10; t++) {
            kit_tick(&kit);
            kit_renews(&kit, KVC_OK);
        }
    }
    for (uint32_t i = 0; i < TABLE_TENANTS; i++)
        ck_assert_str_ne(table_tenant(store_table(kit.store), i)->used == ROW_USED
                             ? table_tenant(store_table(kit.store), i)->name
                             : "",
                         "first");
    late = kit_worker_of(&kit, "late");
    kit.tenant = late->tenant;
    kit.part = late->part;
    kit.epoch = late->epoch;
    kit_put(&kit, late, 0, 32);
    check_table();
    kit_close(&kit);
}
END_TEST

CHECK_MAIN("store/rows", CHECK_LIFE_S, namespaces_that_nobody_needs_make_room,
           few_namespaces_make_room_at_a_time, namespaces_with_blocks_or_quotas_stay,
           namespaces_out_of_use_go_when_others_come, layouts_come_back_with_their_parts,
           tenants_that_have_gone_make_room, extents_of_a_tenant_that_has_gone_become_free)
