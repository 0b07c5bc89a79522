#include "tests/lib/prompt.h"
#include "tests/lib/wait.h"

#include <check.h>

bool prompt_open(struct prompt *p, const char *socket, kvc_role role)
{
    const kvc_options options = {.socket = socket,
                                 .role = role,
                                 .connect_ms = wait_patient_ms(5000),
                                 .save_ms = wait_patient_ms(5000),
                                 .lookup_ms = wait_patient_ms(5000),
                                 .load_ms = wait_patient_ms(5000)};

    kv_init(&p->kv, (const uint32_t[]){512, 36}, 2, PROMPT_BLOCKS);
    if (role == KVC_ROLE_SCHEDULER) // copies nothing, whoever does
        p->kv.desc.copy = KVC_COPY_WORKER;
    kv_keys(1, 0, PROMPT_BLOCKS, p->keys);
    kv_ids(0, PROMPT_BLOCKS, p->ids);
    return kvc_connect(&options, &p->client) == KVC_OK &&
           kvc_register(p->client, &p->kv.desc, &p->part) == KVC_OK;
}

void prompt_close(struct prompt *p)
{
    kvc_close(p->client);
    kv_free(&p->kv);
}

kvc_status prompt_save(struct prompt *p, uint64_t *id)
{
    const kvc_save_entry entry = {p->part, p->keys, p->ids, PROMPT_BLOCKS, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};

    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        kv_fill(&p->kv, i, i);
    return kvc_save(p->client, &args, id);
}

bool prompt_load(struct prompt *p, uint64_t lease, uint32_t n)
{
    const kvc_load_args args = {.lease = lease, .part = p->part, .count = n, .blocks = p->ids};

    for (uint32_t i = 0; i < n; i++)
        kv_clear(&p->kv, i);
    if (kvc_load(p->client, &args) != KVC_OK)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!kv_holds(&p->kv, i, i))
            return false;
    return true;
}

uint32_t prompt_lookup(struct prompt *p, kvc_lease *lease)
{
    if (kvc_lookup(p->client, 0, &p->part, 1, p->keys, PROMPT_BLOCKS, 0, lease) != KVC_OK)
        return 0;
    return lease->blocks;
}

bool prompt_verify(struct prompt *p)
{
    kvc_lease lease;

    return prompt_lookup(p, &lease) == PROMPT_BLOCKS && prompt_load(p, lease.id, PROMPT_BLOCKS) &&
           kvc_release(p->client, lease.id) == KVC_OK;
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
