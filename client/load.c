/* Loads: out of leased slots into the worker's blocks. */
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/pause.h"

/* A part of a load that fits into one request. */
struct piece {
    struct part *part;
    uint64_t lease;
    uint32_t first, count;
    const uint32_t *blocks;
    bool verify; /* compares when it is over */
    uint32_t first_slice, n_slices;
    uint64_t *sums; /* NULL: all slices come at once, or nothing is compared */
    bool release;   /* ends the lease */
    void *stream;
    struct codec_load_reply reply;
    struct load_entry *entry;
};

/* Distinct in O(n): a table of twice as many places, id + 1 in each that is taken. */
static kvc_status check_distinct(kvc_client *client, const uint32_t *ids, uint32_t n)
{
    uint32_t bits = 1;
    kvc_status status = KVC_OK;
    uint64_t *table;

    while (bits < 32 && (1ull << bits) < 2ull * n)
        bits++;
    table = calloc(1ull << bits, sizeof(*table));
    if (table == NULL)
        return rpc_fail(&client->rpc, KVC_E_NO_MEMORY, NULL, "no memory for a load");
    for (uint32_t i = 0; i < n && status == KVC_OK; i++) {
        uint64_t at = (ids[i] * 0x9e3779b97f4a7c15ull) >> (64 - bits);

        if (ids[i] == KVC_NO_BLOCK)
            continue;
        while (table[at] != 0 && table[at] != ids[i] + 1ull)
            at = (at + 1) & ((1ull << bits) - 1);
        if (table[at] != 0)
            status = rpc_fail(&client->rpc, KVC_E_DUPLICATE, NULL, "blocks[%u]: %u comes twice", i,
                              ids[i]);
        table[at] = ids[i] + 1ull;
    }
    free(table);
    return status;
}

static kvc_status check_args(kvc_client *client, const kvc_load_args *args, struct part **part)
{
    kvc_status status;

    if (args == NULL)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "args", "NULL");
    if (!role_copies(client->role))
        return rpc_fail(&client->rpc, KVC_E_DENIED, "role", "maps no memory to load from");
    status = part_find(client, args->part, part);
    if (status != KVC_OK)
        return status;
    if (args->count > 0 && (args->blocks == NULL || !(*part)->has_memory))
        return rpc_fail(&client->rpc, KVC_E_INVALID, args->blocks == NULL ? "blocks" : "slices",
                        "NULL");
    if (args->first_slice >= (*part)->layout.n_slices ||
        args->n_slices > (*part)->layout.n_slices - args->first_slice)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "slices", "%u from %u on, the part has %u",
                        args->n_slices, args->first_slice, (*part)->layout.n_slices);
    if (args->first > UINT32_MAX - args->count)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "count", "%u behind %u", args->count,
                        args->first);
    for (uint32_t i = 0; i < args->count; i++)
        if (args->blocks[i] >= (*part)->n_blocks && args->blocks[i] != KVC_NO_BLOCK)
            return rpc_fail(&client->rpc, KVC_E_INVALID, NULL, "blocks[%u]: %u, the part has %u", i,
                            args->blocks[i], (*part)->n_blocks);
    return check_distinct(client, args->blocks, args->count);
}

static kvc_status ask(kvc_client *client, struct piece *piece)
{
    const struct codec_load request = {.lease = piece->lease,
                                       .part = piece->part->id,
                                       .epoch = piece->part->epoch,
                                       .first = piece->first,
                                       .count = piece->count,
                                       .first_slice = piece->first_slice,
                                       .n_slices = piece->n_slices,
                                       .release = piece->release};
    struct call call = {.type = WIRE_LOAD};
    struct wire_packet packet;
    kvc_status status;

    status = codec_put_load(&request, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->lookup_ms, &packet);
    if (status != KVC_OK)
        return status;
    if (!codec_get_load_reply(&client->scratch, &packet, &piece->reply) ||
        piece->reply.count != piece->count)
        return client_distrust(client, "LoadReply", "malformed");
    return KVC_OK;
}

static kvc_status check_reply(kvc_client *client, const struct piece *piece)
{
    const struct codec_load_reply *reply = &piece->reply;

    if (map_word(&client->map, reply->word) == NULL || reply->number == 0)
        return client_distrust(client, "LoadReply.word", "no such word or number");
    for (uint32_t i = 0; i < piece->count; i++)
        if (map_at(&client->map, reply->tiers[i], reply->offsets[i],
                   piece->part->layout.slot_bytes) == NULL)
            return client_distrust(client, "LoadReply.offsets", "not in a mapped extent");
    return KVC_OK;
}

