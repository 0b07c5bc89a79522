/* LOAD, REPORT, NUDGE. */
#include "daemon/api/session.h"

#include "daemon/api/scratch.h"
#include "daemon/api/transfer.h"

static kvc_status check_load(const struct session *s, const struct msg_load *load,
                             struct refusal *why)
{
    kvc_status status = transfer_check_gate(s, &load->gate, load->region != 0, why);

    if (status != KVC_OK)
        return status;
    if (load->region == 0 && load->blocks.n > 0)
        return refuse(why, KVC_E_INVALID, "blocks of no region", "blocks");
    if (load->region == 0 && load->sums.n > 0)
        return refuse(why, KVC_E_INVALID, "who copies adds them up", "sums");
    if (load->count > KVC_KEYS_MAX)
        return refuse(why, KVC_E_LIMIT, "more blocks than a request may have", "count");
    return KVC_OK;
}

kvc_status load_load(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_load *load = &request->load;
    struct save_scratch *scratch = s->api->scratch;
    const struct store_load req = transfer_load_of(load);
    struct msg_load_reply reply = {
        .tiers = scratch->tiers,
        .offsets = scratch->offsets,
        .generations = scratch->generations,
        .checksums = scratch->checksums,
        .checked = scratch->checked,
        .n = load->count,
    };
    kvc_status status = check_load(s, load, why);

    if (status == KVC_OK && load->region != 0)
        return transfer_load(s, request, why);
    if (status == KVC_OK)
        status = store_load(s->api->store, s->owner, &req, scratch->locations, &reply.word,
                            &reply.number, why);
    if (status != KVC_OK)
        return status;
    for (uint32_t i = 0; i < load->count; i++) {
        const struct store_location *at = &scratch->locations[i];

        scratch->tiers[i] = at->tier;
        scratch->offsets[i] = at->offset;
        scratch->generations[i] = at->generation;
        scratch->checksums[i] = at->checksum;
        scratch->checked[i] = at->checked;
    }
    session_reply(s, WIRE_LOAD, request->seq, codec_load(s->api->codec, &reply));
    return KVC_OK;
}

const uint8_t *load_key_at(const struct api *api, enum tier_kind tier, uint64_t offset)
{
    const struct table *table = store_table(api->store);
    const struct table_tier *t = &table_header(table)->tiers[tier];
    const struct table_extent *extent;
    uint64_t inside;

    if (offset >= t->bytes)
        return NULL;
    extent = table_extent(table, tier, (uint32_t)(offset / t->extent_bytes));
    inside = offset % t->extent_bytes;
    if (extent->state != EXTENT_OWNED || extent->slot_bytes == 0 ||
        inside % extent->slot_bytes != 0)
        return NULL;
    return table_slot(table, tier,
                      (uint32_t)(offset / t->extent_bytes) * t->slots_per_extent +
                          (uint32_t)(inside / extent->slot_bytes))
        ->key;
}

kvc_status load_report(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_report *report = &request->report;
    const uint8_t *key = report->key.data;

    if (report->tier >= TIER_COUNT)
        return refuse(why, KVC_E_INVALID, "no such tier", "tier");
    if (report->key.len == 0)
        key = load_key_at(s->api, (enum tier_kind)report->tier, report->offset);
    else if (report->key.len != KVC_KEY_BYTES)
        return refuse(why, KVC_E_INVALID, "not 16 bytes", "key");
    if (key == NULL)
        return refuse(why, KVC_E_UNKNOWN, "no slot begins there", "offset");
    store_report(s->api->store, s->owner, report->part, key, (enum tier_kind)report->tier,
                 report->generation);
    return KVC_OK;
}

kvc_status load_nudge(struct session *s, const struct request *request, struct refusal *why)
{
    (void)request;
    (void)why;
    store_nudge(s->api->store, s->owner);
    return KVC_OK;
}
