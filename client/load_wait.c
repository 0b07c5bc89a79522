/* How loads ended: comparing checksums once the copies are over. */
#include <stdlib.h>
#include <unistd.h>

#include "client/client.h"

#define LOOK_US 20u /* between looks at a mark */

static void entry_free(const kvc_client *client, struct load_entry *entry, bool inherited)
{
    if (entry == NULL)
        return;
    if (!inherited) {
        client->copy->cells_free(client->cuda, entry->cells);
        client->copy->mark_free(client->cuda, entry->mark);
    }
    free(entry);
}

/* Widest alignment first; an entry holds a piece, which is at most a packet's keys. */
static struct load_entry *entry_make(const kvc_client *client)
{
    const size_t each = 2 * sizeof(uint64_t) + sizeof(uint32_t) + 2;
    struct load_entry *entry = calloc(1, sizeof(*entry) + KVC_KEYS_MAX * each);

    if (entry == NULL)
        return NULL;
    entry->checksums = (uint64_t *)(void *)(entry + 1);
    entry->offsets = entry->checksums + KVC_KEYS_MAX;
    entry->generations = (uint32_t *)(void *)(entry->offsets + KVC_KEYS_MAX);
    entry->checked = (uint8_t *)(entry->generations + KVC_KEYS_MAX);
    entry->tiers = entry->checked + KVC_KEYS_MAX;
    entry->cells = client->copy->cells_make(client->cuda, KVC_KEYS_MAX);
    if (entry->cells == NULL || client->copy->mark_make(client->cuda, &entry->mark) != KVC_OK) {
        entry_free(client, entry, false);
        return NULL;
    }
    return entry;
}

static kvc_status no_memory(kvc_client *client)
{
    return rpc_fail(&client->rpc, KVC_E_NO_MEMORY, NULL, "no memory for a load");
}

kvc_status loads_open(kvc_client *client)
{
    for (uint32_t i = 0; i < LOADS_MAX; i++) {
        client->loads.entries[i] = entry_make(client);
        if (client->loads.entries[i] == NULL)
            return no_memory(client);
    }
    return KVC_OK;
}

void loads_free(kvc_client *client, bool inherited)
{
    for (uint32_t i = 0; i < LOADS_MAX; i++) {
        entry_free(client, client->loads.entries[i], inherited);
        client->loads.entries[i] = NULL;
    }
}

static void report(kvc_client *client, const struct load_entry *entry, uint32_t i)
{
    const struct codec_report said = {entry->part, entry->generations[i], entry->tiers[i],
                                      entry->offsets[i]};
    size_t len = 0;

    if (entry->session == client->session.id &&
        codec_put_report(&said, client->rpc.body, &len) == KVC_OK)
        (void)rpc_tell(&client->rpc, WIRE_REPORT, client->rpc.body, len);
}

/* The entry's copies are over. Tells the daemon what was not what it said; true if anything. */
static bool judge(kvc_client *client, struct load_entry *entry, uint8_t *valid)
{
    bool mismatch = false;

    for (uint32_t i = 0; i < entry->copied; i++) {
        bool good;

        if (entry->sums != NULL)
            entry->cells[i] = entry->sums[i] += entry->cells[i];
        good = !entry->verify || !entry->checked[i] || entry->cells[i] == entry->checksums[i];
        if (valid != NULL)
            valid[entry->at + i] = good;
        if (!good)
            report(client, entry, i);
        mismatch = mismatch || !good;
    }
    entry->used = false;
    return mismatch;
}

static kvc_status passed(const kvc_client *client, const struct load_entry *entry)
{
    return client->copy->mark_passed(client->cuda, entry->mark);
}

/* One that is over and that nobody asked for yet: forgotten loads first, then the oldest; but none
 * of the load that is being made. */
static struct load_entry *retire_one(kvc_client *client, uint64_t id)
{
    struct load_entry *oldest = NULL;

    for (uint32_t i = 0; i < LOADS_MAX; i++) {
        struct load_entry *entry = client->loads.entries[i];

        if (entry->id != id && (oldest == NULL || entry->id < oldest->id) &&
            passed(client, entry) != KVC_E_DEADLINE)
            oldest = entry;
    }
    if (oldest == NULL)
        return NULL;
    /* Nobody asked, so that the caller's sums may be gone, and without them nothing can be said. */
    oldest->verify = oldest->verify && oldest->sums == NULL;
    oldest->sums = NULL;
    (void)judge(client, oldest, NULL);
    return oldest;
}

