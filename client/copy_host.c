#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client/copy.h"
#include "client/pause.h"

/* Addresses of a GPU are not, and touching one ends the process. If it cannot be told, they are. */
static bool is_memory(void *at)
{
    char byte;
    const struct iovec here = {&byte, 1}, there = {at, 1};

    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 || errno != EFAULT;
}

static kvc_status host_part_open(struct cuda *cuda, const struct pack_layout *layout,
                                 const struct pack_slice *slices, void **table, uint32_t *slice,
                                 const char **why)
{
    (void)cuda;
    for (uint32_t i = 0; i < layout->n_slices; i++) {
        if (!is_memory(slices[i].base)) {
            *slice = i;
            *why = "no memory of this machine, and the daemon's device is \"host\"";
            return KVC_E_INVALID;
        }
    }
    *table = NULL;
    return KVC_OK;
}

static void host_part_close(struct cuda *cuda, void *table)
{
    (void)cuda;
    (void)table;
}

static kvc_status host_begin(struct cuda *cuda, void *stream)
{
    (void)cuda;
    (void)stream;
    return KVC_OK;
}

static void host_end(struct cuda *cuda, void *stream)
{
    (void)cuda;
    (void)stream;
}

/* Release: whoever sees the number sees the slots and cells that were written before. */
static kvc_status host_prove(struct cuda *cuda, void *stream, const struct copy_word *word)
{
    (void)cuda;
    (void)stream;
    if (word->pause != NULL)
        pause_pass(word->pause);
    __atomic_store_n(word->at, word->number, __ATOMIC_RELEASE);
    return KVC_OK;
}

/* Span by span, so that each word is written when its blocks are there. */
static void host_copy(const struct copy_job *job, void (*copy)(const struct pack_job *job))
{
    struct pack_job pack = job->pack;

    for (uint32_t i = 0; i < job->n_spans; i++) {
        const struct copy_span *span = &job->spans[i];

        pack.n_blocks = span->n_blocks;
        pack.cells = span->cells;
        copy(&pack);
        pack.blocks += span->n_blocks;
        if (span->word != NULL)
            (void)host_prove(NULL, NULL, span->word);
    }
}

static kvc_status host_gather(struct cuda *cuda, void *stream, const struct copy_job *job)
{
    (void)cuda;
    (void)stream;
    host_copy(job, pack_host_gather);
    return KVC_OK;
}

static kvc_status host_scatter(struct cuda *cuda, void *stream, const struct copy_job *job)
{
    (void)cuda;
    (void)stream;
    host_copy(job, pack_host_scatter);
    return KVC_OK;
}

static kvc_status host_settle(struct cuda *cuda, void *stream)
{
    return host_begin(cuda, stream);
}

static uint64_t *host_cells_make(struct cuda *cuda, uint32_t n)
{
    (void)cuda;
    return calloc(n, sizeof(uint64_t));
}

static void host_cells_free(struct cuda *cuda, uint64_t *cells)
{
    (void)cuda;
    free(cells);
}

static kvc_status host_mark_make(struct cuda *cuda, void **mark)
{
    (void)cuda;
    *mark = NULL;
    return KVC_OK;
}

static void host_mark_free(struct cuda *cuda, void *mark)
{
    (void)cuda;
    (void)mark;
}

static kvc_status host_mark_set(struct cuda *cuda, void *stream, void *mark)
{
    (void)mark;
    return host_begin(cuda, stream);
}

static kvc_status host_mark_passed(struct cuda *cuda, void *mark)
{
    (void)cuda;
    (void)mark;
    return KVC_OK;
}

static kvc_status host_write_gate(struct cuda *cuda, void *stream, struct copy_gate *gate)
{
    (void)cuda;
    (void)stream;
    *gate = (struct copy_gate){0};
    return KVC_OK;
}

const struct copy_ops copy_host = {
    .name = "host",
    .blocks_max = KVC_CHUNK_BLOCKS,
    .spans_max = 1, /* the next chunk begins when the one before is there */
    .part_open = host_part_open,
    .part_close = host_part_close,
    .begin = host_begin,
    .end = host_end,
    .gather = host_gather,
    .scatter = host_scatter,
    .prove = host_prove,
    .settle = host_settle,
    .write_gate = host_write_gate,
    .cells_make = host_cells_make,
    .cells_free = host_cells_free,
    .mark_make = host_mark_make,
    .mark_free = host_mark_free,
    .mark_set = host_mark_set,
    .mark_passed = host_mark_passed,
};
