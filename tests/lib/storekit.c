#include "tests/lib/storekit.h"

#include <check.h>
#include <stdio.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "kernels/pack.h"
#include "tests/lib/check_main.h"

static kvc_status fake_copy(void *mover, const struct move *move, move_done_cb *done, void *arg)
{
    struct kit *kit = mover;

    if (kit->copy_status != KVC_OK)
        return kit->copy_status;
    ck_assert_uint_lt(kit->n_moves, KIT_MOVES);
    kit->moves[kit->n_moves++] = (struct kit_move){*move, done, arg};
    kit->moves_started++;
    return KVC_OK;
}

static const struct mover_ops fake_mover = {.copy = fake_copy};

static kvc_status fake_renew(void *renewer, enum tier_kind tier, uint32_t extent,
                             move_done_cb *done, void *arg)
{
    struct kit *kit = renewer;

    ck_assert_uint_lt(kit->n_renews, KIT_MOVES);
    kit->renews[kit->n_renews++] = (struct kit_renew){tier, extent, done, arg};
    return KVC_OK;
}

static const struct renew_ops fake_renewer = {.renew = fake_renew};

uint32_t kit_renews(struct kit *kit, kvc_status status)
{
    uint32_t n = kit->n_renews;

    for (uint32_t i = 0; i < n; i++) {
        struct kit_renew renew = kit->renews[i];
        uint64_t bytes = table_header(store_table(kit->store))->tiers[renew.tier].extent_bytes;

        memset(kit->memory[renew.tier] + renew.extent * bytes, 0, bytes);
        renew.done(renew.arg, status);
        kit_check(kit);
    }
    memmove(kit->renews, kit->renews + n, (kit->n_renews - n) * sizeof(kit->renews[0]));
    kit->n_renews -= n;
    return n;
}

static void on_extents(void *ctx, struct owner *owner, const uint32_t *withdrawn, uint32_t n,
                       bool granted)
{
    struct kit_owner *mine = owner_user(owner);

    (void)ctx;
    ck_assert(n > 0 || granted);
    ck_assert_uint_le(mine->n_withdrawn + n, KIT_MOVES);
    memcpy(mine->withdrawn + mine->n_withdrawn, withdrawn, n * sizeof(*withdrawn));
    mine->n_withdrawn += n;
    mine->n_granted += granted;
}

void kit_unmap(struct kit *kit, struct kit_owner *owner)
{
    for (uint32_t i = 0; i < owner->n_withdrawn; i++)
        ck_assert_int_eq(store_owner_unmapped(kit->store, owner->owner, owner->withdrawn[i]),
                         KVC_OK);
    owner->n_withdrawn = 0;
    kit_check(kit);
}

static void on_save_done(void *ctx, struct owner *owner, const struct save_outcome *outcome)
{
    struct kit *kit = ctx;

    (void)owner;
    ck_assert_uint_lt(kit->n_done, KIT_EVENTS);
    kit->done[kit->n_done++] = *outcome;
}

static void on_room(void *ctx)
{
    ((struct kit *)ctx)->n_room++;
}

static void on_owner_free(void *ctx, struct owner *owner)
{
    struct kit *kit = ctx;
    struct kit_owner *mine = owner_user(owner);

    ck_assert(!mine->freed);
    mine->freed = true;
    mine->owner = NULL;
    kit->n_freed++;
}

static void on_log(void *arg, enum log_level level, const char *line, size_t length)
{
    struct kit *kit = arg;

    if (kit->listen && strstr(line, kit->listen)) {
        kit->n_heard++;
        snprintf(kit->heard, sizeof(kit->heard), "%.*s", (int)length, line);
    }
    if (level > LOG_LEVEL_WARNING)
        return;
    kit->n_warnings++;
    fprintf(stderr, "%.*s\n", (int)length, line);
}

