#include "tests/lib/storekit.h"

#include <check.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
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

    if (level > LOG_LEVEL_WARNING)
        return;
    kit->n_warnings++;
    fprintf(stderr, "%.*s\n", (int)length, line);
}

static enum { AS_IS_RUN, BY_WORKER, BY_DAEMON } way;

void kit_copies_by(bool daemon)
{
    way = daemon ? BY_DAEMON : BY_WORKER;
}

bool kit_daemon_copies(void)
{
    return way == AS_IS_RUN ? check_copies_by_daemon() : way == BY_DAEMON;
}

static struct kit_copy *take_copy(struct kit *kit)
{
    for (uint32_t i = 0; i < KIT_COPIES; i++)
        if (!kit->copies[i].save && !kit->copies[i].load)
            return &kit->copies[i];
    ck_abort_msg("too many copies by the daemon");
    return NULL;
}

struct kit_copy *kit_copy(struct kit *kit, struct save *save,
                          const struct store_save_result *result)
{
    struct kit_copy *copy = take_copy(kit);

    *copy = (struct kit_copy){
        .save = save, .first_chunk = result->first_chunk, .n_chunks = result->n_chunks};
    return copy;
}

void kit_tell_copy(struct kit *kit, struct kit_copy *copy, uint32_t chunk, const uint64_t *cells,
                   kvc_status status)
{
    if (copy->told[chunk])
        return;
    copy->told[chunk] = true;
    copy->n_told++;
    store_chunk_copied(kit->store, copy->save, copy->first_chunk + chunk, cells, status);
    if (copy->n_told == copy->n_chunks)
        memset(copy, 0, offsetof(struct kit_copy, told));
    kit_check(kit);
}

void kit_tell(struct kit *kit, const struct kit_save *save, uint32_t chunk, kvc_status status)
{
    kit_tell_copy(kit, save->copy, chunk, NULL, status);
}

/* What the daemon's copier does when all sessions have ended. */
static void end_copies(struct kit *kit)
{
    for (uint32_t i = 0; i < KIT_COPIES; i++) {
        struct kit_copy *copy = &kit->copies[i];

        for (uint32_t chunk = 0; copy->save && chunk < copy->n_chunks; chunk++)
            kit_tell_copy(kit, copy, chunk, NULL, KVC_E_CANCELLED);
        if (copy->load)
            store_load_copied(kit->store, copy->load, false);
        copy->load = NULL;
    }
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
        .events = {kit, on_save_done, on_room, on_owner_free, on_extents},
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
    end_copies(kit);
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

void kit_tick(struct kit *kit)
{
    uint64_t wake = 0;

    clock_advance(KVC_POLL_MS * CLOCK_MS_US);
    store_tick(kit->store);
    kit_check(kit);
    /* What a tick was wanted for, it does: else the daemon's loop would spin. */
    for (int i = 0; i < 50 && (wake = store_next_wake(kit->store)) == 0; i++)
        store_tick(kit->store);
    ck_assert_uint_gt(wake, 0);
}

void kit_register(struct kit *kit, struct kit_owner *owner, uint8_t namespace_, uint32_t slot_bytes,
                  struct store_part_info *info)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {namespace_};
    const uint32_t slices[] = {slot_bytes / 2, slot_bytes / 2};
    const struct store_part part = {
        .namespace_digest = digest,
        .slice_bytes = slices,
        .n_slices = 2,
        .block_tokens = 16,
        .name = "model",
    };

    ck_assert_int_eq(store_register(kit->store, owner->owner, &part, info, &kit->why), KVC_OK);
    ck_assert_uint_eq(info->slot_bytes, slot_bytes);
    kit_check(kit);
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

static kvc_status open_save(struct kit *kit, struct kit_owner *owner,
                            const struct kit_entry *entries, uint32_t n_entries, bool notify,
                            struct kit_save *save)
{
    static uint8_t keys[(KIT_KEYS + 1) * KVC_KEY_BYTES];
    struct store_save_entry list[KVC_ENTRIES_MAX + 1] = {0};
    struct store_save request = {.entries = list,
                                 .n_entries = n_entries,
                                 .checksums = true,
                                 .notify = notify,
                                 .by_daemon = kit_daemon_copies()};
    kvc_status status;

    memset(save, 0, sizeof(*save));
    save->owner = owner;
    for (uint32_t e = 0; e < n_entries; e++) {
        list[e] = (struct store_save_entry){
            .part = entries[e].part,
            .epoch = entries[e].epoch,
            .keys = keys + save->n_keys * KVC_KEY_BYTES,
            .n_keys = entries[e].n,
        };
        for (uint32_t i = 0; i < entries[e].n && save->n_keys < KIT_KEYS; i++) {
            kit_key(entries[e].first + i, keys + save->n_keys * KVC_KEY_BYTES);
            save->keys[save->n_keys++] = entries[e].first + i;
        }
    }
    if (n_entries > 0)
        request.request = entries[0].first;
    status = store_save_open(kit->store, owner->owner, &request, &save->open, &save->short_of,
                             &kit->why);
    kit_check(kit);
    return status;
}

kvc_status kit_save_open(struct kit *kit, struct kit_owner *owner, const struct kit_entry *entries,
                         uint32_t n_entries, struct kit_save *save)
{
    return open_save(kit, owner, entries, n_entries, true, save);
}

void kit_save_seal(struct kit *kit, struct kit_save *save)
{
    uint32_t in_chunks = 0;

    save->result.states = save->states;
    save->result.locations = save->locations;
    save->result.chunks = save->chunks;
    store_save_seal(kit->store, save->open, &save->result);
    if (kit_daemon_copies() && save->result.save != 0)
        save->copy = kit_copy(kit, save->open, &save->result);
    save->open = NULL;
    kit_check(kit);
    for (uint32_t i = 0; i < save->n_keys; i++)
        if (save->states[i] == STORE_KEY_ASSIGNED)
            save->order[save->n_assigned++] = i;
    for (uint32_t i = 0; i < save->result.n_chunks; i++)
        in_chunks += save->chunks[i].blocks;
    ck_assert_uint_eq(in_chunks, save->n_assigned);
    ck_assert_int_eq(save->result.save != 0, save->n_assigned > 0);
}

void kit_save(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n,
              struct kit_save *save)
{
    struct kit_entry entry = kit_entry(kit, first, n);

    ck_assert_int_eq(open_save(kit, owner, &entry, 1, false, save), KVC_OK);
    kit_save_seal(kit, save);
}

int kit_abort(struct kit *kit, struct kit_save *save, bool never_all)
{
    struct save_outcome outcome = {0};
    bool pending;
    kvc_status status = store_abort(kit->store, save->owner->owner, save->result.save, 0, NULL, 0,
                                    never_all, &pending, &outcome, &kit->why);

    ck_assert_int_eq(status, KVC_OK);
    kit_check(kit);
    ck_assert_uint_eq(outcome.save, save->result.save);
    /* The daemon's copies that have not begun end here; the save is told of like any other. */
    for (uint32_t i = 0; pending && never_all && save->copy && i < save->result.n_chunks; i++)
        kit_tell_copy(kit, save->copy, i, NULL, KVC_E_CANCELLED);
    if (pending && !(never_all && save->copy))
        return -1;
    if (pending)
        kit_tick(kit);
    ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
    ck_assert_uint_eq(outcome.published + outcome.dropped, save->n_assigned);
    return (int)outcome.published;
}

uint32_t kit_count(const struct kit_save *save, enum store_key state)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < save->n_keys; i++)
        count += save->states[i] == state;
    return count;
}

