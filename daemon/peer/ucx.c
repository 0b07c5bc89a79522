/* The library, and memory that is registered with it. */
#ifdef KVC_UCX

#include "daemon/peer/ucx.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "daemon/peer/ucx_api.h"

/*
 * The request's, the link's and the peer's failures are all one to the callers: the endpoint is of
 * no use any more. Nothing but UCS_OK may ever become KVC_OK.
 */
kvc_status ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return KVC_OK;
    case UCS_ERR_NO_MEMORY:
        return KVC_E_NO_MEMORY;
    case UCS_ERR_CANCELED:
        return KVC_E_CANCELLED;
    case UCS_ERR_UNSUPPORTED:
        return KVC_E_UNSUPPORTED;
    default:
        return KVC_E_PEER;
    }
}

static bool find_all(struct ucx *ucx, char why[UCX_WHY_MAX])
{
#define UCX_ROW(name) {#name, offsetof(struct ucx, name)},
    static const struct {
        const char *name;
        size_t offset; /* of its pointer */
    } functions[] = {UCX_FUNCTIONS(UCX_ROW)};
#undef UCX_ROW

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *const found = dlsym(ucx->library, functions[i].name);

        if (found == NULL) {
            snprintf(why, UCX_WHY_MAX, "libucp has no %s", functions[i].name);
            return false;
        }
        memcpy((char *)ucx + functions[i].offset, &found, sizeof(found));
    }
    return true;
}

/* What this daemon needs of the library; whoever has set a variable knows better. */
static void set_environment(void)
{
    /* Its own handlers would replace the daemon's, of SIGBUS for one. */
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_ERROR_SIGNALS", "", 0);
    setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
    /* What it finds fatal; ends of endpoints are logged here. */
    setenv("UCX_LOG_LEVEL", "fatal", 0);
    /* Endpoints are made over TCP also where there is InfiniBand: it needs nothing set up. */
    setenv("UCX_SOCKADDR_TLS_PRIORITY", "tcp", 0);
    /* Memory is registered once, and its kind is told: there is nothing to watch the driver for. */
    setenv("UCX_MEMTYPE_CACHE", "n", 0);
    setenv("UCX_MEM_CUDA_HOOK_MODE", "none", 0);
    /* It keeps what it maps of another process until this one ends. Who allows it means it: reads
     * are then not left to what UCX thinks of the links between GPUs. */
    setenv("UCX_TLS", "^cuda_ipc", 0);
    setenv("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on", 0);
}

/* UCX_TLS: transports that are wanted, or behind a ^ those that are not. */
static bool allows_maps(const char *transports)
{
    const bool wanted = transports[0] != '^';
    const char *at = transports + !wanted;

    for (size_t n;; at += n + 1) {
        n = strcspn(at, ",");
        if ((n == 8 && strncmp(at, "cuda_ipc", n) == 0) ||
            (n == 4 && strncmp(at, "cuda", n) == 0) ||
            (n == 3 && wanted && strncmp(at, "all", n) == 0))
            return wanted;
        if (at[n] == '\0')
            return !wanted;
    }
}

static void look_for_gpus(struct ucx *ucx)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    const char *const transports = getenv("UCX_TLS"); /* NULL: all */

    ucx->gpus = ucx->ucp_context_query(ucx->context, &attr) == UCS_OK &&
                (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
    ucx->maps_gpus = ucx->gpus && (transports == NULL || allows_maps(transports));
}

static kvc_status start(struct ucx *ucx, char why[UCX_WHY_MAX])
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "kvcached",
    };
    ucp_config_t *config;
    ucs_status_t status = ucx->ucp_config_read(NULL, NULL, &config);

    if (status != UCS_OK) {
        snprintf(why, UCX_WHY_MAX, "UCX refuses its configuration (status %d)", status);
        return KVC_E_PEER;
    }
    status = ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ucx->context);
    ucx->ucp_config_release(config);
    if (status == UCS_OK) {
        look_for_gpus(ucx);
        return KVC_OK;
    }
    snprintf(why, UCX_WHY_MAX, "UCX %s does not start (status %d)", ucx_version(ucx), status);
    return ucx_status(status);
}

kvc_status ucx_open(const char *library, char why[UCX_WHY_MAX], struct ucx **ret)
{
    struct ucx *ucx = mem_zalloc(sizeof(*ucx));
    kvc_status status = KVC_E_UNSUPPORTED;

    if (ucx == NULL) {
        snprintf(why, UCX_WHY_MAX, "out of memory");
        return KVC_E_NO_MEMORY;
    }
    set_environment();
    if (!fault_fires("ucx.load"))
        ucx->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (ucx->library == NULL) {
        snprintf(why, UCX_WHY_MAX, "there is no %.100s (ucx; Debian: libucx0)", library);
        goto free_ucx;
    }
    if (!find_all(ucx, why))
        goto free_ucx;
    status = start(ucx, why);
    if (status != KVC_OK)
        goto free_ucx;
    *ret = ucx;
    return KVC_OK;

    /* The library stays: it has handlers and threads of its own by now. */
free_ucx:
    mem_free(ucx);
    return status;
}

void ucx_close(struct ucx *ucx)
{
    if (ucx == NULL)
        return;
    ucx->ucp_cleanup(ucx->context);
    mem_free(ucx);
}

const char *ucx_version(const struct ucx *ucx)
{
    return ucx->ucp_get_version_string();
}

bool ucx_knows_gpus(const struct ucx *ucx)
{
    return ucx->gpus;
}

bool ucx_maps_gpus(const struct ucx *ucx)
{
    return ucx->maps_gpus;
}

kvc_status ucx_register(struct ucx *ucx, void *base, size_t bytes, struct ucx_memory *memory)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = base,
        .length = bytes,
        .memory_type = memory->gpu ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST,
    };
    ucp_mem_h handle;
    void *packed;
    ucs_status_t status = fault_fires("ucx.register")
                              ? UCS_ERR_NO_MEMORY
                              : ucx->ucp_mem_map(ucx->context, &params, &handle);

    if (status != UCS_OK)
        return ucx_status(status);
    memory->handle = handle;
    status = ucx->ucp_rkey_pack(ucx->context, handle, &packed, &memory->rkey_len);
    if (status == UCS_OK)
        memory->rkey = packed;
    else
        ucx_unregister(ucx, memory);
    return ucx_status(status);
}

void ucx_unregister(struct ucx *ucx, struct ucx_memory *memory)
{
    if (memory->rkey != NULL)
        ucx->ucp_rkey_buffer_release(memory->rkey);
    if (memory->handle != NULL)
        ucx->ucp_mem_unmap(ucx->context, memory->handle);
    *memory = (struct ucx_memory){.gpu = memory->gpu};
}

/*
 * A key is a set of 64 bits, of memory domains; a kind of memory; and for each domain how many
 * bytes it wants to have said, and those. Domains that only this process can use say nothing.
 */
bool ucx_is_reachable(const struct ucx_memory *memory)
{
    const size_t header = sizeof(uint64_t) + 1;
    uint64_t domains;
    size_t at = header;

    if (memory->rkey_len < header)
        return false;
    memcpy(&domains, memory->rkey, sizeof(domains));
    for (; domains != 0 && at < memory->rkey_len; domains &= domains - 1) {
        if (memory->rkey[at] > 0)
            return true;
        at++;
    }
    return false;
}

#endif
