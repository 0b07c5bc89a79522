/* Saves by the worker: chunks into jobs of the device. */
#include "client/save_copy.h"

#include "client/pause.h"

/* Where the walk over the assigned keys of all entries is. */
struct cursor {
    uint32_t entry, key;
    uint32_t assigned; /* of that entry, so far */
};

/* What one job will copy: blocks of one entry, of one or more chunks. */
struct batch {
    uint32_t entry;
    uint32_t first_chunk;
    bool continues; /* an earlier job has blocks of its first chunk */
    uint32_t tier;  /* of its first block: to another one copies run otherwise */
    uint32_t n_blocks, n_spans;
    struct pack_block blocks[COPY_BLOCKS_MAX];
    struct copy_span spans[COPY_SPANS_MAX];
    struct copy_word words[COPY_SPANS_MAX];
};

struct copying {
    kvc_client *client;
    const struct saving *saving;
    struct cursor cursor;
    struct batch batch;
    bool began; /* a job is on the stream */
};

uint32_t save_slices(const kvc_save_args *args, const struct part *part)
{
    return args->n_slices != 0 ? args->n_slices : part->layout.n_slices - args->first_slice;
}

/* Moves to the next assigned key; the caller knows that there is one. */
static void seek(struct copying *c)
{
    struct cursor *cursor = &c->cursor;

    for (;;) {
        const struct codec_save_entry_reply *entry = &c->saving->reply.entries[cursor->entry];

        while (cursor->key < entry->n_states && entry->states[cursor->key] != KVC_KEY_SAVED)
            cursor->key++;
        if (cursor->key < entry->n_states)
            return;
        *cursor = (struct cursor){.entry = cursor->entry + 1};
    }
}

/* more: blocks are left for another job. */
static kvc_status flush(struct copying *c, bool more)
{
    struct batch *batch = &c->batch;
    const struct part *part = c->saving->parts[batch->entry];
    const struct copy_job job = {
        .pack = {.layout = &part->layout,
                 .slices = part->slices,
                 .blocks = batch->blocks,
                 .n_blocks = batch->n_blocks,
                 .first_slice = c->saving->args->first_slice,
                 .n_slices = save_slices(c->saving->args, part)},
        .table = part->table,
        .spans = batch->spans,
        .n_spans = batch->n_spans,
        .more = more,
        .follows = c->began,
    };
    kvc_status status;

    if (batch->n_spans == 0)
        return KVC_OK;
    status = c->client->copy->gather(c->client->cuda, c->saving->args->stream, &job);
    if (status == KVC_OK) {
        batch->n_blocks = batch->n_spans = 0;
        c->began = true;
    }
    return status;
}

/* Whether the next block, at the cursor, may come with those of the batch, and n - 1 behind it. */
static bool fits(const struct copying *c, uint32_t n)
{
    const struct copy_ops *copy = c->client->copy;
    const struct batch *batch = &c->batch;
    const struct codec_save_entry_reply *entry = &c->saving->reply.entries[c->cursor.entry];

    return batch->n_spans < copy->spans_max && batch->n_blocks + n <= copy->blocks_max &&
           batch->entry == c->cursor.entry && batch->tier == entry->tiers[c->cursor.assigned];
}

/* Adds the next blocks of the cursor's entry, at most max. Returns how many. */
static uint32_t add_blocks(struct copying *c, uint32_t max)
{
    struct cursor *cursor = &c->cursor;
    struct batch *batch = &c->batch;
    const struct codec_save_entry_reply *entry = &c->saving->reply.entries[cursor->entry];
    const struct part *part = c->saving->parts[cursor->entry];
    uint32_t n = 0;

    for (; n < max && cursor->key < entry->n_states; cursor->key++) {
        if (entry->states[cursor->key] != KVC_KEY_SAVED)
            continue;
        batch->blocks[batch->n_blocks++] = (struct pack_block){
            .slot = map_at(&c->client->map, entry->tiers[cursor->assigned],
                           entry->offsets[cursor->assigned], part->layout.slot_bytes),
            .id = c->saving->args->entries[cursor->entry].blocks[cursor->key],
        };
        cursor->assigned++;
        n++;
    }
    return n;
}

/*
 * Adds a run of a chunk: its blocks from `at` on that are of one entry. When these are all that the
 * chunk has left, its word comes with them.
 */
static kvc_status add_run(struct copying *c, uint32_t chunk, uint32_t at, uint32_t *added)
{
    const struct codec_save_reply *reply = &c->saving->reply;
    const uint32_t index = reply->chunk_words[chunk], left = reply->chunk_blocks[chunk] - at;
    uint64_t *cells = c->saving->args->no_checksums ? NULL : map_cells(&c->client->map, index);
    struct batch *batch = &c->batch;
    kvc_status status = KVC_OK;

    seek(c);
    if (!fits(c, left))
        status = flush(c, true);
    if (status != KVC_OK)
        return status;
    if (batch->n_spans == 0) {
        batch->entry = c->cursor.entry;
        batch->first_chunk = chunk;
        batch->continues = at > 0;
        batch->tier = reply->entries[batch->entry].tiers[c->cursor.assigned];
    }
    *added = add_blocks(c, left);
    batch->words[batch->n_spans] = (struct copy_word){
        map_word(&c->client->map, index), reply->chunk_numbers[chunk], "save.before_word"};
    batch->spans[batch->n_spans] = (struct copy_span){
        .n_blocks = *added,
        .cells = cells != NULL ? cells + at : NULL,
        .word = *added == left ? &batch->words[batch->n_spans] : NULL,
    };
    batch->n_spans++;
    return batch->n_spans == c->client->copy->spans_max
               ? flush(c, *added < left || chunk + 1 < reply->n_chunks)
               : KVC_OK;
}

static kvc_status copy_chunks(struct copying *c)
{
    const struct codec_save_reply *reply = &c->saving->reply;

    for (uint32_t chunk = 0; chunk < reply->n_chunks; chunk++) {
        pause_pass("save.before_chunk");
        for (uint32_t at = 0, added; at < reply->chunk_blocks[chunk]; at += added) {
            kvc_status status = add_run(c, chunk, at, &added);

            if (status != KVC_OK)
                return status;
        }
    }
    return flush(c, false);
}

kvc_status save_copy(kvc_client *client, const struct saving *saving, uint32_t *first_never)
{
    struct copying c = {.client = client, .saving = saving};
    const kvc_status status = copy_chunks(&c);

    if (status == KVC_OK)
        return KVC_OK;
    /* An earlier job for the chunk may run: what is said never to be copied must not be. */
    *first_never = c.batch.first_chunk;
    if (c.batch.continues && client->copy->settle(client->cuda, saving->args->stream) != KVC_OK)
        ++*first_never;
    return rpc_fail(&client->rpc, status, NULL, "the copy of chunk %u failed", c.batch.first_chunk);
}