/* What a block of this key holds. */
static void fill(const struct kit *kit, uint32_t key, uint8_t *slot)
{
    for (uint32_t i = 0; i < kit->slot_bytes; i += 512)
        memcpy(slot + i, (uint64_t[]){key * 1000003ull + i, ~(uint64_t)key}, 16);
}

static uint64_t checksum(const struct kit *kit, const uint8_t *slot)
{
    uint32_t half = kit->slot_bytes / 2;

    return pack_checksum_slice(slot, half, 0) + pack_checksum_slice(slot + half, half, 1);
}

void kit_write(struct kit *kit, const struct kit_save *save, uint32_t chunk)
{
    uint8_t *entry = save->owner->page + save->chunks[chunk].word * KVC_PAGE_STRIDE;
    uint64_t cells[KVC_CHUNK_BLOCKS];
    uint32_t first = 0;

    for (uint32_t i = 0; i < chunk; i++)
        first += save->chunks[i].blocks;
    for (uint32_t i = 0; i < save->chunks[chunk].blocks; i++) {
        uint32_t at = save->order[first + i];
        const struct store_location *location = &save->locations[at];
        uint8_t *slot = kit->memory[location->tier] + location->offset;
        uint64_t sum;

        fill(kit, save->keys[at], slot);
        sum = checksum(kit, slot);
        cells[i] = sum;
    }
    if (save->copy) {
        kit_tell_copy(kit, save->copy, chunk, cells, KVC_OK);
        return;
    }
    memcpy(entry, cells, save->chunks[chunk].blocks * sizeof(cells[0]));
    kit_word(kit, save->owner, save->chunks[chunk].word, save->chunks[chunk].number);
}

void kit_word(struct kit *kit, const struct kit_owner *owner, uint32_t word, uint64_t number)
{
    (void)kit;
    __atomic_store_n((uint64_t *)(owner->page + word * KVC_PAGE_STRIDE + KVC_PAGE_WORD_OFFSET),
                     number, __ATOMIC_RELEASE);
}

void kit_end_copy(struct kit *kit, const struct kit_save *save, uint32_t chunk)
{
    if (save->copy)
        kit_tell(kit, save, chunk, KVC_OK);
    else
        kit_word(kit, save->owner, save->chunks[chunk].word, save->chunks[chunk].number);
}

