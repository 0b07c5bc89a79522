/* Saves: asking for slots, and giving up what does not get there. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/save_copy.h"

static kvc_status refuse_entry(kvc_client *client, kvc_status status, uint32_t entry,
                               const char *field, const char *detail)
{
    return rpc_fail(&client->rpc, status, NULL, "entries[%u].%s: %s", entry, field, detail);
}

static kvc_status check_slices(kvc_client *client, const kvc_save_args *args,
                               const struct part *part)
{
    if (args->first_slice < part->layout.n_slices &&
        args->n_slices <= part->layout.n_slices - args->first_slice)
        return KVC_OK;
    return rpc_fail(&client->rpc, KVC_E_INVALID, "slices", "%u from %u on, the part has %u",
                    args->n_slices, args->first_slice, part->layout.n_slices);
}

static kvc_status check_entry(kvc_client *client, const kvc_save_entry *entry, uint32_t i,
                              struct part **part)
{
    *part = part_of(client, entry->part);
    if (*part == NULL)
        return refuse_entry(client, KVC_E_UNKNOWN, i, "part", "not registered");
    if (entry->n_keys == 0)
        return KVC_OK;
    if (entry->keys == NULL || entry->blocks == NULL)
        return refuse_entry(client, KVC_E_INVALID, i, entry->keys == NULL ? "keys" : "blocks",
                            "NULL");
    if (!(*part)->has_memory)
        return refuse_entry(client, KVC_E_INVALID, i, "part", "it has no memory to save from");
    for (uint32_t k = 0; k < entry->n_keys; k++)
        if (entry->blocks[k] >= (*part)->n_blocks)
            return rpc_fail(&client->rpc, KVC_E_INVALID, NULL,
                            "entries[%u].blocks[%u]: %u, the part has %u", i, k, entry->blocks[k],
                            (*part)->n_blocks);
    return KVC_OK;
}

static kvc_status check_args(kvc_client *client, struct saving *saving, uint32_t *n_keys)
{
    const kvc_save_args *args = saving->args;
    uint64_t total = 0;
    kvc_status status = KVC_OK;

    if (client->role != KVC_ROLE_WORKER)
        return rpc_fail(&client->rpc, KVC_E_DENIED, "role", "only workers save");
    if (args == NULL || (args->entries == NULL && args->n_entries > 0))
        return rpc_fail(&client->rpc, KVC_E_INVALID, "entries", "NULL");
    if (args->n_entries > KVC_ENTRIES_MAX)
        return rpc_fail(&client->rpc, KVC_E_LIMIT, "entries", "%u, at most %u", args->n_entries,
                        KVC_ENTRIES_MAX);
    for (uint32_t i = 0; i < args->n_entries && status == KVC_OK; i++) {
        status = check_entry(client, &args->entries[i], i, &saving->parts[i]);
        if (status == KVC_OK)
            status = check_slices(client, args, saving->parts[i]);
        total += args->entries[i].n_keys;
    }
    for (uint32_t i = 0; i < args->n_entries && status == KVC_OK; i++) {
        saving->by_daemon = saving->parts[0]->lent != NULL;
        if ((saving->parts[i]->lent != NULL) != saving->by_daemon)
            status =
                refuse_entry(client, KVC_E_INVALID, i, "part", "not copied as the first one is");
    }
    if (status == KVC_OK && total > client->keys_max)
        return rpc_fail(&client->rpc, KVC_E_LIMIT, "keys", "%llu, at most %u",
                        (unsigned long long)total, client->keys_max);
    *n_keys = (uint32_t)total;
    return status;
}

/* Ends a save that somebody may wait for; the answer is how it has ended. */
static kvc_status abort_known(kvc_client *client, const struct codec_abort *abort)
{
    size_t len = 0;
    kvc_status status = codec_put_abort(abort, client->rpc.body, &len);

    if (status != KVC_OK)
        return status;
    return rpc_post(&client->rpc, WIRE_ABORT, client->rpc.body, len, abort->save);
}

/*
 * The save whose answer was not awaited: nothing of it was enqueued, nor will be. One that began
 * with other slices ends with these, also if they were refused.
 */
static void abort_request(kvc_client *client, const struct saving *saving, uint32_t seq)
{
    const struct codec_abort abort = {.request = seq, .never_all = true};
    const struct codec_abort begun = {.save = saving->args->more_of};
    size_t len = 0;

    if (seq != 0 && codec_put_abort(&abort, client->rpc.body, &len) == KVC_OK)
        (void)rpc_tell(&client->rpc, WIRE_ABORT, client->rpc.body, len);
    if (begun.save != 0)
        (void)abort_known(client, &begun);
}

/*
 * The same for a save by the daemon, of which a copy may run. A session that cannot be told must
 * end: what the daemon copies for it is then not published.
 */
