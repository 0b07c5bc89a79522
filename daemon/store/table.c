#include "daemon/store/table.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/table_internal.h"

#define SECTION_ALIGN 4096u /* a section starts on a page: what is sparse in it stays sparse */

/* Sizes are part of the format; what is added later comes out of the reserved words. */
static_assert(sizeof(struct table_tier) == 32, "format");
static_assert(sizeof(struct table_header) == 296, "format");
static_assert(sizeof(struct table_tenant) == 128, "format");
static_assert(sizeof(struct table_namespace) == 128, "format");
static_assert(sizeof(struct table_layout) == 5184, "format");
static_assert(sizeof(struct table_part) == 64, "format");
static_assert(sizeof(struct table_session) == 232, "format");
static_assert(sizeof(struct table_extent) == 32, "format");
static_assert(sizeof(struct table_slot) == 64, "format");
static_assert(SECTION_ALIGN % sizeof(struct table_slot) == 0, "no slot lies across two pages");

void table_tier_geometry(uint64_t budget, struct table_tier *tier)
{
    uint64_t unit = KVC_EXTENT_BYTES_MIN;
    uint64_t bytes = budget / KVC_EXTENTS_PER_TIER / unit * unit;

    if (bytes < KVC_EXTENT_BYTES_MIN)
        bytes = KVC_EXTENT_BYTES_MIN;
    if (bytes > KVC_EXTENT_BYTES_MAX)
        bytes = KVC_EXTENT_BYTES_MAX;
    memset(tier, 0, sizeof(*tier));
    tier->extent_bytes = bytes;
    /* The smallest extent needs 2^53 bytes to overflow this, and such a budget has large ones. */
    tier->extents = (uint32_t)(budget / bytes < UINT32_MAX ? budget / bytes : UINT32_MAX);
    tier->bytes = tier->extents * bytes;
    tier->slots_per_extent = (uint32_t)(bytes / KVC_SLOT_BYTES_MIN);
}

/* The header that a table for these budgets has when nothing was done with it yet. */
static kvc_status plan_header(const uint64_t budget[TIER_COUNT], uint64_t boot_epoch,
                              struct table_header *header)
{
    const uint64_t sizes[SECTION_COUNT][2] = {
        [SECTION_TENANTS] = {sizeof(struct table_tenant), TABLE_TENANTS},
        [SECTION_NAMESPACES] = {sizeof(struct table_namespace), TABLE_NAMESPACES},
        [SECTION_LAYOUTS] = {sizeof(struct table_layout), TABLE_LAYOUTS},
        [SECTION_PARTS] = {sizeof(struct table_part), TABLE_PARTS},
        [SECTION_SESSIONS] = {sizeof(struct table_session), TABLE_SESSIONS},
        [SECTION_EXTENTS] = {sizeof(struct table_extent), 0},
        [SECTION_SLOTS] = {sizeof(struct table_slot), 0},
    };
    uint64_t extents = 0, slots = 0, offset = sizeof(*header);

    memset(header, 0, sizeof(*header));
    memcpy(header->magic, TABLE_MAGIC, sizeof(header->magic));
    header->version = TABLE_VERSION;
    header->header_bytes = sizeof(*header);
    header->boot_epoch = boot_epoch;
    /*
     * A table that is made anew knows nothing of the numbers before it. A daemon uses up far fewer
     * than one each microsecond, which is what epochs count.
     */
    header->next_number = header->next_session = header->next_id = boot_epoch;
    for (int t = 0; t < TIER_COUNT; t++) {
        struct table_tier *tier = &header->tiers[t];
        uint64_t tier_slots;

        table_tier_geometry(budget[t], tier);
        tier_slots = (uint64_t)tier->extents * tier->slots_per_extent;
        if (tier_slots >= UINT32_MAX) /* the largest number means none */
            return KVC_E_LIMIT;
        tier->first_extent = (uint32_t)extents;
        extents += tier->extents;
        slots += tier_slots;
    }
    for (int s = 0; s < SECTION_COUNT; s++) {
        uint64_t records = s == SECTION_EXTENTS ? extents
                           : s == SECTION_SLOTS ? slots
                                                : sizes[s][1];

        offset = (offset + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
        header->sections[s].offset = offset;
        header->sections[s].record_bytes = (uint32_t)sizes[s][0];
        header->sections[s].records = records;
        offset += records * sizes[s][0];
    }
    header->total_bytes = (offset + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
    return KVC_OK;
}

static kvc_status status_of(int error)
{
    switch (-error) {
    case EMFILE:
    case ENFILE:
        return KVC_E_NO_FDS;
    case ENOMEM:
        return KVC_E_NO_MEMORY;
    default:
        return KVC_E_SYSTEM;
    }
}

static kvc_status failed(const char *what, int error)
{
    errno = -error;
    log_error("table", "%s failed: %m", what);
    return status_of(error);
}

/* Maps `fd`, which on success becomes the table's. */
static kvc_status map(int fd, const struct table_header *plan, struct table **table)
{
    struct table *made = mem_zalloc(sizeof(*made));
    void *base;
    int error;

    if (!made)
        return KVC_E_NO_MEMORY;
    error =
        fd_map(fd, plan->total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, 0, &base);
    if (error < 0) {
        mem_free(made);
        return failed("mapping the slot table", error);
    }
    made->fd = fd;
    made->bytes = plan->total_bytes;
    made->header = base;
#define SECTION(n) ((void *)((char *)base + plan->sections[n].offset))
    made->tenants = SECTION(SECTION_TENANTS);
    made->namespaces = SECTION(SECTION_NAMESPACES);
    made->layouts = SECTION(SECTION_LAYOUTS);
    made->parts = SECTION(SECTION_PARTS);
    made->sessions = SECTION(SECTION_SESSIONS);
    made->extents = SECTION(SECTION_EXTENTS);
    made->slots = SECTION(SECTION_SLOTS);
#undef SECTION
    for (int t = 1; t < TIER_COUNT; t++) {
        const struct table_tier *before = &plan->tiers[t - 1];

        made->first_slot[t] =
            made->first_slot[t - 1] + (uint64_t)before->extents * before->slots_per_extent;
    }
    *table = made;
    return KVC_OK;
}

kvc_status table_create(const uint64_t budget[TIER_COUNT], uint64_t boot_epoch,
                        struct table **table)
{
    struct table_header plan;
    struct table *made;
    kvc_status status = plan_header(budget, boot_epoch, &plan);
    int fd, error;

    if (status)
        return status;
    fd = fd_memfd("kvcached-table", 0);
    if (fd < 0)
        return failed("making the slot table", fd);
    error = fd_truncate(fd, plan.total_bytes);
    if (error < 0) {
        status = failed("sizing the slot table", error);
        goto close_fd;
    }
    error = fd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW);
    if (error < 0) {
        status = failed("sealing the slot table", error);
        goto close_fd;
    }
    status = map(fd, &plan, &made);
    if (status)
        goto close_fd;
    *made->header = plan;
    table_count_filled(made);
    *table = made;
    return KVC_OK;

close_fd:
    fd_close(fd);
    return status;
}

/* NULL, or why a memfd cannot be a table of this size. A mapping that could shrink would kill us.
 */
static const char *validate_fd(int fd, const struct table_header *plan)
{
    const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (seals < 0)
        return "not a memfd";
    if ((seals & sealed) != sealed)
        return "not sealed";
    if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != plan->total_bytes)
        return "another size than the budgets give";
    return NULL;
}

