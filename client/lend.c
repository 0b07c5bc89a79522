/* Memory that is lent to the daemon: KVC_COPY_DAEMON, kvc_suspend, kvc_resume. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/client.h"
#include "client/cuda.h"

static kvc_status refuse(kvc_client *client, kvc_status status, uint32_t memory, const char *field,
                         const char *detail)
{
    return rpc_fail(&client->rpc, status, NULL, "memories[%u].%s: %s", memory, field, detail);
}

static kvc_status check_memory(kvc_client *client, const kvc_memory *memory, uint32_t i)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (memory->base == NULL || (uintptr_t)memory->base % page != 0)
        return refuse(client, KVC_E_INVALID, i, "base", "not at a page");
    if (memory->offset % page != 0)
        return refuse(client, KVC_E_INVALID, i, "offset", "not at a page");
    if (memory->bytes == 0 || memory->bytes > UINT64_MAX - (uintptr_t)memory->base)
        return refuse(client, KVC_E_INVALID, i, "bytes", "none, or behind all addresses");
    return KVC_OK;
}

/* The first memory that holds all blocks of a slice, whose end is known to be an address. */
static bool find_memory(const kvc_part_desc *desc, const kvc_slice *slice, uint32_t *found)
{
    const uint64_t first = (uintptr_t)slice->base;
    const uint64_t end = first + (desc->n_blocks - 1ull) * slice->stride + slice->bytes;

    for (uint32_t m = 0; m < desc->n_memories; m++) {
        const uint64_t base = (uintptr_t)desc->memories[m].base;

        if (first >= base && end <= base + desc->memories[m].bytes) {
            *found = m;
            return true;
        }
    }
    return false;
}

struct lent *lend_allocate(uint32_t n_pieces, uint32_t n_slices)
{
    const size_t words = 4ul * n_pieces + 2ul * n_slices, halves = n_pieces + n_slices;
    struct lent *lent =
        calloc(1, sizeof(*lent) + words * sizeof(uint64_t) + halves * sizeof(uint32_t));
    uint64_t *at;

    if (lent == NULL)
        return NULL;
    at = (uint64_t *)(void *)(lent + 1);
    lent->bytes = at;
    lent->offsets = (at += n_pieces);
    lent->devices = (at += n_pieces);
    lent->inodes = (at += n_pieces);
    lent->slice_offsets = (at += n_pieces);
    lent->slice_strides = (at += n_slices);
    lent->slice_pieces = (uint32_t *)(void *)(at + n_slices);
    lent->fds = (int *)(lent->slice_pieces + n_slices);
    lent->n_slices = n_slices;
    return lent;
}

/* Sealed against shrinking and with all of its pages, so that it cannot fail under the daemon. */
static kvc_status prepare_memfd(kvc_client *client, int fd, uint64_t size, uint32_t i)
{
    const int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return refuse(client, KVC_E_INVALID, i, "fd", "no memfd");
    if (!(seals & F_SEAL_SHRINK) && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        return refuse(client, KVC_E_INVALID, i, "fd", "it cannot be sealed against shrinking");
    while (fallocate(fd, 0, 0, (off_t)size) < 0)
        if (errno != EINTR)
            return refuse(client, KVC_E_NO_MEMORY, i, "fd", strerror(errno));
    return KVC_OK;
}

static kvc_status add_piece(kvc_client *client, struct lent *lent, const kvc_memory *memory,
                            uint32_t i)
{
    const uint32_t piece = lent->n_pieces;
    struct stat st;
    kvc_status status;

    if (fstat(memory->fd, &st) < 0 || !S_ISREG(st.st_mode) ||
        memory->bytes > (uint64_t)st.st_size ||
        memory->offset > (uint64_t)st.st_size - memory->bytes)
        return refuse(client, KVC_E_INVALID, i, "fd", "no memfd, or a shorter one");
    status = prepare_memfd(client, memory->fd, (uint64_t)st.st_size, i);
    if (status != KVC_OK)
        return status;
    lent->fds[piece] = fcntl(memory->fd, F_DUPFD_CLOEXEC, 3);
    if (lent->fds[piece] < 0)
        return refuse(client, KVC_E_NO_FDS, i, "fd", strerror(errno));
    lent->bytes[piece] = memory->bytes;
    lent->offsets[piece] = memory->offset;
    lent->devices[piece] = st.st_dev;
    lent->inodes[piece] = st.st_ino;
    lent->n_pieces++;
    return KVC_OK;
}

/* The memories that slices lie in become pieces, in the order of the caller's list. */
static kvc_status add_pieces(kvc_client *client, struct lent *lent, const kvc_part_desc *desc)
{
    for (uint32_t m = 0; m < desc->n_memories; m++) {
        const uint32_t piece = lent->n_pieces;
        kvc_status status = KVC_OK;

        for (uint32_t s = 0; s < desc->n_slices && status == KVC_OK; s++) {
            uint32_t found;

            if (!find_memory(desc, &desc->slices[s], &found) || found != m)
                continue;
            if (lent->n_pieces == piece)
                status = add_piece(client, lent, &desc->memories[m], m);
            lent->slice_pieces[s] = piece;
            lent->slice_offsets[s] =
                (uintptr_t)desc->slices[s].base - (uintptr_t)desc->memories[m].base;
            lent->slice_strides[s] = desc->slices[s].stride;
        }
        if (status != KVC_OK)
            return status;
    }
    return KVC_OK;
}

static kvc_status check_desc(kvc_client *client, const kvc_part_desc *desc)
{
    if (!role_copies(client->role))
        return rpc_fail(&client->rpc, KVC_E_DENIED, "copy", "a role that copies nothing");
    if (desc->n_blocks == 0)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "n_blocks", "none");
    return KVC_OK;
}

