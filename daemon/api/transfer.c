#include "daemon/api/transfer.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "daemon/api/memory.h"
#include "daemon/api/scratch.h"
#include "daemon/base/mem.h"
#include "daemon/tier/copier.h"

enum chunk_state { CHUNK_WAITS, CHUNK_STARTED, CHUNK_ENDED };

struct transfer_chunk {
    struct copier_job job;
    struct transfer *transfer;
    uint32_t first; /* of the transfer's blocks */
    enum chunk_state state;
};

/* What the store said of a block that is loaded. */
struct loaded {
    uint64_t checksum;
    uint32_t generation;
    bool checked;
    uint8_t key[KVC_KEY_BYTES];
};

struct transfer {
    struct list link; /* session::transfers */
    struct session *session;
    enum copier_way way;
    bool summed;
    uint32_t n_blocks, n_chunks, n_left; /* n_left: chunks that have not ended */
    struct copier_block *blocks;
    uint64_t *cells;
    struct transfer_chunk *chunks;
    uint32_t n_memories;
    struct memory *memories[KVC_ENTRIES_MAX]; /* each once a use */

    struct save *save;
    uint64_t save_id;

    struct load *load;
    uint32_t part, seq;
    bool aborted; /* by abort_seq, which is answered too */
    uint32_t abort_seq;
    struct loaded *loaded;
    uint8_t *valid;
    kvc_status status; /* the first failure */
};

static struct transfer *make(struct session *s, enum copier_way way, uint32_t n_blocks,
                             uint32_t n_chunks)
{
    const size_t chunks = n_chunks * sizeof(struct transfer_chunk);
    const size_t blocks = n_blocks * sizeof(struct copier_block);
    const size_t cells = n_blocks * sizeof(uint64_t);
    const size_t loaded = way == COPIER_SCATTER ? n_blocks * sizeof(struct loaded) : 0;
    struct transfer *t =
        mem_zalloc(sizeof(*t) + chunks + blocks + cells + loaded + (loaded ? n_blocks : 0));
    uint8_t *at;

    if (t == NULL)
        return NULL;
    at = (uint8_t *)(t + 1);
    t->session = s;
    t->way = way;
    t->chunks = (void *)at;
    t->blocks = (void *)(at += chunks);
    t->cells = (void *)(at += blocks);
    t->loaded = (void *)(at += cells);
    t->valid = at + loaded;
    list_init(&t->link);
    return t;
}

static void release(struct transfer *t)
{
    for (uint32_t i = 0; i < t->n_memories; i++)
        memory_unuse(t->memories[i]);
    list_remove(&t->link);
    mem_free(t);
}

void transfer_abandon(struct transfer *t)
{
    if (t != NULL)
        release(t);
}

/* A block is what its key names only if its checksum is the one that was published. */
static void judge_loaded(struct transfer *t, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        const struct loaded *loaded = &t->loaded[i];

        t->valid[i] = !loaded->checked || loaded->checksum == t->cells[i];
        if (t->valid[i])
            continue;
        store_report(t->session->api->store, t->session->owner, t->part, loaded->key,
                     (enum tier_kind)t->blocks[i].tier, loaded->generation);
        if (t->status == KVC_OK)
            t->status = KVC_E_CHECKSUM;
    }
}

static void end_chunk(struct transfer_chunk *chunk, kvc_status status)
{
    struct transfer *t = chunk->transfer;

    assert(chunk->state != CHUNK_ENDED && t->n_left > 0);
    chunk->state = CHUNK_ENDED;
    t->n_left--;
    if (t->way == COPIER_GATHER)
        store_chunk_copied(t->session->api->store, t->save, (uint32_t)(chunk - t->chunks),
                           t->summed ? t->cells + chunk->first : NULL, status);
    else if (status == KVC_OK)
        judge_loaded(t, chunk->first, chunk->job.n_blocks);
    else if (t->status == KVC_OK)
        t->status = status;
}

/* Chunks that have not begun do not begin. The transfer is settled afterwards. */
static void drop_waiting(struct transfer *t)
{
    for (uint32_t i = 0; i < t->n_chunks; i++)
        if (t->chunks[i].state == CHUNK_STARTED &&
            copier_drop(t->session->api->config.copier, &t->chunks[i].job))
            end_chunk(&t->chunks[i], KVC_E_CANCELLED);
}

