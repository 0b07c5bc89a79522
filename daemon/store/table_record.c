#include <assert.h>
#include <string.h>

#include <xxhash.h>

#include "daemon/store/table_internal.h"
#include "kernels/pack.h"

const uint8_t table_slot_moves[SLOT_DOOMED + 1] = {
    [SLOT_FREE] = 1u << SLOT_FILLING | 1u << SLOT_MOVING,
    [SLOT_FILLING] = 1u << SLOT_READY | 1u << SLOT_QUARANTINE | 1u << SLOT_FREE,
    [SLOT_READY] = 1u << SLOT_FREE | 1u << SLOT_QUARANTINE | 1u << SLOT_DOOMED,
    [SLOT_QUARANTINE] = 1u << SLOT_FREE,
    [SLOT_MOVING] = 1u << SLOT_READY | 1u << SLOT_FREE,
    [SLOT_DOOMED] = 1u << SLOT_FREE | 1u << SLOT_QUARANTINE,
};

uint16_t table_slot_check(const struct table_slot *slot)
{
    uint64_t words[5];
    uint8_t flags = slot->flags;

    memcpy(words, slot->key, sizeof(slot->key));
    words[2] = slot->checksum;
    words[3] = (uint64_t)slot->part << 32 | slot->epoch;
    words[4] = slot->generation;
    return (uint16_t)XXH3_64bits_withSeed(words, sizeof(words), flags);
}

/* The hash of a record from its first byte behind `used` to its check word, which comes last. */
#define CHECK_OF(record, type)                                                                     \
    XXH3_64bits((const char *)(record) + sizeof(uint32_t),                                         \
                offsetof(struct type, check) - sizeof(uint32_t))

uint64_t table_check_tenant(const struct table_tenant *tenant)
{
    return CHECK_OF(tenant, table_tenant);
}

uint64_t table_check_namespace(const struct table_namespace *ns)
{
    struct table_namespace copy = *ns;

    copy.epoch = 0; /* a flush changes it */
    return CHECK_OF(&copy, table_namespace);
}

uint64_t table_check_part(const struct table_part *part)
{
    return CHECK_OF(part, table_part);
}

uint64_t table_check_session(const struct table_session *session)
{
    struct table_session copy = *session;

    copy.ended = 0;
    return CHECK_OF(&copy, table_session);
}