static kvc_status check_memories(kvc_client *client, const kvc_part_desc *desc)
{
    kvc_status status = rpc_check_count(&client->rpc, "memories", desc->memories, desc->n_memories,
                                        KVC_SESSION_PIECES_MAX);

    for (uint32_t i = 0; i < desc->n_memories && status == KVC_OK; i++)
        status = check_memory(client, &desc->memories[i], i);
    for (uint32_t i = 0; i < desc->n_slices && status == KVC_OK; i++) {
        uint32_t found;

        if (desc->slices[i].base == NULL || !find_memory(desc, &desc->slices[i], &found))
            status =
                rpc_fail(&client->rpc, KVC_E_INVALID, NULL, "slices[%u].base: in no memory", i);
    }
    return status;
}

kvc_status lend_make(kvc_client *client, const kvc_part_desc *desc, struct lent **ret)
{
    kvc_status status = check_desc(client, desc);
    struct lent *lent;

    if (status != KVC_OK)
        return status;
    if (client->copy == &copy_cuda)
        return lend_make_cuda(client, desc, ret);
    status = check_memories(client, desc);
    if (status != KVC_OK)
        return status;
    lent = lend_allocate(desc->n_memories, desc->n_slices);
    if (lent == NULL)
        return rpc_fail(&client->rpc, KVC_E_NO_MEMORY, NULL, "no memory for a part");
    lent->n_blocks = desc->n_blocks;
    status = add_pieces(client, lent, desc);
    if (status != KVC_OK) {
        lend_free(lent);
        return status;
    }
    *ret = lent;
    return KVC_OK;
}

void lend_free(struct lent *lent)
{
    if (lent == NULL)
        return;
    for (uint32_t i = 0; i < lent->n_pieces; i++)
        if (lent->fds[i] >= 0)
            close(lent->fds[i]);
    free(lent);
}

static bool same(const void *a, const void *b, size_t n, size_t size)
{
    return memcmp(a, b, n * size) == 0;
}

bool lend_equal(const struct lent *a, const struct lent *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    return a->on_gpu == b->on_gpu && a->n_pieces == b->n_pieces && a->n_slices == b->n_slices &&
           a->n_blocks == b->n_blocks && same(a->bytes, b->bytes, a->n_pieces, sizeof(*a->bytes)) &&
           same(a->offsets, b->offsets, a->n_pieces, sizeof(*a->offsets)) &&
           same(a->devices, b->devices, a->n_pieces, sizeof(*a->devices)) &&
           same(a->inodes, b->inodes, a->n_pieces, sizeof(*a->inodes)) &&
           same(a->slice_pieces, b->slice_pieces, a->n_slices, sizeof(*a->slice_pieces)) &&
           same(a->slice_offsets, b->slice_offsets, a->n_slices, sizeof(*a->slice_offsets)) &&
           same(a->slice_strides, b->slice_strides, a->n_slices, sizeof(*a->slice_strides));
}

bool lend_any(const kvc_client *client)
{
    for (uint32_t i = 0; i < KVC_PARTS_MAX; i++)
        if (client->parts[i].used && client->parts[i].lent != NULL)
            return true;
    return false;
}

/* A request that names a region, or begins one. reply: NULL when it is empty. */
static kvc_status ask(kvc_client *client, uint16_t type, kvc_status packed, size_t len, uint32_t ms,
                      uint64_t *region)
{
    struct call call = {.type = type, .len = len};
    struct wire_packet packet;
    kvc_status status = client_call(client, &call, packed, ms, &packet);

    if (status != KVC_OK || region == NULL)
        return status;
    if (!codec_get_region_reply(&client->scratch, &packet, region) || *region == 0)
        return client_distrust(client, "RegionReply", "malformed");
    return KVC_OK;
}

static kvc_status fill_batch(kvc_client *client, const struct lent *lent, uint32_t at, uint32_t n,
                             struct lend_batch *batch)
{
    if (lent->on_gpu)
        return lend_export_cuda(client, lent, at, n, batch);
    memset(batch->kinds, LEND_MEMFD, n);
    memcpy(batch->fds, lent->fds + at, n * sizeof(*batch->fds));
    batch->n_fds = n;
    batch->n_handles = 0;
    return KVC_OK;
}

