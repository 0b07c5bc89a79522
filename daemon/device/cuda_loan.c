/*
 * Memory that another process lends: pieces that came as descriptors are mapped one behind the
 * other in one reserved range; allocations that came as legacy handles are opened where the driver
 * puts them. All calls for one GPU come from one thread.
 */
#include <assert.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/device/cuda.h"

/*
 * An allocation of another process that is open here. A second handle of the same is counted here
 * and not left to the driver, where it was an error once.
 */
struct opening {
    struct list link; /* cuda_gpu::openings */
    struct device_lender lender;
    struct cuda_ipc handle;
    uint64_t address, bytes;
    uint32_t count;
};

struct loan_piece {
    enum device_memory kind;
    uint64_t bytes, offset;
    uint64_t address;        /* 0: not yet */
    uint64_t handle;         /* of one that came as a descriptor, until it is mapped */
    struct opening *opening; /* of one that came as a handle */
};

struct device_loan {
    struct device_cuda *cuda;
    uint32_t gpu, n_pieces, n_max;
    struct device_lender lender;
    uint64_t base, reserved, mapped; /* of pieces that came as descriptors */
    uint64_t device_table;
    void *table; /* the same bytes */
    struct loan_piece pieces[];
};

static kvc_status refuse(const char **why, kvc_status status, const char *sentence)
{
    *why = sentence;
    return status;
}

static kvc_status check(const struct device_loan *loan, const char *what, int error)
{
    if (error != 0 && !cuda_suspect(loan->cuda, loan->gpu, error))
        log_warn("device", "%s pid=%d error=%s", what, (int)loan->lender.pid,
                 cuda_error_name(&loan->cuda->driver, error));
    return cuda_status(error);
}

static kvc_status loan_open(void *state, uint32_t gpu, const struct device_lender *lender,
                            uint32_t n_pieces, struct device_loan **ret)
{
    struct device_loan *loan = mem_zalloc(sizeof(*loan) + n_pieces * sizeof(loan->pieces[0]));

    if (loan == NULL)
        return KVC_E_NO_MEMORY;
    loan->cuda = state;
    loan->gpu = gpu;
    loan->lender = *lender;
    loan->n_max = n_pieces;
    *ret = loan;
    return KVC_OK;
}

static struct opening *find_opening(const struct cuda_gpu *gpu, const struct device_lender *lender,
                                    const struct cuda_ipc *handle)
{
    struct opening *o;

    list_for_each(o, &gpu->openings, link)
        if (o->lender.pid == lender->pid && o->lender.start_time == lender->start_time &&
            memcmp(&o->handle, handle, sizeof(*handle)) == 0)
            return o;
    return NULL;
}

static void close_opening(struct device_cuda *cuda, uint32_t gpu, struct opening *o)
{
    if (--o->count > 0)
        return;
    list_remove(&o->link);
    if (!cuda_is_lost(cuda, gpu))
        (void)cuda->driver.ipc_close(o->address);
    mem_free(o);
}

static kvc_status open_handle(struct device_loan *loan, const struct cuda_ipc *handle,
                              struct opening **ret, const char **why)
{
    struct cuda_gpu *gpu = &loan->cuda->gpus[loan->gpu];
    const struct cuda_driver *driver = &loan->cuda->driver;
    struct opening *o = find_opening(gpu, &loan->lender, handle);
    size_t bytes = 0;
    uint64_t base = 0;
    int error;

    if (o != NULL) {
        o->count++;
        *ret = o;
        return KVC_OK;
    }
    o = mem_zalloc(sizeof(*o));
    if (o == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "out of memory");
    error = driver->ipc_open(&o->address, *handle, CUDA_IPC_PEER_ACCESS);
    if (error == CUDA_NO_CONTEXT) {
        mem_free(o);
        return refuse(why, KVC_E_MAP,
                      "the driver takes its process for this one: both have one pid, each in "
                      "its own namespace");
    }
    if (error != 0) {
        (void)check(loan, "a handle cannot be opened", error);
        mem_free(o);
        return refuse(why, KVC_E_MAP, "the driver does not open it");
    }
    error = driver->memory_range(&base, &bytes, o->address);
    if (error != 0 || base != o->address) {
        (void)driver->ipc_close(o->address);
        mem_free(o);
        return refuse(why, KVC_E_MAP, "the driver does not say how large it is");
    }
    o->lender = loan->lender;
    o->handle = *handle;
    o->bytes = bytes;
    o->count = 1;
    list_init(&o->link);
    list_push_back(&gpu->openings, &o->link);
    *ret = o;
    return KVC_OK;
}