void kit_open(struct kit *kit, const struct kit_config *config)
{
    uint32_t slot_bytes = config->slot_bytes ? config->slot_bytes : KIT_SLOT_BYTES;
    struct store_config store = {
        .budget = {(uint64_t)config->gpu_slots * slot_bytes,
                   (uint64_t)config->host_slots * slot_bytes},
        .boot_epoch = 1,
        .tenant_share = UINT32_MAX,
        .tuning.lease_ms = KVC_LEASE_MS_DEFAULT,
        .lease_ms_max = KVC_LEASE_MS_MAX,
        .tuning.save_proof_ms = KVC_SAVE_PROOF_MS,
        .tuning.promotion_ms = KVC_PROMOTION_MS,
        .tuning.clean_low = config->clean_low,
        .tuning.clean_high = config->clean_high,
        .tuning.moving_bytes_max = 64ull << 20,
        .mover_ops = &fake_mover,
        .mover = kit,
        .renew_ops = &fake_renewer,
        .renewer = kit,
        .shares = config->shares,
        .n_shares = config->n_shares,
        .events = {.ctx = kit,
                   .save_done = on_save_done,
                   .room = on_room,
                   .owner_free = on_owner_free,
                   .extents = on_extents},
    };

    memset(kit, 0, sizeof(*kit));
    log_set_sink(on_log, kit);
    kit->slot_bytes = slot_bytes;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        kit->memory[tier] = calloc(1, store.budget[tier] + 1);
        ck_assert_ptr_nonnull(kit->memory[tier]);
    }
    ck_assert_int_eq(store_create(&store, &kit->store), KVC_OK);
    ck_assert_int_eq(store_tenant(kit->store, "uid:1", 1, &kit->tenant), KVC_OK);
}

void kit_close(struct kit *kit)
{
    struct store_stats stats;

    for (uint32_t i = 0; i < kit->n_owners; i++) {
        struct kit_owner *owner = &kit->owners[i];

        if (owner->page)
            munmap(owner->page, KVC_PAGE_WORDS * KVC_PAGE_STRIDE);
        if (!owner->owner)
            continue;
        store_owner_end(kit->store, owner->owner);
        store_owner_gone(kit->store, owner->owner);
    }
    kit_end_copies(kit);
    kit_tick(kit);
    for (uint32_t i = 0; i < kit->n_owners; i++)
        ck_assert(!kit->owners[i].owner || kit->owners[i].freed);
    while (kit->n_moves > 0)
        kit_moves(kit, kit->n_moves, KVC_E_DEVICE);
    while (kit->n_renews > 0)
        kit_renews(kit, KVC_OK);
    stats = kit_stats(kit);
    ck_assert_uint_eq(stats.owners, 0);
    ck_assert_uint_eq(stats.leases, 0);
    ck_assert_uint_eq(stats.open_loads, 0);
    ck_assert_uint_eq(stats.filling_slots, 0);
    ck_assert_uint_eq(stats.quarantined_slots, 0);
    store_destroy(kit->store);
    log_set_sink(NULL, NULL);
    ck_assert_uint_eq(kit->n_warnings, 0);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        free(kit->memory[tier]);
}

void kit_check(struct kit *kit)
{
    const char *why = store_check(kit->store);

    ck_assert_msg(!why, "%s", why);
}

struct store_stats kit_stats(struct kit *kit)
{
    struct store_stats stats;

    kit_check(kit);
    store_stats(kit->store, &stats);
    return stats;
}

uint32_t kit_lost_extents(struct kit *kit)
{
    const struct table *table = store_table(kit->store);
    uint32_t n = 0;

    for (uint32_t i = 0; i < table_header(table)->tiers[TIER_GPU].extents; i++)
        n += table_extent(table, TIER_GPU, i)->state == EXTENT_LOST;
    return n;
}

void kit_tick(struct kit *kit)
{
    uint64_t wake = 0;

    clock_advance(KVC_POLL_MS * CLOCK_MS_US);
    store_tick(kit->store);
    kit_check(kit);
    /* What a tick was wanted for, it does: else the daemon's loop would spin. */
    for (int i = 0; i < 1000 && (wake = store_next_wake(kit->store)) == 0; i++)
        store_tick(kit->store);
    ck_assert_uint_gt(wake, 0);
}

static void register_part(struct kit *kit, struct kit_owner *owner, struct store_part part,
                          uint32_t slot_bytes, struct store_part_info *info)
{
    const uint32_t slices[] = {slot_bytes / 2, slot_bytes / 2};

    part.slice_bytes = slices;
    part.n_slices = 2;
    part.block_tokens = KIT_TOKENS;
    ck_assert_int_eq(store_register(kit->store, owner->owner, &part, info, &kit->why), KVC_OK);
    ck_assert_uint_eq(info->slot_bytes, slot_bytes);
    kit_check(kit);
}