/* Sets or clears `used`, after or before all other stores to the record. */
static void set_used(uint32_t *used, uint32_t value)
{
    __atomic_store_n(used, value, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* A record for a new row: one that was given back, or behind the others. TABLE_NONE: none is left.
 */
static uint32_t free_row(const struct table *table, enum table_section section)
{
    uint32_t filled = table->filled[section];

    for (uint32_t i = 0; table->given_back[section] > 0 && i < filled; i++)
        if (*table_used(table, section, i) == ROW_GIVEN_BACK)
            return i;
    return filled < table->header->sections[section].records ? filled : TABLE_NONE;
}

/* All of a record but `used`, which says still that there is none. */
static void clear_row(uint32_t *used, size_t bytes)
{
    memset(used + 1, 0, bytes - sizeof(*used));
}

static uint32_t took_row(struct table *table, enum table_section section, uint32_t index)
{
    if (index == table->filled[section])
        table->filled[section]++;
    else
        table->given_back[section]--;
    return index;
}

static void give_row_back(struct table *table, enum table_section section, uint32_t index)
{
    uint32_t *used = table_used(table, section, index);

    assert(*used == ROW_USED);
    set_used(used, ROW_GIVEN_BACK);
    table->given_back[section]++;
}

static bool name_fits(const char *name)
{
    return strnlen(name, KVC_NAME_MAX + 1) <= KVC_NAME_MAX;
}

kvc_status table_add_tenant(struct table *table, const char *name, uint32_t uid, uint32_t *index)
{
    uint32_t at = table->filled[SECTION_TENANTS];
    struct table_tenant *tenant;

    if (!name_fits(name) || !*name)
        return KVC_E_INVALID;
    for (uint32_t i = 0; i < at; i++) {
        tenant = &table->tenants[i];
        if (tenant->used == ROW_USED && tenant->uid == uid && strcmp(tenant->name, name) == 0) {
            *index = i;
            return KVC_OK;
        }
    }
    at = free_row(table, SECTION_TENANTS);
    if (at == TABLE_NONE)
        return KVC_E_NO_ROOM;
    tenant = &table->tenants[at];
    clear_row(&tenant->used, sizeof(*tenant));
    tenant->uid = uid;
    strcpy(tenant->name, name);
    tenant->check = table_check_tenant(tenant);
    set_used(&tenant->used, 1);
    *index = took_row(table, SECTION_TENANTS, at);
    return KVC_OK;
}

bool table_is_full(const struct table *table, enum table_section section)
{
    return table->filled[section] == table->header->sections[section].records &&
           table->given_back[section] == 0;
}

uint32_t table_find_namespace(const struct table *table, uint32_t tenant,
                              const uint8_t digest[KVC_NAMESPACE_BYTES])
{
    for (uint32_t i = 0; i < table->filled[SECTION_NAMESPACES]; i++) {
        const struct table_namespace *ns = &table->namespaces[i];

        if (ns->used == ROW_USED && ns->tenant == tenant &&
            memcmp(ns->digest, digest, sizeof(ns->digest)) == 0)
            return i;
    }
    return TABLE_NONE;
}

kvc_status table_add_namespace(struct table *table, uint32_t tenant,
                               const uint8_t digest[KVC_NAMESPACE_BYTES], const char *name,
                               uint32_t *index)
{
    uint32_t at = free_row(table, SECTION_NAMESPACES);
    uint32_t found = table_find_namespace(table, tenant, digest);
    struct table_namespace *ns;

    assert(table_tenant(table, tenant)->used == ROW_USED);
    if (name && !name_fits(name))
        return KVC_E_INVALID;
    if (found != TABLE_NONE) {
        *index = found;
        return KVC_OK;
    }
    if (at == TABLE_NONE)
        return KVC_E_NO_ROOM;
    ns = &table->namespaces[at];
    clear_row(&ns->used, sizeof(*ns));
    ns->tenant = tenant;
    ns->epoch = 1;
    memcpy(ns->digest, digest, sizeof(ns->digest));
    if (name)
        strcpy(ns->name, name);
    ns->check = table_check_namespace(ns);
    set_used(&ns->used, 1);
    *index = took_row(table, SECTION_NAMESPACES, at);
    return KVC_OK;
}

uint32_t table_find_layout(const struct table *table,
                           const uint8_t fingerprint[KVC_FINGERPRINT_BYTES])
{
    for (uint32_t i = 0; i < table->filled[SECTION_LAYOUTS]; i++)
        if (table->layouts[i].used == ROW_USED &&
            memcmp(table->layouts[i].fingerprint, fingerprint, KVC_FINGERPRINT_BYTES) == 0)
            return i;
    return TABLE_NONE;
}

kvc_status table_add_layout(struct table *table, uint32_t block_tokens, const uint32_t *slice_bytes,
                            uint32_t n_slices, const uint8_t *dtypes, uint32_t *index)
{
    uint64_t offsets[KVC_SLICES_MAX];
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    struct pack_layout pack = {.slice_offsets = offsets};
    struct table_layout *layout;
    uint32_t at = free_row(table, SECTION_LAYOUTS), found;
    kvc_status status;

    if (!block_tokens)
        return KVC_E_INVALID;
    if (block_tokens > KVC_BLOCK_TOKENS_MAX)
        return KVC_E_LIMIT;
    status = pack_layout_init(&pack, slice_bytes, n_slices);
    if (status)
        return status;
    pack_layout_fingerprint(&pack, block_tokens, dtypes, fingerprint);
    found = table_find_layout(table, fingerprint);
    if (found != TABLE_NONE) {
        *index = found;
        return KVC_OK;
    }
    if (at == TABLE_NONE)
        return KVC_E_NO_ROOM;
    layout = &table->layouts[at];
    clear_row(&layout->used, sizeof(*layout));
    layout->block_tokens = block_tokens;
    layout->n_slices = n_slices;
    layout->has_dtypes = dtypes != NULL;
    memcpy(layout->fingerprint, fingerprint, sizeof(fingerprint));
    layout->block_bytes = pack.block_bytes;
    layout->slot_bytes = pack.slot_bytes;
    memcpy(layout->slice_bytes, slice_bytes, n_slices * sizeof(*slice_bytes));
    if (dtypes)
        memcpy(layout->dtypes, dtypes, n_slices);
    set_used(&layout->used, 1);
    *index = took_row(table, SECTION_LAYOUTS, at);
    return KVC_OK;
}

static bool same_part(const struct table_part *a, const struct table_part *b)
{
    return a->tenant == b->tenant && a->namespace_ == b->namespace_ && a->layout == b->layout &&
           a->rule == b->rule && a->window == b->window;
}

void table_remove_tenant(struct table *table, uint32_t index)
{
    give_row_back(table, SECTION_TENANTS, index);
}

void table_remove_namespace(struct table *table, uint32_t index)
{
    give_row_back(table, SECTION_NAMESPACES, index);
}

void table_remove_layout(struct table *table, uint32_t index)
{
    give_row_back(table, SECTION_LAYOUTS, index);
}

void table_remove_part(struct table *table, uint32_t index)
{
    give_row_back(table, SECTION_PARTS, index);
}

/* Record 0 is never used. */
uint32_t table_find_part(const struct table *table, const struct table_part *part)
{
    for (uint32_t i = 1; i < table->filled[SECTION_PARTS]; i++)
        if (table->parts[i].used == ROW_USED && same_part(&table->parts[i], part))
            return i;
    return TABLE_NONE;
}

kvc_status table_add_part(struct table *table, const struct table_part *part, uint32_t *index)
{
    uint32_t at = free_row(table, SECTION_PARTS);
    uint32_t found = table_find_part(table, part);
    struct table_part *made;

    assert(table_namespace(table, part->namespace_)->used == ROW_USED);
    assert(table_namespace(table, part->namespace_)->tenant == part->tenant);
    assert(table_layout(table, part->layout)->used == ROW_USED);
    if (found != TABLE_NONE) {
        *index = found;
        return KVC_OK;
    }
    if (at == TABLE_NONE)
        return KVC_E_NO_ROOM;
    made = &table->parts[at];
    clear_row(&made->used, sizeof(*made));
    memcpy((char *)made + sizeof(made->used), (const char *)part + sizeof(part->used),
           sizeof(*made) - sizeof(made->used));
    memset(made->reserved, 0, sizeof(made->reserved));
    made->check = table_check_part(made);
    set_used(&made->used, 1);
    *index = took_row(table, SECTION_PARTS, at);
    return KVC_OK;
}

kvc_status table_add_session(struct table *table, const struct table_session *session,
                             uint32_t *index)
{
    assert(table_tenant(table, session->tenant)->used == ROW_USED && session->n_devices <= 8);
    for (uint32_t i = 0; i < TABLE_SESSIONS; i++) {
        struct table_session *made = &table->sessions[i];

        if (made->used)
            continue;
        *made = *session;
        made->used = 0;
        memset(made->reserved, 0, sizeof(made->reserved));
        made->check = table_check_session(made);
        set_used(&made->used, 1);
        *index = i;
        return KVC_OK;
    }
    return KVC_E_NO_ROOM;
}

void table_remove_session(struct table *table, uint32_t index)
{
    struct table_session *session = table_session(table, index);

    assert(session->used);
    set_used(&session->used, 0);
    /* The digest of a secret has no business outliving its session. */
    memset(session, 0, sizeof(*session));
}

uint64_t table_next_number(struct table *table)
{
    return table->header->next_number++;
}

uint64_t table_next_session(struct table *table)
{
    return table->header->next_session++;
}

uint64_t table_next_id(struct table *table)
{
    return table->header->next_id++;
}
