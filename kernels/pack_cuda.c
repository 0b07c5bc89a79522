/* The host half of packing on a GPU: loading, tables, launches. */
#include <stddef.h>

#include "kernels/checksum.h"
#include "kernels/pack_cuda.h"
#include "kernels/pack_cuda_args.h"

#ifdef KVC_CUDA
/* The Makefile has nvcc write the file and puts its folder on the assembler's path. */
__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        "pack_cuda_image:\n"
        ".incbin \"kernels/pack_cuda.fatbin\"\n"
        ".popsection\n");
extern const unsigned char pack_cuda_image[];
static const unsigned char *const image = pack_cuda_image;
#elif defined(KVC_CUDA_STAND_IN)
/* For the tests' driver, which makes the copies itself and looks at no image. */
static const unsigned char nothing[16], *const image = nothing;
#else
static const unsigned char *const image = NULL;
#endif

bool pack_cuda_built(void)
{
    return image != NULL;
}

static int open_kernel(const struct pack_cuda *cuda, const char *name, int multiprocessors,
                       struct pack_cuda_kernel *kernel)
{
    const struct pack_cuda_driver *driver = cuda->driver;
    int each = 0;
    int rc = driver->module_function(&kernel->function, cuda->module, name);
    if (rc == 0)
        rc = driver->occupancy(&each, kernel->function, PACK_CUDA_THREADS, 0);
    kernel->thread_blocks = (uint32_t)(each * multiprocessors);
    return rc;
}

/* A launch that may begin early has to wait in its kernel, and code for less than compute_90
 * cannot: a newer GPU runs it where this build has no machine code for that GPU. */
static int see_whether_they_wait(struct pack_cuda *cuda)
{
    const int ptx_version = 5; /* CU_FUNC_ATTRIBUTE_PTX_VERSION: the virtual architecture */
    int architecture = 0;
    int rc = cuda->driver->function_attribute(&architecture, ptx_version,
                                              cuda->kernels[0][0][0][0].function);

    cuda->chains = architecture >= 90;
    return rc;
}

kvc_status pack_cuda_open(struct pack_cuda *cuda, const struct pack_cuda_driver *driver, int *error)
{
#define BOTH(name) name, name "_short"
    static const char *const names[16] = {
        BOTH("pack_gather"),         BOTH("pack_gather_small"),
        BOTH("pack_gather_summed"),  BOTH("pack_gather_small_summed"),
        BOTH("pack_scatter"),        BOTH("pack_scatter_small"),
        BOTH("pack_scatter_summed"), BOTH("pack_scatter_small_summed"),
    };
#undef BOTH
    const int multiprocessor_count = 16; /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */

    if (!pack_cuda_built())
        return KVC_E_UNSUPPORTED;

    struct pack_cuda opened = {.driver = driver};
    int device, multiprocessors;
    int rc = driver->context_device(&device);
    if (rc == 0)
        rc = driver->device_attribute(&multiprocessors, multiprocessor_count, device);
    if (rc == 0)
        rc = driver->module_load(&opened.module, image);
    if (rc != 0)
        goto failed;
    for (int i = 0; i < 16; i++) {
        rc = open_kernel(&opened, names[i], multiprocessors,
                         &opened.kernels[i / 8][i / 4 % 2][i / 2 % 2][i % 2]);
        if (rc != 0)
            goto unload;
    }
    rc = see_whether_they_wait(&opened);
    if (rc != 0)
        goto unload;
    *cuda = opened;
    return KVC_OK;

unload:
    driver->module_unload(opened.module);
failed:
    *error = rc;
    return KVC_E_DEVICE;
}

void pack_cuda_close(struct pack_cuda *cuda)
{
    if (cuda->module)
        cuda->driver->module_unload(cuda->module);
    *cuda = (struct pack_cuda){0};
}

size_t pack_cuda_table_bytes(uint32_t n_slices)
{
    return n_slices * sizeof(struct pack_cuda_row) + sizeof(struct pack_cuda_tail) +
           (n_slices + 1) * sizeof(uint32_t);
}

static size_t tail_offset(const struct pack_layout *layout)
{
    return layout->n_slices * sizeof(struct pack_cuda_row);
}

static const struct pack_cuda_tail *tail_of(const void *table, const struct pack_layout *layout)
{
    return (const void *)((const char *)table + tail_offset(layout));
}

