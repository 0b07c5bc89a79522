/* What was chosen is saved into slots here, and moved batch by batch. */
#ifdef KVC_UCX

#include <assert.h>

#include "daemon/base/mem.h"
#include "daemon/peer/fetch.h"

struct assigned {
    uint32_t part, key, chunk; /* key: of the save's */
    struct store_location at;
};

static bool is_on_gpu(const struct fetch *f, uint32_t p, uint32_t key)
{
    const struct fetch_source *source = &f->sources[key];

    return fetch_has(f, FETCH_ON_GPU + source->offer, p, source->place);
}

#define TOGETHER 8u /* blocks in a row that are worth a batch of their own */

/*
 * Which keys of a part are read from GPUs there into GPUs here, a bit each, by their place in the
 * save. A batch is of one way, so a few of them between others go the way of those. What does not
 * come at all, since it is here, parts nothing.
 */
static void choose_gpu(const struct fetch *f, uint32_t p, uint64_t *to_gpu)
{
    const uint32_t first = f->parts[p].place, end = first + f->end - f->parts[p].start;
    uint32_t start = 0, run = 0, others = 0;

    for (uint32_t k = first; k < end; k++)
        others += f->sources[k].offer != PEERS_MAX && !is_on_gpu(f, p, k);
    for (uint32_t k = first; k <= end; k++) {
        if (k < end && f->sources[k].offer == PEERS_MAX)
            continue;
        if (k < end && is_on_gpu(f, p, k)) {
            start = run == 0 ? k : start;
            run++;
            continue;
        }
        for (uint32_t i = start; i < k && (run >= TOGETHER || (run > 0 && others == 0)); i++)
            to_gpu[i / 64] |= 1ull << i % 64;
        run = 0;
    }
}

/* The daemon itself reads and writes host memory. */
static enum store_place place_of(const struct fetch *f, uint64_t *to_gpu)
{
    if (peers_is_memory(f->peers, TIER_GPU))
        return STORE_PLACE_HOST_FIRST;
    if (f->host_only || f->peers->n_extents == 0)
        return STORE_PLACE_HOST_ONLY;
    for (uint32_t p = 0; p < f->n_parts; p++)
        choose_gpu(f, p, to_gpu);
    return STORE_PLACE_GPU_OR_HOST;
}

static kvc_status open_save(struct fetch *f, struct store_save_result *result)
{
    struct store_save_entry entries[KVC_PARTS_MAX];
    uint64_t to_gpu[KVC_KEYS_MAX / 64] = {0};
    const struct store_save req = {
        .entries = entries,
        .n_entries = f->n_parts,
        .checksums = true,
        .by_daemon = true,
        .place = place_of(f, to_gpu),
        .to_gpu = to_gpu,
    };
    struct store *store = f->peers->config.store;
    uint32_t short_of;
    kvc_status status;

    for (uint32_t p = 0; p < f->n_parts; p++)
        entries[p] = (struct store_save_entry){
            .part = f->parts[p].part,
            .epoch = f->parts[p].epoch,
            .keys = f->parts[p].keys + (size_t)f->parts[p].start * KVC_KEY_BYTES,
            .n_keys = f->end - f->parts[p].start,
        };
    status = store_save_open(store, f->owner, &req, &f->save, &short_of, NULL);
    if (status == KVC_OK)
        store_save_seal(store, f->save, result);
    return status;
}

/* A batch is of one part, one source and one tier here, and lies in one chunk of the save. */
static kvc_status add_batches(struct fetch *f, const struct assigned *assigned, uint32_t n)
{
    struct batch_block blocks[KVC_CHUNK_BLOCKS];
    struct batch_plan plan = {.fetch = f, .blocks = blocks};
    struct plan_cut cut = {0};
    const struct assigned *last = NULL;
    uint32_t last_source = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct assigned *a = &assigned[i];
        const struct fetch_source *source = &f->sources[a->key];
        const struct offer *offer = &f->offers[source->offer];
        const struct shape *shape = f->parts[a->part].shape;
        bool begins = plan_cut_next(&cut, shape->span, VIEW_SLAB_BYTES);

        if (source->offer == PEERS_MAX)
            return KVC_E_UNKNOWN; /* it was here and is not any more */
        if (last != NULL && (begins || a->part != last->part || source->offer != last_source ||
                             a->chunk != last->chunk || a->at.tier != last->at.tier)) {
            if (batch_add(f->peers, &plan) != KVC_OK)
                return KVC_E_NO_MEMORY;
            plan.rank++;
            plan.n = 0;
            cut = (struct plan_cut){.bytes = shape->span, .blocks = 1};
        }
        plan.peer = offer->peer;
        plan.shape = shape;
        plan.lease = offer->leases[a->part];
        plan.part = offer->parts[a->part];
        plan.chunk = a->chunk;
        blocks[plan.n++] = (struct batch_block){
            .place = source->place,
            .number = i,
            .offset = a->at.offset,
            .tier = a->at.tier,
        };
        last = a;
        last_source = source->offer;
    }
    return plan.n > 0 ? batch_add(f->peers, &plan) : KVC_OK;
}

