#ifdef KVC_UCX

#include "daemon/peer/link.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define LOOK_MS 100u /* between two looks at the clock, while it greets */

static void set_state(struct link *link, enum link_state state)
{
    static const uint8_t legal[] = {
        [LINK_CONNECTING] = 1u << LINK_GREETING | 1u << LINK_CLOSING,
        [LINK_GREETING] = 1u << LINK_PROVING | 1u << LINK_READYING | 1u << LINK_CLOSING,
        [LINK_PROVING] = 1u << LINK_READYING | 1u << LINK_CLOSING,
        [LINK_READYING] = 1u << LINK_OPEN | 1u << LINK_CLOSING,
        [LINK_OPEN] = 1u << LINK_CLOSING,
        [LINK_CLOSING] = 0,
    };

    assert(legal[link->state] & 1u << state);
    (void)legal;
    link->state = state;
}

static void close_handle(struct link *link)
{
    if (--link->handles > 0)
        return;
    link->config->events->ended(link->arg, link, link->why);
    mem_free(link);
}

static void tcp_closed_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_tcp_t *)handle, struct link, tcp));
}

static void timer_closed_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_timer_t *)handle, struct link, timer));
}

void link_end(struct link *link, const char *why)
{
    if (link->state == LINK_CLOSING)
        return;
    set_state(link, LINK_CLOSING);
    link->why = why;
    uv_close((uv_handle_t *)&link->tcp, tcp_closed_cb);
    uv_close((uv_handle_t *)&link->timer, timer_closed_cb);
}

static void end_with(struct link *link, const char *what, int error)
{
    snprintf(link->why_text, sizeof(link->why_text), "%s: %s", what, uv_strerror(error));
    link_end(link, link->why_text);
}

/* Sending. */

struct frame {
    uv_write_t write;
    size_t size; /* of this memory: many small messages are not worth more than they say */
    uint8_t bytes[];
};

static void written_cb(uv_write_t *write, int status)
{
    struct frame *frame = container_of(write, struct frame, write);
    struct link *link = write->data;

    if (status < 0 && status != UV_ECANCELED)
        end_with(link, "cannot send", status);
    link->unsent -= frame->size;
    mem_free(frame);
}

void link_send(struct link *link, const struct message *message)
{
    struct frame *frame;
    uv_buf_t buf;
    size_t len;
    int rc;

    if (link->state == LINK_CLOSING)
        return;
    len = message_write(message, link->out);
    assert(len > 0);
    if (link->unsent + sizeof(*frame) + len > LINK_OUT_MAX) {
        link_end(link, "it does not read what it is sent");
        return;
    }
    frame = mem_alloc(sizeof(*frame) + len);
    if (frame == NULL) {
        link_end(link, "out of memory");
        return;
    }
    memcpy(frame->bytes, link->out, len);
    frame->size = sizeof(*frame) + len;
    frame->write.data = link;
    buf = uv_buf_init((char *)frame->bytes, (unsigned)len);
    rc = uv_write(&frame->write, (uv_stream_t *)&link->tcp, &buf, 1, written_cb);
    if (rc < 0) {
        mem_free(frame);
        end_with(link, "cannot send", rc);
        return;
    }
    link->unsent += frame->size;
}

static void refuse(struct link *link, kvc_status status, const char *why)
{
    link_send(link, &(struct message){.type = MESSAGE_BYE, .status = status});
    link_end(link, why);
}

/* Greeting. What cannot be sent has ended the link, and nothing follows on it. */

static void send_hello(struct link *link)
{
    uint8_t nonce[MESSAGE_NONCE_BYTES];
    const struct message m = {
        .type = MESSAGE_HELLO,
        .hello = {.version = MESSAGE_VERSION,
                  .epoch = link->config->epoch,
                  .secret = link->config->secret->len > 0,
                  .nonce = nonce},
    };

    if (getrandom(nonce, sizeof(nonce), 0) != sizeof(nonce)) {
        link_end(link, "no random numbers");
        return;
    }
    link_send(link, &m);
    memcpy(link->hello_out, link->out + MESSAGE_HEADER_BYTES, MESSAGE_HELLO_BYTES);
}

static struct secret_talk talk_of(const struct link *link)
{
    if (link->side == SECRET_ASKER)
        return (struct secret_talk){link->hello_out, link->hello_in};
    return (struct secret_talk){link->hello_in, link->hello_out};
}

static enum secret_side other_side(const struct link *link)
{
    return link->side == SECRET_ASKER ? SECRET_SOURCE : SECRET_ASKER;
}

static void send_proof(struct link *link)
{
    struct secret_talk talk = talk_of(link);
    uint8_t mac[MESSAGE_MAC_BYTES];

    secret_prove(link->config->secret, link->side, &talk, mac);
    link_send(link, &(struct message){.type = MESSAGE_PROOF, .mac = mac});
}

