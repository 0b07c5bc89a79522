/* What a request costs with many parts of one namespace is bounded. */
#include "daemon/store/owner.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define TOKENS 16u
#define SLOT   4096u
#define SLOTS  512u /* of an extent */

static struct kit kit;
static const uint8_t digest[KVC_NAMESPACE_BYTES] = {10};

/* A full part, which becomes the kit's, and windows of all lengths; one family. */
static void open_parts(uint32_t windows, struct store_part_info *infos)
{
    static const uint8_t family[16] = {5};
    static const uint32_t slices[] = {SLOT};
    struct kit_owner *owner = NULL;

    kit_open(&kit, &(struct kit_config){.gpu_slots = SLOTS, .slot_bytes = SLOT});
    for (uint32_t i = 0; i <= windows; i++) {
        const struct store_part part = {
            .namespace_digest = digest,
            .slice_bytes = slices,
            .n_slices = 1,
            .block_tokens = TOKENS,
            .rule = i ? STORE_RULE_WINDOW : STORE_RULE_FULL,
            .window = TOKENS * i,
            .family = family,
        };

        if (i % (KVC_PARTS_MAX / 2) == 0) {
            owner = kit_owner(&kit, STORE_ROLE_WORKER);
            kit_map_all(&kit, owner);
        }
        ck_assert_int_eq(store_register(kit.store, owner->owner, &part, &infos[i], &kit.why),
                         KVC_OK);
    }
}

static void put(const struct store_part_info *info, uint32_t first, uint32_t n)
{
    static struct kit_save save;
    const struct kit_entry entry = {info->part, info->epoch, first, n};
    uint32_t i = 0;

    /* Whichever worker has registered it. */
    while (!owner_has_part(kit.owners[i].owner, info->part))
        i++;
    ck_assert_int_eq(kit_save_open(&kit, &kit.owners[i], &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(save.n_assigned, n);
    kit_prove(&kit, &save);
    kit.n_done = 0;
}

START_TEST(S26_an_evicted_key_is_looked_for_in_so_many_parts)
{
    enum { WINDOWS = 80, ASKED = 64 };
    struct store_part_info infos[WINDOWS + 1];
    struct store_stats stats;

    open_parts(WINDOWS, infos);
    for (uint32_t i = 0; i <= WINDOWS; i++)
        put(&infos[i], 0, 1);
    put(&infos[0], 1, SLOTS - WINDOWS - 1);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 0);
    put(&infos[0], 600, 1);
    stats = kit_stats(&kit);
    ck_assert_uint_eq(stats.dependent_evictions[TIER_GPU], ASKED);
    ck_assert_uint_eq(stats.evictions, ASKED + 1);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN("store/parts", CHECK_UNIT_S, S26_an_evicted_key_is_looked_for_in_so_many_parts)