void kit_register(struct kit *kit, struct kit_owner *owner, uint8_t namespace_, uint32_t slot_bytes,
                  struct store_part_info *info)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {namespace_};

    register_part(kit, owner, (struct store_part){.namespace_digest = digest, .name = "model"},
                  slot_bytes, info);
}

void kit_register_rule(struct kit *kit, struct kit_owner *owner, uint8_t namespace_, uint32_t rule,
                       uint32_t window, uint8_t family, struct store_part_info *info)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {namespace_}, name[16] = {family};

    register_part(kit, owner,
                  (struct store_part){
                      .namespace_digest = digest, .rule = rule, .window = window, .family = name},
                  kit->slot_bytes, info);
}

void kit_map_all(struct kit *kit, struct kit_owner *owner)
{
    uint32_t extents[7], cursor = 0, n;
    bool more = true;

    while (more) {
        n = store_owner_extents(kit->store, owner->owner, cursor, extents, 7, &cursor, &more);
        for (uint32_t i = 0; i < n; i++)
            ck_assert_int_eq(store_owner_mapped(kit->store, owner->owner, extents[i]), KVC_OK);
    }
}

struct kit_owner *kit_owner(struct kit *kit, uint32_t role)
{
    struct kit_owner *owner = &kit->owners[kit->n_owners];
    struct owner_identity identity = {.tenant = kit->tenant, .role = role, .pid = 1};
    struct store_part_info info;
    int fd;

    ck_assert_uint_lt(kit->n_owners, KIT_OWNERS);
    kit->n_owners++;
    ck_assert_int_eq(store_owner_open(kit->store, &identity, owner, &owner->owner), KVC_OK);
    fd = owner_page_fd(owner->owner);
    if (fd >= 0) {
        owner->page =
            mmap(NULL, KVC_PAGE_WORDS * KVC_PAGE_STRIDE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(owner->page, MAP_FAILED);
    }
    if (role != STORE_ROLE_OPERATOR) {
        kit_register(kit, owner, 1, kit->slot_bytes, &info);
        kit->part = info.part;
        kit->epoch = info.epoch;
        kit_map_all(kit, owner);
    }
    return owner;
}

struct kit_owner *kit_worker_of(struct kit *kit, const char *tenant)
{
    uint32_t own = kit->tenant, part = kit->part, epoch = kit->epoch;
    struct kit_owner *owner;

    ck_assert_int_eq(store_tenant(kit->store, tenant, UINT32_MAX, &kit->tenant), KVC_OK);
    owner = kit_worker(kit);
    owner->tenant = kit->tenant;
    owner->part = kit->part;
    owner->epoch = kit->epoch;
    kit->tenant = own;
    kit->part = part;
    kit->epoch = epoch;
    return owner;
}

struct kit_owner *kit_worker(struct kit *kit)
{
    return kit_owner(kit, STORE_ROLE_WORKER);
}

void kit_key(uint32_t n, uint8_t key[KVC_KEY_BYTES])
{
    memset(key, 0xab, KVC_KEY_BYTES);
    memcpy(key, &n, sizeof(n));
}

void kit_keys(uint32_t first, uint32_t n, uint8_t *keys)
{
    for (uint32_t i = 0; i < n; i++)
        kit_key(first + i, keys + i * KVC_KEY_BYTES);
}

struct kit_entry kit_entry(const struct kit *kit, uint32_t first, uint32_t n)
{
    return (struct kit_entry){kit->part, kit->epoch, first, n};
}

uint32_t kit_moves(struct kit *kit, uint32_t n, kvc_status status)
{
    uint32_t done;

    for (done = 0; done < n && kit->n_moves > 0; done++) {
        struct kit_move move = kit->moves[0];

        memmove(kit->moves, kit->moves + 1, --kit->n_moves * sizeof(move));
        if (status == KVC_OK) {
            memcpy(kit->memory[move.move.to] + move.move.to_offset,
                   kit->memory[move.move.from] + move.move.from_offset, move.move.bytes);
            kit->moved_bytes += move.move.bytes;
        }
        move.done(move.arg, status);
        kit_check(kit);
    }
    return done;
}
