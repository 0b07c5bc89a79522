/* Every allocation may fail: the call says so and nothing has changed. */
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;
static struct kit_load load;

#define ALLOCATIONS_MAX 64u
/* Maps that have grown stay so, and so does what a namespace is counted with and competes in. */
#define KEPT_MAX 9u

/* Fails allocation k of a call, for every k until the call needs no more. */
#define SWEEP(call, undo)                                                                          \
    do {                                                                                           \
        uint32_t k_;                                                                               \
        for (k_ = 0; k_ < ALLOCATIONS_MAX; k_++) {                                                 \
            struct store_stats before_ = kit_stats(&kit), after_;                                  \
            uint64_t live_ = mem_live_count();                                                     \
            kvc_status status_;                                                                    \
            fault_arm("mem.alloc", k_, 1);                                                         \
            status_ = (call);                                                                      \
            fault_off("mem.alloc");                                                                \
            after_ = kit_stats(&kit);                                                              \
            if (status_ == KVC_OK)                                                                 \
                break;                                                                             \
            ck_assert_int_eq(status_, KVC_E_NO_MEMORY);                                            \
            ck_assert_uint_eq(fault_fired("mem.alloc"), 1);                                        \
            ck_assert_uint_le(mem_live_count(), live_ + KEPT_MAX);                                 \
            after_.metadata_bytes = before_.metadata_bytes;                                        \
            ck_assert_int_eq(memcmp(&before_, &after_, sizeof(before_)), 0);                       \
        }                                                                                          \
        ck_assert_uint_lt(k_, ALLOCATIONS_MAX);                                                    \
        undo;                                                                                      \
    } while (0)

static kvc_status open_owner(struct kit_owner *owner)
{
    struct owner_identity identity = {.tenant = kit.tenant, .role = STORE_ROLE_WORKER};

    return store_owner_open(kit.store, &identity, owner, &owner->owner);
}

static kvc_status register_part(struct kit_owner *owner, uint8_t n)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {n};
    const uint32_t slice = 4096u * n;
    const struct store_part part = {
        .namespace_digest = digest, .slice_bytes = &slice, .n_slices = 1, .block_tokens = 1};
    struct store_part_info info;

    return store_register(kit.store, owner->owner, &part, &info, &kit.why);
}

static kvc_status look_up(struct kit_owner *owner, uint64_t request, uint64_t lease,
                          uint32_t offset, uint32_t n, struct store_lookup_result *result)
{
    uint8_t keys[16 * KVC_KEY_BYTES];
    struct store_lookup_part part = {kit.part, kit.epoch, keys, n};
    struct store_lookup lookup = {
        .request = request, .lease = lease, .offset = offset, .parts = &part, .n_parts = 1};

    kit_keys(offset, n, keys);
    return store_lookup(kit.store, owner->owner, &lookup, result, &kit.why);
}

START_TEST(alloc_store_create)
{
    struct store_config config = {.budget = {4u << 20, 4u << 20}, .boot_epoch = 1};
    uint64_t live = mem_live_count();
    struct store *store;
    uint32_t k;

    for (k = 0; k < ALLOCATIONS_MAX; k++) {
        kvc_status status;

        fault_arm("mem.alloc", k, 1);
        status = store_create(&config, &store);
        fault_off("mem.alloc");
        if (status == KVC_OK)
            break;
        ck_assert_int_eq(status, KVC_E_NO_MEMORY);
        ck_assert_uint_eq(mem_live_count(), live);
    }
    ck_assert_uint_gt(k, 4);
    ck_assert_uint_lt(k, ALLOCATIONS_MAX);
    store_destroy(store);
    ck_assert_uint_eq(mem_live_count(), live);
}
END_TEST

START_TEST(alloc_every_request)
{
    struct store_lookup_result result, adopted;
    struct store_load request;
    struct kit_owner *worker, *second;
    struct kit_entry entry;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 16});
    worker = kit_worker(&kit);
    second = &kit.owners[kit.n_owners++];
    SWEEP(open_owner(second), );
    SWEEP(register_part(worker, 2), );
    kit_put(&kit, worker, 0, 8);
    SWEEP(look_up(worker, 7, 0, 0, 3, &result), );
    SWEEP(look_up(worker, 7, 0, 0, 4, &result), );
    SWEEP(look_up(worker, 0, result.lease, 4, 4, &result), );
    ck_assert_uint_eq(result.count, 8);
    SWEEP(store_adopt(kit.store, worker->owner, result.token, 16, kit.part, kit.epoch, 0, &adopted,
                      &kit.why), );
    request = (struct store_load){
        .lease = adopted.lease, .part = kit.part, .epoch = kit.epoch, .count = 8};
    SWEEP(store_load(kit.store, worker->owner, &request, load.locations, &load.word, &load.number,
                     &kit.why),
          load.owner = worker);
    kit_close_load(&kit, &load);
    entry = kit_entry(&kit, 4, 8);
    SWEEP(kit_save_open(&kit, worker, &entry, 1, &save), kit_save_seal(&kit, &save));
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_HIT), 4);
    kit_prove(&kit, &save);
    kit_close(&kit);
}
END_TEST

START_TEST(alloc_of_a_session_fails_by_descriptor)
{
    struct kit_owner *owner;
    const char *const sites[] = {"fd.memfd", "fd.truncate", "fd.seal", "fd.map"};

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 16});
    owner = &kit.owners[kit.n_owners++];
    for (int i = 0; i < 4; i++) {
        fault_arm(sites[i], 0, 1);
        ck_assert_int_eq(open_owner(owner), i == 0 ? KVC_E_NO_FDS : KVC_E_SYSTEM);
        ck_assert_uint_eq(fault_fired(sites[i]), 1);
        ck_assert_uint_eq(kit_stats(&kit).owners, 0);
    }
    ck_assert_uint_eq(kit.n_warnings, 4);
    kit.n_warnings = 0;
    kit_close(&kit);
}
END_TEST

