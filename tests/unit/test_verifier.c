/* The verifier: where bytes can be read, and where they have to be brought first. */
#include <uv.h>

#include "daemon/base/fault.h"
#include "daemon/tier/verifier.h"
#include "tests/lib/check_main.h"

#define MIB (1ull << 20)

/* The gpu tier's memory is as on a GPU: not to be read but by copies. */
static struct device_ops distant;
static struct device device;

struct fixture {
    uv_loop_t loop;
    struct tier *tiers[TIER_COUNT];
    struct verifier *verifier;
    uint32_t calls;
};

static void setup(struct fixture *f)
{
    uv_loop_init(&f->loop);
    distant = device_host;
    distant.memory = DEVICE_MEMORY_CUDA_FD;
    device = device_all_host;
    ck_assert_int_eq(tier_create(TIER_GPU, &device, 40 * MIB, 2, &f->tiers[TIER_GPU]), KVC_OK);
    tier_slab(f->tiers[TIER_GPU])->ops = &distant;
    ck_assert_int_eq(tier_create(TIER_HOST, &device, 2 * MIB, 50, &f->tiers[TIER_HOST]), KVC_OK);
    ck_assert_int_eq(verifier_create(&f->loop, f->tiers, &device, &f->verifier), KVC_OK);
    f->calls = 0;
}

static void teardown(struct fixture *f)
{
    verifier_destroy(f->verifier);
    ck_assert_int_eq(uv_loop_close(&f->loop), 0);
    tier_slab(f->tiers[TIER_GPU])->ops = &device_host;
    tier_destroy(f->tiers[TIER_GPU]);
    tier_destroy(f->tiers[TIER_HOST]);
    uv_library_shutdown();
}

static void on_done(void *arg)
{
    struct fixture *f = arg;

    ck_assert(!verifier_is_busy(f->verifier));
    f->calls++;
}

static void run(struct fixture *f, struct verifier_slot *slots, uint32_t n)
{
    const uint32_t before = f->calls;

    verifier_start(f->verifier, slots, n, on_done, f);
    ck_assert_uint_eq(f->calls, before);
    ck_assert(verifier_is_busy(f->verifier));
    uv_run(&f->loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(f->calls, before + 1);
}

/* A slot with bytes, and what their checksum is. */
static struct verifier_slot fill(struct fixture *f, enum tier_kind tier, uint64_t offset,
                                 const uint32_t *sizes, uint32_t n)
{
    uint64_t offsets[KVC_SLICES_MAX];
    struct pack_layout layout = {.slice_offsets = offsets};
    uint8_t *at = tier_address(f->tiers[tier], offset);

    ck_assert_int_eq(pack_layout_init(&layout, sizes, n), KVC_OK);
    for (uint64_t i = 0; i < layout.slot_bytes; i++)
        at[i] = (uint8_t)(i * 31 + (i >> 8) + offset);
    return (struct verifier_slot){.tier = tier,
                                  .offset = offset,
                                  .slice_bytes = sizes,
                                  .n_slices = n,
                                  .checksum = pack_checksum_slot(&layout, at),
                                  .status = KVC_E_SYSTEM};
}

static const uint32_t small[] = {4096, 1000, 17, 8192};
/* Larger than a piece; the second slice begins in one and ends in another. */
static const uint32_t large[] = {(10u << 20) + 5, 20u << 20, 3};

START_TEST(right_bytes_match_and_others_do_not)
{
    struct fixture f;
    struct verifier_slot slots[4];
    const enum tier_kind tier = _i == 0 ? TIER_HOST : TIER_GPU;

    setup(&f);
    for (uint32_t i = 0; i < 4; i++)
        slots[i] = fill(&f, tier, i * 16384, small, 4);
    tier_address(f.tiers[tier], 0)[4096 + 999] ^= 1;      /* the last byte of the second slice */
    tier_address(f.tiers[tier], 16384)[4096 + 1003] ^= 1; /* padding */
    tier_address(f.tiers[tier], 2 * 16384)[4096 + 1008] ^= 1; /* the first of the third */
    run(&f, slots, 4);
    ck_assert_int_eq(slots[0].status, KVC_E_CHECKSUM);
    ck_assert_int_eq(slots[1].status, KVC_OK);
    ck_assert_int_eq(slots[2].status, KVC_E_CHECKSUM);
    ck_assert_int_eq(slots[3].status, KVC_OK);
    teardown(&f);
}
END_TEST

START_TEST(a_block_of_many_pieces)
{
    struct fixture f;
    struct verifier_slot slot;

    setup(&f);
    slot = fill(&f, _i == 0 ? TIER_HOST : TIER_GPU, 4 * MIB, large, 3);
    run(&f, &slot, 1);
    ck_assert_int_eq(slot.status, KVC_OK);
    tier_address(f.tiers[slot.tier], slot.offset)[16 * MIB] ^= 0x80;
    run(&f, &slot, 1);
    ck_assert_int_eq(slot.status, KVC_E_CHECKSUM);
    teardown(&f);
}
END_TEST

START_TEST(a_copy_that_fails_says_nothing_of_the_bytes)
{
    struct fixture f;
    struct verifier_slot slots[3];

    setup(&f);
    for (uint32_t i = 0; i < 3; i++)
        slots[i] = fill(&f, TIER_GPU, i * 16384, small, 4);
    fault_arm("verifier.copy", 1, 1);
    run(&f, slots, 3);
    fault_off("verifier.copy");
    ck_assert_int_eq(slots[0].status, KVC_OK);
    ck_assert_int_eq(slots[1].status, KVC_E_DEVICE);
    ck_assert_int_eq(slots[2].status, KVC_OK);
    teardown(&f);
}
END_TEST

CHECK_MAIN_LOOPS("verifier", CHECK_UNIT_S, {right_bytes_match_and_others_do_not, 0, 1},
                 {a_block_of_many_pieces, 0, 1},
                 {a_copy_that_fails_says_nothing_of_the_bytes, 0, 0})