static void send_ready(struct link *link)
{
    struct message m = {.type = MESSAGE_READY};

    if (!link->config->events->ready(link->arg, link, &m.ready)) {
        refuse(link, KVC_E_NO_ROOM, "no room for another peer");
        return;
    }
    link_send(link, &m);
}

/* Both have proved what there was to prove. The asker says READY first. */
static void be_ready(struct link *link)
{
    set_state(link, LINK_READYING);
    if (link->side == SECRET_ASKER)
        send_ready(link);
}

static void take_hello(struct link *link, const struct message_hello *hello, const uint8_t *body)
{
    if (hello->version != MESSAGE_VERSION) {
        refuse(link, KVC_E_VERSION, "it speaks another version");
        return;
    }
    link->epoch = hello->epoch;
    memcpy(link->hello_in, body, MESSAGE_HELLO_BYTES);
    if (link->side == SECRET_SOURCE)
        send_hello(link);
    if (link->state == LINK_CLOSING)
        return;
    if (hello->secret != (link->config->secret->len > 0)) {
        refuse(link, KVC_E_DENIED,
               hello->secret ? "it has a secret, this daemon has none"
                             : "it has no secret, this daemon has one");
        return;
    }
    if (!hello->secret) {
        be_ready(link);
        return;
    }
    set_state(link, LINK_PROVING);
    if (link->side == SECRET_ASKER)
        send_proof(link);
}

static void take_proof(struct link *link, const uint8_t *mac)
{
    struct secret_talk talk = talk_of(link);

    if (!secret_is_proof(link->config->secret, other_side(link), &talk, mac)) {
        refuse(link, KVC_E_DENIED, "it does not know the secret");
        return;
    }
    if (link->side == SECRET_SOURCE)
        send_proof(link);
    if (link->state != LINK_CLOSING)
        be_ready(link);
}

static void take_ready(struct link *link, const struct message_ready *ready)
{
    kvc_status status;

    if (link->side == SECRET_SOURCE)
        send_ready(link);
    if (link->state == LINK_CLOSING)
        return;
    set_state(link, LINK_OPEN);
    uv_timer_stop(&link->timer);
    status = link->config->events->open(link->arg, link, ready);
    if (status != KVC_OK)
        refuse(link, status, kvc_status_text(status));
}

static void take_bye(struct link *link, uint32_t status)
{
    snprintf(link->why_text, sizeof(link->why_text), "it says: %s",
             kvc_status_text((kvc_status)status));
    link_end(link, link->why_text);
}

/* A message that no correct peer sends in this state ends the link. */
static bool is_expected(const struct link *link, uint16_t type)
{
    switch (link->state) {
    case LINK_GREETING:
        return type == MESSAGE_HELLO;
    case LINK_PROVING:
        return type == MESSAGE_PROOF;
    case LINK_READYING:
        return type == MESSAGE_READY;
    default:
        break;
    }
    switch (type) {
    case MESSAGE_QUERY:
    case MESSAGE_FETCH:
    case MESSAGE_DONE:
    case MESSAGE_RELEASE:
    case MESSAGE_ASK_KEYS:
    case MESSAGE_PING:
        return link->side == SECRET_SOURCE;
    case MESSAGE_ANSWER:
    case MESSAGE_RESULT:
    case MESSAGE_PONG:
    case MESSAGE_KEYS:
        return link->side == SECRET_ASKER;
    default:
        return false;
    }
}

static void take_message(struct link *link, uint16_t type, const uint8_t *body, size_t len)
{
    struct message m;
    const char *wrong = message_read(type, body, len, &m);

    if (wrong == NULL && type != MESSAGE_BYE && !is_expected(link, type))
        wrong = "a message that does not belong here";
    if (wrong != NULL) {
        log_warn("peer", "malformed message from=%s type=%s reason=\"%s\"", link->name,
                 message_name(type), wrong);
        link_end(link, wrong);
        return;
    }
    link->heard_us = clock_now_us();
    switch (type) {
    case MESSAGE_HELLO:
        take_hello(link, &m.hello, body);
        break;
    case MESSAGE_PROOF:
        take_proof(link, m.mac);
        break;
    case MESSAGE_READY:
        take_ready(link, &m.ready);
        break;
    case MESSAGE_BYE:
        take_bye(link, m.status);
        break;
    default:
        link->config->events->message(link->arg, link, &m);
    }
}

/* Receiving: whole frames are taken out of the front of the buffer. */

static void take_frames(struct link *link)
{
    size_t at = 0;

    while (link->state != LINK_CLOSING && link->in_len - at >= MESSAGE_HEADER_BYTES) {
        uint32_t body_len = 0;
        uint16_t type = 0;
        const char *wrong = message_read_header(link->in + at, &type, &body_len);

        if (wrong != NULL) {
            log_warn("peer", "malformed message from=%s reason=\"%s\"", link->name, wrong);
            link_end(link, wrong);
            return;
        }
        if (link->in_len - at - MESSAGE_HEADER_BYTES < body_len)
            break;
        take_message(link, type, link->in + at + MESSAGE_HEADER_BYTES, body_len);
        at += MESSAGE_HEADER_BYTES + body_len;
    }
    memmove(link->in, link->in + at, link->in_len - at);
    link->in_len -= at;
}

