/* Flushes and pins. */
#include "tests/lib/storekit.h"

#include <check.h>

struct store_scope kit_scope(struct kit *kit, const struct kit_owner *owner, uint32_t first,
                             uint32_t n)
{
    kit_keys(first, n, kit->scope_keys);
    return (struct store_scope){.owner = owner ? owner->owner : NULL,
                                .part = kit->part,
                                .keys = kit->scope_keys,
                                .n_keys = n};
}

uint64_t kit_flush(struct kit *kit, struct store_scope scope)
{
    uint64_t blocks;

    ck_assert_int_eq(store_flush(kit->store, &scope, &blocks, &kit->why), KVC_OK);
    kit_check(kit);
    return blocks;
}

uint32_t kit_pin(struct kit *kit, struct store_scope scope, uint32_t seconds)
{
    uint32_t count;

    ck_assert_int_eq(store_pin(kit->store, &scope, seconds, &count, &kit->why), KVC_OK);
    kit_check(kit);
    return count;
}

uint32_t kit_unpin(struct kit *kit, struct store_scope scope)
{
    uint32_t count;

    ck_assert_int_eq(store_unpin(kit->store, &scope, &count, &kit->why), KVC_OK);
    kit_check(kit);
    return count;
}
