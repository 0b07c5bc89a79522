#include "tests/lib/talk.h"

#include <check.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

// A count of descriptors that has not gone down for so long stays, if no thread has more to do.
#define SETTLED_MS     50
#define SETTLE_STEP_MS 5
#define LOOKS_MAX      1000

static uint8_t out[KVC_WIRE_BODY_MAX], in[KVC_WIRE_PACKET_MAX];
static uint32_t last_seq;

int talk_connect(const char *socket)
{
    int sock;
    kvc_status status = wire_connect(socket, &sock);

    ck_assert_msg(status == KVC_OK, "connect: %s", kvc_status_text(status));
    return sock;
}

static enum wire_result send_packet(int sock, uint16_t type, const ProtobufCMessage *message)
{
    struct wire_packet packet = {.type = type, .seq = ++last_seq, .body = out};

    if (message != NULL) {
        ck_assert_uint_le(protobuf_c_message_get_packed_size(message), sizeof(out));
        packet.body_len = (uint32_t)protobuf_c_message_pack(message, out);
    }
    return wire_send(sock, &packet);
}

uint32_t talk_send(int sock, uint16_t type, const ProtobufCMessage *message)
{
    enum wire_result result = send_packet(sock, type, message);

    ck_assert_msg(result == WIRE_OK, "%s not sent: result %d", wire_type_name(type), result);
    return last_seq;
}

uint32_t talk_try_send(int sock, uint16_t type, const ProtobufCMessage *message)
{
    return send_packet(sock, type, message) == WIRE_OK ? last_seq : 0;
}

// One packet, or false at the end or when nothing comes in time.
static bool next_packet(int sock, int ms, struct wire_packet *packet)
{
    struct pollfd readable = {.fd = sock, .events = POLLIN};
    const char *why = "";

    for (;;) {
        enum wire_result result = wire_recv(sock, in, packet, &why);
        if (result == WIRE_OK)
            return true;
        ck_assert_msg(result != WIRE_BAD, "the daemon sent a malformed packet: %s", why);
        if (result != WIRE_AGAIN)
            return false;
        if (poll(&readable, 1, (int)wait_patient_ms(ms)) <= 0)
            return false;
    }
}

static void wait_reply(int sock, uint32_t seq, struct wire_packet *packet)
{
    for (;;) {
        ck_assert_msg(next_packet(sock, TALK_MS, packet), "no reply to request %u", seq);
        if (packet->seq == seq)
            return;
        ck_assert_msg(packet->seq == 0 && (packet->type & WIRE_NOTICE), "%s %u comes unasked",
                      wire_type_name(packet->type), packet->seq);
        wire_close_fds(packet);
    }
}

void *talk_reply(int sock, uint32_t seq, uint16_t type, const ProtobufCMessageDescriptor *body,
                 int *fds, uint32_t *n_fds)
{
    struct wire_packet packet;

    wait_reply(sock, seq, &packet);
    if (packet.type == WIRE_ERROR) {
        Kvcache__Error *error = kvcache__error__unpack(NULL, packet.body_len, packet.body);
        ck_abort_msg("%s refused: %s, %s: %s", wire_type_name(type),
                     kvc_status_text((kvc_status)error->status), error->field, error->detail);
    }
    ck_assert_uint_eq(packet.type, type | WIRE_REPLY);
    if (fds != NULL) {
        memcpy(fds, packet.fds, packet.n_fds * sizeof(int));
        *n_fds = packet.n_fds;
    } else {
        wire_close_fds(&packet);
    }
    void *message = protobuf_c_message_unpack(body, NULL, packet.body_len, packet.body);
    ck_assert_msg(message != NULL, "the reply to %s does not parse", wire_type_name(type));
    return message;
}

void *talk_ask(int sock, uint16_t type, const ProtobufCMessage *message,
               const ProtobufCMessageDescriptor *body)
{
    return talk_reply(sock, talk_send(sock, type, message), type, body, NULL, NULL);
}

