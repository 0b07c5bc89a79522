/* Workers on the loop, and operations. */
#ifdef KVC_UCX

#include "daemon/peer/ucx_api.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/mem.h"

#define AM_ID           7u
#define PROGRESS_ROUNDS 64u  /* of one turn of the loop: others want to be served too */
#define SPIN_US         50u  /* in which the other side's next bytes are better waited for awake */
#define SOON_US         200u /* the same of an answer, since who gives it may have to be woken */

/* Completion. */

static void complete(struct ucx_op *op, kvc_status status)
{
    op->status = status;
    list_push_back(&op->endpoint->worker->completed, &op->link);
}

static void begin(struct ucx_endpoint *endpoint, struct ucx_op *op)
{
    op->endpoint = endpoint;
    list_init(&op->link);
    endpoint->in_flight++;
    endpoint->worker->in_flight++;
}

/* What a call that begins something has returned. */
static void begun(struct ucx_op *op, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_ERR(request))
        complete(op, ucx_status(UCS_PTR_STATUS(request)));
    else if (request == NULL)
        complete(op, KVC_OK);
}

static void sent_cb(void *request, ucs_status_t status, void *arg)
{
    struct ucx_op *op = arg;

    op->endpoint->worker->ucx->ucp_request_free(request);
    complete(op, ucx_status(status));
}

static void received_cb(void *request, ucs_status_t status, size_t length, void *arg)
{
    (void)length;
    sent_cb(request, status, arg);
}

static ucp_request_param_t param_of(struct ucx_op *op, const struct ucx_memory *memory)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.send = sent_cb,
        .user_data = op,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };

    if (memory != NULL && memory->gpu)
        param.memory_type = UCS_MEMORY_TYPE_CUDA;
    if (memory != NULL && memory->handle != NULL) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh = memory->handle;
    }
    return param;
}

/* Whether something can be begun on the endpoint; if not, it completes. */
static bool may_begin(struct ucx_endpoint *endpoint, struct ucx_op *op)
{
    begin(endpoint, op);
    if (endpoint->state == UCX_OPEN && !fault_fires("ucx.op"))
        return true;
    complete(op, KVC_E_PEER);
    return false;
}

void ucx_get(struct ucx_endpoint *endpoint, struct ucx_op *op, void *to, size_t bytes,
             const struct ucx_memory *memory, uint64_t from, struct ucx_rkey *rkey)
{
    ucp_request_param_t param = param_of(op, memory);

    if (may_begin(endpoint, op))
        begun(op, endpoint->worker->ucx->ucp_get_nbx(endpoint->ep, to, bytes, from, rkey->handle,
                                                     &param));
}

void ucx_put(struct ucx_endpoint *endpoint, struct ucx_op *op, const void *from, size_t bytes,
             const struct ucx_memory *memory, uint64_t to, struct ucx_rkey *rkey)
{
    ucp_request_param_t param = param_of(op, memory);

    if (may_begin(endpoint, op))
        begun(op, endpoint->worker->ucx->ucp_put_nbx(endpoint->ep, from, bytes, to, rkey->handle,
                                                     &param));
}

void ucx_flush(struct ucx_endpoint *endpoint, struct ucx_op *op)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = sent_cb,
        .user_data = op,
    };

    if (may_begin(endpoint, op))
        begun(op, endpoint->worker->ucx->ucp_ep_flush_nbx(endpoint->ep, &param));
}

void ucx_send(struct ucx_endpoint *endpoint, struct ucx_op *op, const struct ucx_tag *tag,
              const void *from, size_t bytes, const struct ucx_memory *memory)
{
    ucp_request_param_t param = param_of(op, memory);

    op->tag = (struct ucx_tag){htole64(tag->id), htole32(tag->first), htole32(tag->n)};
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY;
    if (may_begin(endpoint, op))
        begun(op, endpoint->worker->ucx->ucp_am_send_nbx(endpoint->ep, AM_ID, &op->tag,
                                                         sizeof(op->tag), from, bytes, &param));
}

