/*
 * A source that answers too often, too late, or what it was not asked: what nobody waits for is
 * dropped and counted, what does not fit ends the link, and the lookup is a miss in time.
 */
#include <stdio.h>
#include <string.h>
#include <uv.h>

#include "daemon/peer/link.h"
#include "daemon/peer/ucx.h"
#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/port.h"
#include "tests/lib/wait.h"

#define MS     8000
#define SILENT "30s" /* --peer-time */
#define STEP_S 12    /* of the daemon's clock, in which it asks whether its peer is there */
#define BLOCKS 20u
#define SPAN   13296u /* of a block of the engine's, in a slot */

static uv_loop_t loop;
static uv_tcp_t listener;
static struct ucx *ucx;
static struct ucx_worker *worker;
static struct ucx_endpoint *endpoint;
static struct secret none;
static struct link_config config;
static struct link *source; /* NULL: it has ended, or has not begun */
static bool closed, gone;
static uint32_t links;

static struct message_query query; /* the latest, without its arrays */
static struct message_fetch fetch;
static uint32_t queries, fetches, releases, pings;
static uint64_t released; /* the latest */
static uint8_t zeros[KVC_CHUNK_BLOCKS * SPAN];

static struct daemon *d;
static struct engine b;
static uint32_t blocks;

static bool turn(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    return true;
}

/* The source's side of a link. */

static bool on_ready(void *arg, struct link *link, struct message_ready *ready)
{
    (void)arg, (void)link;
    *ready = (struct message_ready){
        .modes = 1u << MESSAGE_VIEWS | 1u << MESSAGE_SEND,
        .caller = ucx_worker_number(worker),
        .port = ucx_worker_port(worker),
    };
    return true;
}

static kvc_status on_open(void *arg, struct link *link, const struct message_ready *ready)
{
    (void)arg, (void)link, (void)ready;
    return KVC_OK;
}

static void on_message(void *arg, struct link *link, const struct message *m)
{
    (void)arg;
    if (m->type == MESSAGE_QUERY) {
        queries++;
        query = m->query;
    } else if (m->type == MESSAGE_FETCH) {
        fetches++;
        fetch = m->fetch;
    } else if (m->type == MESSAGE_RELEASE) {
        releases++;
        released = m->id;
    } else if (m->type == MESSAGE_PING) {
        pings++;
        link_send(link, &(struct message){.type = MESSAGE_PONG, .id = m->id});
    }
}

static void on_closed(void *arg)
{
    (void)arg;
    endpoint = NULL;
    closed = true;
}

static void on_ended(void *arg, struct link *link, const char *why)
{
    (void)arg, (void)link, (void)why;
    source = NULL;
    if (endpoint != NULL)
        ucx_disconnect(endpoint, on_closed, NULL);
}

static const struct link_events events = {on_ready, on_open, on_message, on_ended};

/* One link is enough. */
static void connection_cb(uv_stream_t *stream, int status)
{
    struct link *link;

    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(link_accept(&config, stream, NULL, &link), KVC_OK);
    source = link;
    links++;
}

static void on_failed(void *arg, kvc_status status)
{
    (void)arg, (void)status;
    if (source != NULL)
        link_end(source, "failed");
}

static bool is_expected(void *arg, const struct sockaddr_storage *from)
{
    (void)arg, (void)from;
    return endpoint == NULL;
}

static void on_call(void *arg, uint64_t number, struct ucx_call *call)
{
    const struct ucx_endpoint_events of = {NULL, on_failed};

    (void)arg, (void)number;
    (void)ucx_accept(call, &of, &endpoint); /* whoever has gone meanwhile cannot be */
}

static bool is_open(void)
{
    struct pair_row row;

    return turn() && pair_look(d, "serves", 0, &row) && strcmp(row.state, "open") == 0;
}