/* The pieces of every slice, if all have the same number and a multiplication finds the slice of a
 * piece, else 0. */
static uint32_t pieces_of_each(uint32_t n_slices, const uint32_t *first_piece)
{
    const uint32_t each = first_piece[1];

    for (uint32_t s = 0; s < n_slices; s++)
        if (first_piece[s + 1] - first_piece[s] != each)
            return 0;
    return (uint64_t)n_slices * each * each < 1ull << 32 ? each : 0;
}

/* Whether slices are alike, whole units and small: they are then packed without gaps, and a piece
 * need not end where a slice does. */
static bool are_small(const struct pack_layout *layout, const struct pack_slice *slices)
{
    const uint32_t bytes = layout->slice_bytes[0];

    if (bytes % CHECKSUM_UNIT != 0 || bytes >= PACK_CUDA_PIECE_BYTES)
        return false;
    for (uint32_t s = 0; s < layout->n_slices; s++)
        if (layout->slice_bytes[s] != bytes ||
            ((uintptr_t)slices[s].base | slices[s].stride) % CHECKSUM_UNIT != 0)
            return false;
    return true;
}

void pack_cuda_table_fill(void *table, const struct pack_layout *layout,
                          const struct pack_slice *slices)
{
    struct pack_cuda_row *rows = table;
    struct pack_cuda_tail *tail = (void *)((char *)table + tail_offset(layout));

    tail->first_piece[0] = 0;
    for (uint32_t s = 0; s < layout->n_slices; s++) {
        const uint32_t bytes = layout->slice_bytes[s];

        rows[s] = (struct pack_cuda_row){
            .base = (uintptr_t)slices[s].base,
            .stride = slices[s].stride,
            .key = checksum_key(s),
            .offset = (uint32_t)(layout->slice_offsets[s] / CHECKSUM_UNIT),
            .bytes = bytes,
        };
        tail->first_piece[s + 1] =
            tail->first_piece[s] + (bytes + PACK_CUDA_PIECE_BYTES - 1) / PACK_CUDA_PIECE_BYTES;
    }
    tail->small = are_small(layout, slices);
    tail->each = tail->small ? layout->slice_bytes[0] / CHECKSUM_UNIT
                             : pieces_of_each(layout->n_slices, tail->first_piece);
}

size_t pack_cuda_scratch_bytes(void)
{
    return sizeof(struct pack_cuda_scratch);
}

static uint32_t round_up_div(uint64_t n, uint32_t by)
{
    return (uint32_t)((n + by - 1) / by);
}

/* Where pieces lie: of each slice its own, or through all slices of a block. Returns whether the
 * slices are small. */
static bool set_pieces(struct pack_cuda_args *args, const struct pack_cuda_job *job)
{
    const struct pack_cuda_tail *tail = tail_of(job->table, job->layout);
    const uint32_t end = job->first_slice + job->n_slices;

    args->rows = job->device_table;
    args->first_piece =
        job->device_table + tail_offset(job->layout) + offsetof(struct pack_cuda_tail, first_piece);
    args->first_slice = job->first_slice;
    args->n_slices = job->n_slices;
    args->each = tail->each;
    args->inverse = tail->each <= 1 ? 0 : round_up_div(1ull << 32, tail->each);
    args->pieces = tail->small
                       ? round_up_div((uint64_t)job->n_slices * tail->each, PACK_CUDA_SMALL_UNITS)
                       : tail->first_piece[end] - tail->first_piece[job->first_slice];
    return tail->small != 0;
}

/* The lists. Returns whether they are short. */
static bool set_blocks(struct pack_cuda_args *args, const struct pack_cuda_job *job)
{
    struct pack_cuda_span_args *spans = (void *)args->list;
    uint64_t *slots = args->list + job->n_spans * PACK_CUDA_SPAN_WORDS;
    uint32_t *ids = (uint32_t *)(slots + job->n_blocks);
    uint32_t first = 0;

    args->n_blocks = job->n_blocks;
    args->n_spans = job->n_spans;
    args->slots = (uint32_t)(slots - args->list);
    args->ids = (uint32_t)(ids - (uint32_t *)args->list);
    for (uint32_t b = 0; b < job->n_blocks; b++) {
        ids[b] = job->blocks[b].id;
        slots[b] = (uintptr_t)job->blocks[b].slot;
    }
    for (uint32_t i = 0; i < job->n_spans; i++) {
        const struct pack_cuda_span *span = &job->spans[i];

        spans[i] = (struct pack_cuda_span_args){
            .cells = span->cells,
            .word = span->word,
            .word_value = span->word_value,
            .first_block = first,
            .n_blocks = span->n_blocks,
        };
        first += span->n_blocks;
    }
    return args->ids + job->n_blocks <= PACK_CUDA_SHORT_WORDS * 2;
}

