/* Copies on the caller's stream: one launch a job, whose last act for each span is its word. */
#include <stdlib.h>
#include <string.h>

#include "client/copy.h"
#include "client/cuda.h"

/* A link to the host is busy with few thread blocks; more of them would only wait. */
#define HOST_THREAD_BLOCKS 8u

/* The table of a part: on the device, and the same bytes here. */
struct table {
    uint64_t device;
    uint8_t host[] __attribute__((aligned(8)));
};

static int upload(struct cuda *cuda, struct table *table, size_t bytes)
{
    int error = cuda->driver.memory_alloc(&table->device, bytes);

    if (error != 0)
        return error;
    error = cuda->driver.to_device_async(table->device, table->host, bytes, cuda->stream);
    if (error == 0)
        error = cuda->driver.stream_synchronize(cuda->stream);
    if (error != 0)
        (void)cuda->driver.memory_free(table->device);
    return error;
}

static kvc_status part_open(struct cuda *cuda, const struct pack_layout *layout,
                            const struct pack_slice *slices, void **ret, uint32_t *slice,
                            const char **why)
{
    const size_t bytes = pack_cuda_table_bytes(layout->n_slices);
    struct table *table;
    kvc_status status;

    if (!cuda->has_kernels)
        return KVC_E_UNSUPPORTED;
    for (uint32_t i = 0; i < layout->n_slices; i++) {
        *slice = i;
        *why = cuda_judge(cuda, slices[i].base);
        if (*why != NULL)
            return KVC_E_INVALID;
    }
    table = malloc(sizeof(*table) + bytes);
    if (table == NULL)
        return KVC_E_NO_MEMORY;
    pack_cuda_table_fill(table->host, layout, slices);
    status = cuda_enter(cuda);
    if (status == KVC_OK) {
        status = cuda_status(upload(cuda, table, bytes));
        cuda_leave(cuda);
    }
    if (status != KVC_OK) {
        free(table);
        return status;
    }
    *ret = table;
    return KVC_OK;
}

static void part_close(struct cuda *cuda, void *at)
{
    struct table *table = at;

    if (table == NULL)
        return;
    if (cuda_enter(cuda) == KVC_OK) {
        (void)cuda->driver.memory_free(table->device);
        cuda_leave(cuda);
    }
    free(table);
}

static struct cuda_lane *lane_of(struct cuda *cuda, const void *stream)
{
    struct cuda_lane *lane = &cuda->lanes[0];

    for (uint32_t i = 0; i < CUDA_LANES; i++)
        if (cuda->lanes[i].used && cuda->lanes[i].stream == stream)
            return &cuda->lanes[i];
    for (uint32_t i = 0; i < CUDA_LANES; i++) {
        if (!cuda->lanes[i].used)
            return &cuda->lanes[i];
        if (cuda->lanes[i].last_use < lane->last_use)
            lane = &cuda->lanes[i];
    }
    return lane;
}

/* The context stays current until end. */
static kvc_status begin(struct cuda *cuda, void *stream)
{
    struct cuda_lane *lane = lane_of(cuda, stream);
    kvc_status status = cuda_enter(cuda);
    int capturing = 0, error;

    if (status != KVC_OK)
        return status;
    error = cuda->driver.stream_capturing(stream, &capturing);
    if (error == CUDA_IS_CAPTURING || (error == 0 && capturing != 0))
        status = KVC_E_BUSY;
    else if (error == 0 && lane->used)
        error = cuda->driver.stream_wait(stream, lane->event, 0);
    if (status == KVC_OK)
        status = cuda_status(error);
    if (status != KVC_OK) {
        cuda_leave(cuda);
        return status;
    }
    lane->stream = stream;
    lane->used = true;
    lane->last_use = ++cuda->uses;
    return KVC_OK;
}

/* An event that was not recorded counts as passed, and so must what is before it. */
static int record(const struct cuda *cuda, void *event, void *stream)
{
    const int error = cuda->driver.event_record(event, stream);

    return error == 0 ? 0 : cuda->driver.stream_synchronize(stream);
}

static void end(struct cuda *cuda, void *stream)
{
    (void)record(cuda, lane_of(cuda, stream)->event, stream);
    cuda_leave(cuda);
}

static kvc_status write_gate(struct cuda *cuda, void *stream, struct copy_gate *gate)
{
    kvc_status status = begin(cuda, stream);

    if (status != KVC_OK)
        return status;
    status = cuda_write_gate(cuda, lane_of(cuda, stream), stream, gate);
    end(cuda, stream);
    return status;
}

static bool touches_host(const struct cuda *cuda, const struct pack_job *job)
{
    for (uint32_t i = 0; i < job->n_blocks; i++)
        if ((uintptr_t)job->blocks[i].slot - cuda->host_base < cuda->host_bytes)
            return true;
    return false;
}

