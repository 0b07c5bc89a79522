/* Parts and extents: what a session says it works with, and which memory it may map for it. */
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/store/claim.h"
#include "daemon/store/owner.h"
#include "daemon/store/partition.h"
#include "daemon/store/share.h"
#include "kernels/pack.h"

uint32_t part_needed(const struct store *store, uint32_t part)
{
    const struct table_part *record = table_part(store->table, part);
    uint32_t tokens = table_layout(store->table, record->layout)->block_tokens;

    switch (record->rule) {
    case STORE_RULE_WINDOW: /* W tokens reach W - 1 back from the next one */
        return (uint32_t)((record->window - 1 + (uint64_t)tokens - 1) / tokens);
    case STORE_RULE_STATE:
        return 1;
    default:
        return UINT32_MAX;
    }
}

static kvc_status check(const struct owner *owner, const struct store_part *part,
                        struct refusal *why)
{
    uint64_t offsets[KVC_SLICES_MAX];
    struct pack_layout layout;
    kvc_status status;

    if (!part->namespace_digest)
        return store_refuse(why, KVC_E_INVALID, "namespace_digest", "none given");
    if (part->block_tokens == 0)
        return store_refuse(why, KVC_E_INVALID, "block_tokens", "a block has at least one");
    if (part->block_tokens > KVC_BLOCK_TOKENS_MAX)
        return store_refuse(why, KVC_E_LIMIT, "block_tokens", "too many");
    if (part->n_slices > KVC_SLICES_MAX)
        return store_refuse(why, KVC_E_LIMIT, "slice_bytes", "too many slices");
    layout.slice_offsets = offsets;
    status = pack_layout_init(&layout, part->slice_bytes, part->n_slices);
    if (status != KVC_OK)
        return store_refuse(why, status, "slice_bytes",
                            status == KVC_E_LIMIT ? "a slice or block is too large"
                                                  : "no slices, or one of no bytes");
    if (part->rule > STORE_RULE_STATE)
        return store_refuse(why, KVC_E_INVALID, "rule", "no such rule");
    if ((part->window != 0) != (part->rule == STORE_RULE_WINDOW))
        return store_refuse(why, KVC_E_INVALID, "window",
                            "window parts have one, others have none");
    if (part->name && strlen(part->name) > KVC_NAME_MAX)
        return store_refuse(why, KVC_E_LIMIT, "name", "too long");
    if (owner->identity.role == STORE_ROLE_OPERATOR)
        return store_refuse(why, KVC_E_DENIED, "", "operators have no parts");
    return KVC_OK;
}

/* Namespace, layout and part in the table, found or added. */
static kvc_status add_to_table(const struct owner *owner, const struct store_part *in,
                               uint32_t *ret, struct refusal *why)
{
    struct table *table = owner->store->table;
    struct table_part part = {
        .tenant = owner->identity.tenant,
        .rule = in->rule,
        .window = in->window,
    };
    kvc_status status =
        table_add_namespace(table, part.tenant, in->namespace_digest, in->name, &part.namespace_);

    if (status != KVC_OK)
        return store_refuse(why, status, "namespace_digest", kvc_status_text(status));
    status = table_add_layout(table, in->block_tokens, in->slice_bytes, in->n_slices, in->dtypes,
                              &part.layout);
    if (status != KVC_OK)
        return store_refuse(why, status, "slice_bytes", kvc_status_text(status));
    if (in->family)
        memcpy(part.family, in->family, sizeof(part.family));
    status = table_add_part(table, &part, ret);
    if (status != KVC_OK)
        return store_refuse(why, status, "", kvc_status_text(status));
    return KVC_OK;
}

/* A namespace with several layouts may be several groups, or an engine whose layout has changed. */
static void note_other_layouts(const struct store *store, uint32_t part)
{
    const struct table_part *new = table_part(store->table, part);

    for (uint32_t i = 1; i < TABLE_PARTS; i++) {
        const struct table_part *old = table_part(store->table, i);

        if (i == part || old->used != ROW_USED || old->namespace_ != new->namespace_ ||
            old->layout == new->layout)
            continue;
        log_info("store", "another layout of a namespace part=%u other=%u: blocks are not shared",
                 part, i);
        return;
    }
}

/* A family is what everybody who registers its parts must agree on: the first one counts. */
static void note_other_family(const struct store *store, uint32_t part, const uint8_t *family)
{
    const struct table_part *record = table_part(store->table, part);

    if (family && memcmp(record->family, family, sizeof(record->family)) != 0)
        log_info("store", "part=%u was registered with another family, and stays in that", part);
}

/* Into the ring of its family, when it is first registered. */
static void join_family(struct store *store, uint32_t part)
{
    static const uint8_t none[sizeof(((struct table_part *)0)->family)];
    const struct table_part *new = table_part(store->table, part);

    store->family_next[part] = part;
    if (memcmp(new->family, none, sizeof(none)) == 0)
        return;
    for (uint32_t i = 1; i < TABLE_PARTS; i++) {
        const struct table_part *old = table_part(store->table, i);

        if (i == part || old->used != ROW_USED || !store->partitions[i] ||
            old->tenant != new->tenant || memcmp(old->family, new->family, sizeof(none)) != 0)
            continue;
        store->family_next[part] = store->family_next[i];
        store->family_next[i] = part;
        return;
    }
}

/* Free extents, or the first claim on others: a tenant with nothing is not to wait for its saves.
 */
static uint32_t grant(struct store *store, struct tier_class *cls, enum tier_kind tier)
{
    uint32_t owned =
        slots_grant(store->slots[tier], cls->tenant, claim_cap(store, cls->tenant, tier));

    if (owned == 0)
        claim_want(cls, tier);
    return owned;
}

kvc_status store_register(struct store *store, struct owner *owner, const struct store_part *in,
                          struct store_part_info *info, struct refusal *why)
{
    const struct table_layout *layout;
    struct partition *partition;
    uint32_t part, extents = 0;
    kvc_status status = check(owner, in, why);

    if (status == KVC_OK)
        status = share_check_part(owner, in, why);
    if (status == KVC_OK)
        status = add_to_table(owner, in, &part, why);
    if (status != KVC_OK)
        return status;
    note_other_family(store, part, in->family);
    layout = table_layout(store->table, table_part(store->table, part)->layout);
    status = partition_make(store, part, &partition);
    if (status != KVC_OK)
        return store_refuse(why, status, "", kvc_status_text(status));
    if (!store->partitions[part]) {
        note_other_layouts(store, part);
        join_family(store, part);
    }
    store->partitions[part] = partition;
    if (!owner_has_part(owner, part))
        owner->parts[owner->n_parts++] = part;
    owner->had_parts[part / 64] |= 1ull << part % 64;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        extents += grant(store, partition->cls, tier);
    *info = (struct store_part_info){
        .part = part,
        .epoch = table_namespace(store->table, table_part(store->table, part)->namespace_)->epoch,
        .slot_bytes = layout->slot_bytes,
        .extents = extents,
    };
    memcpy(info->fingerprint, layout->fingerprint, sizeof(info->fingerprint));
    return KVC_OK;
}

/* Leases, saves and loads of the part go on to their ends: the table keeps the part. */
kvc_status store_unregister(struct store *store, struct owner *owner, uint32_t part,
                            struct refusal *why)
{
    (void)store;
    for (uint32_t i = 0; i < owner->n_parts; i++) {
        if (owner->parts[i] != part)
            continue;
        owner->parts[i] = owner->parts[--owner->n_parts];
        return KVC_OK;
    }
    return store_refuse(why, KVC_E_UNKNOWN, "part", "not registered by this session");
}
