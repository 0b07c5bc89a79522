/*
 * Who connects to a daemon's port for peers and is none, or a peer that asks for what it must not
 * have: its link ends or it is refused, and the daemon serves others as before.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/peer/link.h"
#include "daemon/peer/ucx.h"
#include "kernels/pack.h"
#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS 5000

static struct pair p;
static struct engine a, b;

static void begin(void)
{
    pair_open(&p, 2, NULL);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    engine_put(&a, 100, 100);
}

/* The daemon that was attacked serves its other peer. */
static void end(void)
{
    engine_verify_all(&b, 100, 100);
    engine_close(&a);
    engine_close(&b);
    pair_end(&p);
    uv_library_shutdown();
}

/* Strangers. */

static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)p.ports[0])};
    struct timeval patience = {.tv_sec = wait_patient_ms(5000) / 1000};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(sock, 0);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ck_assert_int_eq(connect(sock, (struct sockaddr *)&address, sizeof(address)), 0);
    return sock;
}

/* The daemon closes, whatever it sends before. */
static void expect_closed(int sock)
{
    char bytes[4096];
    ssize_t n;

    while ((n = recv(sock, bytes, sizeof(bytes), 0)) > 0)
        ;
    ck_assert_msg(n == 0 || errno == ECONNRESET, "not closed: %zd %s", n, strerror(errno));
    close(sock);
}

static void send_all(int sock, const void *bytes, size_t n)
{
    (void)!send(sock, bytes, n, MSG_NOSIGNAL);
}

static size_t hello(uint8_t *frame)
{
    static const uint8_t nonce[MESSAGE_NONCE_BYTES];
    const struct message m = {.type = MESSAGE_HELLO,
                              .hello = {.version = 1, .epoch = 1, .nonce = nonce}};

    return message_write(&m, frame);
}

static uint8_t frame[MESSAGE_HEADER_BYTES + MESSAGE_BODY_MAX];

START_TEST(garbage)
{
    uint8_t noise[512];
    int sock;

    begin();
    daemon_log_expect(p.daemons[0], "malformed message");
    for (uint32_t i = 0; i < 30; i++) {
        for (uint32_t j = 0; j < sizeof(noise); j++)
            noise[j] = (uint8_t)(i * 131 + j * (i | 1) * 7 + (j >> 3));
        sock = dial();
        send_all(sock, noise, 1 + i * 17);
        shutdown(sock, SHUT_WR);
        expect_closed(sock);
    }
    end();
}
END_TEST

/* Each byte of a right greeting changed once; of the nonce and the epoch, any is right. */
START_TEST(a_greeting_with_one_byte_changed)
{
    size_t len;

    begin();
    daemon_log_expect(p.daemons[0], "malformed message");
    len = hello(frame);
    for (size_t i = 0; i < MESSAGE_HEADER_BYTES + 8; i++) {
        int sock = dial();

        frame[i] ^= 0x41;
        send_all(sock, frame, len);
        frame[i] ^= 0x41;
        shutdown(sock, SHUT_WR);
        expect_closed(sock);
    }
    end();
}
END_TEST

START_TEST(messages_before_their_time)
{
    begin();
    daemon_log_expect(p.daemons[0], "does not belong here");
    for (uint16_t type = MESSAGE_PROOF; type < MESSAGE_BYE; type++) {
        struct message m = {.type = type};
        uint8_t bytes[64] = {0};
        int sock = dial();

        if (type == MESSAGE_PROOF)
            m.mac = bytes;
        if (type == MESSAGE_QUERY)
            m.query = (struct message_query){
                .namespace_digest = bytes, .fingerprint = bytes, .keys = bytes, .n_keys = 1};
        if (type == MESSAGE_FETCH)
            m.fetch = (struct message_fetch){.n = 1, .places = bytes};
        if (type == MESSAGE_RESULT)
            m.result.status = KVC_E_PEER;
        send_all(sock, frame, message_write(&m, frame));
        expect_closed(sock);
    }
    end();
}
END_TEST

