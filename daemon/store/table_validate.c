#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/store/table_internal.h"
#include "kernels/pack.h"

#define RULE_MAX 2u /* the largest Rule of kvcache.proto */

static bool is_name(const char name[KVC_NAME_MAX + 1])
{
    return memchr(name, 0, KVC_NAME_MAX + 1) != NULL;
}

static const char *validate_tenants(const struct table *table)
{
    for (uint32_t i = 0; i < table->filled[SECTION_TENANTS]; i++) {
        const struct table_tenant *tenant = &table->tenants[i];

        if (tenant->used == ROW_GIVEN_BACK)
            continue;
        if (tenant->used != 1 || !is_name(tenant->name) ||
            tenant->check != table_check_tenant(tenant))
            return "a broken tenant";
    }
    return NULL;
}

static bool is_tenant(const struct table *table, uint32_t tenant)
{
    return tenant < table->filled[SECTION_TENANTS] && table->tenants[tenant].used == ROW_USED;
}

static const char *validate_namespaces(const struct table *table)
{
    for (uint32_t i = 0; i < table->filled[SECTION_NAMESPACES]; i++) {
        const struct table_namespace *ns = &table->namespaces[i];

        if (ns->used == ROW_GIVEN_BACK)
            continue;
        if (ns->used != 1 || !is_tenant(table, ns->tenant) || !ns->epoch || !is_name(ns->name) ||
            ns->check != table_check_namespace(ns))
            return "a broken namespace";
    }
    return NULL;
}

/* Everything of a layout follows from what its fingerprint is made of. */
static bool is_layout(const struct table_layout *layout)
{
    uint64_t offsets[KVC_SLICES_MAX];
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    struct pack_layout pack = {.slice_offsets = offsets};

    if (layout->used != 1 || layout->has_dtypes > 1 || !layout->block_tokens ||
        layout->block_tokens > KVC_BLOCK_TOKENS_MAX || layout->n_slices > KVC_SLICES_MAX ||
        pack_layout_init(&pack, layout->slice_bytes, layout->n_slices))
        return false;
    pack_layout_fingerprint(&pack, layout->block_tokens, layout->has_dtypes ? layout->dtypes : NULL,
                            fingerprint);
    return pack.block_bytes == layout->block_bytes && pack.slot_bytes == layout->slot_bytes &&
           memcmp(fingerprint, layout->fingerprint, sizeof(fingerprint)) == 0;
}

static const char *validate_layouts(const struct table *table)
{
    for (uint32_t i = 0; i < table->filled[SECTION_LAYOUTS]; i++)
        if (table->layouts[i].used != ROW_GIVEN_BACK && !is_layout(&table->layouts[i]))
            return "a broken layout";
    return NULL;
}

static const char *validate_parts(const struct table *table)
{
    if (table->parts[0].used)
        return "a part of number 0";
    for (uint32_t i = 1; i < table->filled[SECTION_PARTS]; i++) {
        const struct table_part *part = &table->parts[i];

        if (part->used == ROW_GIVEN_BACK)
            continue;
        if (part->used != 1 || part->rule > RULE_MAX || part->check != table_check_part(part))
            return "a broken part";
        if (part->namespace_ >= table->filled[SECTION_NAMESPACES] ||
            table->namespaces[part->namespace_].used != ROW_USED ||
            table->namespaces[part->namespace_].tenant != part->tenant)
            return "a part in no namespace of its tenant";
        if (part->layout >= table->filled[SECTION_LAYOUTS] ||
            table->layouts[part->layout].used != ROW_USED)
            return "a part without a layout";
    }
    return NULL;
}

static const char *validate_sessions(const struct table *table)
{
    for (uint32_t i = 0; i < TABLE_SESSIONS; i++) {
        const struct table_session *session = &table->sessions[i];

        if (!session->used)
            continue;
        if (session->used != 1 || !is_tenant(table, session->tenant) || session->ended > 1 ||
            session->n_devices > sizeof(session->devices) / sizeof(session->devices[0]) ||
            session->id >= table->header->next_session ||
            session->check != table_check_session(session))
            return "a broken session";
    }
    return NULL;
}

