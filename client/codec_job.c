/* Bodies of what goes on for a while. */
#include "client/admin.h"
#include "client/codec_bits.h"

#define FIRST_DRAIN 8u /* the last field that every daemon knows */

kvc_status codec_put_drain(uint32_t action, uint8_t *body, size_t *len)
{
    Kvcache__Drain message = KVCACHE__DRAIN__INIT;

    message.action = (Kvcache__Action)action;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_drain_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct admin_drain *drain)
{
    Kvcache__DrainReply *message;

    message = codec_unpack_body(scratch, &kvcache__drain_reply__descriptor, packet);
    if (message == NULL)
        return false;
    codec_mark_unknown(&message->base, message->known, FIRST_DRAIN);
    *drain = (struct admin_drain){
        .draining = message->draining,
        .drained = message->drained,
        .filling_slots = message->filling_slots,
        .open_loads = message->open_loads,
        .leases = message->leases,
        .moving_blocks = message->moving_blocks,
        .sessions = message->sessions,
        .quarantined_slots = message->quarantined_slots,
        .fetches = message->fetches,
    };
    return true;
}

kvc_status codec_put_verify(uint32_t action, uint64_t bytes_per_s, uint8_t *body, size_t *len)
{
    Kvcache__Verify message = KVCACHE__VERIFY__INIT;

    message.action = (Kvcache__Action)action;
    message.bytes_per_s = bytes_per_s;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_verify_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            struct admin_verify *verify)
{
    const Kvcache__VerifyReply *message;

    message = codec_unpack_body(scratch, &kvcache__verify_reply__descriptor, packet);
    if (message == NULL)
        return false;
    *verify = (struct admin_verify){
        .running = message->running,
        .permille = message->permille,
        .checked = message->checked,
        .bad = message->bad,
        .unchecked = message->unchecked,
        .failed = message->failed,
        .bytes = message->bytes,
        .elapsed_us = message->elapsed_us,
    };
    return true;
}
