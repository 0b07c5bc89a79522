/* How saves ended, for those who wait. */
#include <string.h>

#include "client/client.h"

/* What the socket holds already still counts when the time is over; a flood does not. */
#define LATE_PACKETS 1024u

static void remove_at(struct saves *saves, uint32_t i)
{
    saves->n--;
    memmove(saves->entries + i, saves->entries + i + 1, (saves->n - i) * sizeof(saves->entries[0]));
}

/* Newest first: what is asked for is mostly young. */
static struct save_entry *find(struct saves *saves, uint64_t id)
{
    for (uint32_t i = saves->n; i > 0; i--)
        if (saves->entries[i - 1].id == id)
            return &saves->entries[i - 1];
    return NULL;
}

/* The daemon allows far fewer open saves than there are entries, so an ended one is there. */
void saves_add(struct saves *saves, uint64_t id)
{
    uint32_t i = 0;

    if (saves->n == SAVES_MAX) {
        while (i < saves->n - 1 && !saves->entries[i].ended)
            i++;
        remove_at(saves, i);
    }
    saves->entries[saves->n++] = (struct save_entry){.id = id, .calls = 1};
}

uint32_t *saves_calls(struct saves *saves, uint64_t id)
{
    struct save_entry *entry = find(saves, id);

    return entry == NULL || entry->ended ? NULL : &entry->calls;
}

void saves_end(struct saves *saves, uint64_t id, const kvc_outcome *outcome)
{
    struct save_entry *entry = find(saves, id);

    if (entry == NULL || entry->ended)
        return;
    entry->ended = true;
    entry->outcome = *outcome;
}

void saves_end_all(struct saves *saves, kvc_status status)
{
    const kvc_outcome outcome = {.status = status};

    for (uint32_t i = 0; i < saves->n; i++)
        if (!saves->entries[i].ended)
            saves_end(saves, saves->entries[i].id, &outcome);
}

/* The outcome of a save that has ended, once. */
static bool collect(struct saves *saves, uint64_t id, kvc_outcome *outcome)
{
    struct save_entry *entry = find(saves, id);

    if (entry == NULL || !entry->ended)
        return false;
    if (outcome != NULL)
        *outcome = entry->outcome;
    remove_at(saves, (uint32_t)(entry - saves->entries));
    return true;
}

/*
 * What both calls begin with. A broken connection ends every save; how this one ended can still be
 * told. KVC_OK: it is known.
 */
static kvc_status enter_known(kvc_client *client, uint64_t save)
{
    kvc_status status = client_enter(client);

    if (client == NULL || status == KVC_E_FORKED)
        return status;
    if (status != KVC_OK)
        saves_end_all(&client->saves, KVC_E_DISCONNECTED);
    if (find(&client->saves, save) != NULL)
        return KVC_OK;
    if (status != KVC_OK)
        return status;
    return rpc_fail(&client->rpc, KVC_E_UNKNOWN, "save", "no such save, or waited for already");
}

kvc_status kvc_wait(kvc_client *client, uint64_t save, uint32_t ms, kvc_outcome *outcome)
{
    kvc_status status = enter_known(client, save);
    uint64_t deadline_us;
    uint32_t late = 0; /* packets that came when the time was over */

    if (status != KVC_OK)
        return status;
    deadline_us = ms != 0 ? rpc_deadline_us(ms) : RPC_NO_WAIT;
    while (!collect(&client->saves, save, outcome)) {
        status = rpc_pump(&client->rpc, deadline_us);
        late = rpc_now_us() < deadline_us ? 0 : late;
        if (client->rpc.broken != KVC_OK)
            saves_end_all(&client->saves, KVC_E_DISCONNECTED);
        if (status == KVC_E_DEADLINE || (status == KVC_OK && ++late > LATE_PACKETS))
            return rpc_fail(&client->rpc, KVC_E_DEADLINE, "save", "it has not ended yet");
    }
    return KVC_OK;
}

kvc_status kvc_cancel(kvc_client *client, uint64_t save, uint32_t ms, kvc_outcome *outcome)
{
    const struct codec_abort abort = {.save = save};
    struct call call = {.type = WIRE_ABORT, .arg = save};
    struct codec_outcome got;
    struct wire_packet packet;
    kvc_status status = enter_known(client, save);
    const struct save_entry *known;

    if (status != KVC_OK)
        return status;
    if (SAVE_IS_UNNAMED(save)) /* its cancellation is under way */
        return kvc_wait(client, save, ms, outcome);
    known = find(&client->saves, save);
    if (known != NULL && !known->ended) {
        status = codec_put_abort(&abort, client->rpc.body, &call.len);
        status = client_call(client, &call, status, ms, &packet);
        if (status == KVC_OK && !codec_get_abort_reply(&client->scratch, &packet, &got))
            status = client_distrust(client, "AbortReply", "malformed");
        if (client->rpc.broken != KVC_OK)
            saves_end_all(&client->saves, KVC_E_DISCONNECTED);
        if (status == KVC_OK || status == KVC_E_UNKNOWN) {
            const kvc_outcome ended =
                status == KVC_OK ? (kvc_outcome){(kvc_status)got.status, got.published, got.dropped}
                                 : (kvc_outcome){.status = status};

            saves_end(&client->saves, save, &ended);
        }
    }
    return collect(&client->saves, save, outcome) ? KVC_OK : status;
}
