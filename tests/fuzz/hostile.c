#include "tests/fuzz/hostile.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_MS 2 /* after a reply that the client may go on waiting for */
#define FOLDER_MAX  40

static uint8_t request_buffer[KVC_WIRE_PACKET_MAX], spoiled[KVC_WIRE_BODY_MAX];

static void send_packet(struct hostile *h, uint16_t type, uint32_t seq, struct bytes body,
                        const int *fds, uint32_t n_fds)
{
    struct wire_packet packet = {.type = type, .seq = seq, .body = body.data, .n_fds = n_fds};

    packet.body_len = (uint32_t)body.len;
    for (uint32_t i = 0; i < n_fds; i++)
        packet.fds[i] = fds[i];
    (void)wire_send(h->sock, &packet);
}

static struct bytes changed(struct hostile *h, struct bytes body)
{
    memcpy(spoiled, body.data, body.len);
    for (uint32_t n = 1 + fuzz_u8(&h->in) % 4; n > 0 && body.len > 0; n--) {
        uint32_t at = fuzz_u8(&h->in);

        spoiled[at < 128 ? at % body.len : body.len - 1 - (at - 128) % body.len] ^=
            (uint8_t)fuzz_u8(&h->in);
    }
    return (struct bytes){spoiled, body.len};
}

/* A descriptor that must not be mapped: whoever does is killed when it is shrunk. */
static void send_bad_fd(struct hostile *h, uint16_t type, uint32_t seq, struct bytes body, int *fds,
                        uint32_t n_fds)
{
    uint32_t how = fuzz_u8(&h->in), at = n_fds > 0 ? how / 8 % n_fds : 0;
    int fd = -1;

    switch (how % 8) {
    case 0:
        fd = hostile_memfd(HOSTILE_EXTENT_BYTES, 0);
        break;
    case 1:
        fd = hostile_memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW);
        break;
    case 2:
        fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
        break;
    case 3:
        fd = dup(h->sock);
        break;
    case 4:
        fd = open("/", O_RDONLY | O_CLOEXEC);
        break;
    case 5:
        fd = hostile_memfd(HOSTILE_EXTENT_BYTES, F_SEAL_GROW);
        break;
    case 6: /* one too many */
        fd = dup(hostile_extent());
        at = n_fds;
        break;
    default: /* one too few */
        n_fds -= n_fds > 0;
        at = KVC_WIRE_FDS_MAX;
        break;
    }
    if (at < KVC_WIRE_FDS_MAX)
        fds[at] = fd;
    if (at < KVC_WIRE_FDS_MAX && n_fds <= at)
        n_fds = at + 1;
    send_packet(h, type, seq, body, fds, n_fds);
    if (how % 8 == 0 || how % 8 == 5)
        FUZZ_REQUIRE(ftruncate(fd, 0) == 0);
    close(fd);
}

static void send_notice(struct hostile *h)
{
    static const uint16_t types[] = {WIRE_SAVE_DONE, WIRE_EXTENTS, WIRE_STOPPING, WIRE_NOTICE | 9};
    uint16_t type = types[fuzz_u8(&h->in) % 4];
    size_t len;
    const uint8_t *bytes = fuzz_bytes(&h->in, fuzz_u8(&h->in) % 32, &len);

    send_packet(h, type, 0, (struct bytes){bytes, len}, NULL, 0);
}

