#include "tests/lib/lender.h"

#include <check.h>

#include "tests/lib/wait.h"

bool lender_open(struct lender *l, struct daemon *d, uint64_t prompt)
{
    const kvc_options options = {.socket = daemon_socket(d),
                                 .connect_ms = wait_patient_ms(5000),
                                 .save_ms = wait_patient_ms(5000),
                                 .lookup_ms = wait_patient_ms(5000),
                                 .load_ms = wait_patient_ms(5000)};

    kv_init(&l->kv, (const uint32_t[]){512, 36}, 2, LENDER_BLOCKS);
    kv_keys(prompt, 0, LENDER_BLOCKS, l->keys);
    kv_ids(0, LENDER_BLOCKS, l->ids);
    return kvc_connect(&options, &l->client) == KVC_OK &&
           kvc_register(l->client, &l->kv.desc, &l->part) == KVC_OK;
}

void lender_close(struct lender *l)
{
    kvc_close(l->client);
    kv_free(&l->kv);
}

kvc_status lender_save(struct lender *l, uint32_t n, uint64_t *id)
{
    const kvc_save_entry entry = {l->part, l->keys, l->ids, n, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};

    return kvc_save(l->client, &args, id);
}

kvc_status lender_save_all(struct lender *l, uint64_t *id)
{
    for (uint32_t i = 0; i < LENDER_BLOCKS; i++)
        kv_fill(&l->kv, i, i);
    return lender_save(l, LENDER_BLOCKS, id);
}

void lender_publish(struct lender *l)
{
    kvc_outcome outcome;
    uint64_t id;

    ck_assert_int_eq(lender_save_all(l, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(l->client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
    ck_assert_uint_eq(outcome.dropped, 0);
}

void lender_clear(struct lender *l)
{
    for (uint32_t i = 0; i < LENDER_BLOCKS; i++)
        kv_clear(&l->kv, i);
}

kvc_status lender_load(struct lender *l, uint64_t lease, uint32_t n, uint8_t *valid)
{
    const kvc_load_args args = {
        .lease = lease, .part = l->part, .count = n, .blocks = l->ids, .valid = valid};

    return kvc_load(l->client, &args);
}

uint32_t lender_lookup(struct lender *l, kvc_lease *lease)
{
    ck_assert_int_eq(kvc_lookup(l->client, 0, &l->part, 1, l->keys, LENDER_BLOCKS, 0, lease),
                     KVC_OK);
    return lease->blocks;
}

uint32_t lender_hits(struct lender *l)
{
    uint32_t blocks = 0;

    ck_assert_int_eq(kvc_probe(l->client, &l->part, 1, l->keys, LENDER_BLOCKS, &blocks), KVC_OK);
    return blocks;
}

void lender_verify(struct lender *l, uint32_t n)
{
    kvc_lease lease;

    lender_clear(l);
    ck_assert_uint_eq(lender_lookup(l, &lease), n);
    if (n > 0)
        ck_assert_int_eq(lender_load(l, lease.id, n, NULL), KVC_OK);
    for (uint32_t i = 0; i < LENDER_BLOCKS; i++)
        ck_assert(i < n ? kv_holds(&l->kv, i, i) : kv_cleared(&l->kv, i));
    ck_assert_int_eq(kvc_release(l->client, lease.id), KVC_OK);
}

struct admin_stats lender_figures(struct lender *l)
{
    struct admin_stats stats;

    ck_assert_int_eq(admin_stats(l->client, &stats), KVC_OK);
    return stats;
}

bool lender_none_owed(struct lender *l)
{
    struct admin_stats stats = lender_figures(l);

    return stats.filling_slots == 0 && stats.quarantined_slots == 0 && stats.open_loads == 0;
}

void lender_hold_copies(struct daemon *d)
{
    daemon_fault_arm(d, "copier.late", 0, UINT32_MAX);
}

bool lender_copies_are_held(struct daemon *d)
{
    return daemon_fault_fired(d, "copier.late") > 0;
}

void lender_let_copies_go(struct daemon *d)
{
    daemon_fault_off(d, "copier.late");
}

void lender_open_saving(struct lender *l, struct daemon *d, uint64_t *id)
{
    ck_assert(lender_open(l, d, 1));
    lender_hold_copies(d);
    ck_assert_int_eq(lender_save_all(l, id), KVC_OK);
    wait_for(lender_copies_are_held(d), 5000);
}
