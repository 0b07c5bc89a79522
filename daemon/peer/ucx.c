/* The library, and memory that is registered with it. */
#ifdef KVC_UCX

#include "daemon/peer/ucx.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/log.h"
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
#define UCX_FIND(name)                                                                             \
    *(void **)&ucx->name = dlsym(ucx->library, #name);                                             \
    if (ucx->name == NULL) {                                                                       \
        snprintf(why, UCX_WHY_MAX, "libucp has no %s", #name);                                     \
        return false;                                                                              \
    }
    UCX_FUNCTIONS(UCX_FIND)
#undef UCX_FIND
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
    /* Memory is registered once, and its kind is told. */
    setenv("UCX_MEMTYPE_CACHE", "n", 0);
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
    if (status == UCS_OK)
        return KVC_OK;
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

kvc_status ucx_register(struct ucx *ucx, void *base, size_t bytes, struct ucx_memory *memory)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = base,
        .length = bytes,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucp_mem_h handle;
    void *packed;
    ucs_status_t status = fault_fires("ucx.register")
                              ? UCS_ERR_NO_MEMORY
                              : ucx->ucp_mem_map(ucx->context, &params, &handle);

    if (status != UCS_OK)
        return ucx_status(status);
    *memory = (struct ucx_memory){.handle = handle};
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
    *memory = (struct ucx_memory){0};
}

#endif
