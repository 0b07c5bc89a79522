/* Sessions, parts and extents. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;

START_TEST(owner_page_is_sealed_and_private)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 0);
    int fd = owner_page_fd(worker->owner), seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_int_eq(st.st_size, KVC_PAGE_WORDS * KVC_PAGE_STRIDE);
    ck_assert_int_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ck_assert_int_ge(owner_page_fd(kit_owner(&kit, STORE_ROLE_READER)->owner), 0);
    ck_assert_int_eq(owner_page_fd(kit_owner(&kit, STORE_ROLE_SCHEDULER)->owner), -1);
    ck_assert_int_eq(owner_page_fd(kit_owner(&kit, STORE_ROLE_OPERATOR)->owner), -1);
    kit_close(&kit);
}
END_TEST

START_TEST(owner_ids_and_secrets_differ)
{
    struct kit_owner *a = kit_open_with(&kit, 16, 16, 0), *b = kit_worker(&kit);
    uint64_t id = owner_id(a->owner);

    ck_assert_uint_ne(id, owner_id(b->owner));
    ck_assert_int_ne(memcmp(owner_secret(a->owner), owner_secret(b->owner), KVC_SECRET_BYTES), 0);
    ck_assert_uint_eq(owner_tenant(a->owner), kit.tenant);
    store_owner_end(kit.store, a->owner);
    ck_assert_uint_eq(store_next_wake(kit.store), 0);
    kit_tick(&kit);
    ck_assert(a->freed);
    ck_assert_uint_ne(owner_id(kit_worker(&kit)->owner), id);
    kit_close(&kit);
}
END_TEST

START_TEST(owner_with_too_many_devices)
{
    struct owner_identity identity = {.role = STORE_ROLE_WORKER, .n_devices = 9};
    struct owner *owner;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    identity.tenant = kit.tenant;
    ck_assert_int_eq(store_owner_open(kit.store, &identity, NULL, &owner), KVC_E_LIMIT);
    ck_assert_uint_eq(kit_stats(&kit).owners, 0);
    kit_close(&kit);
}
END_TEST

static kvc_status try_register(struct kit_owner *owner, const struct store_part *part)
{
    struct store_part_info info;

    return store_register(kit.store, owner->owner, part, &info, &kit.why);
}

START_TEST(register_refusals_name_the_field)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {1};
    const uint32_t good[] = {4096, 16}, zero[] = {4096, 0};
    const struct store_part fine = {
        .namespace_digest = digest, .slice_bytes = good, .n_slices = 2, .block_tokens = 16};
    struct store_part part;
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 0);

#define EXPECT(status, name)                                                                       \
    do {                                                                                           \
        ck_assert_int_eq(try_register(worker, &part), status);                                     \
        ck_assert_str_eq(kit.why.field, name);                                                     \
        part = fine;                                                                               \
    } while (0)

    part = fine;
    part.namespace_digest = NULL;
    EXPECT(KVC_E_INVALID, "namespace_digest");
    part.block_tokens = 0;
    EXPECT(KVC_E_INVALID, "block_tokens");
    part.block_tokens = ~0u;
    EXPECT(KVC_E_LIMIT, "block_tokens");
    part.n_slices = 0;
    EXPECT(KVC_E_INVALID, "slice_bytes");
    part.slice_bytes = zero;
    EXPECT(KVC_E_INVALID, "slice_bytes");
    part.n_slices = KVC_SLICES_MAX + 1;
    EXPECT(KVC_E_LIMIT, "slice_bytes");
    part.rule = STORE_RULE_WINDOW;
    EXPECT(KVC_E_INVALID, "window");
    part.rule = STORE_RULE_STATE;
    part.window = 7;
    EXPECT(KVC_E_INVALID, "window");
    part.rule = 3;
    EXPECT(KVC_E_INVALID, "rule");
    part.window = 7;
    EXPECT(KVC_E_INVALID, "window");
    ck_assert_int_eq(try_register(kit_owner(&kit, STORE_ROLE_OPERATOR), &fine), KVC_E_DENIED);
    ck_assert_int_eq(try_register(worker, &fine), KVC_OK);
    kit_close(&kit);
}
END_TEST

START_TEST(S34_another_layout_is_a_miss)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 4), *other = kit_worker(&kit);
    struct store_part_info first, second;
    uint64_t lease;

    kit.listen = "store: another layout of a namespace ";
    kit_register(&kit, worker, 1, kit.slot_bytes, &first);
    ck_assert_uint_eq(first.part, kit.part);
    kit_register(&kit, worker, 1, kit.slot_bytes / 2, &second);
    /* Said once, whoever comes with it later. */
    kit_register(&kit, worker, 1, kit.slot_bytes / 2, &second);
    kit_register(&kit, other, 1, kit.slot_bytes / 2, &second);
    ck_assert_uint_eq(kit.n_heard, 1);
    ck_assert_uint_ne(second.part, kit.part);
    ck_assert_int_ne(memcmp(first.fingerprint, second.fingerprint, KVC_FINGERPRINT_BYTES), 0);
    kit.part = second.part;
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 4, &lease), 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S41_registering_again_is_the_same_part)
{
    struct kit_owner *a = kit_open_with(&kit, 16, 16, 4), *b = kit_worker(&kit);
    struct store_part_info info;
    uint32_t part = kit.part;

    for (int i = 0; i < 3; i++) {
        kit_register(&kit, a, 1, kit.slot_bytes, &info);
        ck_assert_uint_eq(info.part, part);
        kit_register(&kit, b, 1, kit.slot_bytes, &info);
        ck_assert_uint_eq(info.part, part);
    }
    ck_assert_int_eq(store_unregister(kit.store, a->owner, part, &kit.why), KVC_OK);
    ck_assert_int_eq(store_unregister(kit.store, a->owner, part, &kit.why), KVC_E_UNKNOWN);
    ck_assert_uint_eq(kit_probe(&kit, b, 0, 4), 4);
    kit_register(&kit, a, 1, kit.slot_bytes, &info);
    ck_assert_uint_eq(kit_probe(&kit, a, 0, 4), 4);
    kit_close(&kit);
}
END_TEST

