/* Loads by the daemon: what is scattered is judged here, and answered when the last chunk has
 * ended. */
#include <string.h>

#include "daemon/api/memory.h"
#include "daemon/api/scratch.h"
#include "daemon/api/transfer_internal.h"

void transfer_judge_loaded(struct transfer *t, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        const struct loaded *loaded = &t->loaded[i];

        t->cells[i] += loaded->sum;
        t->valid[i] = !t->compares || !loaded->checked || loaded->checksum == t->cells[i];
        if (t->valid[i])
            continue;
        store_report(t->session->api->store, t->session->owner, t->part, loaded->key,
                     (enum tier_kind)t->blocks[i].tier, loaded->generation);
        if (t->status == KVC_OK)
            t->status = KVC_E_CHECKSUM;
    }
}

void transfer_reply_load(struct transfer *t)
{
    struct api *api = t->session->api;
    struct msg_load_reply reply = {
        .valid = t->valid,
        .n_valid = t->n_blocks,
        .sums = t->cells,
        .n_sums = t->has_sums ? t->n_blocks : 0,
        .status = t->status,
    };
    struct msg_outcome outcome = {.status = t->status};

    session_reply(t->session, WIRE_LOAD, t->seq, codec_load(api->codec, &reply));
    if (t->aborted)
        session_reply(t->session, WIRE_ABORT, t->abort_seq, codec_abort(api->codec, &outcome));
}

static kvc_status check_load(const struct session *s, const struct msg_load *load,
                             const struct table_layout *layout, struct refusal *why)
{
    if (s->n_loads >= KVC_SESSION_LOADS_MAX)
        return refuse(why, KVC_E_BUSY, "too many loads have not ended", "%s", "");
    if (layout == NULL)
        return refuse(why, KVC_E_UNKNOWN, "not registered by this session", "part");
    if (load->count > KVC_KEYS_MAX)
        return refuse(why, KVC_E_LIMIT, "more blocks than a request may have", "count");
    if (load->blocks.n != load->count)
        return refuse(why, KVC_E_INVALID, "not one a block of the lease", "blocks");
    if (load->sums.n != load->count && load->sums.n != 0)
        return refuse(why, KVC_E_INVALID, "not one a block of the lease", "sums");
    if (load->first_slice >= layout->n_slices ||
        load->slices > layout->n_slices - load->first_slice)
        return refuse(why, KVC_E_INVALID, "not slices of the layout", "slices");
    return KVC_OK;
}

/* Of one block, in the slices that are loaded. */
static uint64_t count_bytes(const struct msg_load *load, const struct table_layout *layout)
{
    const uint32_t end = load->slices ? load->first_slice + load->slices : layout->n_slices;
    uint64_t bytes = 0;

    for (uint32_t s = load->first_slice; s < end; s++)
        bytes += layout->slice_bytes[s];
    return bytes;
}

static uint32_t count_loads(uint32_t n_blocks, uint64_t block_bytes)
{
    struct pack_cut cut = {0};
    uint32_t chunks = 0;

    for (uint32_t i = 0; i < n_blocks; i++)
        chunks += pack_cut_next(&cut, block_bytes);
    return chunks;
}

static void cut_load(struct transfer *t, uint64_t block_bytes)
{
    struct pack_cut cut = {0};

    for (uint32_t i = 0; i < t->n_blocks; i++) {
        if (pack_cut_next(&cut, block_bytes))
            t->chunks[t->n_chunks++].first = i;
        t->chunks[t->n_chunks - 1].job.n_blocks++;
    }
}

static void describe_blocks(struct transfer *t, const struct msg_load *load,
                            const struct store_location *locations)
{
    for (uint32_t i = 0; i < t->n_blocks; i++) {
        const struct store_location *at = &locations[i];

        t->blocks[i] = (struct copier_block){
            .region = t->memories[0]->region,
            .offset = at->offset,
            .id = load->blocks.values[i],
            .first_slice = (uint16_t)load->first_slice,
            .n_slices = (uint16_t)load->slices,
            .tier = at->tier,
        };
        t->loaded[i] = (struct loaded){
            .checksum = at->checksum,
            .sum = t->has_sums ? load->sums.values[i] : 0,
            .generation = at->generation,
            .checked = at->checked,
        };
        memcpy(t->loaded[i].key, load_key_at(t->session->api, (enum tier_kind)at->tier, at->offset),
               KVC_KEY_BYTES);
    }
}

struct store_load transfer_load_of(const struct msg_load *load)
{
    return (struct store_load){
        .lease = load->lease,
        .part = load->part,
        .epoch = load->epoch,
        .first = load->first,
        .count = load->count,
        .first_slice = load->first_slice,
        .n_slices = load->slices,
        .release = load->release,
    };
}

kvc_status transfer_load(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_load *load = &request->load;
    const struct table_layout *layout = store_owner_layout(s->api->store, s->owner, load->part);
    struct store_location *locations = s->api->scratch->locations;
    const struct store_load req = transfer_load_of(load);
    struct transfer *t;
    uint64_t bytes;
    kvc_status status = check_load(s, load, layout, why);

    if (status != KVC_OK)
        return status;
    bytes = count_bytes(load, layout);
    t = transfer_make(s, COPIER_SCATTER, load->count, count_loads(load->count, bytes));
    if (t == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    status = memory_use(s, load->region, load->part, &t->memories[0], why, "region");
    if (status == KVC_OK) {
        t->n_memories = 1;
        status = memory_check_blocks(t->memories[0], load->blocks, true, why, "");
    }
    transfer_take_gate(t, &load->gate);
    if (status == KVC_OK)
        status = store_load_by_daemon(s->api->store, s->owner, &req, locations, &t->load, why);
    if (status != KVC_OK) {
        transfer_release(t);
        return status;
    }
    t->summed = true;
    t->part = load->part;
    t->seq = request->seq;
    t->n_blocks = load->count;
    t->has_sums = load->sums.n > 0;
    t->compares = bytes == layout->block_bytes ||
                  (t->has_sums &&
                   (load->slices == 0 || load->first_slice + load->slices == layout->n_slices));
    describe_blocks(t, load, locations);
    cut_load(t, bytes);
    s->n_loads++;
    transfer_start_chunks(t);
    return KVC_OK;
}

bool transfer_cancel_load(struct session *s, uint32_t load_seq, uint32_t abort_seq)
{
    struct transfer *t;

    list_for_each(t, &s->transfers, link) {
        if (t->way != COPIER_SCATTER || t->seq != load_seq || t->aborted)
            continue;
        t->aborted = true;
        t->abort_seq = abort_seq;
        if (t->status == KVC_OK)
            t->status = KVC_E_CANCELLED;
        transfer_drop_waiting(t);
        transfer_settle(t);
        return true;
    }
    return false;
}
