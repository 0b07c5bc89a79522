/*
 * How many thread blocks a copy by the daemon needs: the fewest that move a chunk nearly as fast as
 * all that run at a time. More of them would only keep others from the GPU; fewer keep them from it
 * for longer, since contexts take turns.
 */
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/device/cuda.h"

#define CHUNK_BYTES (12u << 20)
#define SLICES      48u
#define SLICE_BYTES 4096u
#define BLOCKS      (CHUNK_BYTES / SLICES / SLICE_BYTES)
#define REPEATS     5
#define NEARLY      1.15f /* times the best */

struct trial {
    struct device_cuda *cuda;
    struct cuda_gpu *gpu;
    void *stream, *start, *end;
    uint64_t memory; /* the chunk, scattered; the chunk, packed; scratch; the table */
    uint64_t packed, scratch, device_table;
    void *table;
    struct pack_layout layout;
    uint32_t slice_bytes[SLICES];
    uint64_t slice_offsets[SLICES];
};

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

static int make_memory(struct trial *t)
{
    const struct cuda_driver *driver = &t->cuda->driver;
    const size_t table_bytes = pack_cuda_table_bytes(SLICES);
    const uint64_t scratch_bytes = round_up(pack_cuda_scratch_bytes());
    struct pack_slice slices[SLICES];
    int error;

    for (uint32_t i = 0; i < SLICES; i++)
        t->slice_bytes[i] = SLICE_BYTES;
    t->layout.slice_offsets = t->slice_offsets;
    (void)pack_layout_init(&t->layout, t->slice_bytes, SLICES);
    error = driver->memory_alloc(&t->memory,
                                 2ull * CHUNK_BYTES + scratch_bytes + round_up(table_bytes));
    if (error != 0) {
        t->memory = 0;
        return error;
    }
    t->packed = t->memory + CHUNK_BYTES;
    t->scratch = t->packed + CHUNK_BYTES;
    t->device_table = t->scratch + scratch_bytes;
    for (uint32_t i = 0; i < SLICES; i++)
        slices[i] = (struct pack_slice){
            (uint8_t *)(uintptr_t)(t->memory + (uint64_t)i * BLOCKS * SLICE_BYTES), SLICE_BYTES};
    pack_cuda_table_fill(t->table, &t->layout, slices);
    error = driver->set_async(t->scratch, 0, scratch_bytes, t->stream);
    if (error == 0)
        error = driver->to_device_async(t->device_table, t->table, table_bytes, t->stream);
    return error == 0 ? driver->stream_synchronize(t->stream) : error;
}

static int make(struct trial *t)
{
    const struct cuda_driver *driver = &t->cuda->driver;
    int error = driver->stream_create(&t->stream, CUDA_STREAM_NON_BLOCKING);

    if (error == 0)
        error = driver->event_create(&t->start, 0);
    if (error == 0)
        error = driver->event_create(&t->end, 0);
    return error == 0 ? make_memory(t) : error;
}

static void unmake(const struct trial *t)
{
    const struct cuda_driver *driver = &t->cuda->driver;

    if (t->memory != 0)
        (void)driver->memory_free(t->memory);
    if (t->start != NULL)
        (void)driver->event_destroy(t->start);
    if (t->end != NULL)
        (void)driver->event_destroy(t->end);
    if (t->stream != NULL)
        (void)driver->stream_destroy(t->stream);
}

static int copy_once(const struct trial *t, uint32_t thread_blocks, float *ms)
{
    const struct cuda_driver *driver = &t->cuda->driver;
    struct pack_block blocks[BLOCKS];
    const struct pack_cuda_job job = {
        .direction = PACK_CUDA_GATHER,
        .layout = &t->layout,
        .table = t->table,
        .device_table = t->device_table,
        .blocks = blocks,
        .n_blocks = BLOCKS,
        .n_slices = SLICES,
        .scratch = t->scratch,
        .max_thread_blocks = thread_blocks,
    };
    int error;

    _Static_assert(BLOCKS <= KVC_CHUNK_BLOCKS, "one launch");
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = (struct pack_block){
            (uint8_t *)(uintptr_t)(t->packed + (uint64_t)i * SLICES * SLICE_BYTES), i};
    error = driver->event_record(t->start, t->stream);
    if (error == 0 && pack_cuda_launch(&t->gpu->pack, &job, t->stream, &error) != KVC_OK)
        return error != 0 ? error : CUDA_NOT_SUPPORTED;
    if (error == 0)
        error = driver->event_record(t->end, t->stream);
    if (error == 0)
        error = driver->event_synchronize(t->end);
    return error == 0 ? driver->event_elapsed(ms, t->start, t->end) : error;
}

/* The best of some. */
static int measure(const struct trial *t, uint32_t thread_blocks, float *best)
{
    int error = 0;

    *best = 0;
    for (int i = 0; i < REPEATS && error == 0; i++) {
        float ms = 0;

        error = copy_once(t, thread_blocks, &ms);
        if (i == 0 || ms < *best)
            *best = ms;
    }
    return error;
}

static int choose(const struct trial *t, uint32_t *chosen, float *ms)
{
    const uint32_t most = t->gpu->pack.kernels[PACK_CUDA_GATHER][0][0][0].thread_blocks;
    float all = 0, some = 0;
    int error = measure(t, 0, &all);

    *chosen = most;
    *ms = all;
    for (uint32_t n = 8; n < most && error == 0; n *= 2) {
        error = measure(t, n, &some);
        if (error != 0 || some > all * NEARLY)
            continue;
        *chosen = n;
        *ms = some;
        break;
    }
    return error;
}

void cuda_calibrate(void *state, uint32_t gpu)
{
    struct trial t = {.cuda = state};
    uint32_t chosen = 0;
    float ms = 0;
    int error;

    t.gpu = &t.cuda->gpus[gpu];
    t.table = mem_alloc(pack_cuda_table_bytes(SLICES));
    if (t.table == NULL || device_cuda_enter(t.cuda, gpu) != KVC_OK) {
        mem_free(t.table);
        return;
    }
    error = make(&t);
    if (error == 0)
        error = choose(&t, &chosen, &ms);
    (void)cuda_suspect(t.cuda, gpu, error);
    unmake(&t);
    device_cuda_leave(t.cuda);
    mem_free(t.table);
    if (error != 0) {
        log_warn("device", "copies are not limited: no measurement gpu=%u error=%s", gpu,
                 cuda_error_name(&t.cuda->driver, error));
        return;
    }
    atomic_store(&t.gpu->measured, chosen);
    log_info("device", "copies by the daemon gpu=%u thread_blocks=%u chunk_us=%.0f", gpu, chosen,
             (double)ms * 1000);
}

void cuda_limit_thread_blocks(void *state, uint32_t thread_blocks)
{
    struct device_cuda *cuda = state;

    atomic_store(&cuda->thread_blocks, thread_blocks);
}

uint32_t cuda_thread_blocks(void *state, uint32_t gpu)
{
    struct device_cuda *cuda = state;
    const uint32_t set = atomic_load(&cuda->thread_blocks);

    return set != 0 ? set : atomic_load(&cuda->gpus[gpu].measured);
}
