#include "daemon/store/owner.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/admission.h"
#include "daemon/store/lease.h"
#include "daemon/store/load.h"
#include "daemon/store/proof.h"
#include "daemon/store/rows.h"
#include "daemon/store/save.h"
#include "daemon/store/share.h"

uint64_t owner_id(const struct owner *owner)
{
    return owner->id;
}

const uint8_t *owner_secret(const struct owner *owner)
{
    return owner->secret;
}

uint64_t store_owner_gate(const struct owner *owner, uint32_t gate)
{
    return page_gate(owner->page, gate);
}

int owner_page_fd(const struct owner *owner)
{
    return owner->page ? owner->page->fd : -1;
}

void *owner_user(const struct owner *owner)
{
    return owner->user;
}

uint32_t owner_tenant(const struct owner *owner)
{
    return owner->identity.tenant;
}

bool owner_equal_bytes(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint8_t differ = 0;

    for (size_t i = 0; i < n; i++)
        differ |= a[i] ^ b[i];
    return differ == 0;
}

bool owner_has_part(const struct owner *owner, uint32_t part)
{
    for (uint32_t i = 0; i < owner->n_parts; i++)
        if (owner->parts[i] == part)
            return true;
    return false;
}

const struct table_layout *store_owner_layout(const struct store *store, const struct owner *owner,
                                              uint32_t part)
{
    if (!owner_has_part(owner, part))
        return NULL;
    return table_layout(store->table, table_part(store->table, part)->layout);
}

kvc_status owner_check_part(const struct owner *owner, uint32_t part, uint32_t epoch,
                            const char *list, uint32_t i, struct refusal *why)
{
    const struct table *table = owner->store->table;

    if (!owner_has_part(owner, part))
        return store_refuse_at(why, KVC_E_UNKNOWN, list, i, "part",
                               "not registered by this session");
    if (table_namespace(table, table_part(table, part)->namespace_)->epoch != epoch)
        return store_refuse_at(why, KVC_E_STALE, list, i, "epoch",
                               "the namespace was flushed; register again");
    return KVC_OK;
}

kvc_status store_tenant(struct store *store, const char *name, uint32_t uid, uint32_t *tenant)
{
    kvc_status status = table_add_tenant(store->table, name, uid, tenant);

    if (status != KVC_E_NO_ROOM)
        return status;
    rows_collect_tenants(store);
    return table_add_tenant(store->table, name, uid, tenant);
}

static bool has_page(const struct owner_identity *identity)
{
    return identity->role == STORE_ROLE_WORKER || identity->role == STORE_ROLE_READER;
}

static kvc_status add_session(struct owner *owner)
{
    const struct owner_identity *identity = &owner->identity;
    XXH128_hash_t digest = XXH3_128bits(owner->secret, sizeof(owner->secret));
    struct table_session session = {
        .tenant = identity->tenant,
        .id = owner->id,
        .secret_digest = {digest.low64, digest.high64},
        .start_time = identity->start_time,
        .pid = identity->pid,
        .role = identity->role,
        .n_devices = identity->n_devices,
    };

    memcpy(session.devices, identity->devices, sizeof(session.devices));
    return table_add_session(owner->store->table, &session, &owner->session);
}

static kvc_status make_bitmaps(struct owner *owner)
{
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        uint32_t extents = table_header(owner->store->table)->tiers[tier].extents;

        uint64_t *bits = mem_array(4ul * (extents / 64 + 1), sizeof(uint64_t));

        if (!bits)
            return KVC_E_NO_MEMORY;
        owner->mapped[tier] = bits;
        owner->held[tier] = bits += extents / 64 + 1;
        owner->told[tier] = bits += extents / 64 + 1;
        owner->untold[tier] = bits + extents / 64 + 1;
    }
    return KVC_OK;
}

kvc_status store_owner_near(struct owner *owner, uint32_t first, uint32_t n)
{
    uint32_t extents = table_header(owner->store->table)->tiers[TIER_GPU].extents;

    assert(!owner->near && first <= extents && n <= extents - first);
    if (n == extents)
        return KVC_OK;
    owner->near = mem_array(2ul * (extents / 64 + 1), sizeof(uint64_t));
    if (!owner->near)
        return KVC_E_NO_MEMORY;
    owner->near_mapped = owner->near + extents / 64 + 1;
    for (uint32_t i = first; i < first + n; i++)
        owner->near[i / 64] |= 1ull << i % 64;
    return KVC_OK;
}

/* What owner_destroy frees, and nothing of what it has done. */
static void free_memory(struct owner *owner)
{
    page_destroy(owner->page);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        mem_free(owner->mapped[tier]);
    mem_free(owner->near);
    handles_free(&owner->requests);
    mem_free(owner);
}

kvc_status store_owner_open(struct store *store, const struct owner_identity *identity, void *user,
                            struct owner **ret)
{
    struct owner *owner;
    kvc_status status;