void talk_free(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

void talk_expect_error(int sock, uint32_t seq, kvc_status status, const char *field)
{
    struct wire_packet packet;

    wait_reply(sock, seq, &packet);
    ck_assert_msg(packet.type == WIRE_ERROR, "%s instead of an error", wire_type_name(packet.type));
    ck_assert_uint_eq(packet.n_fds, 0);
    Kvcache__Error *error = kvcache__error__unpack(NULL, packet.body_len, packet.body);
    ck_assert_ptr_nonnull(error);
    ck_assert_msg(error->status == (uint32_t)status, "'%s' (%s: %s), not '%s'",
                  kvc_status_text((kvc_status)error->status), error->field, error->detail,
                  kvc_status_text(status));
    if (field != NULL)
        ck_assert_str_eq(error->field, field);
    kvcache__error__free_unpacked(error, NULL);
}

Kvcache__Hello talk_a_hello(Kvcache__Role role)
{
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;

    hello.version = 1;
    hello.role = role;
    hello.pid = (uint32_t)getpid();
    hello.name = "talk";
    return hello;
}

int talk_hello(const char *socket, Kvcache__Role role, int *page)
{
    const bool copies = role == KVCACHE__ROLE__ROLE_WORKER || role == KVCACHE__ROLE__ROLE_READER;
    const Kvcache__Hello hello = talk_a_hello(role);
    int sock = talk_connect(socket), fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds;

    talk_free(talk_reply(sock, talk_send(sock, WIRE_HELLO, &hello.base), WIRE_HELLO,
                         &kvcache__hello_reply__descriptor, fds, &n_fds));
    ck_assert_uint_eq(n_fds, copies ? 1 : 0);
    if (page != NULL)
        *page = copies ? fds[0] : -1;
    else if (copies)
        close(fds[0]);
    return sock;
}

void talk_ping(int sock)
{
    static uint8_t payload[] = "are you there";
    Kvcache__Ping ping = KVCACHE__PING__INIT;

    ping.payload = (ProtobufCBinaryData){sizeof(payload), payload};
    Kvcache__PingReply *reply =
        talk_ask(sock, WIRE_PING, &ping.base, &kvcache__ping_reply__descriptor);
    ck_assert_uint_eq(reply->payload.len, sizeof(payload));
    ck_assert_mem_eq(reply->payload.data, payload, sizeof(payload));
    ck_assert_uint_ne(reply->boot_epoch, 0);
    talk_free(reply);
}

static bool closes_more(int sock)
{
    Kvcache__StatsReply *reply =
        talk_ask(sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    const bool more = reply->closing_fds > 0 || reply->stuck_fds > 0;

    talk_free(reply);
    return more;
}

int talk_settled_fds(int sock, const struct daemon *d)
{
    int fds, least, same = 0, looks = 0;

    // One turn may answer as many as sixteen.
    for (int i = 0; i < 80; i++)
        talk_ping(sock);
    for (least = daemon_fds(d); same < SETTLED_MS / SETTLE_STEP_MS; same++) {
        usleep(SETTLE_STEP_MS * 1000);
        fds = daemon_fds(d);
        if (fds < least || closes_more(sock) ||
            (!proc_sleeps(daemon_pid(d)) && ++looks < LOOKS_MAX))
            same = 0;
        least = fds < least ? fds : least;
    }
    return least;
}

kvc_status talk_outcome(int sock, uint32_t seq)
{
    struct pollfd readable = {.fd = sock, .events = POLLIN};
    struct wire_packet packet;
    kvc_status status = KVC_OK;

    do {
        if (!next_packet(sock, TALK_MS, &packet)) {
            ck_assert_msg(poll(&readable, 1, 0) == 1, "request %u was not answered", seq);
            return KVC_E_DISCONNECTED;
        }
        wire_close_fds(&packet);
    } while (packet.seq != seq);
    if (packet.type == WIRE_ERROR) {
        Kvcache__Error *error = kvcache__error__unpack(NULL, packet.body_len, packet.body);

        ck_assert_ptr_nonnull(error);
        ck_assert_uint_ne(error->status, KVC_OK);
        status = (kvc_status)error->status;
        kvcache__error__free_unpacked(error, NULL);
    }
    return status;
}

bool talk_ended(int sock)
{
    struct pollfd readable = {.fd = sock, .events = POLLIN};
    struct wire_packet packet;

    // What came before the end is skipped; the end shows itself as such and not by silence.
    while (next_packet(sock, 1000, &packet))
        wire_close_fds(&packet);
    return poll(&readable, 1, 0) == 1;
}