START_TEST(who_says_nothing_is_cut)
{
    static const uint8_t noise[64] = {0xff};
    int socks[8], last;

    begin();
    daemon_log_expect(p.daemons[0], "malformed message");
    for (int i = 0; i < 8; i++)
        socks[i] = dial();
    for (int i = 0; i < 8; i++) {
        hello(frame);
        send_all(socks[i], frame, (size_t)i * 8); /* never the whole */
    }
    /* Who comes behind them has been answered: all of them have been let in. */
    last = dial();
    send_all(last, noise, sizeof(noise));
    expect_closed(last);
    daemon_clock_advance(p.daemons[0], 61000000);
    for (int i = 0; i < 8; i++)
        expect_closed(socks[i]);
    /* Nor had its peer said anything for so long. */
    pair_linked(&p);
    end();
}
END_TEST

#define SILENT 300

/* As many as may be connected, and more; a peer that comes after them is let in all the same. */
START_TEST(T13_who_says_nothing_keeps_nobody_out)
{
    int socks[SILENT];
    struct pair_row row;

    pair_open(&p, 2, NULL);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_put(&a, 100, 100);
    for (int i = 0; i < SILENT; i++)
        socks[i] = dial();
    daemon_restart_killed(p.daemons[1]);
    wait_for(pair_look(p.daemons[1], "serves", 0, &row) && strcmp(row.state, "open") == 0, MS);
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    for (int i = 0; i < SILENT - 256; i++)
        expect_closed(socks[i]);
    end();
    for (int i = SILENT - 256; i < SILENT; i++)
        close(socks[i]);
}
END_TEST

/* A peer that has passed and asks for what it must not have. */

static bool refused;

struct rogue {
    uv_loop_t loop;
    struct ucx *ucx;
    struct ucx_worker *worker;
    struct ucx_endpoint *endpoint;
    struct ucx_op joining;
    struct ucx_way way;
    struct secret none;
    struct link_config config;
    struct link *link;
    bool open, joined, ended, closed;
    uint32_t n_answers, n_results;
    struct message_answer answer;
    struct message_result result;
};

static bool on_ready(void *arg, struct link *link, struct message_ready *ready)
{
    struct rogue *r = arg;

    (void)link;
    *ready = (struct message_ready){.modes = 7, .caller = ucx_worker_number(r->worker)};
    return true;
}

static void on_failed(void *arg, kvc_status status)
{
    (void)arg, (void)status;
}

static void joined_cb(struct ucx_op *op, kvc_status status)
{
    ck_assert_int_eq(status, KVC_OK);
    container_of(op, struct rogue, joining)->joined = true;
}

static kvc_status on_open(void *arg, struct link *link, const struct message_ready *ready)
{
    struct rogue *r = arg;
    const struct ucx_endpoint_events events = {r, on_failed};

    r->open = true;
    r->way.port = (uint16_t)ready->port;
    ck_assert(link_self(link, &r->way.from) && link_peer(link, &r->way.to));
    ck_assert_int_eq(ucx_connect(r->worker, &r->way, &events, &r->endpoint), KVC_OK);
    r->joining.done = joined_cb;
    ucx_flush(r->endpoint, &r->joining);
    return KVC_OK;
}

static void on_message(void *arg, struct link *link, const struct message *m)
{
    struct rogue *r = arg;

    (void)link;
    if (m->type == MESSAGE_ANSWER) {
        r->n_answers++;
        r->answer = m->answer;
    } else if (m->type == MESSAGE_RESULT) {
        r->n_results++;
        r->result = m->result;
    }
}

static void on_ended(void *arg, struct link *link, const char *why)
{
    (void)link, (void)why;
    ((struct rogue *)arg)->ended = true;
}

static const struct link_events events = {on_ready, on_open, on_message, on_ended};

static bool turn(struct rogue *r)
{
    uv_run(&r->loop, UV_RUN_NOWAIT);
    return true;
}

static void rogue_open(struct rogue *r)
{
    struct sockaddr_in address;
    char why[UCX_WHY_MAX];

    memset(r, 0, sizeof(*r));
    ck_assert_int_eq(uv_loop_init(&r->loop), 0);
    ck_assert_msg(ucx_open("libucp.so.0", why, &r->ucx) == KVC_OK, "%s", why);
    ck_assert_int_eq(ucx_worker_open(r->ucx, &r->loop, &(struct ucx_worker_events){0}, &r->worker),
                     KVC_OK);
    r->config = (struct link_config){
        .loop = &r->loop, .epoch = 5, .secret = &r->none, .greet_ms = MS, .events = &events};
    uv_ip4_addr("127.0.0.1", p.ports[0], &address);
    ck_assert_int_eq(link_connect(&r->config, (struct sockaddr *)&address, "rogue", r, &r->link),
                     KVC_OK);
    wait_for(turn(r) && r->open && r->joined, MS);
}