static void reply_load(struct transfer *t)
{
    struct api *api = t->session->api;
    struct msg_load_reply reply = {
        .valid = t->valid,
        .n_valid = t->n_blocks,
        .status = t->status,
    };
    struct msg_outcome outcome = {.status = t->status};

    session_reply(t->session, WIRE_LOAD, t->seq, codec_load(api->codec, &reply));
    if (t->aborted)
        session_reply(t->session, WIRE_ABORT, t->abort_seq, codec_abort(api->codec, &outcome));
}

static void settle(struct transfer *t)
{
    if (t->n_left > 0)
        return;
    if (t->way == COPIER_SCATTER) {
        t->session->n_loads--;
        reply_load(t);
        store_load_copied(t->session->api->store, t->load, t->status == KVC_OK);
    }
    release(t);
}

/*
 * A worker that has closed its side may already overwrite what was copied: it ends its session
 * first, which is seen here even if the loop has not come to read it.
 */
static bool is_abandoned(const struct transfer *t)
{
    return t->session->connection == NULL || connection_is_over(t->session->connection);
}

static void chunk_copied(struct copier_job *job, kvc_status status)
{
    struct transfer_chunk *chunk = container_of(job, struct transfer_chunk, job);
    struct transfer *t = chunk->transfer;

    if (status == KVC_OK && t->way == COPIER_GATHER && is_abandoned(t))
        status = KVC_E_CANCELLED;
    end_chunk(chunk, status);
    if (t->n_left > 0 &&
        (t->way == COPIER_GATHER ? !store_save_goes_on(t->save) : status != KVC_OK))
        drop_waiting(t);
    settle(t);
}

static void start_chunks(struct transfer *t)
{
    struct session *s = t->session;

    list_push_back(&s->transfers, &t->link);
    t->n_left = t->n_chunks;
    for (uint32_t i = 0; i < t->n_chunks; i++) {
        struct transfer_chunk *chunk = &t->chunks[i];

        chunk->transfer = t;
        chunk->state = CHUNK_STARTED;
        chunk->job.way = t->way;
        chunk->job.blocks = t->blocks + chunk->first;
        chunk->job.cells = t->summed ? t->cells + chunk->first : NULL;
        chunk->job.done = chunk_copied;
        copier_start(s->api->config.copier, &s->copies, &chunk->job);
    }
}

/* Saves. */

bool transfer_is_asked(const struct msg_save *save)
{
    bool asked = save->region != 0;

    for (uint32_t i = 0; i < save->n_entries && !asked; i++)
        asked = save->entries[i].region != 0;
    return asked;
}

/* As many chunks as there are if all keys are to be copied, which no part of them exceeds. */
static kvc_status count_chunks(const struct session *s, const struct msg_save *save,
                               uint32_t *n_blocks, uint32_t *n_chunks, struct refusal *why)
{
    struct pack_cut cut = {0};

    *n_blocks = *n_chunks = 0;
    for (uint32_t e = 0; e < save->n_entries; e++) {
        const struct msg_save_entry *entry = &save->entries[e];
        const struct table_layout *layout =
            store_owner_layout(s->api->store, s->owner, entry->part);

        if (layout == NULL)
            return refuse(why, KVC_E_UNKNOWN, "not registered by this session", "entries[%u].part",
                          e);
        if (entry->blocks.n != entry->keys.len / KVC_KEY_BYTES)
            return refuse(why, KVC_E_INVALID, "not one a key", "entries[%u].blocks", e);
        for (uint32_t i = 0; i < entry->blocks.n; i++)
            *n_chunks += pack_cut_next(&cut, layout->block_bytes);
        *n_blocks += (uint32_t)entry->blocks.n;
    }
    return KVC_OK;
}

static kvc_status use_entry(struct transfer *t, const struct msg_save *save, uint32_t e,
                            struct refusal *why)
{
    const struct msg_save_entry *entry = &save->entries[e];
    const uint64_t region = entry->region != 0 ? entry->region : save->region;
    struct memory *memory;
    char prefix[32];
    kvc_status status;

    if (entry->blocks.n == 0)
        return KVC_OK;
    snprintf(prefix, sizeof(prefix), "entries[%u].region", e);
    status = memory_use(t->session, region, entry->part, &memory, why,
                        entry->region != 0 ? prefix : "region");
    if (status != KVC_OK)
        return status;
    t->memories[t->n_memories++] = memory;
    snprintf(prefix, sizeof(prefix), "entries[%u].", e);
    status = memory_check_blocks(memory, entry->blocks, false, why, prefix);
    for (uint32_t i = 0; i < entry->blocks.n && status == KVC_OK; i++)
        t->blocks[t->n_blocks++] =
            (struct copier_block){.region = memory->region, .id = entry->blocks.values[i]};
    return status;
}

