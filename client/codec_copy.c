/* Bodies of saves and loads. */
#include "client/codec_bits.h"

kvc_status codec_put_load(const struct codec_load *load, uint8_t *body, size_t *len)
{
    Kvcache__Load message = KVCACHE__LOAD__INIT;

    message.lease = load->lease;
    message.part = load->part;
    message.epoch = load->epoch;
    message.first = load->first;
    message.count = load->count;
    message.first_slice = load->first_slice;
    message.slices = load->n_slices;
    message.region = load->region;
    message.n_blocks = load->region != 0 ? load->count : 0;
    message.blocks = (uint32_t *)load->blocks;
    message.gate = load->gate;
    message.gate_number = load->gate_number;
    message.n_sums = load->sums != NULL ? load->count : 0;
    message.sums = (uint64_t *)load->sums;
    message.release = load->release;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_load_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                          struct codec_load_reply *reply)
{
    Kvcache__LoadReply *message;
    size_t n;

    message = codec_unpack_body(scratch, &kvcache__load_reply__descriptor, packet);
    if (message == NULL)
        return false;
    n = message->tiers.len;
    if (message->n_offsets != n || message->n_generations != n || message->n_checksums != n ||
        message->checked.len != n)
        return false;
    reply->word = message->word;
    reply->number = message->number;
    reply->count = (uint32_t)n;
    reply->tiers = message->tiers.data;
    reply->checked = message->checked.data;
    reply->offsets = message->offsets;
    reply->checksums = message->checksums;
    reply->generations = message->generations;
    reply->n_valid = (uint32_t)message->valid.len;
    reply->valid = message->valid.data;
    reply->n_sums = (uint32_t)message->n_sums;
    reply->sums = message->sums;
    reply->status = message->status;
    return true;
}

kvc_status codec_put_report(const struct codec_report *report, uint8_t *body, size_t *len)
{
    Kvcache__Report message = KVCACHE__REPORT__INIT;

    message.part = report->part;
    message.generation = report->generation;
    message.tier = (Kvcache__Tier)report->tier;
    message.offset = report->offset;
    return codec_pack_body(&message.base, body, len);
}

kvc_status codec_put_save(const struct codec_save *save, const struct codec_save_entry *entries,
                          uint32_t n_entries, uint8_t *body, size_t *len)
{
    Kvcache__Save message = KVCACHE__SAVE__INIT;
    Kvcache__SaveEntry list[KVC_ENTRIES_MAX], *pointers[KVC_ENTRIES_MAX];

    for (uint32_t i = 0; i < n_entries; i++) {
        list[i] = (Kvcache__SaveEntry)KVCACHE__SAVE_ENTRY__INIT;
        list[i].part = entries[i].part;
        list[i].epoch = entries[i].epoch;
        list[i].keys = codec_bytes(entries[i].keys, (size_t)entries[i].n_keys * KVC_KEY_BYTES);
        list[i].first_slice = entries[i].first_slice;
        list[i].slices = entries[i].n_slices;
        list[i].region = entries[i].region;
        list[i].n_blocks = entries[i].region != 0 ? entries[i].n_keys : 0;
        list[i].blocks = (uint32_t *)entries[i].blocks;
        pointers[i] = &list[i];
    }
    message.n_entries = n_entries;
    message.entries = pointers;
    message.save = save->save;
    message.checksums = save->checksums;
    message.notify = save->notify;
    message.to_host = save->to_host;
    message.no_wait = save->no_wait;
    message.gate = save->gate;
    message.gate_number = save->gate_number;
    return codec_pack_body(&message.base, body, len);
}

static bool get_entry(const Kvcache__SaveEntryReply *message, struct codec_save_entry_reply *entry)
{
    const size_t n = message->tiers.len;

    if (message->n_offsets != n || message->n_generations != n)
        return false;
    entry->n_states = (uint32_t)message->states.len;
    entry->states = message->states.data;
    entry->n_assigned = (uint32_t)n;
    entry->tiers = message->tiers.data;
    entry->offsets = message->offsets;
    return true;
}

bool codec_get_save_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                          struct codec_save_reply *reply)
{
    Kvcache__SaveReply *message;

    message = codec_unpack_body(scratch, &kvcache__save_reply__descriptor, packet);
    if (message == NULL || message->n_entries > KVC_ENTRIES_MAX ||
        message->n_chunk_words != message->n_chunk_blocks ||
        message->n_chunk_numbers != message->n_chunk_blocks)
        return false;
    reply->save = message->save;
    reply->n_entries = (uint32_t)message->n_entries;
    for (uint32_t i = 0; i < reply->n_entries; i++)
        if (!get_entry(message->entries[i], &reply->entries[i]))
            return false;
    reply->n_chunks = (uint32_t)message->n_chunk_blocks;
    reply->chunk_blocks = message->chunk_blocks;
    reply->chunk_words = message->chunk_words;
    reply->chunk_numbers = message->chunk_numbers;
    return true;
}

kvc_status codec_put_abort(const struct codec_abort *abort, uint8_t *body, size_t *len)
{
    Kvcache__Abort message = KVCACHE__ABORT__INIT;

    message.save = abort->save;
    message.request = abort->request;
    message.n_never = abort->n_never;
    message.never = (uint32_t *)abort->never;
    message.never_all = abort->never_all;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_abort_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct codec_outcome *outcome)
{
    Kvcache__AbortReply *message;

    message = codec_unpack_body(scratch, &kvcache__abort_reply__descriptor, packet);
    if (message == NULL)
        return false;
    *outcome = (struct codec_outcome){0, message->status, message->published, message->dropped};
    return true;
}

bool codec_get_save_done(struct codec_scratch *scratch, const struct wire_packet *packet,
                         struct codec_outcome *outcome)
{
    Kvcache__SaveDone *message =
        codec_unpack_body(scratch, &kvcache__save_done__descriptor, packet);

    if (message == NULL)
        return false;
    *outcome = (struct codec_outcome){message->save, message->status, message->published,
                                      message->dropped};
    return true;
}