static const char *validate_header(const struct table_header *header,
                                   const struct table_header *plan)
{
    struct table_header expected = *plan;

    if (memcmp(header->magic, plan->magic, sizeof(plan->magic)) != 0)
        return "not a slot table";
    if (header->version != plan->version)
        return "another version";
    /* What a writer changes; everything else is given by the budgets. */
    expected.boot_epoch = header->boot_epoch;
    expected.next_number = header->next_number;
    expected.next_session = header->next_session;
    expected.next_id = header->next_id;
    expected.clean = header->clean;
    if (memcmp(header, &expected, sizeof(expected)) != 0)
        return "a header that the budgets do not give";
    if (header->clean > 1)
        return "an impossible value in the header";
    /* No daemon counts this far; one that wraps would use a number twice. */
    if (header->boot_epoch >> 62 || header->next_number >> 62 || header->next_session >> 62 ||
        header->next_id >> 62)
        return "a counter close to its end";
    if (!header->next_number || !header->next_session || !header->next_id)
        return "a counter at zero";
    return NULL;
}

kvc_status table_attach(int fd, const uint64_t budget[TIER_COUNT], uint64_t boot_epoch,
                        struct table **table, const char **why)
{
    struct table_header plan;
    struct table *made;
    kvc_status status = plan_header(budget, boot_epoch, &plan);
    const char *reason;
    int own;

    if (status)
        return status;
    reason = validate_fd(fd, &plan);
    if (reason) {
        *why = reason;
        return KVC_E_INVALID;
    }
    own = fd_dup(fd);
    if (own < 0)
        return failed("taking over the slot table", own);
    status = map(own, &plan, &made);
    if (status) {
        fd_close(own);
        return status;
    }
    reason = validate_header(made->header, &plan);
    if (!reason) {
        table_count_filled(made);
        reason = table_validate(made);
    }
    if (reason) {
        table_destroy(made);
        *why = reason;
        return KVC_E_INVALID;
    }
    table_repair(made);
    if (boot_epoch <= made->header->boot_epoch)
        boot_epoch = made->header->boot_epoch + 1;
    made->header->boot_epoch = boot_epoch;
    *table = made;
    return KVC_OK;
}

void table_destroy(struct table *table)
{
    if (!table)
        return;
    fd_close(table->fd);
    fd_unmap(table->header, table->bytes);
    mem_free(table);
}

int table_fd(const struct table *table)
{
    return table->fd;
}

struct table_header *table_header(const struct table *table)
{
    return table->header;
}

struct table_tenant *table_tenant(const struct table *table, uint32_t index)
{
    assert(index < TABLE_TENANTS);
    return &table->tenants[index];
}

struct table_namespace *table_namespace(const struct table *table, uint32_t index)
{
    assert(index < TABLE_NAMESPACES);
    return &table->namespaces[index];
}

struct table_layout *table_layout(const struct table *table, uint32_t index)
{
    assert(index < TABLE_LAYOUTS);
    return &table->layouts[index];
}

struct table_part *table_part(const struct table *table, uint32_t index)
{
    assert(index < TABLE_PARTS);
    return &table->parts[index];
}

struct table_session *table_session(const struct table *table, uint32_t index)
{
    assert(index < TABLE_SESSIONS);
    return &table->sessions[index];
}

struct table_extent *table_extent(const struct table *table, enum tier_kind tier, uint32_t index)
{
    const struct table_tier *t = &table->header->tiers[tier];

    assert(index < t->extents);
    return &table->extents[t->first_extent + index];
}

struct table_slot *table_slot(const struct table *table, enum tier_kind tier, uint32_t number)
{
    const struct table_tier *t = &table->header->tiers[tier];

    assert(number < (uint64_t)t->extents * t->slots_per_extent);
    return &table->slots[table->first_slot[tier] + number];
}
