#include "tests/lib/prompt.h"

#include <check.h>

#include "tests/lib/wait.h"

bool prompt_open_as(struct prompt *p, const struct daemon *d, uint64_t number, kvc_role role)
{
    const kvc_options options = {.socket = daemon_socket(d),
                                 .role = role,
                                 .connect_ms = wait_patient_ms(5000),
                                 .save_ms = wait_patient_ms(5000),
                                 .lookup_ms = wait_patient_ms(5000),
                                 .load_ms = wait_patient_ms(5000)};

    kv_init(&p->kv, (const uint32_t[]){512, 36}, 2, PROMPT_BLOCKS);
    if (role == KVC_ROLE_SCHEDULER) // copies nothing, whoever does
        p->kv.desc.copy = KVC_COPY_WORKER;
    kv_keys(number, 0, PROMPT_BLOCKS, p->keys);
    kv_ids(0, PROMPT_BLOCKS, p->ids);
    return kvc_connect(&options, &p->client) == KVC_OK &&
           kvc_register(p->client, &p->kv.desc, &p->part) == KVC_OK;
}

bool prompt_open(struct prompt *p, const struct daemon *d, uint64_t number)
{
    return prompt_open_as(p, d, number, KVC_ROLE_WORKER);
}

void prompt_close(struct prompt *p)
{
    kvc_close(p->client);
    kv_free(&p->kv);
}

kvc_status prompt_save(struct prompt *p, uint32_t n, uint64_t *id)
{
    const kvc_save_entry entry = {p->part, p->keys, p->ids, n, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};

    return kvc_save(p->client, &args, id);
}

kvc_status prompt_save_all(struct prompt *p, uint64_t *id)
{
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        kv_fill(&p->kv, i, i);
    return prompt_save(p, PROMPT_BLOCKS, id);
}

void prompt_publish(struct prompt *p)
{
    kvc_outcome outcome;
    uint64_t id;

    ck_assert_int_eq(prompt_save_all(p, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(p->client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
    ck_assert_uint_eq(outcome.dropped, 0);
}

void prompt_clear(struct prompt *p)
{
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        kv_clear(&p->kv, i);
}

kvc_status prompt_load(struct prompt *p, uint64_t lease, uint32_t n, uint8_t *valid)
{
    const kvc_load_args args = {
        .lease = lease, .part = p->part, .count = n, .blocks = p->ids, .valid = valid};

    return kvc_load(p->client, &args);
}

uint32_t prompt_lookup(struct prompt *p, kvc_lease *lease)
{
    if (kvc_lookup(p->client, 0, &p->part, 1, p->keys, PROMPT_BLOCKS, 0, lease) != KVC_OK)
        return 0;
    return lease->blocks;
}

uint32_t prompt_hits(struct prompt *p)
{
    uint32_t blocks = 0;

    ck_assert_int_eq(kvc_probe(p->client, &p->part, 1, p->keys, PROMPT_BLOCKS, &blocks), KVC_OK);
    return blocks;
}

bool prompt_comes(struct prompt *p, uint64_t lease, uint32_t n)
{
    prompt_clear(p);
    if (n > 0 && prompt_load(p, lease, n, NULL) != KVC_OK)
        return false;
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        if (!(i < n ? kv_holds(&p->kv, i, i) : kv_cleared(&p->kv, i)))
            return false;
    return true;
}

bool prompt_is_whole(struct prompt *p)
{
    kvc_lease lease;

    return prompt_lookup(p, &lease) == PROMPT_BLOCKS && prompt_comes(p, lease.id, PROMPT_BLOCKS) &&
           kvc_release(p->client, lease.id) == KVC_OK;
}

void prompt_verify(struct prompt *p, uint32_t n)
{
    kvc_lease lease = {0};

    ck_assert_uint_eq(prompt_lookup(p, &lease), n);
    ck_assert(prompt_comes(p, lease.id, n));
    ck_assert_int_eq(kvc_release(p->client, lease.id), KVC_OK);
}

struct admin_stats prompt_figures(struct prompt *p)
{
    struct admin_stats stats;

    ck_assert_int_eq(admin_stats(p->client, &stats), KVC_OK);
    return stats;
}

bool prompt_owes_nothing(struct prompt *p)
{
    struct admin_stats stats = prompt_figures(p);

    return stats.filling_slots == 0 && stats.quarantined_slots == 0 && stats.open_loads == 0;
}

void prompt_hold_copies(struct daemon *d)
{
    daemon_fault_arm(d, "copier.late", 0, UINT32_MAX);
}

bool prompt_copies_are_held(struct daemon *d)
{
    return daemon_fault_fired(d, "copier.late") > 0;
}

void prompt_let_copies_go(struct daemon *d)
{
    daemon_fault_off(d, "copier.late");
}

void prompt_open_saving(struct prompt *p, struct daemon *d, uint64_t *id)
{
    ck_assert(prompt_open(p, d, 1));
    prompt_hold_copies(d);
    ck_assert_int_eq(prompt_save_all(p, id), KVC_OK);
    wait_for(prompt_copies_are_held(d), 5000);
}