static kvc_status add_handle(struct device_loan *loan, const struct device_piece *piece,
                             struct loan_piece *made, const char **why)
{
    struct cuda_ipc handle;
    kvc_status status;

    memcpy(&handle, piece->handle, sizeof(handle));
    status = open_handle(loan, &handle, &made->opening, why);
    if (status != KVC_OK)
        return status;
    if (piece->offset > made->opening->bytes ||
        piece->bytes > made->opening->bytes - piece->offset) {
        close_opening(loan->cuda, loan->gpu, made->opening);
        return refuse(why, KVC_E_INVALID, "not inside the allocation");
    }
    made->address = made->opening->address + piece->offset;
    return KVC_OK;
}

static kvc_status loan_add(struct device_loan *loan, const struct device_piece *piece,
                           const char **why)
{
    struct loan_piece made = {.kind = piece->kind, .bytes = piece->bytes, .offset = piece->offset};
    kvc_status status;

    assert(loan->n_pieces < loan->n_max);
    if (piece->bytes == 0)
        return refuse(why, KVC_E_INVALID, "a piece of no bytes");
    status = device_cuda_enter(loan->cuda, loan->gpu);
    if (status != KVC_OK)
        return refuse(why, status, "the GPU fails");
    if (piece->kind == DEVICE_MEMORY_CUDA_HANDLE) {
        status = add_handle(loan, piece, &made, why);
    } else {
        status =
            check(loan, "a descriptor cannot be imported",
                  loan->cuda->driver.vmm_import(&made.handle, (intptr_t)piece->fd, CUDA_HANDLE_FD));
        if (status != KVC_OK)
            status = refuse(why, KVC_E_MAP, "no descriptor of GPU memory, or not to be imported");
    }
    device_cuda_leave(loan->cuda);
    if (status == KVC_OK)
        loan->pieces[loan->n_pieces++] = made;
    return status;
}

static kvc_status map_pieces(struct device_loan *loan, const char **why)
{
    const struct cuda_driver *driver = &loan->cuda->driver;
    const struct cuda_access access = {{1, loan->cuda->gpus[loan->gpu].ordinal},
                                       CUDA_ACCESS_READWRITE};

    for (uint32_t i = 0; i < loan->n_pieces; i++) {
        struct loan_piece *piece = &loan->pieces[i];

        if (piece->kind != DEVICE_MEMORY_CUDA_FD)
            continue;
        piece->address = loan->base + loan->mapped;
        if (check(loan, "a piece cannot be mapped",
                  driver->vmm_map(piece->address, piece->bytes, 0, piece->handle, 0)) != KVC_OK)
            return refuse(why, KVC_E_MAP, "a piece is not as large as it was said to be");
        loan->mapped += piece->bytes;
        (void)driver->vmm_release(piece->handle); /* the mapping keeps it */
        piece->handle = 0;
    }
    return check(loan, "no access to what was mapped",
                 driver->vmm_access(loan->base, loan->reserved, &access, 1)) == KVC_OK
               ? KVC_OK
               : refuse(why, KVC_E_MAP, "the GPU has no access to it: it is another GPU's memory");
}

static kvc_status loan_map(struct device_loan *loan, const char **why)
{
    uint64_t bytes = 0;
    void *base = NULL;
    kvc_status status;

    for (uint32_t i = 0; i < loan->n_pieces; i++)
        if (loan->pieces[i].kind == DEVICE_MEMORY_CUDA_FD &&
            __builtin_add_overflow(bytes, loan->pieces[i].bytes, &bytes))
            return refuse(why, KVC_E_INVALID, "more bytes than there are addresses");
    if (bytes == 0)
        return KVC_OK;
    status = device_cuda_enter(loan->cuda, loan->gpu);
    if (status != KVC_OK)
        return refuse(why, status, "the GPU fails");
    status =
        check(loan, "no addresses", loan->cuda->driver.vmm_reserve(&base, bytes, 0, 0, 0)) == KVC_OK
            ? KVC_OK
            : refuse(why, KVC_E_MAP,
                     "there are no addresses for so many bytes, or not in whole "
                     "units of GPU memory");
    if (status == KVC_OK) {
        loan->base = (uintptr_t)base;
        loan->reserved = bytes;
        status = map_pieces(loan, why);
    }
    device_cuda_leave(loan->cuda);
    return status;
}