static void gone(void *arg)
{
    *(bool *)arg = true;
}

static void rogue_close(struct rogue *r)
{
    bool closed = false;

    link_end(r->link, "the test is over");
    wait_for(turn(r) && r->ended, MS);
    ucx_disconnect(r->endpoint, gone, &r->closed);
    wait_for(turn(r) && r->closed, MS);
    ucx_worker_close(r->worker, gone, &closed);
    wait_for(turn(r) && closed, MS);
    ucx_close(r->ucx);
    ck_assert_int_eq(uv_loop_close(&r->loop), 0);
}

static void refused_cb(struct ucx_op *op, kvc_status status)
{
    (void)op;
    ck_assert_int_ne(status, KVC_OK);
    refused = true;
}

/* Where UCX listens it takes a call from each guest, and none from anybody else. */
START_TEST(T13_a_call_that_no_guest_has_announced)
{
    const struct ucx_endpoint_events events = {NULL, on_failed};
    static struct rogue r;
    struct ucx_endpoint *endpoint;
    struct ucx_op op = {.done = refused_cb};
    bool closed = false;

    begin();
    rogue_open(&r);
    ck_assert_int_eq(ucx_connect(r.worker, &r.way, &events, &endpoint), KVC_OK);
    ucx_flush(endpoint, &op);
    wait_for(turn(&r) && refused, MS);
    ucx_disconnect(endpoint, gone, &closed);
    wait_for(turn(&r) && closed, MS);
    /* The one that it has taken stays. */
    ck_assert(!r.ended);
    rogue_close(&r);
    end();
}
END_TEST

static void query(struct rogue *r, uint32_t first, uint32_t n, const uint8_t *digest)
{
    static const uint32_t slice_bytes[] = {4096, 1000, 8192};
    static uint8_t keys[64 * KVC_KEY_BYTES];
    uint64_t offsets[3];
    struct pack_layout layout = {.slice_offsets = offsets};
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    const uint32_t before = r->n_answers;

    ck_assert_int_eq(pack_layout_init(&layout, slice_bytes, 3), KVC_OK);
    pack_layout_fingerprint(&layout, 16, NULL, fingerprint);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = first + i;

        kvc_key(&number, sizeof(number), keys + (size_t)i * KVC_KEY_BYTES);
    }
    link_send(r->link, &(struct message){.type = MESSAGE_QUERY,
                                         .query = {.id = 1,
                                                   .namespace_digest = digest,
                                                   .fingerprint = fingerprint,
                                                   .lease_ms = 30000,
                                                   .keys = keys,
                                                   .n_keys = n}});
    wait_for(turn(r) && r->n_answers > before, MS);
}

static uint32_t fetch(struct rogue *r, struct message_fetch m)
{
    const uint32_t before = r->n_results;

    link_send(r->link, &(struct message){.type = MESSAGE_FETCH, .fetch = m});
    wait_for(turn(r) && r->n_results > before, MS);
    ck_assert_uint_eq(r->result.id, m.id);
    return r->result.status;
}