kvc_status loads_take(kvc_client *client, uint64_t id, struct load_entry **ret)
{
    struct load_entry *entry = NULL;

    for (uint32_t i = 0; i < LOADS_MAX && entry == NULL; i++) {
        if (client->loads.entries[i] == NULL) {
            client->loads.entries[i] = entry_make(client);
            if (client->loads.entries[i] == NULL)
                return no_memory(client);
        }
        if (!client->loads.entries[i]->used)
            entry = client->loads.entries[i];
    }
    if (entry == NULL)
        entry = retire_one(client, id);
    if (entry == NULL)
        return rpc_fail(&client->rpc, KVC_E_BUSY, NULL, "%u loads are under way", LOADS_MAX);
    entry->used = true;
    entry->id = 0;
    entry->copied = 0;
    *ret = entry;
    return KVC_OK;
}

/* The state of all entries of a load together; *n is how many there are. */
static kvc_status look(const kvc_client *client, uint64_t id, uint32_t *n)
{
    kvc_status status = KVC_OK;

    *n = 0;
    for (uint32_t i = 0; i < LOADS_MAX; i++) {
        const struct load_entry *entry = client->loads.entries[i];
        kvc_status one;

        if (entry == NULL || !entry->used || entry->id != id)
            continue;
        ++*n;
        one = passed(client, entry);
        if (one != KVC_OK && status != KVC_E_DEADLINE)
            status = one;
    }
    return status;
}

/* All entries of a load are over; whether anything was not what the daemon said. */
static bool judge_all(kvc_client *client, uint64_t id, uint8_t *valid)
{
    bool mismatch = false;

    for (uint32_t i = 0; i < LOADS_MAX; i++) {
        struct load_entry *entry = client->loads.entries[i];

        if (entry != NULL && entry->used && entry->id == id && judge(client, entry, valid))
            mismatch = true;
    }
    return mismatch;
}

kvc_status loads_collect(kvc_client *client, uint64_t id, uint32_t ms, uint8_t *valid)
{
    const uint64_t deadline_us = rpc_deadline_us(ms);
    uint32_t n = 0;
    kvc_status status = look(client, id, &n);

    while (status == KVC_E_DEADLINE && (ms == LOADS_NO_LIMIT || rpc_now_us() < deadline_us)) {
        usleep(LOOK_US);
        status = look(client, id, &n);
    }
    if (status == KVC_E_DEADLINE)
        return rpc_fail(&client->rpc, status, "load", "not over yet");
    if (status != KVC_OK) {
        loads_forget(client, id);
        return rpc_fail(&client->rpc, status, NULL, "a copy failed");
    }
    if (judge_all(client, id, valid))
        return rpc_fail(&client->rpc, KVC_E_CHECKSUM, "blocks", "bytes are not the saved ones");
    return KVC_OK;
}

void loads_judge_rest(kvc_client *client, uint64_t id, uint8_t *valid)
{
    uint32_t n = 0;
    kvc_status status = look(client, id, &n);

    while (status == KVC_E_DEADLINE) {
        usleep(LOOK_US);
        status = look(client, id, &n);
    }
    if (status == KVC_OK)
        (void)judge_all(client, id, valid);
    else
        loads_forget(client, id);
}

void loads_forget(kvc_client *client, uint64_t id)
{
    for (uint32_t i = 0; i < LOADS_MAX; i++) {
        struct load_entry *entry = client->loads.entries[i];

        if (entry != NULL && entry->used && entry->id == id)
            entry->id = 0;
    }
}

kvc_status kvc_load_result(kvc_client *client, uint64_t load, uint32_t ms, uint8_t *valid)
{
    kvc_status status = client_enter(client);
    uint32_t n = 0;

    /* Without a connection the copies are what they are. */
    if (client == NULL || status == KVC_E_FORKED)
        return status;
    if (load == 0) /* it was over when kvc_load returned */
        return KVC_OK;
    (void)look(client, load, &n);
    if (n == 0)
        return rpc_fail(&client->rpc, KVC_E_UNKNOWN, "load", "no such load, or not any more");
    return loads_collect(client, load, ms, valid);
}