/* The save's chunks, and which key is in which. */
static void note_chunks(struct fetch *f, const struct store_save_result *result, uint32_t n_keys,
                        struct assigned *assigned)
{
    uint32_t n = 0, chunk = 0, part = 0;

    for (uint32_t c = 0, first = 0; c < result->n_chunks; c++) {
        f->chunks[c] =
            (struct fetch_chunk){first, result->chunks[c].blocks, result->chunks[c].blocks, KVC_OK};
        first += result->chunks[c].blocks;
    }
    for (uint32_t i = 0; i < n_keys; i++) {
        if (result->states[i] != STORE_KEY_ASSIGNED)
            continue;
        while (n == f->chunks[chunk].first + f->chunks[chunk].n)
            chunk++;
        while (part + 1 < f->n_parts && i >= f->parts[part + 1].place)
            part++;
        assigned[n++] = (struct assigned){part, i, chunk, result->locations[i]};
    }
}

static void chunk_told(struct fetch *f, struct fetch_chunk *chunk)
{
    struct store *store = f->peers->config.store;
    struct save *save = f->save;
    uint32_t number = (uint32_t)(chunk - f->chunks);

    assert(f->chunks_left > 0);
    f->chunks_left--;
    if (chunk->status == KVC_OK)
        f->peers->figures.fetched_blocks += chunk->n;
    store_chunk_copied(store, save, number,
                       chunk->status == KVC_OK ? f->cells + chunk->first : NULL, chunk->status);
}

/* There are blocks that no batch stands for: the save ends without them. */
static void give_up(struct fetch *f)
{
    f->dropping = true;
    batch_drop_waiting(f->peers, f);
    for (uint32_t c = 0; c < f->n_chunks; c++) {
        struct fetch_chunk *chunk = &f->chunks[c];

        if (chunk->left == 0)
            continue;
        chunk->left = 0;
        chunk->status = KVC_E_NO_MEMORY;
        chunk_told(f, chunk);
    }
    fetch_go_on(f);
}

/* Takes the save's slots and cuts batches. */
bool fetch_move(struct fetch *f)
{
    const struct fetch_part *last = &f->parts[f->n_parts - 1];
    const uint32_t n = last->place + f->end - last->start;
    struct assigned *assigned = mem_array(n, sizeof(*assigned));
    uint32_t n_assigned;
    struct store_save_result result = {
        .states = mem_array(n, 1),
        .locations = mem_array(n, sizeof(struct store_location)),
        .chunks = mem_array(n, sizeof(struct store_chunk)),
    };
    bool moving = false;
    kvc_status status;

    f->cells = mem_array(n, sizeof(*f->cells));
    f->chunks = mem_array(n, sizeof(*f->chunks));
    if (assigned == NULL || result.states == NULL || result.locations == NULL ||
        result.chunks == NULL || f->cells == NULL || f->chunks == NULL ||
        open_save(f, &result) != KVC_OK || result.save == 0)
        goto free_all;
    f->n_chunks = f->chunks_left = result.n_chunks;
    note_chunks(f, &result, n, assigned);
    moving = true;
    f->dropping = false;
    fetch_set_state(f, FETCH_MOVING);
    n_assigned = f->chunks[f->n_chunks - 1].first + f->chunks[f->n_chunks - 1].n;
    status = add_batches(f, assigned, n_assigned);
    f->lost = f->lost || status == KVC_E_UNKNOWN;
    if (status != KVC_OK)
        give_up(f);
free_all:
    mem_free(result.chunks);
    mem_free(result.locations);
    mem_free(result.states);
    mem_free(assigned);
    return moving;
}

void fetch_batch_ended(struct fetch *f, struct peer *peer, uint32_t chunk_number,
                       const struct batch_block *blocks, uint32_t n, const uint64_t *cells,
                       kvc_status status)
{
    struct fetch_chunk *chunk = &f->chunks[chunk_number];

    if (status == KVC_OK)
        for (uint32_t i = 0; i < n; i++)
            f->cells[blocks[i].number] = cells[i];
    else if (chunk->status == KVC_OK)
        chunk->status = status;
    if (status != KVC_OK && status != KVC_E_CANCELLED) {
        f->lost = true;
        /* What has moved there, or cannot be looked at here, still comes by host memory. */
        if (status == KVC_E_DEVICE && !peers_is_memory(f->peers, (enum tier_kind)blocks[0].tier))
            f->host_only = true;
        else
            fetch_exclude(f, peer);
    }
    assert(chunk->left >= n);
    chunk->left -= n;
    if (chunk->left > 0)
        return;
    chunk_told(f, chunk);
    if (f->chunks_left > 0) {
        if (!f->dropping && !store_save_goes_on(f->save)) {
            f->dropping = true;
            batch_drop_waiting(f->peers, f);
        }
        return;
    }
    if (f->state == FETCH_OVER)
        fetch_free(f);
    else
        fetch_go_on(f);
}

#endif