static void alloc_cb(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct link *link = container_of((uv_tcp_t *)handle, struct link, tcp);

    (void)suggested;
    *buf =
        uv_buf_init((char *)link->in + link->in_len, (unsigned)(sizeof(link->in) - link->in_len));
}

static void read_cb(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct link *link = container_of((uv_tcp_t *)stream, struct link, tcp);

    (void)buf;
    if (n == UV_EOF) {
        link_end(link, "it closed the connection");
        return;
    }
    if (n < 0) {
        end_with(link, "cannot receive", (int)n);
        return;
    }
    link->in_len += (size_t)n;
    take_frames(link);
}

static void greet_look_cb(uv_timer_t *timer)
{
    struct link *link = container_of(timer, struct link, timer);

    if (clock_now_us() - link->began_us >= link->config->greet_ms * CLOCK_MS_US)
        link_end(link, "no greeting in time");
}

/* Life. */

static struct link *make(const struct link_config *config, void *arg, enum secret_side side)
{
    struct link *link = mem_zalloc(sizeof(*link));

    if (link == NULL)
        return NULL;
    list_init(&link->link);
    link->arg = arg;
    link->config = config;
    link->side = side;
    link->state = side == SECRET_ASKER ? LINK_CONNECTING : LINK_GREETING;
    link->heard_us = link->began_us = clock_now_us();
    uv_tcp_init(config->loop, &link->tcp);
    uv_timer_init(config->loop, &link->timer);
    link->handles = 2;
    uv_timer_start(&link->timer, greet_look_cb, LOOK_MS, LOOK_MS);
    return link;
}

static void begin_reading(struct link *link)
{
    int rc = uv_read_start((uv_stream_t *)&link->tcp, alloc_cb, read_cb);

    uv_tcp_nodelay(&link->tcp, 1);
    if (rc < 0)
        end_with(link, "cannot receive", rc);
}

static void connected_cb(uv_connect_t *connecting, int status)
{
    struct link *link = container_of(connecting, struct link, connecting);

    if (link->state == LINK_CLOSING)
        return;
    if (status < 0) {
        end_with(link, "cannot connect", status);
        return;
    }
    set_state(link, LINK_GREETING);
    begin_reading(link);
    send_hello(link);
}

/* Whom the other side sees is who listens here, wherever that address reaches. */
static int bind_from(struct link *link, const struct sockaddr *address)
{
    const struct sockaddr_storage *from = &link->config->from;
    struct sockaddr_storage to = {0}, any = *from;

    memcpy(&to, address,
           address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in));
    if (from->ss_family != to.ss_family || link_is_loopback(from) != link_is_loopback(&to))
        return 0;
    if (any.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&any)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&any)->sin_port = 0;
    return uv_tcp_bind(&link->tcp, (struct sockaddr *)&any, 0);
}

kvc_status link_connect(const struct link_config *config, const struct sockaddr *address,
                        const char *name, void *arg, struct link **ret)
{
    struct link *link = make(config, arg, SECRET_ASKER);
    int rc;

    if (link == NULL)
        return KVC_E_NO_MEMORY;
    snprintf(link->name, sizeof(link->name), "%s", name);
    rc = bind_from(link, address);
    if (rc == 0)
        rc = uv_tcp_connect(&link->connecting, &link->tcp, address, connected_cb);
    if (rc < 0)
        end_with(link, "cannot connect", rc);
    *ret = link;
    return KVC_OK;
}

static void name_peer(struct link *link)
{
    struct sockaddr_storage address;
    char host[INET6_ADDRSTRLEN];

    if (!link_peer(link, &address))
        return;
    if (address.ss_family == AF_INET6)
        uv_ip6_name((struct sockaddr_in6 *)&address, host, sizeof(host));
    else
        uv_ip4_name((struct sockaddr_in *)&address, host, sizeof(host));
    snprintf(link->name, sizeof(link->name), address.ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u",
             host, ntohs(((struct sockaddr_in *)&address)->sin_port));
}

kvc_status link_accept(const struct link_config *config, uv_stream_t *listener, void *arg,
                       struct link **ret)
{
    struct link *link = make(config, arg, SECRET_SOURCE);

    if (link == NULL)
        return KVC_E_NO_MEMORY;
    if (uv_accept(listener, (uv_stream_t *)&link->tcp) < 0) {
        link_end(link, "it is gone already");
    } else {
        name_peer(link);
        begin_reading(link);
    }
    *ret = link;
    return KVC_OK;
}

#endif