/* Whether extent `index` of the tier continues the block of its head, which has a slot size. */
static bool is_covered(const struct table *table, enum tier_kind tier, uint32_t index)
{
    const struct table_extent *extent = table_extent(table, tier, index);
    const struct table_extent *head = table_extent(table, tier, extent->head);

    return head->slot_bytes > table->header->tiers[tier].extent_bytes &&
           index - extent->head < head->span;
}

static const char *validate_tail(const struct table *table, enum tier_kind tier, uint32_t index)
{
    const struct table_extent *extent = table_extent(table, tier, index);
    const struct table_extent *head;

    if (!is_tenant(table, extent->tenant) || extent->head >= index)
        return "a broken tail of a large block";
    head = table_extent(table, tier, extent->head);
    if (head->state != EXTENT_OWNED || head->tenant != extent->tenant || extent->slot_bytes)
        return "a tail of a large block without its head";
    return NULL;
}

static const char *validate_owned(const struct table *table, enum tier_kind tier, uint32_t index)
{
    const struct table_tier *t = &table->header->tiers[tier];
    const struct table_extent *extent = table_extent(table, tier, index);
    uint64_t span;

    if (!is_tenant(table, extent->tenant))
        return "an extent of no tenant";
    if (!extent->slot_bytes)
        return NULL;
    if (extent->slot_bytes % KVC_SLOT_ALIGN || extent->slot_bytes < KVC_SLOT_BYTES_MIN ||
        extent->slot_bytes > t->bytes)
        return "an impossible slot size";
    span = (extent->slot_bytes + t->extent_bytes - 1) / t->extent_bytes;
    if (extent->span != span || span > t->extents - index)
        return "an impossible span of a block";
    for (uint32_t i = 1; i < span; i++) {
        const struct table_extent *tail = table_extent(table, tier, index + i);

        if (tail->state != EXTENT_TAIL || tail->head != index || tail->tenant != extent->tenant)
            return "a large block without its tails";
    }
    return NULL;
}

static const char *validate_extents(const struct table *table, enum tier_kind tier)
{
    const char *why = NULL;

    for (uint32_t i = 0; !why && i < table->header->tiers[tier].extents; i++) {
        switch (table_extent(table, tier, i)->state) {
        case EXTENT_FREE:
        case EXTENT_LOST:
            break;
        case EXTENT_OWNED:
            why = validate_owned(table, tier, i);
            break;
        case EXTENT_TAIL:
            why = validate_tail(table, tier, i);
            break;
        default:
            why = "an extent in no known state";
        }
    }
    return why;
}

/* A slot that is not FREE. While it is FILLING or MOVING its other fields may be anything. */
static const char *validate_slot(const struct table *table, enum tier_kind tier, uint32_t number)
{
    const struct table_tier *t = &table->header->tiers[tier];
    const struct table_slot *slot = table_slot(table, tier, number);
    const struct table_extent *extent = table_extent(table, tier, number / t->slots_per_extent);
    const struct table_part *part;
    uint64_t places;

    if (slot->state > SLOT_DOOMED)
        return "a slot in no known state";
    if (extent->state != EXTENT_OWNED || !extent->slot_bytes)
        return "a slot in use in an extent without slots";
    places = extent->slot_bytes > t->extent_bytes ? 1 : t->extent_bytes / extent->slot_bytes;
    if (number % t->slots_per_extent >= places)
        return "a slot in use behind the last one of its extent";
    if (slot->state == SLOT_FILLING || slot->state == SLOT_MOVING)
        return NULL;
    if (!slot->part || slot->part >= table->filled[SECTION_PARTS] ||
        table->parts[slot->part].used != ROW_USED)
        return "a slot of no part";
    part = &table->parts[slot->part];
    if (part->tenant != extent->tenant ||
        table->layouts[part->layout].slot_bytes != extent->slot_bytes)
        return "a slot of another part than its extent can hold";
    if (slot->epoch > table->namespaces[part->namespace_].epoch)
        return "a slot from an epoch to come";
    if (slot->state != SLOT_QUARANTINE && slot->check != table_slot_check(slot))
        return "a changed slot";
    return NULL;
}