void kit_prove(struct kit *kit, const struct kit_save *save)
{
    for (uint32_t i = 0; i < save->result.n_chunks; i++)
        kit_write(kit, save, i);
    kit_tick(kit);
}

void kit_put(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n)
{
    struct kit_save save;

    kit_save(kit, owner, first, n, &save);
    ck_assert_uint_eq(save.n_assigned, n);
    kit_prove(kit, &save);
    ck_assert_uint_eq(kit_probe(kit, owner, first, n), n);
}

static kvc_status lookup(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n,
                         bool probe, struct store_lookup_result *result)
{
    static uint8_t keys[KIT_KEYS * KVC_KEY_BYTES];
    struct store_lookup_part part = {
        .part = kit->part, .epoch = kit->epoch, .keys = keys, .n_keys = n};
    struct store_lookup request = {.probe = probe, .parts = &part, .n_parts = 1};

    kit_keys(first, n, keys);
    return store_lookup(kit->store, owner->owner, &request, result, &kit->why);
}

uint32_t kit_lookup(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n,
                    uint64_t *lease)
{
    struct store_lookup_result result;

    ck_assert_int_eq(lookup(kit, owner, first, n, false, &result), KVC_OK);
    ck_assert_int_eq(result.lease != 0, result.count > 0);
    kit_check(kit);
    *lease = result.lease;
    return result.count;
}

uint32_t kit_probe(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n)
{
    struct store_lookup_result result;

    ck_assert_int_eq(lookup(kit, owner, first, n, true, &result), KVC_OK);
    return result.count;
}

static struct kit_owner *anybody(struct kit *kit)
{
    for (uint32_t i = 0; i < kit->n_owners; i++)
        if (kit->owners[i].owner && kit->owners[i].page)
            return &kit->owners[i];
    ck_abort_msg("nobody is connected");
}

bool kit_has(struct kit *kit, uint32_t key)
{
    return kit_probe(kit, anybody(kit), key, 1) == 1;
}

bool kit_in_tier(struct kit *kit, uint32_t key, enum tier_kind tier)
{
    const struct table *table = store_table(kit->store);
    const struct table_tier *geometry = &table_header((struct table *)table)->tiers[tier];
    uint8_t bytes[KVC_KEY_BYTES];

    kit_key(key, bytes);
    for (uint32_t e = 0; e < geometry->extents; e++) {
        for (uint32_t i = 0; i < geometry->extent_bytes / kit->slot_bytes; i++) {
            const struct table_slot *record =
                table_slot(table, tier, e * geometry->slots_per_extent + i);

            if (record->state == SLOT_READY && memcmp(record->key, bytes, sizeof(bytes)) == 0)
                return true;
        }
    }
    return false;
}

void kit_release(struct kit *kit, struct kit_owner *owner, uint64_t lease)
{
    ck_assert_int_eq(store_release(kit->store, owner->owner, lease, &kit->why), KVC_OK);
    kit_check(kit);
}

kvc_status kit_try_load(struct kit *kit, struct kit_owner *owner, const struct store_load *request,
                        struct kit_load *load)
{
    kvc_status status;

    memset(load, 0, sizeof(*load));
    load->owner = owner;
    load->first = request->first;
    load->count = request->count;
    if (kit_daemon_copies()) {
        load->copy = take_copy(kit);
        status = store_load_by_daemon(kit->store, owner->owner, request, load->locations,
                                      &load->copy->load, &kit->why);
    } else {
        status = store_load(kit->store, owner->owner, request, load->locations, &load->word,
                            &load->number, &kit->why);
    }
    kit_check(kit);
    return status;
}

void kit_load(struct kit *kit, struct kit_owner *owner, uint64_t lease, uint32_t from,
              uint32_t first_key, uint32_t count, struct kit_load *load)
{
    struct store_load request = {
        .lease = lease, .part = kit->part, .epoch = kit->epoch, .first = from, .count = count};

    ck_assert_int_eq(kit_try_load(kit, owner, &request, load), KVC_OK);
    load->first = first_key;
}

void kit_verify(struct kit *kit, const struct kit_load *load)
{
    uint8_t *expected = calloc(1, kit->slot_bytes);

    for (uint32_t i = 0; i < load->count; i++) {
        const struct store_location *location = &load->locations[i];

        fill(kit, load->first + i, expected);
        ck_assert(location->checked);
        ck_assert_uint_eq(location->checksum, checksum(kit, expected));
        ck_assert_int_eq(
            memcmp(kit->memory[location->tier] + location->offset, expected, kit->slot_bytes), 0);
    }
    free(expected);
}

void kit_close_load(struct kit *kit, const struct kit_load *load)
{
    if (load->copy) {
        store_load_copied(kit->store, load->copy->load, true);
        load->copy->load = NULL;
    } else {
        kit_word(kit, load->owner, load->word, load->number);
    }
    kit_tick(kit);
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