/* Whether the client may go on waiting for the reply that it wants. */
static bool answer(struct hostile *h, const struct request *r, struct bytes body, int *fds,
                   uint32_t n_fds)
{
    const uint16_t type = r->type | WIRE_REPLY;
    struct msg_error error = {.field = "f", .detail = "d"};
    const uint8_t *bytes;
    size_t len;

    switch (fuzz_u8(&h->in) % 16) {
    case 8:
    case 9:
    case 10:
        send_packet(h, type, r->seq, changed(h, body), fds, n_fds);
        return false;
    case 11:
        error.status = fuzz_u8(&h->in);
        send_packet(h, WIRE_ERROR, r->seq, codec_error(h->codec, &error), NULL, 0);
        return false;
    case 12:
        bytes = fuzz_bytes(&h->in, fuzz_u8(&h->in), &len);
        send_packet(h, type, r->seq, (struct bytes){bytes, len}, fds, n_fds);
        return false;
    case 13:
        send_bad_fd(h, type, r->seq, body, fds, n_fds);
        return false;
    case 14:
        send_notice(h);
        send_packet(h, type, r->seq, body, fds, n_fds);
        return false;
    case 15:
        send_packet(h, type ^ (fuzz_u8(&h->in) & 1), r->seq + (int8_t)fuzz_u8(&h->in), body, fds,
                    n_fds);
        return true;
    default:
        send_packet(h, type, r->seq, body, fds, n_fds);
        return false;
    }
}

static bool wait_for_input(struct hostile *h, int fd, int ms)
{
    struct pollfd polled[] = {{.fd = fd, .events = POLLIN}, {.fd = h->stop, .events = POLLIN}};

    return poll(polled, 2, ms) > 0 && !(polled[1].revents & POLLIN);
}

static void serve(struct hostile *h)
{
    struct wire_packet packet;
    const char *why;
    bool owed = false;

    while (wait_for_input(h, h->sock, owed ? PATIENCE_MS : -1)) {
        struct request request;
        int fds[KVC_WIRE_FDS_MAX];
        uint32_t n_fds = 0;

        enum wire_result result = wire_recv(h->sock, request_buffer, &packet, &why);
        if (result == WIRE_AGAIN)
            continue;
        if (result != WIRE_OK)
            return;
        request = (struct request){.type = packet.type, .seq = packet.seq};
        FUZZ_REQUIRE(packet.n_fds == 0);
        if (packet.type != WIRE_UNMAP)
            FUZZ_REQUIRE(codec_unpack(h->codec, &packet, &request) == NULL,
                         "the library sent a malformed %s", wire_type_name(packet.type));
        h->served++;
        if (packet.type == WIRE_NUDGE || packet.type == WIRE_REPORT)
            continue;
        if (h->in.left > 0 && fuzz_u8(&h->in) >= 250)
            return;
        owed = answer(h, &request, hostile_right(h, &request, fds, &n_fds), fds, n_fds);
    }
}

void *hostile_run(void *arg)
{
    struct hostile *h = arg;

    while (wait_for_input(h, h->listener, -1)) {
        h->sock = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (h->sock < 0)
            continue;
        serve(h);
        close(h->sock);
    }
    return NULL;
}

/* A file of that name is made first: those of processes' numbers come again, and another user's may
 * be there. */
static void make_socket_name(struct hostile *h)
{
    const char *folder = getenv("TMPDIR");
    int file;

    snprintf(h->socket, sizeof(h->socket), "%s/kvc-fuzz-XXXXXX",
             folder && strlen(folder) < FOLDER_MAX ? folder : "/tmp");
    file = mkstemp(h->socket);
    FUZZ_REQUIRE(file >= 0);
    close(file);
    unlink(h->socket);
}

void hostile_open(struct hostile *h)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    make_socket_name(h);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", h->socket);
    h->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    h->stop = eventfd(0, EFD_CLOEXEC);
    FUZZ_REQUIRE(h->listener >= 0 && h->stop >= 0);
    FUZZ_REQUIRE(bind(h->listener, (struct sockaddr *)&address, sizeof(address)) == 0);
    FUZZ_REQUIRE(listen(h->listener, 8) == 0);
    FUZZ_REQUIRE(codec_create(&h->codec) == KVC_OK);
}

void hostile_stop(struct hostile *h)
{
    const uint64_t one = 1;

    FUZZ_REQUIRE(write(h->stop, &one, sizeof(one)) == sizeof(one));
}

void hostile_close(struct hostile *h)
{
    unlink(h->socket);
    close(h->listener);
    close(h->stop);
    codec_destroy(h->codec);
}