void ucx_expect(struct ucx_endpoint *endpoint, struct ucx_op *op)
{
    begin(endpoint, op);
}

static ucs_status_t message_cb(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param)
{
    struct ucx_worker *w = arg;
    struct ucx_op *op = NULL;
    ucp_request_param_t receive;
    struct ucx_tag tag;
    void *to = NULL;

    if (header_len == sizeof(tag)) {
        memcpy(&tag, header, sizeof(tag));
        tag = (struct ucx_tag){le64toh(tag.id), le32toh(tag.first), le32toh(tag.n)};
        to = w->events.message(w->events.arg, &tag, len, &op);
    }
    if (to == NULL)
        return UCS_OK; /* whoever sends it is told that it is over */
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(to, data, len);
        complete(op, KVC_OK);
        return UCS_OK;
    }
    receive = param_of(op, NULL);
    receive.cb.recv_am = received_cb;
    begun(op, w->ucx->ucp_am_recv_data_nbx(w->worker, data, to, len, &receive));
    return UCS_INPROGRESS;
}

/* The loop. */

static bool deliver(struct ucx_worker *w)
{
    struct list due;
    struct ucx_op *op;
    struct ucx_endpoint *endpoint;
    bool any = false;

    list_init(&due);
    list_splice_back(&due, &w->completed);
    while ((op = list_first(&due, struct ucx_op, link)) != NULL) {
        any = true;
        list_remove(&op->link);
        assert(op->endpoint->in_flight > 0);
        op->endpoint->in_flight--;
        w->in_flight--;
        op->done(op, op->status);
    }
    while ((endpoint = list_first(&w->failed, struct ucx_endpoint, link)) != NULL) {
        any = true;
        list_remove(&endpoint->link);
        endpoint->events.failed(endpoint->events.arg, endpoint->why);
    }
    return any;
}

/* UCX completes a close only while it makes progress. */
static bool is_closed(struct ucx_endpoint *endpoint)
{
    struct ucx *ucx = endpoint->worker->ucx;

    if (!endpoint->closed &&
        ucx->ucp_request_check_status(endpoint->close_request) != UCS_INPROGRESS) {
        ucx->ucp_request_free(endpoint->close_request);
        endpoint->closed = true;
    }
    return endpoint->closed && endpoint->in_flight == 0;
}

static bool end_closed(struct ucx_worker *w)
{
    struct ucx_endpoint *endpoint, *after;
    bool any = false;

    list_for_each_safe(endpoint, after, &w->closing, link) {
        if (!is_closed(endpoint))
            continue;
        any = true;
        list_remove(&endpoint->link);
        endpoint->closed_cb(endpoint->closed_arg);
        mem_free(endpoint);
    }
    return any;
}

static void idle_cb(uv_idle_t *idle)
{
    (void)idle;
}

static void poll_cb(uv_poll_t *poll, int status, int events)
{
    (void)poll, (void)status, (void)events;
}

/* While bytes are on their way, to fall asleep and be woken takes longer than the next ones. */
static bool may_sleep(struct ucx_worker *w, bool progressed)
{
    const uint64_t now = clock_now_us();

    if (now < w->soon_us)
        return false;
    if (w->in_flight == 0)
        return true;
    if (progressed)
        w->progress_us = now;
    return now - w->progress_us > SPIN_US;
}

void ucx_worker_soon(struct ucx_worker *w)
{
    w->soon_us = clock_now_us() + SOON_US;
}

void ucx_worker_join(struct ucx_worker *w)
{
    w->n_asking++;
}

void ucx_worker_leave(struct ucx_worker *w)
{
    assert(w->n_asking > 0);
    if (--w->n_asking == 0)
        w->soon_us = 0;
}

/*
 * Before the loop sleeps: progress until there is nothing to do, then arm. BUSY says that the
 * descriptor will not signal what has come meanwhile, so the loop must come round again.
 */