START_TEST(register_limit_of_parts)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 0);
    const uint32_t slice = 4096;
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0};
    struct store_part part = {
        .namespace_digest = digest, .slice_bytes = &slice, .n_slices = 1, .block_tokens = 1};

    for (uint8_t i = 1; i < KVC_PARTS_MAX; i++) {
        digest[5] = i;
        ck_assert_int_eq(try_register(worker, &part), KVC_OK);
    }
    digest[5] = 0xff;
    ck_assert_int_eq(try_register(worker, &part), KVC_E_LIMIT);
    digest[5] = 1;
    ck_assert_int_eq(try_register(worker, &part), KVC_OK);
    kit_close(&kit);
}
END_TEST

static uint32_t count_records(void)
{
    const struct table *table = store_table(kit.store);
    uint32_t n = 0;

    for (uint32_t i = 0; i < TABLE_NAMESPACES; i++)
        n += table_namespace(table, i)->used;
    for (uint32_t i = 0; i < TABLE_LAYOUTS; i++)
        n += table_layout(table, i)->used;
    for (uint32_t i = 0; i < TABLE_PARTS; i++)
        n += table_part(table, i)->used;
    return n;
}

START_TEST(register_refused_leaves_nothing_in_the_table)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 0);
    uint32_t slice = 4096, before;
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0};
    struct store_part part = {
        .namespace_digest = digest, .slice_bytes = &slice, .n_slices = 1, .block_tokens = 1};

    for (uint8_t i = 1; i < KVC_PARTS_MAX; i++) {
        digest[5] = i;
        ck_assert_int_eq(try_register(worker, &part), KVC_OK);
    }
    before = count_records();
    digest[5] = 0xff;
    slice = 8192;
    ck_assert_int_eq(try_register(worker, &part), KVC_E_LIMIT);
    ck_assert_uint_eq(count_records(), before);
    kit_close(&kit);
}
END_TEST

static struct owner *open_for(uint32_t tenant, struct kit_owner *user)
{
    struct owner_identity identity = {.role = STORE_ROLE_SCHEDULER, .tenant = tenant};
    struct owner *owner = NULL;

    if (store_owner_open(kit.store, &identity, user, &owner) == KVC_OK)
        return owner;
    return NULL;
}

/* The field that the first refusal names, for a tenant that registers and forgets without end. */
static uint32_t register_many(struct owner *owner, bool layouts, const char *field)
{
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0};
    uint32_t slice = 4096, n;
    struct store_part part = {
        .namespace_digest = digest, .slice_bytes = &slice, .n_slices = 1, .block_tokens = 1};
    struct store_part_info info;
    kvc_status status;

    for (n = 0;; n++) {
        if (layouts)
            part.block_tokens = n + 1;
        else
            memcpy(digest, &n, sizeof(n));
        status = store_register(kit.store, owner, &part, &info, &kit.why);
        if (status != KVC_OK)
            break;
        ck_assert_int_eq(store_unregister(kit.store, owner, info.part, NULL), KVC_OK);
    }
    ck_assert_int_eq(status, KVC_E_LIMIT);
    ck_assert_str_eq(kit.why.field, field);
    return n;
}

START_TEST(register_share_of_a_tenant)
{
    static struct kit_owner mine, others;
    struct owner *greedy, *other;
    uint32_t tenant, before;

    kit_open_with(&kit, 16, 16, 0);
    ck_assert_int_eq(store_tenant(kit.store, "uid:2", 2, &tenant), KVC_OK);
    greedy = open_for(tenant, &mine);
    ck_assert_uint_eq(register_many(greedy, false, "namespace_digest"), KVC_TENANT_NAMESPACES_MAX);
    ck_assert_uint_eq(register_many(greedy, true, "slice_bytes"), KVC_TENANT_LAYOUTS_MAX);
    before = count_records();
    register_many(greedy, false, "namespace_digest");
    ck_assert_uint_eq(count_records(), before);
    /* There is as much for the next. */
    ck_assert_int_eq(store_tenant(kit.store, "uid:3", 3, &tenant), KVC_OK);
    other = open_for(tenant, &others);
    ck_assert_uint_eq(register_many(other, true, "slice_bytes"), KVC_TENANT_LAYOUTS_MAX);
    ck_assert_uint_eq(register_many(other, false, "namespace_digest"), KVC_TENANT_NAMESPACES_MAX);
    store_owner_end(kit.store, greedy);
    store_owner_end(kit.store, other);
    kit_close(&kit);
}
END_TEST