static kvc_status launch(struct cuda *cuda, void *stream, const struct copy_job *job,
                         enum pack_cuda_direction direction)
{
    const struct table *table = job->table;
    const struct pack_job *pack = &job->pack;
    struct pack_cuda_span spans[COPY_SPANS_MAX];
    struct pack_cuda_job launch = {
        .direction = direction,
        .layout = pack->layout,
        .table = table->host,
        .device_table = table->device,
        .blocks = pack->blocks,
        .n_blocks = pack->n_blocks,
        .first_slice = pack->first_slice,
        .n_slices = pack->n_slices,
        .spans = spans,
        .scratch = lane_of(cuda, stream)->scratch,
        .more = job->more,
        .follows = job->follows,
        .max_thread_blocks = touches_host(cuda, pack) ? HOST_THREAD_BLOCKS : 0,
    };
    int error = 0;

    launch.far = launch.max_thread_blocks != 0 || cuda->reaches_peers;
    _Static_assert(COPY_BLOCKS_MAX == PACK_CUDA_BLOCKS && COPY_SPANS_MAX == PACK_CUDA_SPANS,
                   "a job is a launch");
    for (uint32_t i = 0; i < job->n_spans; i++) {
        const struct copy_span *span = &job->spans[i];

        spans[i] = (struct pack_cuda_span){
            .n_blocks = span->n_blocks,
            .cells = (uintptr_t)span->cells,
            .word = span->word != NULL ? (uintptr_t)span->word->at : 0,
            .word_value = span->word != NULL ? span->word->number : 0,
        };
        if (span->cells != NULL || span->word != NULL) /* else nothing is to be said */
            launch.n_spans = job->n_spans;
    }
    return pack_cuda_launch(&cuda->pack, &launch, stream, &error);
}

static kvc_status gather(struct cuda *cuda, void *stream, const struct copy_job *job)
{
    return launch(cuda, stream, job, PACK_CUDA_GATHER);
}

static kvc_status scatter(struct cuda *cuda, void *stream, const struct copy_job *job)
{
    return launch(cuda, stream, job, PACK_CUDA_SCATTER);
}

/* A launch of no slices, whose table is not looked at on the device. */
static kvc_status prove(struct cuda *cuda, void *stream, const struct copy_word *word)
{
    uint8_t rows[256] __attribute__((aligned(8))) = {0};
    const struct pack_layout layout = {0};
    const struct pack_cuda_span span = {
        .word = (uintptr_t)word->at,
        .word_value = word->number,
    };
    const struct pack_cuda_job launch = {
        .direction = PACK_CUDA_SCATTER,
        .layout = &layout,
        .table = rows,
        .spans = &span,
        .n_spans = 1,
        .scratch = lane_of(cuda, stream)->scratch,
    };
    int error = 0;

    return pack_cuda_launch(&cuda->pack, &launch, stream, &error);
}

static kvc_status settle(struct cuda *cuda, void *stream)
{
    return cuda_status(cuda->driver.stream_synchronize(stream));
}

static uint64_t *cells_make(struct cuda *cuda, uint32_t n)
{
    void *memory = NULL;

    if (cuda_enter(cuda) != KVC_OK)
        return NULL;
    if (cuda->driver.host_alloc(&memory, n * sizeof(uint64_t),
                                CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED) != 0)
        memory = NULL;
    cuda_leave(cuda);
    return memory;
}

static void cells_free(struct cuda *cuda, uint64_t *cells)
{
    if (cells == NULL || cuda_enter(cuda) != KVC_OK)
        return;
    (void)cuda->driver.host_free(cells);
    cuda_leave(cuda);
}

static kvc_status mark_make(struct cuda *cuda, void **mark)
{
    kvc_status status = cuda_enter(cuda);

    if (status != KVC_OK)
        return status;
    status = cuda_status(cuda->driver.event_create(mark, CUDA_EVENT_NO_TIMING));
    cuda_leave(cuda);
    return status;
}

static void mark_free(struct cuda *cuda, void *mark)
{
    if (mark == NULL || cuda_enter(cuda) != KVC_OK)
        return;
    (void)cuda->driver.event_destroy(mark);
    cuda_leave(cuda);
}

static kvc_status mark_set(struct cuda *cuda, void *stream, void *mark)
{
    return cuda_status(record(cuda, mark, stream));
}

static kvc_status mark_passed(struct cuda *cuda, void *mark)
{
    kvc_status status = cuda_enter(cuda);
    int error;

    if (status != KVC_OK)
        return status;
    error = cuda->driver.event_query(mark);
    cuda_leave(cuda);
    return error == CUDA_NOT_READY ? KVC_E_DEADLINE : cuda_status(error);
}

const struct copy_ops copy_cuda = {
    .name = "cuda",
    .blocks_max = PACK_CUDA_BLOCKS,
    .spans_max = PACK_CUDA_SPANS,
    .part_open = part_open,
    .part_close = part_close,
    .begin = begin,
    .end = end,
    .gather = gather,
    .scatter = scatter,
    .prove = prove,
    .settle = settle,
    .write_gate = write_gate,
    .cells_make = cells_make,
    .cells_free = cells_free,
    .mark_make = mark_make,
    .mark_free = mark_free,
    .mark_set = mark_set,
    .mark_passed = mark_passed,
};
