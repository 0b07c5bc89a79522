/* What the files of the table share; nobody else includes it. */
#ifndef KVC_STORE_TABLE_INTERNAL_H
#define KVC_STORE_TABLE_INTERNAL_H

#include "daemon/store/table.h"

struct table {
    int fd;
    struct table_header *header; /* the start of the mapping */
    uint64_t bytes;              /* of the mapping: the header may say anything */
    struct table_tenant *tenants;
    struct table_namespace *namespaces;
    struct table_layout *layouts;
    struct table_part *parts;
    struct table_session *sessions;
    struct table_extent *extents;
    struct table_slot *slots;
    uint64_t first_slot[TIER_COUNT]; /* of a tier, in the section of slots */
    /* Of tenants, namespaces, layouts and parts: the first record that was never used; and how many
     * before it were given back. */
    uint32_t filled[SECTION_PARTS + 1];
    uint32_t given_back[SECTION_PARTS + 1];
};

uint64_t table_check_tenant(const struct table_tenant *tenant);
uint64_t table_check_namespace(const struct table_namespace *ns);
uint64_t table_check_part(const struct table_part *part);
uint64_t table_check_session(const struct table_session *session);

/* `used` of a record of a section. */
static inline uint32_t *table_used(const struct table *table, enum table_section section,
                                   uint32_t index)
{
    return (uint32_t *)((char *)table->header + table->header->sections[section].offset +
                        index * (uint64_t)table->header->sections[section].record_bytes);
}

/* Counts them anew, after attaching. */
void table_count_filled(struct table *table);

/* Whether everything behind the header can be trusted: NULL, or the reason why not. */
const char *table_validate(const struct table *table);

/* Undoes changes of extents that a crash cut short. The table is valid. */
void table_repair(struct table *table);

#endif
