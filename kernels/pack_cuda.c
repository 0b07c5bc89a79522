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
    static const char *const names[2][2] = {
        {"pack_gather", "pack_gather_summed"},
        {"pack_scatter", "pack_scatter_summed"},
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
    for (int i = 0; i < 4; i++) {
        rc = open_kernel(&opened, names[i / 2][i % 2], multiprocessors,
                         &opened.kernels[i / 2][i % 2]);
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
    /* Behind the slices: how many pieces each has, if all have the same number. */
    bool uniform = true;
    for (uint32_t s = 0; s < layout->n_slices; s++)
        uniform = uniform && rows[s].first_piece == s * (pieces / layout->n_slices);
    /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): every layout has slices */
    uniform = uniform && pieces % layout->n_slices == 0;
    rows[layout->n_slices] = (struct pack_cuda_row){
        .bytes = uniform ? pieces / layout->n_slices : 0,
        .first_piece = pieces,
    };
}

size_t pack_cuda_scratch_bytes(void)
{
    return sizeof(struct pack_cuda_scratch);
}

kvc_status pack_cuda_launch(const struct pack_cuda *cuda, const struct pack_cuda_job *job,
                            void *stream, int *error)
{
    const struct pack_cuda_row *rows = job->table;
    uint32_t end = job->first_slice + job->n_slices;
    uint32_t pieces = rows[end].first_piece - rows[job->first_slice].first_piece;
    bool finishes = job->word != 0 || (job->cells != 0 && job->n_blocks != 0);

    if (job->n_blocks > KVC_CHUNK_BLOCKS)
        return KVC_E_LIMIT;
    if (finishes && job->scratch == 0)
        return KVC_E_INVALID;
    if (job->n_blocks * pieces == 0 && !finishes)
        return KVC_OK;

    struct pack_cuda_args args = {
        .rows = job->device_table,
        .scratch = finishes ? job->scratch : 0,
        .cells = job->cells,
        .word = job->word,
        .word_value = job->word_value,
        .n_blocks = job->n_blocks,
        .first_slice = job->first_slice,
        .n_slices = job->n_slices,
        .pieces = pieces,
        .pieces_per_slice = rows[job->layout->n_slices].bytes,
    };
    for (uint32_t b = 0; b < job->n_blocks; b++) {
        args.ids[b] = job->blocks[b].id;
        args.slots[b] = (uintptr_t)job->blocks[b].slot;
    }

    const struct pack_cuda_kernel *kernel = &cuda->kernels[job->direction][job->cells != 0];
    const uint32_t warps = PACK_CUDA_THREADS / 32;
    uint32_t grid = (job->n_blocks * pieces + warps - 1) / warps;
    if (grid > kernel->thread_blocks)
        grid = kernel->thread_blocks;
    if (job->max_thread_blocks != 0 && grid > job->max_thread_blocks)
        grid = job->max_thread_blocks;
    if (grid == 0)
        grid = 1;

    void *parameters[] = {&args};
    int rc = cuda->driver->launch(kernel->function, grid, 1, 1, PACK_CUDA_THREADS, 1, 1, 0, stream,
                                  parameters, NULL);
    if (rc != 0) {
        *error = rc;
        return KVC_E_DEVICE;
    }
    return KVC_OK;
}