static void abort_by_daemon(kvc_client *client, const struct saving *saving, uint32_t seq,
                            uint64_t *save)
{
    const struct codec_abort begun = {.save = saving->args->more_of}, abort = {.request = seq};
    size_t len = 0;
    kvc_status status;

    assert(save != NULL);
    if (begun.save == 0 && seq == 0)
        return;
    if (begun.save != 0) {
        status = abort_known(client, &begun);
    } else {
        status = codec_put_abort(&abort, client->rpc.body, &len);
        if (status == KVC_OK)
            status = rpc_post(&client->rpc, WIRE_ABORT, client->rpc.body, len, SAVE_UNNAMED(seq));
    }
    if (status != KVC_OK) {
        rpc_break(&client->rpc, KVC_E_DISCONNECTED, NULL, "a late save cannot be given up");
    } else if (begun.save == 0) {
        *save = SAVE_UNNAMED(seq);
        saves_add(&client->saves, *save);
    }
}

static kvc_status ask(kvc_client *client, struct saving *saving, uint64_t *save)
{
    const kvc_save_args *args = saving->args;
    struct codec_save_entry entries[KVC_ENTRIES_MAX];
    struct copy_gate gate;
    struct codec_save request = {.save = args->more_of,
                                 .checksums = !args->no_checksums,
                                 .notify = save != NULL,
                                 .to_host = args->to_host != 0,
                                 .no_wait = args->no_wait != 0};
    struct call call = {.type = WIRE_SAVE};
    struct wire_packet packet;
    kvc_status status;

    for (uint32_t i = 0; i < args->n_entries; i++)
        entries[i] = (struct codec_save_entry){
            .part = saving->parts[i]->id,
            .epoch = saving->parts[i]->epoch,
            .keys = args->entries[i].keys,
            .n_keys = args->entries[i].n_keys,
            .first_slice = args->first_slice,
            .n_slices = args->n_slices,
            .region = saving->by_daemon ? saving->parts[i]->lent->region : 0,
            .blocks = args->entries[i].blocks,
        };
    if (saving->by_daemon) {
        status = client->copy->write_gate(client->cuda, args->stream, &gate);
        if (status != KVC_OK)
            return client_refuse_stream(client, status);
        request.gate = gate.index;
        request.gate_number = gate.number;
    }
    status = codec_put_save(&request, entries, args->n_entries, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->save_ms, &packet);
    if (status == KVC_E_DEADLINE && saving->by_daemon)
        abort_by_daemon(client, saving, call.seq, save);
    else if (status == KVC_E_DEADLINE)
        abort_request(client, saving, call.seq);
    if (status != KVC_OK)
        return status;
    if (!codec_get_save_reply(&client->scratch, &packet, &saving->reply))
        return client_distrust(client, "SaveReply", "malformed");
    return KVC_OK;
}

/* Nothing is copied before the whole reply is known to stay inside what is mapped. */
static const char *judge_entry(const kvc_client *client, const struct saving *saving, uint32_t i)
{
    const struct codec_save_entry_reply *reply = &saving->reply.entries[i];
    uint32_t assigned = 0;

    if (reply->n_states != saving->args->entries[i].n_keys)
        return "another number of keys";
    for (uint32_t k = 0; k < reply->n_states; k++) {
        if (reply->states[k] > KVC_KEY_SKIPPED)
            return "no such state";
        assigned += reply->states[k] == KVC_KEY_SAVED;
    }
    if (reply->n_assigned != (saving->by_daemon ? 0 : assigned))
        return "another number of locations";
    if (saving->by_daemon)
        return NULL;
    for (uint32_t k = 0; k < assigned; k++)
        if (map_at(&client->map, reply->tiers[k], reply->offsets[k],
                   saving->parts[i]->layout.slot_bytes) == NULL)
            return "not in a mapped extent";
    return NULL;
}

static const char *judge_chunks(const kvc_client *client, const struct codec_save_reply *reply,
                                uint64_t assigned)
{
    uint64_t blocks = 0;

    for (uint32_t i = 0; i < reply->n_chunks; i++) {
        if (reply->chunk_blocks[i] == 0 || reply->chunk_blocks[i] > KVC_CHUNK_BLOCKS)
            return "a chunk of no blocks, or too many";
        if (map_word(&client->map, reply->chunk_words[i]) == NULL || reply->chunk_numbers[i] == 0)
            return "no such word or number";
        blocks += reply->chunk_blocks[i];
    }
    if (blocks != assigned)
        return "chunks of another number of blocks";
    return assigned > 0 && reply->save == 0 ? "no save" : NULL;
}

static kvc_status check_reply(kvc_client *client, const struct saving *saving)
{
    uint64_t assigned = 0;
    const char *wrong = NULL;

    if (saving->reply.n_entries != saving->args->n_entries)
        return client_distrust(client, "SaveReply.entries", "another number of them");
    for (uint32_t i = 0; i < saving->reply.n_entries; i++) {
        wrong = judge_entry(client, saving, i);
        if (wrong != NULL)
            return client_distrust(client, "SaveReply.entries", wrong);
        assigned += saving->reply.entries[i].n_assigned;
    }
    if (!saving->by_daemon)
        wrong = judge_chunks(client, &saving->reply, assigned);
    else if (saving->reply.n_chunks > 0)
        wrong = "chunks of a save that the daemon copies";
    return wrong != NULL ? client_distrust(client, "SaveReply.chunks", wrong) : KVC_OK;
}