/* What cells will be compared with, when nobody holds the reply any more. */
static void fill_entry(const kvc_client *client, const struct piece *piece, uint64_t id,
                       uint32_t at)
{
    const struct codec_load_reply *reply = &piece->reply;
    struct load_entry *entry = piece->entry;
    const uint32_t n = piece->count;

    entry->id = id;
    entry->session = client->session.id;
    entry->part = piece->part->id;
    entry->at = at;
    entry->count = n;
    entry->copied = 0;
    entry->verify = piece->verify;
    entry->sums = piece->sums;
    memcpy(entry->checksums, reply->checksums, n * sizeof(*entry->checksums));
    memcpy(entry->offsets, reply->offsets, n * sizeof(*entry->offsets));
    memcpy(entry->generations, reply->generations, n * sizeof(*entry->generations));
    memcpy(entry->checked, reply->checked, n);
    memcpy(entry->tiers, reply->tiers, n);
}

/* Blocks at to at + n - 1 of a piece, in one job; with the word, the last ones. */
static kvc_status copy_run(kvc_client *client, struct piece *piece, uint32_t at, uint32_t n,
                           const struct copy_word *word)
{
    const struct codec_load_reply *reply = &piece->reply;
    const bool more = at + n < piece->count;
    struct pack_block blocks[COPY_BLOCKS_MAX];
    const struct copy_span span = {
        .n_blocks = n,
        .cells = piece->verify || piece->sums != NULL ? piece->entry->cells + at : NULL,
        .word = word,
    };
    const struct copy_job job = {
        .pack = {.layout = &piece->part->layout,
                 .slices = piece->part->slices,
                 .blocks = blocks,
                 .n_blocks = n,
                 .first_slice = piece->first_slice,
                 .n_slices = piece->n_slices},
        .table = piece->part->table,
        .spans = &span,
        .n_spans = 1,
        .more = more,
        .follows = at != 0,
    };
    kvc_status status;

    for (uint32_t i = 0; i < n; i++) {
        blocks[i].slot = map_at(&client->map, reply->tiers[at + i], reply->offsets[at + i],
                                piece->part->layout.slot_bytes);
        blocks[i].id = piece->blocks[at + i];
    }
    pause_pass("load.before_copy");
    status = client->copy->scatter(client->cuda, piece->stream, &job);
    if (status != KVC_OK)
        return rpc_fail(&client->rpc, status, NULL, "a copy failed");
    piece->entry->copied += n;
    return KVC_OK;
}

/* How many blocks from at on come with one job: of one tier, unless that would be few. */
static uint32_t count_run(const kvc_client *client, const struct piece *piece, uint32_t at)
{
    const uint32_t left = piece->count - at;
    const uint32_t max = left < client->copy->blocks_max ? left : client->copy->blocks_max;
    uint32_t n = max < KVC_CHUNK_BLOCKS ? max : KVC_CHUNK_BLOCKS;

    while (n < max && piece->reply.tiers[at + n] == piece->reply.tiers[at])
        n++;
    return n;
}

static kvc_status copy_all(kvc_client *client, struct piece *piece)
{
    const struct copy_word word = {map_word(&client->map, piece->reply.word), piece->reply.number,
                                   "load.before_word"};
    kvc_status status = KVC_OK, marked;

    for (uint32_t at = 0, n; at < piece->count && status == KVC_OK; at += n) {
        n = count_run(client, piece, at);
        status = copy_run(client, piece, at, n, at + n == piece->count ? &word : NULL);
    }
    /* Behind it, nothing of this load reads slots any more. */
    if (status != KVC_OK)
        (void)client->copy->prove(client->cuda, piece->stream, &word);
    marked = client->copy->mark_set(client->cuda, piece->stream, piece->entry->mark);
    return status != KVC_OK ? status : marked;
}

static kvc_status load_piece(kvc_client *client, struct piece *piece, uint64_t id, uint32_t at)
{
    kvc_status status = loads_take(client, id, &piece->entry);

    if (status != KVC_OK)
        return status;
    status = ask(client, piece);
    if (status == KVC_OK)
        status = check_reply(client, piece);
    if (status != KVC_OK) {
        piece->entry->used = false;
        return status;
    }
    fill_entry(client, piece, id, at);
    return copy_all(client, piece);
}

/* The next blocks that can be asked for at once: all present, and no more than a request takes. */
static uint32_t next_run(const kvc_client *client, const kvc_load_args *args, uint32_t *at)
{
    uint32_t n = 0;

    while (*at < args->count && args->blocks[*at] == KVC_NO_BLOCK)
        ++*at;
    while (n < client->keys_max && *at + n < args->count && args->blocks[*at + n] != KVC_NO_BLOCK)
        n++;
    return n;
}

bool load_is_last(const kvc_client *client, const kvc_load_args *args, uint32_t behind)
{
    return next_run(client, args, &behind) == 0;
}

