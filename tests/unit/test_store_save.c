/* Saves: what a key is, how blocks are published, and what a failure leaves. */
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

START_TEST(save_then_load_round_trip)
{
    struct kit kit;
    struct kit_owner *worker;
    struct kit_save save;
    struct kit_load load;
    uint64_t lease;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 16});
    worker = kit_worker(&kit);
    kit_save(&kit, worker, 100, 8, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_ASSIGNED), 8);
    ck_assert_uint_eq(save.result.n_chunks, 1);
    ck_assert_uint_eq(kit_probe(&kit, worker, 100, 8), 0);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 100, 9, &lease), 8);
    kit_load(&kit, worker, lease, 0, 100, 8, &load);
    kit_verify(&kit, &load);
    kit_release(&kit, worker, lease);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 1);
    kit_close_load(&kit, &load);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN("store/save", CHECK_UNIT_S, save_then_load_round_trip)
