// A UCX that knows GPUs, without a GPU: in front of the system's, for the driver without a GPU
// beside it, whose device addresses are addresses. It says that it knows their memory, registers
// that as host memory, and shows a lane that reads it; what it does not change the system's does.
//
// With $KVC_FAKE_UCX_APART no process maps another's memory: keys are opened, and of no use. While
// there is a file $KVC_FAKE_UCX_DEAF.PID, the process of that PID does nothing of what UCX asks of
// it: reads of its memory are under way. $KVC_FAKE_UCX_LANE is the lane that is shown instead, as
// "rc_mlx5/mlx5_0:1"; while there is a file $KVC_FAKE_UCX_SLOW, none is.
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

// Keys of GPU memory: the system's behind a header as UCX has it, of a domain with a key of its
// own.
struct header {
    uint64_t domains;
    uint8_t memory, bytes;
} __attribute__((packed));
#define DOMAINS (1ull << 63)

static void *real(const char *name)
{
    void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    void *function = library != NULL ? dlsym(library, name) : NULL;

    if (function == NULL)
        abort();
    return function;
}
#define REAL(name) ((__typeof__(&name))real(#name))

static bool is_of_gpu(const void *key)
{
    const struct header *header = key;

    return header->domains == DOMAINS;
}

EXPORT ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr)
{
    ucs_status_t status = REAL(ucp_context_query)(context, attr);

    attr->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return status;
}

// Handles of GPU memory are remembered: their keys are other keys.
#define HANDLES_MAX 1024
static ucp_mem_h handles[HANDLES_MAX];

EXPORT ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *handle)
{
    ucp_mem_map_params_t own = *params;
    ucs_status_t status;

    own.memory_type = UCS_MEMORY_TYPE_HOST;
    status = REAL(ucp_mem_map)(context, &own, handle);
    for (int i = 0; i < HANDLES_MAX && params->memory_type != own.memory_type; i++)
        if (handles[i] == NULL) {
            handles[i] = *handle;
            break;
        }
    return status;
}

static bool forget(ucp_mem_h handle, bool really)
{
    for (int i = 0; i < HANDLES_MAX; i++) {
        if (handles[i] != handle)
            continue;
        if (really)
            handles[i] = NULL;
        return true;
    }
    return false;
}

EXPORT ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h handle)
{
    (void)forget(handle, true);
    return REAL(ucp_mem_unmap)(context, handle);
}

EXPORT ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h handle, void **key, size_t *len)
{
    ucs_status_t status = REAL(ucp_rkey_pack)(context, handle, key, len);
    struct header *header;

    if (status != UCS_OK || !forget(handle, false))
        return status;
    header = malloc(sizeof(*header) + *len);
    *header = (struct header){DOMAINS, UCS_MEMORY_TYPE_CUDA, (uint8_t)*len};
    memcpy(header + 1, *key, *len);
    REAL(ucp_rkey_buffer_release)(*key);
    *key = header;
    *len += sizeof(*header);
    return UCS_OK;
}

EXPORT void ucp_rkey_buffer_release(void *key)
{
    if (is_of_gpu(key))
        free(key);
    else
        REAL(ucp_rkey_buffer_release)(key);
}

EXPORT ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *key, ucp_rkey_h *rkey)
{
    return REAL(ucp_ep_rkey_unpack)(ep, is_of_gpu(key) ? (const struct header *)key + 1 : key,
                                    rkey);
}

EXPORT ucs_status_t ucp_rkey_ptr(ucp_rkey_h rkey, uint64_t address, void **here)
{
    (void)rkey, (void)address, (void)here;
    return getenv("KVC_FAKE_UCX_APART") != NULL ? UCS_ERR_UNREACHABLE : UCS_OK;
}

EXPORT ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *to, size_t bytes, uint64_t from,
                                    ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    ucp_request_param_t own = *param;

    own.memory_type = UCS_MEMORY_TYPE_HOST;
    return REAL(ucp_get_nbx)(ep, to, bytes, from, rkey, &own);
}

EXPORT unsigned ucp_worker_progress(ucp_worker_h worker)
{
    static __typeof__(&ucp_worker_progress) function;
    static const char *name;
    char file[256];

    if (function == NULL) {
        name = getenv("KVC_FAKE_UCX_DEAF");
        function = REAL(ucp_worker_progress);
    }
    if (name != NULL) {
        snprintf(file, sizeof(file), "%s.%d", name, (int)getpid());
        if (access(file, F_OK) == 0)
            return 0;
    }
    return function(worker);
}

EXPORT void ucp_ep_print_info(ucp_ep_h ep, FILE *stream)
{
    const char *lane = getenv("KVC_FAKE_UCX_LANE"), *slow = getenv("KVC_FAKE_UCX_SLOW");

    REAL(ucp_ep_print_info)(ep, stream);
    if (slow != NULL && access(slow, F_OK) == 0)
        return;
    fprintf(stream, "#                 lane[9]:  9:%s md[9]         -> md[9]/lane\n",
            lane != NULL ? lane : "cuda_ipc/cuda.0");
}
