/* Endpoints: made by calling who listens, or by being called; their lanes, and their ends. */
#ifdef KVC_UCX

#include "daemon/peer/ucx_api.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"

static void failed_cb(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_endpoint *endpoint = arg;

    (void)ep;
    if (endpoint->state != UCX_OPEN)
        return;
    endpoint->state = UCX_FAILED;
    endpoint->why = ucx_status(status);
    list_push_back(&endpoint->worker->failed, &endpoint->link);
}

static struct ucx_endpoint *make(struct ucx_worker *w, const struct ucx_endpoint_events *events)
{
    struct ucx_endpoint *endpoint = mem_zalloc(sizeof(*endpoint));

    if (endpoint == NULL)
        return NULL;
    list_init(&endpoint->link);
    endpoint->worker = w;
    endpoint->events = *events;
    return endpoint;
}

/* What both sides want of an endpoint. */
static ucp_ep_params_t params_of(struct ucx_endpoint *endpoint)
{
    return (ucp_ep_params_t){
        .field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = failed_cb, .arg = endpoint},
    };
}

static kvc_status create(struct ucx_endpoint *endpoint, const ucp_ep_params_t *params,
                         struct ucx_endpoint **ret)
{
    struct ucx_worker *w = endpoint->worker;
    ucs_status_t status = w->ucx->ucp_ep_create(w->worker, params, &endpoint->ep);

    if (status == UCS_OK)
        *ret = endpoint;
    else
        mem_free(endpoint);
    return ucx_status(status);
}

static socklen_t length_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

/* UCX looks for the interface that has an address: of a loopback's it has but the first. */
static struct sockaddr_storage known_of(const struct sockaddr_storage *address)
{
    struct sockaddr_storage known = *address;
    struct in_addr *v4 = &((struct sockaddr_in *)&known)->sin_addr;

    if (known.ss_family == AF_INET && ntohl(v4->s_addr) >> 24 == 127)
        v4->s_addr = htonl(INADDR_LOOPBACK);
    return known;
}

static void set_port(struct sockaddr_storage *address, uint16_t port)
{
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)address)->sin_port = htons(port);
}

kvc_status ucx_connect(struct ucx_worker *w, const struct ucx_way *way,
                       const struct ucx_endpoint_events *events, struct ucx_endpoint **ret)
{
    struct ucx_endpoint *endpoint = fault_fires("ucx.connect") ? NULL : make(w, events);
    struct sockaddr_storage from = known_of(&way->from), to = known_of(&way->to);
    ucp_ep_params_t params;

    if (endpoint == NULL)
        return KVC_E_NO_MEMORY;
    set_port(&from, 0);
    set_port(&to, way->port);
    params = params_of(endpoint);
    params.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                         UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER | UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID;
    params.sockaddr = (ucs_sock_addr_t){(struct sockaddr *)&to, length_of(&to)};
    params.local_sockaddr = (ucs_sock_addr_t){(struct sockaddr *)&from, length_of(&from)};
    return create(endpoint, &params, ret);
}

/* Being called. */

struct ucx_call {
    struct ucx_worker *worker;
    ucp_conn_request_h request;
    bool taken; /* UCX has it back */
};

kvc_status ucx_accept(struct ucx_call *call, const struct ucx_endpoint_events *events,
                      struct ucx_endpoint **ret)
{
    struct ucx_endpoint *endpoint = make(call->worker, events);
    ucp_ep_params_t params;

    if (endpoint == NULL)
        return KVC_E_NO_MEMORY;
    params = params_of(endpoint);
    params.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = call->request;
    call->taken = true;
    return create(endpoint, &params, ret);
}

static void called_cb(ucp_conn_request_h request, void *arg)
{
    struct ucx_worker *w = arg;
    struct ucx_call call = {.worker = w, .request = request};
    ucp_conn_request_attr_t who = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    ucp_conn_request_attr_t number = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID};

    /* The number is in bytes of the caller's, which nobody has looked at: not those of strangers.
     */
    if (w->ucx->ucp_conn_request_query(request, &who) == UCS_OK &&
        w->events.expects(w->events.arg, &who.client_address) &&
        w->ucx->ucp_conn_request_query(request, &number) == UCS_OK)
        w->events.called(w->events.arg, number.client_id, &call);
    if (!call.taken)
        w->ucx->ucp_listener_reject(w->listener, request);
}