    if (identity->n_devices > sizeof(identity->devices) / KVC_UUID_BYTES)
        return KVC_E_LIMIT;
    if (!share_has_session(store, identity->tenant))
        return KVC_E_LIMIT;
    owner = mem_zalloc(sizeof(*owner));
    if (!owner)
        return KVC_E_NO_MEMORY;
    owner->store = store;
    owner->identity = *identity;
    owner->user = user;
    list_init(&owner->leaving);
    list_init(&owner->saves);
    list_init(&owner->leases);
    list_init(&owner->loads);
    owner->id = table_next_session(store->table);
    if (getrandom(owner->secret, sizeof(owner->secret), 0) != sizeof(owner->secret)) {
        log_error("store", "no random numbers: %m");
        status = KVC_E_SYSTEM;
        goto free_owner;
    }
    status = make_bitmaps(owner);
    if (status == KVC_OK)
        status = handles_reserve(&store->sessions);
    if (status == KVC_OK && has_page(identity))
        status = page_create(owner, &owner->page);
    if (status == KVC_OK)
        status = add_session(owner);
    if (status != KVC_OK)
        goto free_owner;
    handles_put(&store->sessions, owner->id, owner);
    store->sessions_of[identity->tenant]++;
    list_push_back(&store->owners, &owner->link);
    *ret = owner;
    return KVC_OK;

free_owner:
    free_memory(owner);
    return status;
}

static bool owner_owes(const struct owner *owner)
{
    return !list_empty(&owner->saves) || !list_empty(&owner->loads);
}

void owner_settle(struct owner *owner)
{
    if (owner->ended && !owner_owes(owner))
        list_move_back(&owner->store->freed, &owner->link);
}

static void end_save(struct store *store, struct save *save)
{
    switch (save->phase) {
    case SAVE_ADMITTING:
        if (save->status == KVC_OK)
            save_fail(store, save, KVC_E_CANCELLED);
        save_free(save);
        break;
    case SAVE_COPYING:
        save_fail(store, save, KVC_E_CANCELLED);
        break;
    case SAVE_ABORTED:
        break;
    case SAVE_OVER: /* nobody is there to be told */
        save_free(save);
        break;
    }
}

/* Each once, while any blocks may be dropped. false: some are left. */
static bool end_saves(struct owner *owner, uint32_t *drops)
{
    struct save *save, *after;

    list_for_each_safe(save, after, &owner->saves, link) {
        const uint32_t blocks =
            save->phase == SAVE_ADMITTING ? save->admission->n_keys : save->n_slots;

        if (save->phase == SAVE_ABORTED)
            continue;
        if (*drops == 0)
            return false;
        *drops -= blocks < *drops ? blocks : *drops;
        end_save(owner->store, save);
    }
    return true;
}

void store_owner_end(struct store *store, struct owner *owner)
{
    uint32_t drops = SAVE_DROPS;

    assert(!owner->ended);
    proof_look(owner);
    owner->ended = true;
    table_session(store->table, owner->session)->ended = 1;
    if (!end_saves(owner, &drops))
        list_push_back(&store->leaving, &owner->leaving);
    lease_end_all(owner);
    owner_settle(owner);
    store_settle(store);
}

void owner_tick(struct store *store)
{
    uint32_t drops = SAVE_DROPS;
    struct owner *owner;

    while (drops > 0 && (owner = list_first(&store->leaving, struct owner, leaving))) {
        if (!end_saves(owner, &drops))
            break;
        list_remove(&owner->leaving);
        owner_settle(owner);
    }
}

/* Those that words are waited for, of which there are no more than a page has. */
static void end_copies(struct store *store, struct owner *owner)
{
    struct save *save, *after;

    list_for_each_safe(save, after, &owner->saves, link)
        if (save->phase == SAVE_COPYING && !save->by_daemon)
            save_fail(store, save, KVC_E_CANCELLED);
}

void store_owner_gone(struct store *store, struct owner *owner)
{
    assert(owner->ended);
    end_copies(store, owner);
    proof_waive(owner);
    owner_settle(owner);
    store_settle(store);
}

/* Everything that a connected session had enqueued has finished: what is not proved never will. */
static void drain_own(struct store *store, struct owner *owner)
{
    proof_look(owner);
    end_copies(store, owner);
    proof_waive(owner);
}

kvc_status store_drained(struct store *store, struct owner *owner, uint64_t session,
                         const uint8_t *secret, uint32_t secret_len, struct refusal *why)
{
    struct owner *other;

    if (session == 0 || session == owner->id) {
        drain_own(store, owner);
        store_settle(store);
        return KVC_OK;
    }
    if (secret_len != KVC_SECRET_BYTES)
        return store_refuse(why, KVC_E_INVALID, "secret", "not 16 bytes");
    other = handles_get(&store->sessions, session);
    if (!other || other->identity.tenant != owner->identity.tenant)
        return store_refuse(why, KVC_E_UNKNOWN, "session", "no such session, or it owes nothing");
    if (!owner_equal_bytes(other->secret, secret, KVC_SECRET_BYTES))
        return store_refuse(why, KVC_E_DENIED, "secret", "not that session's");
    if (!other->ended)
        return store_refuse(why, KVC_E_BUSY, "session", "it is still connected");
    store_owner_gone(store, other);
    if (owner_owes(other))
        return store_refuse(why, KVC_E_BUSY, "session", "copies of the daemon for it are running");
    return KVC_OK;
}

void owner_destroy(struct owner *owner)
{
    struct store *store = owner->store;
    struct save *save, *next_save;
    struct load *load, *next_load;

    list_for_each_safe(save, next_save, &owner->saves, link)
        save_free(save);
    list_for_each_safe(load, next_load, &owner->loads, link)
        load_free(load);
    lease_forget_all(owner);
    handles_remove(&store->sessions, owner->id);
    store->sessions_of[owner->identity.tenant]--;
    table_remove_session(store->table, owner->session);
    list_remove(&owner->link);
    list_remove(&owner->leaving);
    free_memory(owner);
}
