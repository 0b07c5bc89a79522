/* What the files of UCX share. The functions are found at run time; their types are the header's.
 */
#ifndef KVC_PEER_UCX_API_H
#define KVC_PEER_UCX_API_H

#include <ucp/api/ucp.h>

#include "daemon/peer/ucx.h"

/* clang-format off */
#define UCX_FUNCTIONS(X)                                                                           \
    X(ucp_get_version_string) X(ucp_init_version) X(ucp_cleanup) X(ucp_config_read)                \
    X(ucp_context_query) X(ucp_rkey_ptr)                                                           \
    X(ucp_config_modify) X(ucp_config_release) X(ucp_mem_map) X(ucp_mem_unmap) X(ucp_rkey_pack)    \
    X(ucp_rkey_buffer_release) X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_get_efd)    \
    X(ucp_worker_arm) X(ucp_worker_progress) X(ucp_worker_set_am_recv_handler) X(ucp_ep_create)    \
    X(ucp_ep_close_nbx) X(ucp_ep_print_info) X(ucp_ep_flush_nbx) X(ucp_ep_rkey_unpack)             \
    X(ucp_rkey_destroy) X(ucp_get_nbx) X(ucp_put_nbx) X(ucp_am_send_nbx) X(ucp_am_recv_data_nbx)   \
    X(ucp_request_free) X(ucp_request_check_status) X(ucp_listener_create)                         \
    X(ucp_listener_destroy) X(ucp_listener_query) X(ucp_listener_reject) X(ucp_conn_request_query)
/* clang-format on */

struct ucx {
    void *library;
    ucp_context_h context;
    bool gpus, maps_gpus;
#define UCX_MEMBER(name) __typeof__(&name) name;
    UCX_FUNCTIONS(UCX_MEMBER)
#undef UCX_MEMBER
};

struct ucx_worker {
    struct ucx *ucx;
    ucp_worker_h worker;
    uint64_t number;         /* by which it says who calls */
    ucp_listener_h listener; /* NULL: nobody may call it */
    uint16_t port;           /* of the listener */
    struct ucx_worker_events events;
    uv_prepare_t prepare;
    uv_idle_t idle; /* runs while UCX may not sleep */
    uv_poll_t poll;
    uint32_t handles;
    uint32_t in_flight;    /* operations that have not completed */
    uint64_t progress_us;  /* when some was made last */
    uint64_t soon_us;      /* until then it stays awake */
    uint32_t n_asking;     /* who have joined */
    struct list completed; /* operations whose done is due */
    struct list failed;    /* endpoints whose failure is to be told */
    struct list closing;   /* endpoints */
    void (*gone)(void *arg);
    void *gone_arg;
};

enum ucx_endpoint_state { UCX_OPEN, UCX_FAILED, UCX_CLOSING };

struct ucx_endpoint {
    struct list link; /* of the worker's failed, or closing */
    struct ucx_worker *worker;
    ucp_ep_h ep;
    enum ucx_endpoint_state state;
    struct ucx_endpoint_events events;
    kvc_status why;
    uint32_t in_flight; /* operations that have not completed */
    ucs_status_ptr_t close_request;
    bool closed; /* UCX has let go of it */
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

struct ucx_rkey {
    ucp_rkey_h handle;
};

kvc_status ucx_status(ucs_status_t status);

#endif