kvc_status transfer_prepare_save(struct session *s, const struct msg_save *save,
                                 struct transfer **transfer, struct refusal *why)
{
    uint32_t n_blocks, n_chunks;
    struct transfer *t;
    kvc_status status = count_chunks(s, save, &n_blocks, &n_chunks, why);

    if (status != KVC_OK)
        return status;
    t = make(s, COPIER_GATHER, n_blocks, n_chunks);
    if (t == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    t->summed = save->checksums;
    for (uint32_t e = 0; e < save->n_entries && status == KVC_OK; e++)
        status = use_entry(t, save, e, why);
    if (status != KVC_OK) {
        release(t);
        return status;
    }
    *transfer = t;
    return KVC_OK;
}

void transfer_start_save(struct transfer *t, struct save *save,
                         const struct store_save_result *result)
{
    uint32_t n = 0, first = 0;

    if (result->save == 0) {
        release(t);
        return;
    }
    /* Blocks of assigned keys move to the front, in their order. */
    for (uint32_t i = 0; i < t->n_blocks; i++) {
        if (result->states[i] != STORE_KEY_ASSIGNED)
            continue;
        t->blocks[n] = t->blocks[i];
        t->blocks[n].tier = result->locations[i].tier;
        t->blocks[n++].offset = result->locations[i].offset;
    }
    t->save = save;
    t->save_id = result->save;
    t->n_blocks = n;
    t->n_chunks = result->n_chunks;
    for (uint32_t i = 0; i < result->n_chunks; i++) {
        t->chunks[i].first = first;
        t->chunks[i].job.n_blocks = result->chunks[i].blocks;
        first += result->chunks[i].blocks;
    }
    assert(first == n);
    start_chunks(t);
}

void transfer_cancel_save(struct session *s, uint64_t save)
{
    struct transfer *t, *after;

    list_for_each_safe(t, after, &s->transfers, link) {
        if (t->way != COPIER_GATHER || t->save_id != save)
            continue;
        drop_waiting(t);
        settle(t);
    }
}

/* Loads. */

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
    return KVC_OK;
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
            .tier = at->tier,
        };
        t->loaded[i] = (struct loaded){
            .checksum = at->checksum, .generation = at->generation, .checked = at->checked};
        memcpy(t->loaded[i].key, load_key_at(t->session->api, (enum tier_kind)at->tier, at->offset),
               KVC_KEY_BYTES);
    }
}

kvc_status transfer_load(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_load *load = &request->load;
    const struct table_layout *layout = store_owner_layout(s->api->store, s->owner, load->part);
    struct store_location *locations = s->api->scratch->locations;
    struct store_load req = {
        .lease = load->lease,
        .part = load->part,
        .epoch = load->epoch,
        .first = load->first,
        .count = load->count,
        .first_slice = load->first_slice,
        .n_slices = load->slices,
    };
    struct transfer *t;
    kvc_status status = check_load(s, load, layout, why);

    if (status != KVC_OK)
        return status;
    t = make(s, COPIER_SCATTER, load->count, count_loads(load->count, layout->block_bytes));
    if (t == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    status = memory_use(s, load->region, load->part, &t->memories[0], why, "region");
    if (status == KVC_OK) {
        t->n_memories = 1;
        status = memory_check_blocks(t->memories[0], load->blocks, true, why, "");
    }
    if (status == KVC_OK)
        status = store_load_by_daemon(s->api->store, s->owner, &req, locations, &t->load, why);
    if (status != KVC_OK) {
        release(t);
        return status;
    }
    t->summed = true;
    t->part = load->part;
    t->seq = request->seq;
    t->n_blocks = load->count;
    describe_blocks(t, load, locations);
    cut_load(t, layout->block_bytes);
    s->n_loads++;
    start_chunks(t);
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
        drop_waiting(t);
        settle(t);
        return true;
    }
    return false;
}

void transfer_forget_session(struct session *s)
{
    struct transfer *t, *after;

    list_for_each_safe(t, after, &s->transfers, link) {
        drop_waiting(t);
        settle(t);
    }
}
