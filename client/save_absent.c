/* Saves in which some keys have no block, being outside of their group's window. */
#include <stdlib.h>
#include <string.h>

#include "client/client.h"

/* Entries of the keys that have a block, in arrays of their own; those are one piece of memory. */
struct present {
    kvc_save_entry entries[KVC_ENTRIES_MAX];
    uint8_t *keys;
};

static uint64_t count_keys(const kvc_save_args *args, bool *absent)
{
    uint64_t n = 0;

    *absent = false;
    for (uint32_t e = 0; e < args->n_entries; e++)
        for (uint32_t k = 0; k < args->entries[e].n_keys && args->entries[e].blocks != NULL; k++) {
            *absent = *absent || args->entries[e].blocks[k] == KVC_NO_BLOCK;
            n++;
        }
    return n;
}

static bool take_present(const kvc_save_args *args, uint64_t n, struct present *present)
{
    uint8_t *keys = malloc(n * (KVC_KEY_BYTES + sizeof(uint32_t) + 1));
    uint32_t *blocks;
    uint8_t *states;

    if (keys == NULL)
        return false;
    blocks = (uint32_t *)(void *)(keys + n * KVC_KEY_BYTES);
    states = (uint8_t *)(blocks + n);
    present->keys = keys;
    for (uint32_t e = 0; e < args->n_entries; e++) {
        const kvc_save_entry *from = &args->entries[e];
        kvc_save_entry *to = &present->entries[e];

        *to =
            (kvc_save_entry){.part = from->part, .keys = keys, .blocks = blocks, .states = states};
        for (uint32_t k = 0; k < from->n_keys; k++) {
            if (from->blocks[k] == KVC_NO_BLOCK)
                continue;
            memcpy(keys, from->keys + (size_t)k * KVC_KEY_BYTES, KVC_KEY_BYTES);
            keys += KVC_KEY_BYTES;
            *blocks++ = from->blocks[k];
            to->n_keys++;
        }
        states += to->n_keys;
    }
    return true;
}

static void spread_states(const kvc_save_args *args, const struct present *present)
{
    for (uint32_t e = 0; e < args->n_entries; e++) {
        const kvc_save_entry *entry = &args->entries[e];
        const uint8_t *states = present->entries[e].states;

        for (uint32_t k = 0; entry->states != NULL && k < entry->n_keys; k++)
            entry->states[k] =
                entry->blocks[k] == KVC_NO_BLOCK ? (uint8_t)KVC_KEY_SKIPPED : *states++;
    }
}

kvc_status kvc_save(kvc_client *client, const kvc_save_args *args, uint64_t *save)
{
    struct present present;
    kvc_save_args some;
    bool absent = false;
    uint64_t n = 0;
    kvc_status status;

    if (args != NULL && args->entries != NULL && args->n_entries <= KVC_ENTRIES_MAX)
        n = count_keys(args, &absent);
    if (!absent)
        return save_present(client, args, save);
    for (uint32_t e = 0; e < args->n_entries; e++)
        if (args->entries[e].n_keys > 0 &&
            (args->entries[e].keys == NULL || args->entries[e].blocks == NULL))
            return save_present(client, args, save); /* refuses it */
    if (!take_present(args, n, &present))
        return rpc_fail(&client->rpc, KVC_E_NO_MEMORY, NULL, "no memory for a save");
    some = *args;
    some.entries = present.entries;
    status = save_present(client, &some, save);
    if (status == KVC_OK)
        spread_states(args, &present);
    free(present.keys);
    return status;
}