START_TEST(alloc_block_or_copy_without_memory_is_skipped)
{
    struct kit_owner *worker;
    uint32_t assigned = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 16});
    worker = kit_worker(&kit);
    /* The save's own two come first; then the pool of blocks and the index. */
    for (uint32_t k = 2; k < 8; k++) {
        fault_arm("mem.alloc", k, 1);
        kit_save(&kit, worker, 100 * k, 2, &save);
        fault_off("mem.alloc");
        ck_assert(save.n_assigned == 0 || save.n_assigned == 2);
        ck_assert_uint_eq(save.n_assigned + kit_count(&save, STORE_KEY_SKIPPED), 2);
        assigned += save.n_assigned;
        kit_prove(&kit, &save);
    }
    ck_assert_uint_lt(assigned, 12);
    kit_put(&kit, worker, 2000, 16 - assigned);
    /* No memory for a copy: no room, and nothing is lost. */
    fault_arm("mem.alloc", 2, 1000);
    kit_save(&kit, worker, 3000, 2, &save);
    fault_off("mem.alloc");
    ck_assert_uint_eq(save.n_assigned, 0);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 16);
    kit_close(&kit);
}
END_TEST

/* The worker was told already: its save fails, and what it writes is nobody's. */
START_TEST(alloc_what_is_listed_later_without_memory_fails)
{
    struct kit_owner *worker;
    uint64_t blocks, failed = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 1024});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 40);
    for (uint32_t k = 2; k < 40; k++) {
        blocks = kit_stats(&kit).blocks;
        fault_arm("mem.alloc", k, 1);
        kit_save(&kit, worker, 100 * k, 20, &save);
        fault_off("mem.alloc");
        ck_assert_uint_eq(save.n_assigned + kit_count(&save, STORE_KEY_SKIPPED), 20);
        kit_prove(&kit, &save);
        failed += save.n_assigned == 20 && kit_stats(&kit).blocks == blocks;
        ck_assert(kit_stats(&kit).blocks == blocks || kit_stats(&kit).blocks == blocks + 20);
        ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    }
    ck_assert_uint_gt(failed, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(alloc_random_failures_for_a_while)
{
    struct kit_owner *worker;
    uint64_t random = 88172645463325252ull;

    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 16, .host_slots = 16, .clean_low = 300, .clean_high = 600});
    worker = kit_worker(&kit);
    fault_random(42, 100);
    for (int i = 0; i < 3000; i++) {
        struct store_lookup_result result = {0};
        struct kit_entry entry;

        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        entry = kit_entry(&kit, random % 50, random >> 32 & 7);
        fault_random(random, 100);
        if (look_up(worker, random % 8, 0, 0, random % 8, &result) == KVC_OK && random % 2)
            store_release(kit.store, worker->owner, result.lease, NULL);
        fault_off("*");
        kit_check(&kit);
        fault_random(random, 0);
        fault_arm("mem.alloc", random >> 40 & 7, 1);
        memset(&save, 0, sizeof(save));
        if (entry.n > 0) {
            uint8_t keys[8 * KVC_KEY_BYTES];
            struct store_save_entry in = {
                .part = kit.part, .epoch = kit.epoch, .keys = keys, .n_keys = entry.n};
            struct store_save request = {.entries = &in, .n_entries = 1, .checksums = true};
            kvc_status status;

            kit_keys(entry.first, entry.n, keys);
            save.owner = worker;
            save.n_keys = entry.n;
            for (uint32_t j = 0; j < entry.n; j++)
                save.keys[j] = entry.first + j;
            status = store_save_open(kit.store, worker->owner, &request, &save.open, &save.short_of,
                                     NULL);
            fault_off("*");
            kit_check(&kit);
            if (status == KVC_OK) {
                kit_save_seal(&kit, &save);
                kit_prove(&kit, &save);
            }
        }
        fault_off("*");
        kit_moves(&kit, random >> 20 & 3, KVC_OK);
    }
    ck_assert_uint_gt(kit_stats(&kit).published_blocks, 500);
    kit_close(&kit);
}
END_TEST

static kvc_status pin_keys(struct kit_owner *owner, uint32_t first, uint32_t n, uint32_t seconds)
{
    uint8_t keys[8 * KVC_KEY_BYTES];
    struct store_scope scope = {.owner = owner->owner, .part = kit.part, .keys = keys, .n_keys = n};
    uint32_t count;

    kit_keys(first, n, keys);
    return store_pin(kit.store, &scope, seconds, &count, &kit.why);
}

/* A pin that there was keeps its time, too. */
START_TEST(alloc_pin)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 8);
    ck_assert_int_eq(pin_keys(worker, 0, 1, 10), KVC_OK);
    fault_arm("mem.alloc", 2, 1);
    ck_assert_int_eq(pin_keys(worker, 0, 8, 100), KVC_E_NO_MEMORY);
    fault_off("mem.alloc");
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 1);
    clock_advance(10 * CLOCK_S_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 0);
    SWEEP(pin_keys(worker, 0, 8, 100), ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 8));
    kit_close(&kit);
}
END_TEST

CHECK_MAIN("store/alloc", CHECK_UNIT_S, alloc_store_create, alloc_every_request,
           alloc_of_a_session_fails_by_descriptor, alloc_block_or_copy_without_memory_is_skipped,
           alloc_what_is_listed_later_without_memory_fails, alloc_pin,
           alloc_random_failures_for_a_while)
