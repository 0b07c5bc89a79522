/* The host half of packing on a GPU: loading, tables, launches. */
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

kvc_status pack_cuda_open(struct pack_cuda *cuda, const struct pack_cuda_driver *driver, int *error)
{
    static const char *const names[8] = {
        "pack_gather",  "pack_gather_small",  "pack_gather_summed",  "pack_gather_small_summed",
        "pack_scatter", "pack_scatter_small", "pack_scatter_summed", "pack_scatter_small_summed",
    };
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
    for (int i = 0; i < 8; i++) {
        rc = open_kernel(&opened, names[i], multiprocessors,
                         &opened.kernels[i / 4][i / 2 % 2][i % 2]);
        if (rc != 0)
            goto unload;
    }
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
    return (n_slices + 1) * sizeof(struct pack_cuda_row);
}

/* The pieces of every slice, if all have the same number, else 0. */
static uint32_t pieces_of_each(uint32_t n_slices, const struct pack_cuda_row *rows, uint32_t pieces)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): every layout has slices */
    const uint32_t each = pieces / n_slices;

    if (each * n_slices != pieces)
        return 0;
    for (uint32_t s = 0; s < n_slices; s++)
        if (rows[s].first_piece != s * each)
            return 0;
    return each;
}

/* The units of every slice, if all are alike, whole units and small, else 0: they are then packed
 * without gaps, and a piece need not end where a slice does. */
static uint32_t units_of_each(const struct pack_layout *layout, const struct pack_slice *slices)
{
    const uint32_t bytes = layout->slice_bytes[0];

    if (bytes % CHECKSUM_UNIT != 0 || bytes >= PACK_CUDA_PIECE_BYTES)
        return 0;
    for (uint32_t s = 0; s < layout->n_slices; s++)
        if (layout->slice_bytes[s] != bytes ||
            ((uintptr_t)slices[s].base | slices[s].stride) % CHECKSUM_UNIT != 0)
            return 0;
    return bytes / CHECKSUM_UNIT;
}

void pack_cuda_table_fill(void *table, const struct pack_layout *layout,
                          const struct pack_slice *slices)
{
    struct pack_cuda_row *rows = table;
    uint32_t pieces = 0;
    for (uint32_t s = 0; s < layout->n_slices; s++) {
        uint32_t bytes = layout->slice_bytes[s];
        rows[s] = (struct pack_cuda_row){
            .base = (uintptr_t)slices[s].base,
            .stride = slices[s].stride,
            .offset = layout->slice_offsets[s],
            .key = checksum_key(s),
            .bytes = bytes,
            .first_piece = pieces,
        };
        pieces += (bytes + PACK_CUDA_PIECE_BYTES - 1) / PACK_CUDA_PIECE_BYTES;
    }
    rows[layout->n_slices] = (struct pack_cuda_row){
        .stride = units_of_each(layout, slices),
        .bytes = pieces_of_each(layout->n_slices, rows, pieces),
        .first_piece = pieces,
    };
}

size_t pack_cuda_scratch_bytes(void)
{
    return sizeof(struct pack_cuda_scratch);
}

static uint32_t round_up_div(uint64_t n, uint32_t by)
{
    return (uint32_t)((n + by - 1) / by);
}

/* Where pieces lie: of each slice its own, or through all slices of a block. */
static void set_pieces(struct pack_cuda_args *args, const struct pack_cuda_job *job)
{
    const struct pack_cuda_row *rows = job->table;
    const uint32_t end = job->first_slice + job->n_slices;
    const uint32_t units = (uint32_t)rows[job->layout->n_slices].stride;

    args->first_slice = job->first_slice;
    args->n_slices = job->n_slices;
    args->pieces = rows[end].first_piece - rows[job->first_slice].first_piece;
    args->pieces_per_slice = rows[job->layout->n_slices].bytes;
    if (units == 0)
        return;
    args->pieces = round_up_div((uint64_t)job->n_slices * units, PACK_CUDA_PIECE_UNITS);
    args->units_per_slice = units;
    args->units_inverse = units == 1 ? 0 : round_up_div(1ull << 32, units);
}

static void set_blocks(struct pack_cuda_args *args, const struct pack_cuda_job *job)
{
    uint32_t first = 0;

    args->n_blocks = job->n_blocks;
    for (uint32_t b = 0; b < job->n_blocks; b++) {
        args->ids[b] = job->blocks[b].id;
        args->slots[b] = (uintptr_t)job->blocks[b].slot;
    }
    args->n_spans = job->n_spans;
    for (uint32_t i = 0; i < job->n_spans; i++) {
        const struct pack_cuda_span *span = &job->spans[i];

        args->spans[i] = (struct pack_cuda_span_args){
            .cells = span->cells,
            .word = span->word,
            .word_value = span->word_value,
            .first_block = first,
            .n_blocks = span->n_blocks,
        };
        first += span->n_blocks;
    }
}

static uint32_t choose_grid(const struct pack_cuda_job *job, const struct pack_cuda_kernel *kernel,
                            uint32_t pieces)
{
    uint32_t grid = round_up_div((uint64_t)job->n_blocks * pieces, PACK_CUDA_THREADS / 32);

    if (grid > kernel->thread_blocks)
        grid = kernel->thread_blocks;
    if (job->max_thread_blocks != 0 && grid > job->max_thread_blocks)
        grid = job->max_thread_blocks;
    return grid != 0 ? grid : 1;
}

kvc_status pack_cuda_launch(const struct pack_cuda *cuda, const struct pack_cuda_job *job,
                            void *stream, int *error)
{
    const struct pack_cuda_kernel *kernel;
    struct pack_cuda_args args = {.rows = job->device_table};
    void *parameters[] = {&args};
    int rc;

    if (job->n_blocks > PACK_CUDA_BLOCKS || job->n_spans > PACK_CUDA_SPANS)
        return KVC_E_LIMIT;
    if (job->n_spans > 0 && job->scratch == 0)
        return KVC_E_INVALID;
    set_pieces(&args, job);
    if (job->n_spans == 0 && job->n_blocks * args.pieces == 0)
        return KVC_OK;
    set_blocks(&args, job);
    args.scratch = job->n_spans > 0 ? job->scratch : 0;
    kernel = &cuda->kernels[job->direction][job->n_spans > 0 && job->spans[0].cells != 0]
                           [args.units_per_slice != 0];
    rc = cuda->driver->launch(kernel->function, choose_grid(job, kernel, args.pieces), 1, 1,
                              PACK_CUDA_THREADS, 1, 1, 0, stream, parameters, NULL);
    if (rc != 0) {
        *error = rc;
        return KVC_E_DEVICE;
    }
    return KVC_OK;
}
