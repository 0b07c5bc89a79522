/* GPU memory that is lent to the daemon: the allocations that slices lie in. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/cuda.h"

/* In the order of their addresses, each once. */
struct pieces {
    uint32_t n, room;
    struct cuda_piece *list;
};

/* The first one that ends behind an address, or n. */
static uint32_t place_of(const struct pieces *pieces, uint64_t address)
{
    uint32_t low = 0, high = pieces->n;

    while (low < high) {
        const uint32_t middle = (low + high) / 2;

        if (pieces->list[middle].at + pieces->list[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool holds(const struct pieces *pieces, uint32_t i, uint64_t address)
{
    return i < pieces->n && pieces->list[i].at <= address;
}

static kvc_status insert(kvc_client *client, struct pieces *pieces, uint32_t i,
                         const struct cuda_piece *piece)
{
    if (pieces->n == KVC_SESSION_GPU_PIECES_MAX)
        return rpc_fail(&client->rpc, KVC_E_LIMIT, "slices", "in more than %u pieces of memory",
                        KVC_SESSION_GPU_PIECES_MAX);
    if (pieces->n == pieces->room) {
        const uint32_t room = pieces->room == 0 ? 64 : 2 * pieces->room;
        struct cuda_piece *list = realloc(pieces->list, room * sizeof(*list));

        if (list == NULL)
            return rpc_fail(&client->rpc, KVC_E_NO_MEMORY, NULL, "no memory for a part");
        pieces->list = list;
        pieces->room = room;
    }
    memmove(pieces->list + i + 1, pieces->list + i, (pieces->n - i) * sizeof(*piece));
    pieces->list[i] = *piece;
    pieces->n++;
    return KVC_OK;
}

/* A slice runs over mapped pieces, one behind the other; of other memory it lies in one. */
static kvc_status add_slice(kvc_client *client, const kvc_part_desc *desc, uint32_t s,
                            struct pieces *pieces)
{
    const kvc_slice *slice = &desc->slices[s];
    const uint64_t first = (uintptr_t)slice->base;
    const uint64_t end = first + (desc->n_blocks - 1ull) * slice->stride + slice->bytes;

    for (uint64_t at = first; at < end;) {
        const uint32_t i = place_of(pieces, at);
        struct cuda_piece piece;
        const char *why = "";
        kvc_status status;

        if (holds(pieces, i, at)) {
            at = pieces->list[i].at + pieces->list[i].bytes;
            continue;
        }
        status = cuda_find_piece(client->cuda, at, &piece, &why);
        if (status != KVC_OK)
            return rpc_fail(&client->rpc, status, NULL, "slices[%u].base: %s", s, why);
        if (piece.legacy && (first < piece.at || end > piece.at + piece.bytes))
            return rpc_fail(&client->rpc, KVC_E_INVALID, NULL,
                            "slices[%u].stride: the last block ends behind its memory", s);
        status = insert(client, pieces, i, &piece);
        if (status != KVC_OK)
            return status;
        at = piece.at + piece.bytes;
    }
    return KVC_OK;
}

static void describe(struct lent *lent, const kvc_part_desc *desc, const struct pieces *pieces)
{
    lent->on_gpu = true;
    lent->n_blocks = desc->n_blocks;
    lent->n_pieces = pieces->n;
    for (uint32_t i = 0; i < pieces->n; i++) {
        lent->fds[i] = -1;
        lent->bytes[i] = pieces->list[i].bytes;
        lent->devices[i] = pieces->list[i].at;
        lent->inodes[i] = pieces->list[i].legacy;
    }
    for (uint32_t s = 0; s < desc->n_slices; s++) {
        const uint64_t base = (uintptr_t)desc->slices[s].base;
        const uint32_t i = place_of(pieces, base);

        assert(i < pieces->n);
        lent->slice_pieces[s] = i;
        lent->slice_offsets[s] = base - pieces->list[i].at;
        lent->slice_strides[s] = desc->slices[s].stride;
    }
}

kvc_status lend_make_cuda(kvc_client *client, const kvc_part_desc *desc, struct lent **ret)
{
    struct pieces pieces = {0};
    struct lent *lent = NULL;
    kvc_status status = KVC_OK;

    for (uint32_t s = 0; s < desc->n_slices && status == KVC_OK; s++)
        status = desc->slices[s].base != NULL
                     ? add_slice(client, desc, s, &pieces)
                     : rpc_fail(&client->rpc, KVC_E_INVALID, NULL, "slices[%u].base: NULL", s);
    if (status == KVC_OK) {
        lent = lend_allocate(pieces.n, desc->n_slices);
        if (lent == NULL)
            status = rpc_fail(&client->rpc, KVC_E_NO_MEMORY, NULL, "no memory for a part");
        else
            describe(lent, desc, &pieces);
    }
    free(pieces.list);
    if (status == KVC_OK)
        *ret = lent;
    return status;
}

kvc_status lend_export_cuda(kvc_client *client, const struct lent *lent, uint32_t at, uint32_t n,
                            struct lend_batch *batch)
{
    batch->n_fds = batch->n_handles = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool legacy = lent->inodes[at + i] != 0;
        int fd = -1;
        kvc_status status = cuda_export(client->cuda, lent->devices[at + i], legacy, &fd,
                                        batch->handles + (size_t)batch->n_handles * CUDA_IPC_BYTES);

        if (status != KVC_OK)
            return rpc_fail(&client->rpc, status, "slices",
                            "in memory that CUDA does not share with other processes: managed, of "
                            "a stream's pool, or mapped without a handle of the kind of a "
                            "descriptor");
        batch->kinds[i] = legacy ? LEND_CUDA_HANDLE : LEND_CUDA_FD;
        batch->n_handles += legacy;
        if (!legacy)
            batch->fds[batch->n_fds++] = fd;
    }
    return KVC_OK;
}