START_TEST(T12_only_what_is_leased_for_this_peer)
{
    static struct rogue r, other;
    uint8_t ns[KVC_NAMESPACE_BYTES], places[8] = {0};
    struct message_fetch m = {
        .id = 7, .mode = MESSAGE_GET, .view_bytes = 0, .n = 2, .places = places};

    begin();
    rogue_open(&r);
    rogue_open(&other);
    memset(ns, 1, sizeof(ns));
    query(&r, 100, 10, ns);
    ck_assert_uint_eq(r.answer.count, 10);
    m.lease = r.answer.lease;
    m.part = r.answer.part;
    message_set_u32(places, 1, 9);
    ck_assert_uint_eq(fetch(&r, m), KVC_OK);
    link_send(r.link, &(struct message){.type = MESSAGE_DONE, .id = 7});
    /* Outside of it; of another's lease; of no lease; of a part that it has not asked for. */
    message_set_u32(places, 1, 10);
    ck_assert_uint_eq(fetch(&r, m), KVC_E_INVALID);
    message_set_u32(places, 1, UINT32_MAX);
    ck_assert_uint_eq(fetch(&r, m), KVC_E_LIMIT);
    message_set_u32(places, 1, 1);
    query(&other, 100, 10, ns);
    ck_assert_uint_eq(fetch(&other, m), KVC_E_DENIED);
    m.lease = 123456;
    ck_assert_uint_ne(fetch(&r, m), KVC_OK);
    m.lease = r.answer.lease;
    m.part = 77;
    ck_assert_uint_eq(fetch(&r, m), KVC_E_UNKNOWN);
    m.part = r.answer.part;
    /* After its end. */
    link_send(r.link, &(struct message){.type = MESSAGE_RELEASE, .id = m.lease});
    ck_assert_uint_eq(fetch(&r, m), KVC_E_EXPIRED);
    /* Another namespace is a miss, and so is a key that is not published. */
    memset(ns, 9, sizeof(ns));
    query(&r, 100, 10, ns);
    ck_assert_uint_eq(r.answer.count, 0);
    memset(ns, 1, sizeof(ns));
    query(&r, 9000, 10, ns);
    ck_assert_uint_eq(r.answer.count, 0);
    rogue_close(&r);
    rogue_close(&other);
    end();
}
END_TEST

START_TEST(T4_a_view_of_another_length_is_refused)
{
    static const uint64_t wrong[] = {
        0, 1, 13296, (256u << 10) - 1, (256u << 10) + 1, 1u << 20, 16u << 20, UINT64_MAX};
    static struct rogue r;
    uint8_t ns[KVC_NAMESPACE_BYTES], places[64 * 4];
    struct message_fetch m = {.id = 7, .mode = MESSAGE_VIEWS, .n = 1, .places = places};

    begin();
    rogue_open(&r);
    memset(ns, 1, sizeof(ns));
    memset(places, 0, sizeof(places));
    query(&r, 100, 10, ns);
    m.lease = r.answer.lease;
    m.part = r.answer.part;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        m.view_bytes = wrong[i];
        ck_assert_uint_eq(fetch(&r, m), KVC_E_INVALID);
    }
    /* More than the small view holds. */
    m.view_bytes = 256u << 10;
    m.n = 20;
    ck_assert_uint_eq(fetch(&r, m), KVC_E_INVALID);
    /* Puts into memory that the asker has not named. */
    m.mode = MESSAGE_PUT;
    m.n = 1;
    m.destinations = ns;
    m.regions = ns;
    ck_assert_uint_eq(fetch(&r, m), KVC_E_INVALID);
    rogue_close(&r);
    end();
}
END_TEST

/* It asks for more and more, and reads nothing. */
START_TEST(T16_a_peer_that_asks_for_too_much)
{
    static struct rogue r;
    uint8_t ns[KVC_NAMESPACE_BYTES], places[4] = {0};
    struct message_fetch m = {.id = 7, .mode = MESSAGE_GET, .n = 1, .places = places};

    begin();
    rogue_open(&r);
    memset(ns, 1, sizeof(ns));
    query(&r, 100, 10, ns);
    m.lease = r.answer.lease;
    m.part = r.answer.part;
    for (m.id = 100; m.id < 200; m.id++)
        link_send(r.link, &(struct message){.type = MESSAGE_FETCH, .fetch = m});
    /* Two lie open, 64 wait, the rest are refused. */
    wait_for(turn(&r) && r.n_results == 36, MS);
    ck_assert_uint_eq(r.result.status, KVC_E_BUSY);
    rogue_close(&r);
    end();
}
END_TEST

CHECK_MAIN("peer/hostile", CHECK_LIFE_S, garbage, a_greeting_with_one_byte_changed,
           messages_before_their_time, who_says_nothing_is_cut,
           T13_who_says_nothing_keeps_nobody_out, T13_a_call_that_no_guest_has_announced,
           T12_only_what_is_leased_for_this_peer, T4_a_view_of_another_length_is_refused,
           T16_a_peer_that_asks_for_too_much)
