/*
 * Lanes: a stream each, of the lowest priority, on which one copy at a time is enqueued; its end is
 * told by a function that the driver calls.
 */
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/device/cuda.h"

/* A link to the host is busy with few thread blocks; more of them would only wait. */
#define HOST_THREAD_BLOCKS 8u
#define LOOKS_MAX          500u /* whether something has ended, before the thread sleeps */

/*
 * A layout whose slices all lie at one place, which is written over and over: who scatters there
 * has the checksums of what was read, and nothing else of it.
 */
struct sink {
    struct list link; /* device_lane::sinks */
    const struct pack_layout *layout;
    uint64_t memory; /* the table, and behind it the place */
    void *table;     /* the same bytes */
};

struct device_lane {
    struct device_cuda *cuda;
    uint32_t gpu;
    void *stream;
    void *event; /* behind the last function of the host */
    uint64_t scratch;
    uint64_t *cells;   /* of the host, written by kernels */
    struct list sinks; /* of lane_sum */
    atomic_bool armed; /* a copy is under way whose done is owed */
    device_done_cb *done;
    void *arg;
};

static kvc_status check(const struct device_lane *lane, const char *what, int error)
{
    return device_cuda_check(lane->cuda, lane->gpu, what, 0, error);
}

static int make_stream(const struct cuda_driver *driver, void **stream)
{
    int least = 0, greatest = 0;
    int error = driver->context_priorities(&least, &greatest);

    return error != 0 ? error : driver->stream_create_low(stream, CUDA_STREAM_NON_BLOCKING, least);
}

static int make_parts(struct device_lane *lane)
{
    const struct cuda_driver *driver = &lane->cuda->driver;
    void *cells = NULL;
    int error = make_stream(driver, &lane->stream);

    if (error == 0)
        error = driver->event_create(&lane->event, CUDA_EVENT_NO_TIMING);
    if (error == 0)
        error = driver->memory_alloc(&lane->scratch, pack_cuda_scratch_bytes());
    if (error == 0)
        error = driver->set_async(lane->scratch, 0, pack_cuda_scratch_bytes(), lane->stream);
    if (error == 0)
        error = driver->host_alloc(&cells, KVC_CHUNK_BLOCKS * sizeof(uint64_t),
                                   CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED);
    lane->cells = cells;
    return error == 0 ? driver->stream_synchronize(lane->stream) : error;
}

kvc_status cuda_lane_open(void *state, uint32_t gpu, device_done_cb *done, void *arg,
                          struct device_lane **ret)
{
    struct device_lane *lane = mem_zalloc(sizeof(*lane));
    kvc_status status;

    if (lane == NULL)
        return KVC_E_NO_MEMORY;
    list_init(&lane->sinks);
    lane->cuda = state;
    lane->gpu = gpu;
    lane->done = done;
    lane->arg = arg;
    status = device_cuda_enter(lane->cuda, gpu);
    if (status == KVC_OK) {
        status = check(lane, "no stream for copies by the daemon", make_parts(lane));
        device_cuda_leave(lane->cuda);
    }
    if (status != KVC_OK) {
        cuda_lane_close(lane);
        return status;
    }
    *ret = lane;
    return KVC_OK;
}

static void free_sink(struct device_lane *lane, struct sink *sink, bool entered)
{
    if (entered && sink->memory != 0)
        (void)lane->cuda->driver.memory_free(sink->memory);
    mem_free(sink->table);
    mem_free(sink);
}

static void free_sinks(struct device_lane *lane, bool entered)
{
    struct sink *sink;

    while ((sink = list_first(&lane->sinks, struct sink, link)) != NULL) {
        list_remove(&sink->link);
        free_sink(lane, sink, entered);
    }
}

void cuda_lane_close(struct device_lane *lane)
{
    bool entered;

    if (lane == NULL)
        return;
    entered = device_cuda_enter(lane->cuda, lane->gpu) == KVC_OK;
    free_sinks(lane, entered);
    if (entered) {
        if (lane->stream != NULL)
            (void)lane->cuda->driver.stream_destroy(lane->stream);
        if (lane->event != NULL)
            (void)lane->cuda->driver.event_destroy(lane->event);
        if (lane->scratch != 0)
            (void)lane->cuda->driver.memory_free(lane->scratch);
        if (lane->cells != NULL)
            (void)lane->cuda->driver.host_free(lane->cells);
        device_cuda_leave(lane->cuda);
    }
    mem_free(lane);
}