kvc_status ucx_listen(struct ucx_worker *w, const struct sockaddr_storage *host)
{
    struct sockaddr_storage at = known_of(host);
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(struct sockaddr *)&at, length_of(&at)},
        .conn_handler = {called_cb, w},
    };
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs_status_t status;

    set_port(&at, 0);
    status = w->ucx->ucp_listener_create(w->worker, &params, &w->listener);
    if (status == UCS_OK)
        status = w->ucx->ucp_listener_query(w->listener, &attr);
    if (status == UCS_OK)
        w->port = ntohs(attr.sockaddr.ss_family == AF_INET6
                            ? ((const struct sockaddr_in6 *)&attr.sockaddr)->sin6_port
                            : ((const struct sockaddr_in *)&attr.sockaddr)->sin_port);
    return ucx_status(status);
}

/* Lanes. */

/* "lane[1]:  3:cma/memory.0 md[2] -> ..." in the words that UCX has for people. */
static void add_lane(const char *line, char lanes[UCX_LANES_MAX])
{
    const char *name = strchr(line, ':'), *end;
    size_t used = strlen(lanes);

    name = name ? strchr(name + 1, ':') : NULL;
    end = name ? strchr(name, '/') : NULL;
    if (end == NULL)
        return;
    name++;
    while (isspace((unsigned char)*name))
        name++;
    if (end - name > 24 || used + (size_t)(end - name) + 2 > UCX_LANES_MAX)
        return;
    if (used > 0) {
        char word[32];

        snprintf(word, sizeof(word), "%.*s", (int)(end - name), name);
        for (char *at = lanes; (at = strstr(at, word)) != NULL; at += strlen(word))
            if ((at == lanes || at[-1] == ' ') && (at[strlen(word)] == ' ' || !at[strlen(word)]))
                return;
        lanes[used++] = ' ';
    }
    snprintf(lanes + used, UCX_LANES_MAX - used, "%.*s", (int)(end - name), name);
}

void ucx_lanes(const struct ucx_endpoint *endpoint, char lanes[UCX_LANES_MAX])
{
    char *text = NULL, *line, *rest;
    size_t size;
    FILE *file = open_memstream(&text, &size);

    lanes[0] = '\0';
    if (file == NULL)
        return;
    endpoint->worker->ucx->ucp_ep_print_info(endpoint->ep, file);
    fclose(file);
    for (rest = text; (line = strsep(&rest, "\n")) != NULL;)
        if (strstr(line, "lane[") != NULL)
            add_lane(line, lanes);
    free(text);
}

/* Ends. */

void ucx_disconnect(struct ucx_endpoint *endpoint, void (*closed)(void *arg), void *arg)
{
    struct ucx *ucx = endpoint->worker->ucx;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };

    assert(endpoint->state != UCX_CLOSING);
    endpoint->state = UCX_CLOSING;
    endpoint->closed_cb = closed;
    endpoint->closed_arg = arg;
    list_move_back(&endpoint->worker->closing, &endpoint->link);
    endpoint->close_request = ucx->ucp_ep_close_nbx(endpoint->ep, &param);
    if (endpoint->close_request == NULL || UCS_PTR_IS_ERR(endpoint->close_request)) {
        endpoint->close_request = NULL;
        endpoint->closed = true;
    }
}

/* Remote keys. */

kvc_status ucx_rkey_open(struct ucx_endpoint *endpoint, const uint8_t *bytes, size_t len,
                         struct ucx_rkey **ret)
{
    struct ucx_rkey *rkey = mem_zalloc(sizeof(*rkey));
    ucs_status_t status;

    (void)len;
    if (rkey == NULL)
        return KVC_E_NO_MEMORY;
    status = endpoint->worker->ucx->ucp_ep_rkey_unpack(endpoint->ep, bytes, &rkey->handle);
    if (status != UCS_OK) {
        mem_free(rkey);
        return ucx_status(status);
    }
    *ret = rkey;
    return KVC_OK;
}

bool ucx_rkey_maps(struct ucx_endpoint *endpoint, struct ucx_rkey *rkey, uint64_t address)
{
    void *here;

    return endpoint->worker->ucx->ucp_rkey_ptr(rkey->handle, address, &here) == UCS_OK;
}

void ucx_rkey_close(struct ucx_endpoint *endpoint, struct ucx_rkey *rkey)
{
    if (rkey == NULL)
        return;
    endpoint->worker->ucx->ucp_rkey_destroy(rkey->handle);
    mem_free(rkey);
}

#endif