/* More than run at a time if each still has much to do: those that begin when others have ended
 * even out how long they take. Where slices are small that gains nothing. */
static uint32_t enough_thread_blocks(const struct pack_cuda_kernel *kernel, uint32_t pieces,
                                     bool small)
{
    const uint32_t many = round_up_div(pieces, PACK_CUDA_SHARE);

    return !small && many > kernel->thread_blocks ? many : kernel->thread_blocks;
}

/* How many thread blocks, and what each copies. */
static uint32_t set_shares(struct pack_cuda_args *args, const struct pack_cuda_job *job,
                           const struct pack_cuda_kernel *kernel, bool small)
{
    const uint32_t pieces = job->n_blocks * args->pieces;
    const uint32_t enough = enough_thread_blocks(kernel, pieces, small);
    uint32_t grid = round_up_div(pieces, PACK_CUDA_THREADS / 32);

    if (grid > enough)
        grid = enough;
    if (job->max_thread_blocks != 0 && grid > job->max_thread_blocks)
        grid = job->max_thread_blocks;
    if (grid == 0)
        grid = 1;
    args->share = pieces / grid;
    args->rest = pieces % grid;
    return grid;
}

/* Not on the legacy streams. Not with a limit of thread blocks, which those of launches that run at
 * a time would exceed together; what is limited by a link gains nothing by it either. */
static bool may_chain(const struct pack_cuda *cuda, const struct pack_cuda_job *job,
                      const void *stream)
{
    return cuda->chains && job->max_thread_blocks == 0 && (uintptr_t)stream > 2;
}

/* After the launch before it has begun; else after it has ended. */
static int launch(const struct pack_cuda *cuda, const struct pack_cuda_kernel *kernel,
                  uint32_t grid, struct pack_cuda_args *args, void *stream)
{
    struct pack_cuda_attribute early = {.id = 6, /* PROGRAMMATIC_STREAM_SERIALIZATION */ .flag = 1};
    struct pack_cuda_config config = {grid, 1, 1, PACK_CUDA_THREADS, 1, 1, 0, stream, &early, 1};
    void *parameters[] = {args};

    if (args->follows != 0)
        return cuda->driver->launch_with(&config, kernel->function, parameters, NULL);
    return cuda->driver->launch(kernel->function, grid, 1, 1, PACK_CUDA_THREADS, 1, 1, 0, stream,
                                parameters, NULL);
}

kvc_status pack_cuda_launch(const struct pack_cuda *cuda, const struct pack_cuda_job *job,
                            void *stream, int *error)
{
    const bool summed = job->n_spans > 0 && job->spans[0].cells != 0;
    struct pack_cuda_args args = {.far = job->far};
    const struct pack_cuda_kernel *kernel;
    bool small, is_short;
    int rc;

    if (job->n_blocks > PACK_CUDA_BLOCKS || job->n_spans > PACK_CUDA_SPANS)
        return KVC_E_LIMIT;
    if (job->n_spans > 0 && job->scratch == 0)
        return KVC_E_INVALID;
    small = set_pieces(&args, job);
    if (job->n_spans == 0 && job->n_blocks * args.pieces == 0)
        return KVC_OK;
    is_short = set_blocks(&args, job);
    args.scratch = job->n_spans > 0 ? job->scratch : 0;
    kernel = &cuda->kernels[job->direction][summed][small][is_short];
    args.follows = job->follows && may_chain(cuda, job, stream);
    args.more = job->more && may_chain(cuda, job, stream);
    rc = launch(cuda, kernel, set_shares(&args, job, kernel, small), &args, stream);
    if (rc != 0) {
        *error = rc;
        return KVC_E_DEVICE;
    }
    return KVC_OK;
}