static void prepare_cb(uv_prepare_t *prepare)
{
    struct ucx_worker *w = container_of(prepare, struct ucx_worker, prepare);
    bool more = true, any = false;

    for (uint32_t i = 0; more && i < PROGRESS_ROUNDS; i++) {
        more = w->ucx->ucp_worker_progress(w->worker) != 0;
        more = deliver(w) || more;
        more = end_closed(w) || more;
        any = any || more;
        if (more && w->events.progressed != NULL)
            w->events.progressed(w->events.arg);
    }
    if (!may_sleep(w, any))
        more = true;
    if (!more && w->ucx->ucp_worker_arm(w->worker) == UCS_OK)
        uv_idle_stop(&w->idle);
    else
        uv_idle_start(&w->idle, idle_cb);
}

kvc_status ucx_worker_open(struct ucx *ucx, uv_loop_t *loop, const struct ucx_worker_events *events,
                           struct ucx_worker **ret)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS |
                      UCP_WORKER_PARAM_FIELD_CLIENT_ID,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
        .events = UCP_WAKEUP_RMA | UCP_WAKEUP_TX | UCP_WAKEUP_RX,
    };
    struct ucx_worker *w = mem_zalloc(sizeof(*w));
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = AM_ID,
        .cb = message_cb,
        .arg = w,
    };
    ucs_status_t status;
    int fd;

    if (w == NULL)
        return KVC_E_NO_MEMORY;
    w->ucx = ucx;
    w->events = *events;
    list_init(&w->completed);
    list_init(&w->failed);
    list_init(&w->closing);
    status = getrandom(&w->number, sizeof(w->number), 0) == sizeof(w->number) ? UCS_OK
                                                                              : UCS_ERR_IO_ERROR;
    params.client_id = w->number;
    if (status == UCS_OK)
        status = ucx->ucp_worker_create(ucx->context, &params, &w->worker);
    if (status != UCS_OK)
        goto free_worker;
    if (events->message != NULL)
        status = ucx->ucp_worker_set_am_recv_handler(w->worker, &handler);
    if (status == UCS_OK)
        status = ucx->ucp_worker_get_efd(w->worker, &fd);
    if (status == UCS_OK && uv_poll_init(loop, &w->poll, fd) < 0)
        status = UCS_ERR_IO_ERROR;
    if (status != UCS_OK)
        goto destroy_worker;
    uv_prepare_init(loop, &w->prepare);
    uv_idle_init(loop, &w->idle);
    uv_prepare_start(&w->prepare, prepare_cb);
    uv_poll_start(&w->poll, UV_READABLE, poll_cb);
    w->handles = 3;
    *ret = w;
    return KVC_OK;

destroy_worker:
    ucx->ucp_worker_destroy(w->worker);
free_worker:
    mem_free(w);
    return ucx_status(status);
}

static void close_handle(struct ucx_worker *w)
{
    if (--w->handles > 0)
        return;
    if (w->listener != NULL)
        w->ucx->ucp_listener_destroy(w->listener);
    w->ucx->ucp_worker_destroy(w->worker);
    w->gone(w->gone_arg);
    mem_free(w);
}

static void prepare_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_prepare_t *)handle, struct ucx_worker, prepare));
}

static void idle_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_idle_t *)handle, struct ucx_worker, idle));
}

static void poll_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_poll_t *)handle, struct ucx_worker, poll));
}

void ucx_worker_close(struct ucx_worker *w, void (*done)(void *arg), void *arg)
{
    assert(list_empty(&w->closing) && list_empty(&w->completed) && w->n_asking == 0);
    w->gone = done;
    w->gone_arg = arg;
    uv_close((uv_handle_t *)&w->prepare, prepare_close_cb);
    uv_close((uv_handle_t *)&w->idle, idle_close_cb);
    uv_close((uv_handle_t *)&w->poll, poll_close_cb);
}

uint64_t ucx_worker_number(const struct ucx_worker *w)
{
    return w->number;
}

uint16_t ucx_worker_port(const struct ucx_worker *w)
{
    return w->port;
}

#endif