/*
 * Gives up from `chunk` on: no word of those will ever be written. Chunks are counted through all
 * calls of a save.
 */
static void abort_rest(kvc_client *client, const struct saving *saving, uint32_t chunk)
{
    const struct codec_save_reply *reply = &saving->reply;
    uint32_t never[KVC_KEYS_MAX];
    struct codec_abort abort = {.save = reply->save, .never = never};
    size_t len = 0;

    for (uint32_t i = chunk; i < reply->n_chunks && abort.n_never < KVC_KEYS_MAX; i++)
        never[abort.n_never++] = saving->calls * reply->n_chunks + i;
    if (saving->args->more_of != 0)
        (void)abort_known(client, &abort);
    else if (codec_put_abort(&abort, client->rpc.body, &len) == KVC_OK)
        (void)rpc_tell(&client->rpc, WIRE_ABORT, client->rpc.body, len);
}

static kvc_status copy_all(kvc_client *client, const struct saving *saving)
{
    uint32_t first_never = 0;
    kvc_status status = save_copy(client, saving, &first_never);

    if (status != KVC_OK)
        abort_rest(client, saving, first_never);
    return status;
}

/* The save may have ended by now; what its chunks are counted by then matters no more. */
static kvc_status count_call(kvc_client *client, const struct saving *saving)
{
    uint32_t *calls = saves_calls(&client->saves, saving->args->more_of);

    if (saving->args->more_of != 0 && saving->reply.save != saving->args->more_of)
        return client_distrust(client, "SaveReply.save", "not the one that was named");
    if (calls != NULL)
        ++*calls;
    return KVC_OK;
}

static kvc_status ask_and_check(kvc_client *client, struct saving *saving, uint64_t *save)
{
    kvc_status status = ask(client, saving, save);

    if (status == KVC_OK)
        status = check_reply(client, saving);
    return status == KVC_OK ? count_call(client, saving) : status;
}

static kvc_status save_keys(kvc_client *client, struct saving *saving, uint64_t *save)
{
    kvc_status status = client->copy->begin(client->cuda, saving->args->stream);

    if (status != KVC_OK)
        return client_refuse_stream(client, status);
    status = ask_and_check(client, saving, save);
    if (status == KVC_OK)
        status = copy_all(client, saving);
    client->copy->end(client->cuda, saving->args->stream);
    return status;
}

static void tell_states(const struct saving *saving)
{
    for (uint32_t i = 0; i < saving->reply.n_entries; i++)
        if (saving->args->entries[i].states != NULL && saving->reply.entries[i].n_states > 0)
            memcpy(saving->args->entries[i].states, saving->reply.entries[i].states,
                   saving->reply.entries[i].n_states);
}

/* A save by slices must be known: its first call to the caller, the others here. */
static kvc_status begin_slices(kvc_client *client, struct saving *saving, const uint64_t *save)
{
    const kvc_save_args *args = saving->args;
    const uint32_t *calls;

    if (args->more_of == 0) {
        for (uint32_t i = 0; i < args->n_entries && save == NULL; i++)
            if (save_slices(args, saving->parts[i]) != saving->parts[i]->layout.n_slices)
                return rpc_fail(&client->rpc, KVC_E_INVALID, "save",
                                "NULL, and more slices are to come");
        return KVC_OK;
    }
    calls = saves_calls(&client->saves, args->more_of);
    if (calls == NULL)
        return rpc_fail(&client->rpc, KVC_E_UNKNOWN, "more_of", "that save has ended");
    saving->calls = *calls;
    return KVC_OK;
}

kvc_status save_present(kvc_client *client, const kvc_save_args *args, uint64_t *save)
{
    struct saving saving = {.args = args};
    uint32_t n_keys = 0;
    kvc_status status = client_enter(client);

    if (status == KVC_OK)
        status = check_args(client, &saving, &n_keys);
    if (status != KVC_OK)
        return status;
    if (client->stopping)
        return rpc_fail(&client->rpc, KVC_E_STOPPING, NULL, "the daemon is shutting down");
    if (saving.by_daemon && save == NULL)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "save", "NULL, and the daemon copies");
    if (saving.by_daemon) /* what has begun is still to be waited for, whatever becomes of this */
        *save = args->more_of;
    status = begin_slices(client, &saving, save);
    if (status != KVC_OK)
        return status;
    if (n_keys > 0)
        status = saving.by_daemon ? ask_and_check(client, &saving, save)
                                  : save_keys(client, &saving, save);
    if (status != KVC_OK)
        return status;
    tell_states(&saving);
    if (save == NULL)
        return KVC_OK;
    /* Who waits for the end is told at once. Lookups look at the words by themselves. */
    if (saving.reply.n_chunks > 0)
        rpc_hint(&client->rpc, WIRE_NUDGE);
    *save = saving.by_daemon || saving.reply.n_chunks > 0 ? saving.reply.save : 0;
    if (*save != 0 && args->more_of == 0)
        saves_add(&client->saves, *save);
    return KVC_OK;
}
