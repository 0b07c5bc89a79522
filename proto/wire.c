#include "proto/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * Room for all that Linux sends at once, many more than a packet may have: what does not fit the
 * kernel closes, in the receiver's time, and closing may take as long as the sender likes.
 */
#define CONTROL_FDS 253u

union control {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(CONTROL_FDS * sizeof(int)) + CMSG_SPACE(64)];
};

/* Every descriptor that may come out of a control buffer, which has room for more than fds. */
struct received_fds {
    uint32_t n;
    int fds[sizeof(union control) / sizeof(int)];
};

static uint32_t get_u16(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
}

static uint32_t get_u32(const uint8_t *bytes)
{
    return get_u16(bytes) | get_u16(bytes + 2) << 16;
}

static void put_u16(uint8_t *bytes, uint32_t value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

static void put_u32(uint8_t *bytes, uint32_t value)
{
    put_u16(bytes, value);
    put_u16(bytes + 2, value >> 16);
}

void wire_put_header(uint8_t header[KVC_WIRE_HEADER_BYTES], const struct wire_packet *packet)
{
    memcpy(header, "KVC", 3);
    header[3] = WIRE_VERSION;
    put_u16(header + 4, packet->type);
    put_u16(header + 6, packet->n_fds);
    put_u32(header + 8, packet->seq);
    put_u32(header + 12, packet->body_len);
}

const char *wire_parse_header(const uint8_t *bytes, size_t len, struct wire_packet *packet)
{
    if (len < KVC_WIRE_HEADER_BYTES)
        return "shorter than a header";
    if (memcmp(bytes, "KVC", 3) != 0)
        return "wrong magic";
    if (bytes[3] != WIRE_VERSION)
        return "wrong version";
    if (len > KVC_WIRE_PACKET_MAX)
        return "longer than a packet may be";
    if (get_u32(bytes + 12) != len - KVC_WIRE_HEADER_BYTES)
        return "length differs from the packet's";
    if (get_u16(bytes + 6) > KVC_WIRE_FDS_MAX)
        return "more descriptors than a packet may have";
    packet->type = (uint16_t)get_u16(bytes + 4);
    packet->n_fds = get_u16(bytes + 6);
    packet->seq = get_u32(bytes + 8);
    packet->body = bytes + KVC_WIRE_HEADER_BYTES;
    packet->body_len = (uint32_t)(len - KVC_WIRE_HEADER_BYTES);
    return NULL;
}

/*
 * The last close of a socket waits for as long as its SO_LINGER says, and who sent it may have set
 * that to hours. Nothing else that a descriptor can be takes notice.
 */
static void close_foreign(int fd)
{
    const struct linger none = {0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    close(fd);
}

void wire_close_fds(struct wire_packet *packet)
{
    for (uint32_t i = 0; i < packet->n_fds; i++) {
        if (packet->fds[i] >= 0)
            close_foreign(packet->fds[i]);
    }
    packet->n_fds = 0;
}

/* Collects all descriptors of msg, whatever else is wrong with it; false on a foreign message. */
static bool collect_fds(struct msghdr *msg, struct received_fds *got)
{
    bool only_rights = true;

    got->n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            only_rights = false;
            continue;
        }
        size_t bytes = c->cmsg_len - CMSG_LEN(0);
        memcpy(got->fds + got->n, CMSG_DATA(c), bytes);
        got->n += (uint32_t)(bytes / sizeof(int));
    }
    return only_rights;
}

static const char lost[] = "descriptors were lost";

static const char *check_packet(const uint8_t *buf, size_t len, int flags, bool only_rights,
                                const struct received_fds *got, struct wire_packet *packet)
{
    struct wire_packet header;
    const char *wrong;

    if (flags & MSG_TRUNC)
        return "longer than a packet may be";
    /* This process has no numbers left for them. */
    if (flags & MSG_CTRUNC)
        return lost;
    if (!only_rights)
        return "unexpected control message";
    wrong = wire_parse_header(buf, len, &header);
    if (wrong != NULL)
        return wrong;
    if (header.n_fds != got->n)
        return "number of descriptors differs from the header's";
    packet->type = header.type;
    packet->seq = header.seq;
    packet->body = header.body;
    packet->body_len = header.body_len;
    packet->n_fds = got->n;
    memcpy(packet->fds, got->fds, got->n * sizeof(int));
    return NULL;
}