static kvc_status send_batch(kvc_client *client, const struct lent *lent, uint64_t region,
                             uint32_t at, uint32_t n, uint64_t deadline_us)
{
    struct lend_batch batch;
    struct codec_pieces pieces = {
        .n = n,
        .kinds = batch.kinds,
        .bytes = lent->bytes + at,
        .offsets = lent->offsets + at,
        .handles = batch.handles,
    };
    struct wire_packet reply;
    size_t len = 0;
    kvc_status status = fill_batch(client, lent, at, n, &batch);

    pieces.n_handles = batch.n_handles;
    if (status == KVC_OK)
        status = codec_put_region_part(region, &pieces, client->rpc.body, &len);
    if (status == KVC_OK)
        status = rpc_call_fds(&client->rpc, WIRE_REGION_PART, client->rpc.body, len, batch.fds,
                              batch.n_fds, deadline_us, &reply);
    for (uint32_t i = 0; i < batch.n_fds && lent->on_gpu; i++)
        close(batch.fds[i]);
    if (status == KVC_OK && reply.n_fds > 0) {
        wire_close_fds(&reply);
        status = client_distrust(client, "fds", "descriptors came with a reply that has none");
    }
    return status;
}

static kvc_status send_pieces(kvc_client *client, const struct lent *lent, uint64_t region)
{
    const uint64_t deadline_us = rpc_deadline_us(client->connect_ms);
    kvc_status status = KVC_OK;

    for (uint32_t at = 0, n; at < lent->n_pieces && status == KVC_OK; at += n) {
        n = lent->n_pieces - at < KVC_WIRE_FDS_MAX ? lent->n_pieces - at : KVC_WIRE_FDS_MAX;
        status = send_batch(client, lent, region, at, n, deadline_us);
    }
    return status;
}

/* A region that came to nothing here: the daemon is not to keep what it has of it. */
static void drop_unfinished(kvc_client *client, uint64_t region)
{
    size_t len = 0;

    if (region != 0 && codec_put_region(region, client->rpc.spare, &len) == KVC_OK)
        (void)rpc_tell(&client->rpc, WIRE_REGION_DROP, client->rpc.spare, len);
}

kvc_status lend_announce(kvc_client *client, const struct part *part)
{
    struct lent *lent = part->lent;
    const struct codec_region begin = {
        .part = part->id,
        .blocks = lent->n_blocks,
        .pieces = lent->n_pieces,
        .n_slices = lent->n_slices,
        .slice_pieces = lent->slice_pieces,
        .slice_offsets = lent->slice_offsets,
        .slice_strides = lent->slice_strides,
    };
    uint64_t region = 0;
    size_t len = 0;
    kvc_status status = codec_put_region_begin(&begin, client->rpc.body, &len);

    status = ask(client, WIRE_REGION_BEGIN, status, len, client->connect_ms, &region);
    if (status == KVC_OK)
        status = send_pieces(client, lent, region);
    if (status == KVC_OK) {
        status = codec_put_region(region, client->rpc.body, &len);
        status = ask(client, WIRE_REGION_END, status, len, client->connect_ms, &lent->region);
    }
    if (status != KVC_OK)
        drop_unfinished(client, region);
    return status;
}

kvc_status lend_drop(kvc_client *client, const struct part *part)
{
    size_t len = 0;
    kvc_status status = codec_put_region(part->lent->region, client->rpc.body, &len);

    status = ask(client, WIRE_REGION_DROP, status, len, client->connect_ms, NULL);
    return status == KVC_E_UNKNOWN ? KVC_OK : status;
}

/* Copies on a GPU run on after the call that enqueued them. */
static kvc_status wait_for_copies(kvc_client *client, const struct part *part, uint32_t ms)
{
    const uint64_t deadline_us = rpc_deadline_us(ms);

    if (part->table == NULL)
        return KVC_OK;
    while (!cuda_is_drained(client->cuda)) {
        if (rpc_now_us() >= deadline_us)
            return rpc_fail(&client->rpc, KVC_E_DEADLINE, "part", "its copies are not over");
        usleep(100);
    }
    return KVC_OK;
}

static kvc_status pause_part(kvc_client *client, kvc_part handle, uint16_t type, uint32_t ms)
{
    struct part *part;
    size_t len = 0;
    kvc_status status = client_enter(client);

    if (status == KVC_OK)
        status = part_find(client, handle, &part);
    if (status != KVC_OK)
        return status;
    if (part->lent == NULL)
        return type == WIRE_SUSPEND ? wait_for_copies(client, part, ms) : KVC_OK;
    status = codec_put_region(part->lent->region, client->rpc.body, &len);
    return ask(client, type, status, len, ms, NULL);
}

kvc_status kvc_suspend(kvc_client *client, kvc_part part, uint32_t ms)
{
    return pause_part(client, part, WIRE_SUSPEND, ms);
}

kvc_status kvc_resume(kvc_client *client, kvc_part part)
{
    return pause_part(client, part, WIRE_RESUME, client != NULL ? client->lookup_ms : 0);
}