static void begin(const char *mode)
{
    const struct ucx_worker_events of = {.expects = is_expected, .called = on_call};
    struct sockaddr_storage address;
    char why[UCX_WHY_MAX], list[32];
    int port = port_take();

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_msg(ucx_open("libucp.so.0", why, &ucx) == KVC_OK, "%s", why);
    ck_assert_int_eq(ucx_worker_open(ucx, &loop, &of, &worker), KVC_OK);
    uv_ip4_addr("127.0.0.1", port, (struct sockaddr_in *)&address);
    ck_assert_int_eq(ucx_listen(worker, &address), KVC_OK);
    config = (struct link_config){
        .loop = &loop, .epoch = 7, .secret = &none, .greet_ms = MS, .events = &events};
    uv_tcp_init(&loop, &listener);
    ck_assert_int_eq(uv_tcp_bind(&listener, (struct sockaddr *)&address, 0), 0);
    ck_assert_int_eq(uv_listen((uv_stream_t *)&listener, 4, connection_cb), 0);
    snprintf(list, sizeof(list), "127.0.0.1:%d", port);
    d = daemon_start(
        (const char *[]){"--peers", list, "--transfer", mode, "--peer-time", SILENT, NULL});
    engine_open_with_peers(&b, daemon_socket(d), KVC_REMOTE_MS_MAX);
    wait_for(is_open(), MS);
    ck_assert_int_eq(engine_try_lookup(&b, 100, BLOCKS), KVC_OK);
    wait_for(turn() && queries == 1, MS);
    ck_assert_uint_eq(query.n_keys, BLOCKS);
}

static void on_gone(void *arg)
{
    (void)arg;
    gone = true;
}

static void end(void)
{
    engine_close(&b);
    pair_at_rest(d);
    daemon_stop(d);
    wait_for(turn() && source == NULL && endpoint == NULL, MS);
    uv_close((uv_handle_t *)&listener, NULL);
    ucx_worker_close(worker, on_gone, NULL);
    wait_for(turn() && gone && !uv_loop_alive(&loop), MS);
    ucx_close(ucx);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    uv_library_shutdown();
}

/* What it says. */

static void answer(uint64_t lease, uint32_t first, uint32_t count)
{
    link_send(
        source,
        &(struct message){
            .type = MESSAGE_ANSWER,
            .answer = {.id = query.id, .lease = lease, .first = first, .count = count, .part = 1}});
}

static void result(uint64_t id, kvc_status status, uint32_t n)
{
    link_send(source, &(struct message){.type = MESSAGE_RESULT,
                                        .result = {.id = id,
                                                   .status = status,
                                                   .n = n,
                                                   .checksums = zeros,
                                                   .checked = zeros,
                                                   .offsets = zeros,
                                                   .regions = zeros}});
}

static void wait_for_fetch(void)
{
    answer(1, 0, BLOCKS);
    wait_for(turn() && fetches == 1, MS);
    ck_assert_uint_eq(fetch.lease, 1);
    ck_assert_uint_eq(fetch.n, BLOCKS);
}

static bool is_over(void)
{
    return turn() && kvc_remote(b.client, b.lease.fetch, 0, &blocks) == KVC_OK;
}

static uint64_t dropped(void)
{
    struct pair_row row;

    turn();
    return pair_look(d, "serves", 0, &row) ? row.dropped : 0;
}

static void expect_miss(void)
{
    wait_for(is_over(), MS);
    ck_assert_uint_eq(blocks, 0);
}

/* The link ends, since a batch does not come; the source is not silent meanwhile. */
static void wait_until_late(void)
{
    for (int i = 0; i < 3; i++) {
        const uint32_t before = pings;

        (void)dropped(); /* what it was sent it has by now, before its clock goes on */
        daemon_clock_advance(d, STEP_S * 1000000u);
        wait_for(turn() && (pings > before || links > 1), MS);
    }
    wait_for(turn() && links > 1, MS);
    ck_assert_int_gt(daemon_log_count(d, "a batch does not come to its end"), 0);
}

static const char *const modes[] = {"views", "exact"};

START_TEST(T15_what_nobody_waits_for_is_dropped_and_counted)
{
    begin(modes[_i]);
    wait_for_fetch();
    answer(99, 0, BLOCKS); /* again: what it has leased is let go */
    wait_for(turn() && released == 99, MS);
    result(fetch.id + 1000, KVC_OK, BLOCKS);
    result(fetch.id, KVC_E_BUSY, 0);
    expect_miss();
    result(fetch.id, KVC_E_BUSY, 0);
    result(fetch.id, KVC_OK, BLOCKS);
    wait_for(dropped() == 4, MS);
    /* The link is as good as before. */
    ck_assert_uint_eq(links, 1);
    ck_assert_ptr_nonnull(source);
    wait_for(turn() && releases == 2, MS);
    end();
}
END_TEST

