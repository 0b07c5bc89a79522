/* Slots that somebody may still write to, and who proves that he does not. */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save, other;

/* Nobody else's word ends what the daemon copies: not the process's end, not DRAINED. */
START_TEST(S15_only_the_daemon_ends_its_copies)
{
    struct kit_owner *worker, *second;

    worker = kit_open_chunks(&kit, 512, &save);
    second = kit_worker(&kit);
    ck_assert_int_eq(store_drained(kit.store, worker->owner, 0, NULL, 0, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, KIT_CHUNKED);
    kit_write(&kit, &save, 0);
    store_owner_end(kit.store, worker->owner);
    store_owner_gone(kit.store, worker->owner);
    kit_tick(&kit);
    ck_assert(!worker->freed);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, KIT_CHUNKED - 64);
    ck_assert_int_eq(store_drained(kit.store, second->owner, owner_id(worker->owner),
                                   owner_secret(worker->owner), KVC_SECRET_BYTES, &kit.why),
                     KVC_E_BUSY);
    kit_write(&kit, &save, 2);
    kit_tick(&kit);
    ck_assert(!worker->freed);
    kit_tell(&kit, &save, 1, KVC_E_CANCELLED);
    kit_tick(&kit);
    ck_assert(worker->freed);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_probe(&kit, second, 0, KIT_CHUNKED), 64);
    kit_close(&kit);
}
END_TEST

START_TEST(S15_quarantined_slots_are_not_given_away)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save), *second = kit_worker(&kit);
    struct store_location mine[KIT_CHUNKED];

    memcpy(mine, save.locations, sizeof(mine));
    store_owner_end(kit.store, worker->owner);
    kit_save(&kit, second, 0, 512, &other);
    ck_assert_uint_eq(other.n_assigned, 512 - KIT_CHUNKED);
    for (uint32_t i = 0; i < other.n_assigned; i++)
        for (uint32_t j = 0; j < KIT_CHUNKED; j++)
            ck_assert_uint_ne(other.locations[i].offset, mine[j].offset);
    clock_advance(3600 * CLOCK_S_US); /* never because time has passed */
    kit_tick(&kit);
    ck_assert_uint_ge(kit_stats(&kit).quarantined_slots, KIT_CHUNKED);
    ck_assert_uint_ge(kit_stats(&kit).quarantine_oldest_us, 3600 * CLOCK_S_US);
    ck_assert(!worker->freed);
    store_owner_gone(kit.store, worker->owner);
    kit_tick(&kit);
    ck_assert(worker->freed);
    kit_close(&kit);
}
END_TEST

START_TEST(S15_a_worker_that_lost_its_socket_drains)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save), *again = kit_worker(&kit);
    uint64_t session = owner_id(worker->owner);
    uint8_t secret[KVC_SECRET_BYTES];
    struct store *store = kit.store;

    memcpy(secret, owner_secret(worker->owner), sizeof(secret));
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 16, &kit.why), KVC_E_BUSY);
    store_owner_end(store, worker->owner);
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 15, &kit.why),
                     KVC_E_INVALID);
    secret[3] ^= 1;
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 16, &kit.why),
                     KVC_E_DENIED);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, KIT_CHUNKED);
    secret[3] ^= 1;
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 16, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    kit_tick(&kit);
    ck_assert(worker->freed);
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 16, &kit.why),
                     KVC_E_UNKNOWN);
    kit_close(&kit);
}
END_TEST

START_TEST(S15_drained_of_the_session_itself)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);

    kit_write(&kit, &save, 0);
    ck_assert_int_eq(store_drained(kit.store, worker->owner, 0, NULL, 0, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), 64);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_uint_eq(kit.done[0].published, 64);
    ck_assert_uint_eq(kit.done[0].dropped, KIT_CHUNKED - 64);
    kit_close(&kit);
}
END_TEST

START_TEST(S15_the_quarantine_is_told_with_age_and_owner)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 0, 0), *other = kit_worker(&kit);
    struct store_quarantine row;
    struct kit_save second;

    ck_assert(!store_next_quarantine(kit.store, 0, &row));
    kit_save(&kit, worker, 0, 3, &save);
    kit_save(&kit, other, 10, 2, &second);
    ck_assert_int_eq(kit_abort(&kit, &save, false), -1);
    clock_advance(3600 * CLOCK_S_US);
    kit_tick(&kit); /* the second save is over its time by now */
    clock_advance(7 * CLOCK_S_US);
    ck_assert(store_next_quarantine(kit.store, 0, &row));
    ck_assert_ptr_eq(row.owner, worker->owner);
    ck_assert_uint_eq(row.save, save.result.save);
    ck_assert_uint_eq(row.slots, 3);
    ck_assert_uint_eq(row.part, kit.part);
    ck_assert_uint_eq(row.bytes, 3 * kit.slot_bytes);
    ck_assert_uint_ge(row.age_us, 3607 * CLOCK_S_US);
    ck_assert_int_eq(row.status, KVC_E_CANCELLED);
    ck_assert(store_next_quarantine(kit.store, row.save, &row));
    ck_assert_ptr_eq(row.owner, other->owner);
    ck_assert_uint_eq(row.slots, 2);
    ck_assert_uint_ge(row.age_us, 7 * CLOCK_S_US);
    ck_assert_int_eq(row.status, KVC_E_DEADLINE);
    ck_assert(!store_next_quarantine(kit.store, row.save, &row));
    /* No time ends it, only proof. */
    kit_end_copy(&kit, &save, 0);
    clock_advance(CLOCK_S_US);
    kit_tick(&kit);
    ck_assert(store_next_quarantine(kit.store, 0, &row));
    ck_assert_ptr_eq(row.owner, other->owner);
    ck_assert_int_eq(store_drained(kit.store, other->owner, 0, NULL, 0, &kit.why), KVC_OK);
    if (second.copy) {
        /* Nobody but the daemon knows of its copies. */
        ck_assert(store_next_quarantine(kit.store, 0, &row));
        kit_end_copy(&kit, &second, 0);
    }
    ck_assert(!store_next_quarantine(kit.store, 0, &row));
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/quarantine", CHECK_UNIT_S,
                 {S15_only_the_daemon_ends_its_copies, 0, 0, CHECK_DAEMON_COPIES},
                 {S15_quarantined_slots_are_not_given_away, 0, 0},
                 {S15_a_worker_that_lost_its_socket_drains, 0, 0},
                 {S15_drained_of_the_session_itself, 0, 0},
                 {S15_the_quarantine_is_told_with_age_and_owner, 0, 0, CHECK_BOTH_WAYS})