START_TEST(sessions_of_a_tenant)
{
    static struct kit_owner users[KVC_TENANT_SESSIONS_MAX + 2];
    uint32_t tenant, other;
    struct owner *owners[KVC_TENANT_SESSIONS_MAX], *guest;

    kit_open_with(&kit, 16, 16, 0);
    ck_assert_int_eq(store_tenant(kit.store, "uid:2", 2, &tenant), KVC_OK);
    ck_assert_int_eq(store_tenant(kit.store, "uid:3", 3, &other), KVC_OK);
    for (uint32_t i = 0; i < KVC_TENANT_SESSIONS_MAX; i++) {
        owners[i] = open_for(tenant, &users[i]);
        ck_assert_ptr_nonnull(owners[i]);
    }
    ck_assert_ptr_null(open_for(tenant, &users[KVC_TENANT_SESSIONS_MAX]));
    guest = open_for(other, &users[KVC_TENANT_SESSIONS_MAX]);
    ck_assert_ptr_nonnull(guest);
    store_owner_end(kit.store, guest);
    store_owner_end(kit.store, owners[0]);
    kit_tick(&kit);
    owners[0] = open_for(tenant, &users[KVC_TENANT_SESSIONS_MAX + 1]);
    ck_assert_ptr_nonnull(owners[0]);
    for (uint32_t i = 0; i < KVC_TENANT_SESSIONS_MAX; i++)
        store_owner_end(kit.store, owners[i]);
    kit_close(&kit);
}
END_TEST

START_TEST(extents_are_the_tenants_only)
{
    struct owner_identity identity = {.role = STORE_ROLE_WORKER};
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 0), *stranger, *scheduler;
    uint32_t extents[8], cursor;
    bool more;

    ck_assert_uint_eq(store_owner_extents(kit.store, worker->owner, 0, extents, 8, &cursor, &more),
                      4);
    ck_assert(!more);
    ck_assert_uint_eq(extents[0], 0);
    ck_assert_uint_eq(extents[3], 1u << 31 | 1);
    ck_assert_uint_eq(store_owner_extents(kit.store, worker->owner, 0, extents, 3, &cursor, &more),
                      3);
    ck_assert(more);
    ck_assert_uint_eq(
        store_owner_extents(kit.store, worker->owner, cursor, extents, 3, &cursor, &more), 1);
    ck_assert(!more);
    ck_assert_uint_eq(
        store_owner_extents(kit.store, worker->owner, ~0u, extents, 3, &cursor, &more), 0);
    ck_assert_int_eq(store_owner_mapped(kit.store, worker->owner, 2), KVC_E_DENIED);
    ck_assert_int_eq(store_owner_mapped(kit.store, worker->owner, ~0u), KVC_E_DENIED);
    scheduler = kit_owner(&kit, STORE_ROLE_SCHEDULER);
    ck_assert_uint_eq(
        store_owner_extents(kit.store, scheduler->owner, 0, extents, 8, &cursor, &more), 0);
    ck_assert_int_eq(store_owner_mapped(kit.store, scheduler->owner, 0), KVC_E_DENIED);
    ck_assert_int_eq(store_tenant(kit.store, "uid:2", 2, &identity.tenant), KVC_OK);
    stranger = &kit.owners[kit.n_owners++];
    ck_assert_int_eq(store_owner_open(kit.store, &identity, stranger, &stranger->owner), KVC_OK);
    ck_assert_uint_eq(
        store_owner_extents(kit.store, stranger->owner, 0, extents, 8, &cursor, &more), 0);
    ck_assert_int_eq(store_owner_mapped(kit.store, stranger->owner, 0), KVC_E_DENIED);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/owner", CHECK_UNIT_S, {owner_page_is_sealed_and_private, 0, 0},
                 {owner_ids_and_secrets_differ, 0, 0}, {owner_with_too_many_devices, 0, 0},
                 {register_refusals_name_the_field, 0, 0},
                 {S34_another_layout_is_a_miss, 0, 0, CHECK_BOTH_WAYS},
                 {S41_registering_again_is_the_same_part, 0, 0}, {register_limit_of_parts, 0, 0},
                 {register_refused_leaves_nothing_in_the_table, 0, 0},
                 {register_share_of_a_tenant, 0, 0}, {sessions_of_a_tenant, 0, 0},
                 {extents_are_the_tenants_only, 0, 0})