static uint32_t limit_of(const struct device_lane *lane, bool touches_host)
{
    const uint32_t limit = cuda_thread_blocks(lane->cuda, lane->gpu);

    return touches_host && (limit == 0 || limit > HOST_THREAD_BLOCKS) ? HOST_THREAD_BLOCKS : limit;
}

kvc_status cuda_lane_job(struct device_lane *lane, const struct device_loan *loan, bool gather,
                         const struct pack_job *job, uint32_t first_cell, bool touches_host)
{
    const struct pack_cuda_span span = {
        .n_blocks = job->n_blocks,
        .cells = (uintptr_t)(lane->cells + first_cell),
    };
    struct pack_cuda_job launch = {
        .direction = gather ? PACK_CUDA_GATHER : PACK_CUDA_SCATTER,
        .layout = job->layout,
        .blocks = job->blocks,
        .n_blocks = job->n_blocks,
        .first_slice = job->first_slice,
        .n_slices = job->n_slices,
        .spans = &span,
        .n_spans = job->cells != NULL && job->n_blocks > 0,
        .scratch = lane->scratch,
        .far = touches_host || lane->cuda->n_gpus > 1,
        .max_thread_blocks = limit_of(lane, touches_host),
    };
    kvc_status status = device_cuda_enter(lane->cuda, lane->gpu);
    int error = 0;

    if (status != KVC_OK)
        return status;
    launch.table = cuda_loan_table(loan, &launch.device_table);
    status = pack_cuda_launch(&lane->cuda->gpus[lane->gpu].pack, &launch, lane->stream, &error);
    if (status == KVC_E_DEVICE)
        status = check(lane, "a copy cannot be launched", error);
    device_cuda_leave(lane->cuda);
    return status;
}

static int make_sink(struct device_lane *lane, struct sink *sink)
{
    const struct cuda_driver *driver = &lane->cuda->driver;
    const struct pack_layout *layout = sink->layout;
    const size_t bytes = pack_cuda_table_bytes(layout->n_slices);
    const uint64_t place = (bytes + 511) / 512 * 512;
    struct pack_slice slices[KVC_SLICES_MAX];
    uint64_t largest = 0;
    int error;

    for (uint32_t i = 0; i < layout->n_slices; i++)
        if (layout->slice_bytes[i] > largest)
            largest = layout->slice_bytes[i];
    error = driver->memory_alloc(&sink->memory, place + largest);
    if (error != 0) {
        sink->memory = 0;
        return error;
    }
    for (uint32_t i = 0; i < layout->n_slices; i++)
        slices[i] = (struct pack_slice){(uint8_t *)(uintptr_t)(sink->memory + place), 0};
    pack_cuda_table_fill(sink->table, layout, slices);
    error = driver->to_device_async(sink->memory, sink->table, bytes, lane->stream);
    return error == 0 ? driver->stream_synchronize(lane->stream) : error;
}

static kvc_status find_sink(struct device_lane *lane, const struct pack_layout *layout,
                            struct sink **ret)
{
    struct sink *sink;
    kvc_status status = KVC_E_NO_MEMORY;

    list_for_each(sink, &lane->sinks, link) {
        if (sink->layout != layout)
            continue;
        *ret = sink;
        return KVC_OK;
    }
    sink = mem_zalloc(sizeof(*sink));
    if (sink == NULL)
        return KVC_E_NO_MEMORY;
    list_init(&sink->link);
    sink->layout = layout;
    sink->table = mem_alloc(pack_cuda_table_bytes(layout->n_slices));
    if (sink->table != NULL)
        status = check(lane, "no table of a layout", make_sink(lane, sink));
    if (status != KVC_OK) {
        free_sink(lane, sink, true);
        return status;
    }
    list_push_back(&lane->sinks, &sink->link);
    *ret = sink;
    return KVC_OK;
}