/*
 * Only pages that exist are read: reading a hole of a memfd would fill it, and the section of slots
 * is as large as a 64th of what the tiers hold.
 */

/* The slots of a tier that lie in pages from `first` to `end`, offsets in the memfd. */
static const char *validate_slots_within(const struct table *table, enum tier_kind tier,
                                         uint64_t first, uint64_t end)
{
    uint64_t base = (uint64_t)((char *)table_slot(table, tier, 0) - (char *)table->header);
    uint32_t stop = (uint32_t)((end - base) / sizeof(struct table_slot));

    for (uint32_t i = (uint32_t)((first - base) / sizeof(struct table_slot)); i < stop; i++) {
        const char *why = NULL;

        if (table_slot(table, tier, i)->state != SLOT_FREE)
            why = validate_slot(table, tier, i);
        if (why)
            return why;
    }
    return NULL;
}

static const char *validate_slots(const struct table *table, enum tier_kind tier)
{
    const struct table_tier *t = &table->header->tiers[tier];
    uint64_t at, end;

    if (!t->extents)
        return NULL;
    at = (uint64_t)((char *)table_slot(table, tier, 0) - (char *)table->header);
    end = at + (uint64_t)t->extents * t->slots_per_extent * sizeof(struct table_slot);
    while (at < end) {
        off_t data = lseek(table->fd, (off_t)at, SEEK_DATA);
        off_t hole;
        const char *why;

        if (data < 0)
            return errno == ENXIO ? NULL : "a memfd that does not tell its holes";
        if ((uint64_t)data >= end)
            return NULL;
        hole = lseek(table->fd, data, SEEK_HOLE);
        if (hole <= data)
            return "a memfd that does not tell its holes";
        if ((uint64_t)hole > end)
            hole = (off_t)end;
        why = validate_slots_within(table, tier, (uint64_t)data, (uint64_t)hole);
        if (why)
            return why;
        at = (uint64_t)hole;
    }
    return NULL;
}

void table_count_filled(struct table *table)
{
    for (int s = SECTION_TENANTS; s <= SECTION_PARTS; s++) {
        uint32_t n = s == SECTION_PARTS ? 1 : 0; /* part 0 is never used */

        table->given_back[s] = 0;
        for (; n < table->header->sections[s].records; n++) {
            uint32_t used = *table_used(table, (enum table_section)s, n);

            if (used == ROW_NEVER)
                break;
            table->given_back[s] += used == ROW_GIVEN_BACK;
        }
        table->filled[s] = n;
    }
}

const char *table_validate(const struct table *table)
{
    const char *why = validate_tenants(table);

    if (!why)
        why = validate_namespaces(table);
    if (!why)
        why = validate_layouts(table);
    if (!why)
        why = validate_parts(table);
    if (!why)
        why = validate_sessions(table);
    for (int tier = 0; !why && tier < TIER_COUNT; tier++)
        why = validate_extents(table, tier);
    for (int tier = 0; !why && tier < TIER_COUNT; tier++)
        why = validate_slots(table, tier);
    return why;
}

void table_repair(struct table *table)
{
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        for (uint32_t i = 0; i < table->header->tiers[tier].extents; i++) {
            struct table_extent *extent = table_extent(table, tier, i);

            if (extent->state == EXTENT_TAIL && !is_covered(table, tier, i)) {
                extent->span = 1;
                extent->state = EXTENT_OWNED;
            } else if (extent->state == EXTENT_OWNED && !extent->slot_bytes) {
                extent->span = 1;
            }
        }
    }
}