/* Once is enough: the same batch is not begun twice. */
START_TEST(T15_a_result_that_is_told_twice)
{
    begin(modes[_i]);
    wait_for_fetch();
    result(fetch.id, KVC_OK, BLOCKS);
    result(fetch.id, KVC_OK, BLOCKS);
    wait_for(dropped() == 1, MS);
    ck_assert_uint_eq(links, 1);
    /* And no byte comes. */
    wait_until_late();
    expect_miss();
    end();
}
END_TEST

START_TEST(T12_a_result_that_does_not_fit_ends_the_link)
{
    static const uint32_t rows[] = {0, 1, BLOCKS - 1, BLOCKS + 1, KVC_CHUNK_BLOCKS};

    begin("views");
    if (rows[_i] == 0)
        daemon_log_expect(d, "a result of none");
    wait_for_fetch();
    result(fetch.id, KVC_OK, rows[_i]);
    wait_for(turn() && links > 1, MS);
    expect_miss();
    end();
}
END_TEST

/* Runs that were not asked for, or without a lease, are no offers. */
START_TEST(T12_an_answer_that_promises_too_much)
{
    static const struct {
        uint64_t lease;
        uint32_t first, count;
    } rows[] = {{1, 0, BLOCKS + 1}, {1, BLOCKS, 1}, {1, 5, BLOCKS},          {1, KVC_KEYS_MAX, 0},
                {0, 0, BLOCKS},     {1, 0, 0},      {1, 0, KVC_KEYS_MAX - 1}};

    begin("views");
    answer(rows[_i].lease, rows[_i].first, rows[_i].count);
    expect_miss();
    ck_assert_uint_eq(fetches, 0);
    ck_assert_uint_eq(links, 1);
    if (rows[_i].lease != 0)
        wait_for(turn() && released == 1, MS);
    end();
}
END_TEST

/* A source asks nothing: for that there is a link of its own. */
START_TEST(T12_what_a_source_does_not_say)
{
    static const uint16_t types[] = {MESSAGE_PING, MESSAGE_DONE, MESSAGE_RELEASE, MESSAGE_ASK_KEYS,
                                     MESSAGE_HELLO};
    struct message m = {.type = types[_i]};

    begin("views");
    daemon_log_expect(d, "does not belong here");
    m.hello.nonce = zeros;
    link_send(source, &m);
    wait_for(turn() && links > 1, MS);
    expect_miss();
    end();
}
END_TEST

/* Messages for a batch that are not what was asked for: nobody takes them. */

static bool sent;
static kvc_status sent_status;

static void sent_cb(struct ucx_op *op, kvc_status status)
{
    (void)op;
    sent_status = status;
    sent = true;
}

START_TEST(T15_bytes_that_were_not_asked_for)
{
    static const struct {
        uint32_t first, n, bytes;
        uint64_t other; /* added to the id */
    } rows[] = {{0, 1, SPAN - 1, 0}, {0, 2, SPAN, 0},          {BLOCKS, 1, SPAN, 0},
                {0, 0, SPAN, 0},     {UINT32_MAX, 1, SPAN, 0}, {0, 1, SPAN, 12345}};
    static struct ucx_op op = {.done = sent_cb};
    struct ucx_tag tag;

    begin("exact");
    wait_for_fetch();
    result(fetch.id, KVC_OK, BLOCKS);
    tag = (struct ucx_tag){fetch.id + rows[_i].other, rows[_i].first, rows[_i].n};
    ucx_send(endpoint, &op, &tag, zeros, rows[_i].bytes, NULL);
    /* It has told of a batch that does not come. */
    wait_until_late();
    expect_miss();
    wait_for(turn() && sent, MS);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("peer/rogue", CHECK_LIFE_S,
                 {T15_what_nobody_waits_for_is_dropped_and_counted, 0, 1},
                 {T15_a_result_that_is_told_twice, 0, 1},
                 {T12_a_result_that_does_not_fit_ends_the_link, 0, 4},
                 {T12_an_answer_that_promises_too_much, 0, 6},
                 {T12_what_a_source_does_not_say, 0, 4}, {T15_bytes_that_were_not_asked_for, 0, 5})