/*
 * A peer that closes without having read everything leaves ECONNRESET here, in front of the packets
 * that it sent before. Asking again gives those, then the end; the kernel reports the error once.
 */
static ssize_t receive(int sock, struct msghdr *msg)
{
    const size_t control_room = msg->msg_controllen;
    bool reset = false;
    ssize_t n;

    for (;;) {
        msg->msg_controllen = control_room;
        n = recvmsg(sock, msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n >= 0 || (errno != EINTR && errno != ECONNRESET))
            return n;
        if (errno == ECONNRESET && reset)
            return n;
        reset = reset || errno == ECONNRESET;
    }
}

enum wire_result wire_recv_close(int sock, void *buf, struct wire_packet *packet, const char **why,
                                 wire_close_cb *close_cb, void *arg)
{
    union control control;
    struct iovec iov = {.iov_base = buf, .iov_len = KVC_WIRE_PACKET_MAX};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    struct received_fds got;
    bool only_rights;
    const char *wrong;
    ssize_t n;

    n = receive(sock, &msg);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return WIRE_AGAIN;
        return errno == ECONNRESET || errno == ENOTCONN ? WIRE_EOF : WIRE_FAIL;
    }
    only_rights = collect_fds(&msg, &got);
    /* An empty packet looks like the end, and is one, unless descriptors give it away. */
    if (n == 0 && got.n == 0 && !(msg.msg_flags & MSG_CTRUNC))
        return WIRE_EOF;
    wrong = check_packet(buf, (size_t)n, msg.msg_flags, only_rights, &got, packet);
    if (wrong == NULL)
        return WIRE_OK;
    for (uint32_t i = 0; i < got.n; i++)
        close_cb(arg, got.fds[i]);
    *why = wrong;
    return wrong == lost ? WIRE_LOST : WIRE_BAD;
}

static void close_here(void *arg, int fd)
{
    (void)arg;
    close_foreign(fd);
}

enum wire_result wire_recv(int sock, void *buf, struct wire_packet *packet, const char **why)
{
    return wire_recv_close(sock, buf, packet, why, close_here, NULL);
}

enum wire_result wire_send(int sock, const struct wire_packet *packet)
{
    uint8_t header[KVC_WIRE_HEADER_BYTES];
    union control control;
    struct iovec iov[2] = {
        {.iov_base = header, .iov_len = sizeof(header)},
        {.iov_base = (void *)packet->body, .iov_len = packet->body_len},
    };
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = packet->body_len > 0 ? 2 : 1};
    ssize_t n;

    if (packet->body_len > KVC_WIRE_BODY_MAX || packet->n_fds > KVC_WIRE_FDS_MAX) {
        errno = EMSGSIZE;
        return WIRE_FAIL;
    }
    wire_put_header(header, packet);
    if (packet->n_fds > 0) {
        memset(&control, 0, sizeof(control));
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(packet->n_fds * sizeof(int));
        struct cmsghdr *c = &control.align; /* the first one */
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(packet->n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), packet->fds, packet->n_fds * sizeof(int));
    }
    do
        n = sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    /* A packet goes whole or not at all, so there is no short count to look at. */
    if (n >= 0)
        return WIRE_OK;
    switch (errno) {
    case EAGAIN:
        return WIRE_AGAIN;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
        return WIRE_EOF;
    default:
        return WIRE_FAIL;
    }
}

static kvc_status connect_status(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return KVC_E_DISCONNECTED;
    case EAGAIN:
        return KVC_E_BUSY;
    case EACCES:
    case EPERM:
        return KVC_E_DENIED;
    case EPROTOTYPE: /* somebody listens, with another kind of socket */
        return KVC_E_PROTOCOL;
    case EMFILE:
    case ENFILE:
        return KVC_E_NO_FDS;
    case ENOMEM:
    case ENOBUFS:
        return KVC_E_NO_MEMORY;
    default:
        return KVC_E_SYSTEM;
    }
}

kvc_status wire_connect(const char *path, int *sock)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t len = strlen(path);
    int fd, error;

    if (len == 0 || len >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return KVC_E_INVALID;
    }
    memcpy(address.sun_path, path, len);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return connect_status(errno);
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        error = errno;
        close(fd);
        errno = error;
        return connect_status(error);
    }
    *sock = fd;
    return KVC_OK;
}