/* A load that nobody has to wait for may have no more pieces than there are entries. */
static kvc_status make_room(kvc_client *client, const kvc_load_args *args, uint64_t id,
                            uint32_t pieces, bool *mismatch)
{
    kvc_status status;

    if (args->load != NULL || pieces % (LOADS_MAX / 2) != 0)
        return KVC_OK;
    status = loads_collect(client, id, LOADS_NO_LIMIT, args->valid);
    *mismatch = *mismatch || status == KVC_E_CHECKSUM;
    return status == KVC_E_CHECKSUM ? KVC_OK : status;
}

static kvc_status load_pieces(kvc_client *client, const kvc_load_args *args, struct part *part,
                              uint64_t id, bool *mismatch)
{
    kvc_status status = client->copy->begin(client->cuda, args->stream);
    const uint32_t all = part->layout.n_slices;
    const uint32_t n_slices = args->n_slices != 0 ? args->n_slices : all - args->first_slice;
    const bool compares =
        n_slices == all || (args->sums != NULL && args->first_slice + n_slices == all);
    uint32_t pieces = 0, n;

    if (status != KVC_OK)
        return client_refuse_stream(client, status);
    for (uint32_t at = 0; status == KVC_OK && (n = next_run(client, args, &at)) > 0; at += n) {
        struct piece piece = {
            .part = part,
            .lease = args->lease,
            .first = args->first + at,
            .count = n,
            .blocks = args->blocks + at,
            .verify = !args->no_verify && compares,
            .first_slice = args->first_slice,
            .n_slices = n_slices,
            .sums = args->sums != NULL ? args->sums + at : NULL,
            .release = args->release && load_is_last(client, args, at + n),
            .stream = args->stream,
        };

        status = load_piece(client, &piece, id, at);
        if (status == KVC_OK)
            status = make_room(client, args, id, ++pieces, mismatch);
    }
    client->copy->end(client->cuda, args->stream);
    return status;
}

/* Its answers are the judgement, so there is nothing to wait for afterwards. */
static kvc_status load_all_by_daemon(kvc_client *client, const kvc_load_args *args,
                                     const struct part *part)
{
    bool mismatch = false;
    kvc_status status = KVC_OK;

    for (uint32_t at = 0, n; status == KVC_OK && (n = next_run(client, args, &at)) > 0; at += n)
        status = load_by_daemon(client, args, part, at, n, &mismatch);
    if (status == KVC_OK && args->load != NULL)
        *args->load = 0;
    if (status == KVC_OK && mismatch)
        status = rpc_fail(&client->rpc, KVC_E_CHECKSUM, "blocks", "bytes are not the saved ones");
    return status;
}

static kvc_status load_by_worker(kvc_client *client, const kvc_load_args *args, struct part *part)
{
    const uint64_t id = ++client->loads.last_id;
    bool mismatch = false;
    kvc_status status = load_pieces(client, args, part, id, &mismatch);

    if (args->load != NULL) {
        if (status == KVC_OK)
            *args->load = id;
        else
            loads_forget(client, id);
        return status;
    }
    if (status == KVC_OK) {
        status = loads_collect(client, id, LOADS_NO_LIMIT, args->valid);
        if (status == KVC_OK && mismatch)
            status =
                rpc_fail(&client->rpc, KVC_E_CHECKSUM, "blocks", "bytes are not the saved ones");
        return status;
    }
    /* What was copied before is judged without losing what is said of the failure. */
    loads_judge_rest(client, id, args->valid);
    return status;
}

/* A load's last request ends the lease, unless there was none or it may not have got so far. */
static void release_rest(kvc_client *client, const kvc_load_args *args, kvc_status status)
{
    size_t len = 0;

    if (!args->release || (status == KVC_OK && !load_is_last(client, args, 0)))
        return;
    if (codec_put_release(args->lease, client->rpc.body, &len) == KVC_OK)
        (void)rpc_tell(&client->rpc, WIRE_RELEASE, client->rpc.body, len);
}

kvc_status kvc_load(kvc_client *client, const kvc_load_args *args)
{
    struct part *part = NULL;
    kvc_status status = client_enter(client);

    if (status == KVC_OK)
        status = check_args(client, args, &part);
    if (status != KVC_OK || part == NULL)
        return status;
    if (args->valid != NULL)
        memset(args->valid, 0, args->count);
    status = part->lent != NULL ? load_all_by_daemon(client, args, part)
                                : load_by_worker(client, args, part);
    release_rest(client, args, status);
    return status;
}

void load_take_late(kvc_client *client, const struct wire_packet *packet)
{
    struct codec_load_reply reply;
    uint64_t *word;

    if (!codec_get_load_reply(&client->scratch, packet, &reply)) {
        client_distrust(client, "LoadReply", "malformed");
        return;
    }
    word = map_word(&client->map, reply.word);
    if (word == NULL || reply.number == 0)
        client_distrust(client, "LoadReply.word", "no such word or number");
    else /* nothing was enqueued that it would have to wait for */
        (void)copy_host.prove(NULL, NULL, &(struct copy_word){.at = word, .number = reply.number});
}
