#include "daemon/store/share.h"

#include <string.h>

#include "daemon/store/rows.h"
#include "kernels/pack.h"

/* What a tenant has of what its parts are made of. Layouts are nobody's: those of its parts count.
 */
struct holding {
    uint32_t namespaces, layouts, parts;
    uint64_t has_layout[TABLE_LAYOUTS / 64];
};

static bool has_layout(const struct holding *holding, uint32_t layout)
{
    return layout != TABLE_NONE && holding->has_layout[layout / 64] >> layout % 64 & 1;
}

static void count(const struct table *table, uint32_t tenant, struct holding *holding)
{
    memset(holding, 0, sizeof(*holding));
    for (uint32_t i = 0; i < TABLE_NAMESPACES && table_namespace(table, i)->used != ROW_NEVER; i++)
        holding->namespaces += table_namespace(table, i)->used == ROW_USED &&
                               table_namespace(table, i)->tenant == tenant;
    for (uint32_t i = 1; i < TABLE_PARTS && table_part(table, i)->used != ROW_NEVER; i++) {
        uint32_t layout = table_part(table, i)->layout;

        if (table_part(table, i)->used != ROW_USED || table_part(table, i)->tenant != tenant)
            continue;
        holding->parts++;
        holding->layouts += !has_layout(holding, layout);
        holding->has_layout[layout / 64] |= 1ull << layout % 64;
    }
}

static uint32_t find_layout(const struct table *table, const struct store_part *part)
{
    uint64_t offsets[KVC_SLICES_MAX];
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    struct pack_layout layout = {.slice_offsets = offsets};

    if (pack_layout_init(&layout, part->slice_bytes, part->n_slices) != KVC_OK)
        return TABLE_NONE;
    pack_layout_fingerprint(&layout, part->block_tokens, part->dtypes, fingerprint);
    return table_find_layout(table, fingerprint);
}

static kvc_status check(const struct table *table, bool over, enum table_section section,
                        const char *field, const char *what, struct refusal *why)
{
    if (over)
        return store_refuse(why, KVC_E_LIMIT, field, what);
    if (table_is_full(table, section))
        return store_refuse(why, KVC_E_NO_ROOM, field, kvc_status_text(KVC_E_NO_ROOM));
    return KVC_OK;
}

static kvc_status check_new(const struct owner *owner, bool new_namespace, uint32_t layout,
                            struct refusal *why)
{
    const struct table *table = owner->store->table;
    struct holding holding;
    kvc_status status = KVC_OK;

    count(table, owner->identity.tenant, &holding);
    if (new_namespace)
        status = check(table, holding.namespaces >= KVC_TENANT_NAMESPACES_MAX, SECTION_NAMESPACES,
                       "namespace_digest", "too many namespaces of one tenant", why);
    if (status == KVC_OK && !has_layout(&holding, layout) &&
        holding.layouts >= KVC_TENANT_LAYOUTS_MAX)
        status = store_refuse(why, KVC_E_LIMIT, "slice_bytes", "too many layouts of one tenant");
    if (status == KVC_OK && layout == TABLE_NONE)
        status = check(table, false, SECTION_LAYOUTS, "slice_bytes", "", why);
    if (status == KVC_OK)
        status = check(table, holding.parts >= KVC_TENANT_PARTS_MAX, SECTION_PARTS, "",
                       "too many parts of one tenant", why);
    return status;
}

kvc_status share_check_part(const struct owner *owner, const struct store_part *in,
                            struct refusal *why)
{
    const struct table *table = owner->store->table;
    struct table_part part = {
        .tenant = owner->identity.tenant,
        .namespace_ = table_find_namespace(table, owner->identity.tenant, in->namespace_digest),
        .layout = find_layout(table, in),
        .rule = in->rule,
        .window = in->window,
    };
    uint32_t found = table_find_part(table, &part);
    kvc_status status;

    if (owner->n_parts == KVC_PARTS_MAX && (found == TABLE_NONE || !owner_has_part(owner, found)))
        return store_refuse(why, KVC_E_LIMIT, "", "too many parts of one session");
    if (found != TABLE_NONE)
        return KVC_OK;
    if (part.namespace_ == TABLE_NONE) {
        rows_collect_idle(owner->store);
        part.layout = find_layout(table, in);
    }
    status = check_new(owner, part.namespace_ == TABLE_NONE, part.layout, why);
    /* Rows of the tenant that nobody needs, or if the table is full, of anybody. */
    while (status != KVC_OK &&
           rows_collect(owner->store, status == KVC_E_NO_ROOM ? TABLE_NONE : part.tenant,
                        ROWS_SOME) > 0) {
        part.namespace_ = table_find_namespace(table, part.tenant, in->namespace_digest);
        part.layout = find_layout(table, in);
        status = check_new(owner, part.namespace_ == TABLE_NONE, part.layout, why);
    }
    return status;
}

bool share_has_session(const struct store *store, uint32_t tenant)
{
    return store->sessions_of[tenant] < KVC_TENANT_SESSIONS_MAX;
}