static kvc_status sum(struct device_lane *lane, const struct pack_layout *layout,
                      const struct pack_block *blocks, uint32_t n_blocks)
{
    const struct pack_cuda_span span = {
        .n_blocks = n_blocks,
        .cells = (uintptr_t)lane->cells,
    };
    struct pack_cuda_job launch = {
        .direction = PACK_CUDA_SCATTER,
        .layout = layout,
        .blocks = blocks,
        .n_blocks = n_blocks,
        .n_slices = layout->n_slices,
        .spans = &span,
        .n_spans = 1,
        .scratch = lane->scratch,
        .max_thread_blocks = limit_of(lane, false),
    };
    struct sink *sink = NULL;
    int error = 0;
    kvc_status status = find_sink(lane, layout, &sink);

    if (status != KVC_OK)
        return status;
    launch.table = sink->table;
    launch.device_table = sink->memory;
    status = pack_cuda_launch(&lane->cuda->gpus[lane->gpu].pack, &launch, lane->stream, &error);
    return status == KVC_E_DEVICE ? check(lane, "checksums cannot be launched", error) : status;
}

/* Sums take less time than to fall asleep and be woken. Whatever fails, the kernel has ended: the
 * lane's cells are the next one's. */
static int wait(struct device_lane *lane)
{
    const struct cuda_driver *driver = &lane->cuda->driver;
    int error = driver->event_record(lane->event, lane->stream);

    if (error == 0)
        error = CUDA_NOT_READY;
    for (uint32_t i = 0; error == CUDA_NOT_READY && i < LOOKS_MAX; i++)
        error = driver->event_query(lane->event);
    return error == 0 ? 0 : driver->stream_synchronize(lane->stream);
}

kvc_status cuda_lane_sum(struct device_lane *lane, const struct pack_layout *layout,
                         const struct pack_block *blocks, uint32_t n_blocks)
{
    kvc_status status = device_cuda_enter(lane->cuda, lane->gpu);

    if (status != KVC_OK)
        return status;
    status = sum(lane, layout, blocks, n_blocks);
    if (status == KVC_OK)
        status = check(lane, "checksums failed", wait(lane));
    device_cuda_leave(lane->cuda);
    return status;
}

/* The driver calls it in the order of the stream, so never for another copy than the one whose
 * event is behind it. */
static void called(void *arg)
{
    struct device_lane *lane = arg;

    if (atomic_exchange(&lane->armed, false))
        lane->done(lane->arg);
}

kvc_status cuda_lane_flush(struct device_lane *lane)
{
    const struct cuda_driver *driver = &lane->cuda->driver;
    kvc_status status = device_cuda_enter(lane->cuda, lane->gpu);
    int error;

    if (status != KVC_OK)
        return status;
    atomic_store(&lane->armed, true);
    error = driver->stream_call(lane->stream, called, lane);
    if (error != 0)
        atomic_store(&lane->armed, false);
    else if (driver->event_record(lane->event, lane->stream) != 0)
        /* To who looks, an event that was not recorded has passed, and so must what is before it.
         */
        (void)check(lane, "copies failed", driver->stream_synchronize(lane->stream));
    status = check(lane, "the end of a copy will not be told", error);
    device_cuda_leave(lane->cuda);
    return status;
}

void cuda_lane_settle(struct device_lane *lane)
{
    if (device_cuda_enter(lane->cuda, lane->gpu) != KVC_OK)
        return;
    (void)check(lane, "copies failed", lane->cuda->driver.stream_synchronize(lane->stream));
    device_cuda_leave(lane->cuda);
}

/*
 * The event is behind the call, so that when it has passed, or when the context has failed, the
 * call has been made or never will be. Who takes `armed` says how the copy ended.
 */
kvc_status cuda_lane_look(struct device_lane *lane)
{
    kvc_status status = device_cuda_enter(lane->cuda, lane->gpu);

    if (status == KVC_OK) {
        const int error = lane->cuda->driver.event_query(lane->event);

        if (error == CUDA_NOT_READY)
            status = KVC_E_BUSY;
        else
            status = check(lane, "a copy by the daemon failed", error);
        device_cuda_leave(lane->cuda);
    } else if (!cuda_is_lost(lane->cuda, lane->gpu)) {
        status = KVC_E_BUSY;
    }
    return status != KVC_E_BUSY && atomic_exchange(&lane->armed, false) ? status : KVC_E_BUSY;
}

const uint64_t *cuda_lane_cells(const struct device_lane *lane)
{
    return lane->cells;
}
