/* The lists of what is stored, and of who holds it: blocks, layouts of parts, leases. */
#include "daemon/api/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEXT(to, ...) snprintf(to, LIST_VALUE_BYTES, __VA_ARGS__)

void list_write_hex(const uint8_t *bytes, size_t n, char text[LIST_VALUE_BYTES])
{
    for (size_t i = 0; i < n; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* The names that a part goes by: of its tenant, and the digest of its namespace. */
static void write_part(const struct api *api, uint32_t part, char tenant[LIST_VALUE_BYTES],
                       char namespace_[LIST_VALUE_BYTES])
{
    const struct table *table = store_table(api->store);
    const struct table_part *record = table_part(table, part);

    TEXT(tenant, "%s", table_tenant(table, record->tenant)->name);
    list_write_hex(table_namespace(table, record->namespace_)->digest, KVC_NAMESPACE_BYTES,
                   namespace_);
}

/* Of the tenant of a part that the session may see, and the namespace is not left out. */
static bool may_see_part(const struct list_walk *walk, uint32_t part)
{
    const struct table *table = store_table(walk->asks->api->store);
    const struct table_part *record = table_part(table, part);
    const uint8_t *digest = table_namespace(table, record->namespace_)->digest;

    if (!list_may_see(walk->asks, table_tenant(table, record->tenant)->name) ||
        !list_may_name(walk->asks, digest))
        return false;
    return walk->namespace_digest == NULL ||
           memcmp(digest, walk->namespace_digest, KVC_NAMESPACE_BYTES) == 0;
}

static const char *place(const struct store_block *block)
{
    if (block->in[TIER_GPU])
        return block->in[TIER_HOST] ? "gpu+host" : "gpu";
    return "host";
}

enum store_walk list_walk_blocks(struct list_walk *walk, struct row *row)
{
    const struct api *api = walk->asks->api;
    char(*t)[LIST_VALUE_BYTES] = row->text;
    struct store_block block;
    enum store_walk found;

    for (;;) {
        found = store_walk_blocks(api->store, &walk->cursor, &walk->steps, &block);
        if (found != STORE_WALK_FOUND)
            return found;
        if (!may_see_part(walk, block.part))
            continue;
        list_write_hex(block.key, KVC_KEY_BYTES, t[0]);
        if (strncmp(t[0], walk->key_prefix, strlen(walk->key_prefix)) == 0)
            break;
    }
    write_part(api, block.part, t[2], t[1]);
    TEXT(t[3], "%u", block.part);
    TEXT(t[4], "%s", place(&block));
    TEXT(t[5], "%s", !block.published ? "filling" : block.moving ? "moving" : "published");
    TEXT(t[6], "%" PRIu64, block.slot_bytes);
    TEXT(t[7], "%" PRIu64, block.idle_us / 1000);
    TEXT(t[8], "%u", block.leases);
    TEXT(t[9], "%u", block.loads);
    TEXT(t[10], "%s", block.pinned ? "yes" : "no");
    TEXT(t[11], "%s", block.checked ? "yes" : "no");
    return STORE_WALK_FOUND;
}

/* One row a part: what is stored of a namespace, in which form. */
enum store_walk list_walk_layouts(struct list_walk *walk, struct row *row)
{
    static const char *const rules[] = {"full", "window", "state"};
    const struct api *api = walk->asks->api;
    const struct table *table = store_table(api->store);
    char(*t)[LIST_VALUE_BYTES] = row->text;

    for (;;) {
        const struct table_part *part;
        const struct table_layout *layout;
        const uint32_t i = (uint32_t)walk->cursor + 1; /* parts are counted from 1 */

        if (walk->cursor >= TABLE_PARTS - 1 || table_part(table, i)->used == ROW_NEVER)
            return STORE_WALK_END;
        if (walk->steps == 0)
            return STORE_WALK_PAUSE;
        walk->steps--;
        walk->cursor++;
        part = table_part(table, i);
        if (part->used != ROW_USED || !may_see_part(walk, i))
            continue;
        layout = table_layout(table, part->layout);
        TEXT(t[0], "%u", i);
        write_part(api, i, t[2], t[1]);
        TEXT(t[3], "%s", table_namespace(table, part->namespace_)->name);
        TEXT(t[4], "%s", part->rule < 3 ? rules[part->rule] : "");
        TEXT(t[5], "%u", part->window);
        TEXT(t[6], "%u", layout->block_tokens);
        TEXT(t[7], "%u", layout->n_slices);
        TEXT(t[8], "%" PRIu64, layout->block_bytes);
        TEXT(t[9], "%" PRIu64, layout->slot_bytes);
        list_write_hex(layout->fingerprint, KVC_FINGERPRINT_BYTES, t[10]);
        return STORE_WALK_FOUND;
    }
}

/* Leases of the daemon's own, for peers, are nobody's here. */
enum store_walk list_walk_leases(struct list_walk *walk, struct row *row)
{
    const struct api *api = walk->asks->api;
    char(*t)[LIST_VALUE_BYTES] = row->text;
    const struct session *s;
    struct store_lease lease;
    enum store_walk found;

    do {
        found = store_walk_leases(api->store, &walk->cursor, &walk->steps, &lease);
        if (found != STORE_WALK_FOUND)
            return found;
        s = owner_user(lease.owner);
    } while (s == NULL || !may_see_part(walk, lease.part));
    TEXT(t[0], "%" PRIu64, lease.lease);
    TEXT(t[1], "%" PRIu64, owner_id(lease.owner));
    TEXT(t[2], "%d", (int)process_pid(s->process));
    TEXT(t[3], "%s", s->grant.tenant);
    TEXT(t[4], "%s", s->name);
    TEXT(t[5], "%u", lease.part);
    TEXT(t[6], "%u", lease.parts);
    TEXT(t[7], "%u", lease.blocks);
    TEXT(t[8], "%" PRIu64, lease.ends_us / 1000);
    return STORE_WALK_FOUND;
}