static uint8_t *loan_address(const struct device_loan *loan, uint32_t piece)
{
    assert(piece < loan->n_pieces && loan->pieces[piece].address != 0);
    return (uint8_t *)(uintptr_t)loan->pieces[piece].address;
}

static int upload(struct device_loan *loan, size_t bytes)
{
    const struct cuda_driver *driver = &loan->cuda->driver;
    void *stream = NULL;
    int error = driver->memory_alloc(&loan->device_table, bytes);

    if (error != 0) {
        loan->device_table = 0;
        return error;
    }
    error = driver->stream_create(&stream, CUDA_STREAM_NON_BLOCKING);
    if (error != 0)
        return error;
    error = driver->to_device_async(loan->device_table, loan->table, bytes, stream);
    if (error == 0)
        error = driver->stream_synchronize(stream);
    (void)driver->stream_destroy(stream);
    return error;
}

static kvc_status loan_bind(struct device_loan *loan, const struct pack_layout *layout,
                            const struct pack_slice *slices)
{
    const size_t bytes = pack_cuda_table_bytes(layout->n_slices);
    kvc_status status;

    loan->table = mem_alloc(bytes);
    if (loan->table == NULL)
        return KVC_E_NO_MEMORY;
    pack_cuda_table_fill(loan->table, layout, slices);
    status = device_cuda_enter(loan->cuda, loan->gpu);
    if (status != KVC_OK)
        return status;
    status = check(loan, "no table of a region", upload(loan, bytes));
    device_cuda_leave(loan->cuda);
    return status;
}

const void *cuda_loan_table(const struct device_loan *loan, uint64_t *device_table)
{
    *device_table = loan->device_table;
    return loan->table;
}

static void give_back(struct device_loan *loan)
{
    const struct cuda_driver *driver = &loan->cuda->driver;

    if (loan->device_table != 0)
        (void)driver->memory_free(loan->device_table);
    if (loan->mapped > 0)
        (void)check(loan, "cannot unmap", driver->vmm_unmap(loan->base, loan->mapped));
    if (loan->reserved > 0)
        (void)driver->vmm_unreserve(loan->base, loan->reserved);
    for (uint32_t i = 0; i < loan->n_pieces; i++)
        if (loan->pieces[i].handle != 0)
            (void)driver->vmm_release(loan->pieces[i].handle);
}

/* Of a lost GPU only what is known of it here goes: what is open there is, as long as the process.
 */
static void loan_close(struct device_loan *loan)
{
    bool entered;

    if (loan == NULL)
        return;
    entered = device_cuda_enter(loan->cuda, loan->gpu) == KVC_OK;
    if (entered)
        give_back(loan);
    for (uint32_t i = 0; i < loan->n_pieces; i++)
        if (loan->pieces[i].opening != NULL)
            close_opening(loan->cuda, loan->gpu, loan->pieces[i].opening);
    if (entered)
        device_cuda_leave(loan->cuda);
    mem_free(loan->table);
    mem_free(loan);
}

const struct device_lending device_cuda_lending = {
    .loan_open = loan_open,
    .loan_add = loan_add,
    .loan_map = loan_map,
    .loan_address = loan_address,
    .loan_bind = loan_bind,
    .loan_close = loan_close,
    .lane_open = cuda_lane_open,
    .lane_job = cuda_lane_job,
    .lane_sum = cuda_lane_sum,
    .lane_flush = cuda_lane_flush,
    .lane_settle = cuda_lane_settle,
    .lane_look = cuda_lane_look,
    .lane_cells = cuda_lane_cells,
    .lane_close = cuda_lane_close,
    .calibrate = cuda_calibrate,
    .limit_thread_blocks = cuda_limit_thread_blocks,
    .thread_blocks = cuda_thread_blocks,
};
