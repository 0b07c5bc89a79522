/* Links by themselves, both ends in one loop: what waits to be sent, and its bounds. */
#include "daemon/peer/link.h"

#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "tests/lib/check_main.h"
#include "tests/lib/wait.h"

#define MS 3000

struct side {
    struct link *link; /* NULL: it has ended */
    bool open;
    uint64_t heard, last; /* messages, and the number in the latest */
    char why[96];
};

static uv_loop_t loop;
static uv_tcp_t listener;
static struct secret secret; /* of both; none but in a test of greetings */
static struct link_config config;
static struct side asker, source;
static kvc_status connect_status, accept_status;
static uint8_t nothing[MESSAGE_BODY_MAX];

static bool turn(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    return true;
}

static bool on_ready(void *arg, struct link *link, struct message_ready *ready)
{
    (void)arg, (void)link;
    *ready = (struct message_ready){.modes = 1, .port = 1};
    return true;
}

static kvc_status on_open(void *arg, struct link *link, const struct message_ready *ready)
{
    (void)link, (void)ready;
    ((struct side *)arg)->open = true;
    return KVC_OK;
}

static void on_message(void *arg, struct link *link, const struct message *m)
{
    struct side *side = arg;

    (void)link;
    side->heard++;
    side->last = m->type == MESSAGE_PONG || m->type == MESSAGE_PING ? m->id : 0;
}

static void on_ended(void *arg, struct link *link, const char *why)
{
    struct side *side = arg;

    ck_assert_uint_eq(link->unsent, 0);
    snprintf(side->why, sizeof(side->why), "%s", why);
    side->link = NULL;
}

static const struct link_events events = {on_ready, on_open, on_message, on_ended};

static void connection_cb(uv_stream_t *stream, int status)
{
    ck_assert_int_eq(status, 0);
    accept_status = link_accept(&config, stream, &source, &source.link);
}

static void listen_and_connect(void)
{
    struct sockaddr_storage address;
    int len = sizeof(address);

    asker = source = (struct side){0};
    accept_status = KVC_OK;

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_ip4_addr("127.0.0.1", 0, (struct sockaddr_in *)&address);
    uv_tcp_init(&loop, &listener);
    ck_assert_int_eq(uv_tcp_bind(&listener, (struct sockaddr *)&address, 0), 0);
    ck_assert_int_eq(uv_listen((uv_stream_t *)&listener, 1, connection_cb), 0);
    ck_assert_int_eq(uv_tcp_getsockname(&listener, (struct sockaddr *)&address, &len), 0);
    config = (struct link_config){
        .loop = &loop, .epoch = 1, .secret = &secret, .greet_ms = MS, .events = &events};
    connect_status =
        link_connect(&config, (struct sockaddr *)&address, "source", &asker, &asker.link);
}

static void begin(void)
{
    listen_and_connect();
    ck_assert_int_eq(connect_status, KVC_OK);
    wait_for(turn() && asker.open && source.open, MS);
}

static void end(void)
{
    if (asker.link != NULL)
        link_end(asker.link, "the test is over");
    if (source.link != NULL)
        link_end(source.link, "the test is over");
    uv_close((uv_handle_t *)&listener, NULL);
    wait_for(turn() && asker.link == NULL && source.link == NULL && !uv_loop_alive(&loop), MS);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    uv_library_shutdown();
}

static uv_alloc_cb alloc;
static uv_read_cb read_some;

static void hold_reading(void)
{
    alloc = asker.link->tcp.alloc_cb;
    read_some = asker.link->tcp.read_cb;
    uv_read_stop((uv_stream_t *)&asker.link->tcp);
}

static void read_again(void)
{
    uv_read_start((uv_stream_t *)&asker.link->tcp, alloc, read_some);
}

static void pong(uint64_t number)
{
    link_send(source.link, &(struct message){.type = MESSAGE_PONG, .id = number});
}

/* The largest that there is: an answer that says of each key whether it is there. */
static void answer(void)
{
    link_send(source.link, &(struct message){.type = MESSAGE_ANSWER,
                                             .answer = {.n_keys = KVC_KEYS_MAX, .has = nothing}});
}

/* What one more message has made of it. */
static size_t grown(void (*send)(void))
{
    const size_t before = source.link->unsent;

    send();
    return source.link->unsent - before;
}

static void pong_any(void)
{
    pong(0);
}

/* The system takes some before anything waits here. */
static void fill_system(void)
{
    while (source.link->unsent == 0)
        answer();
}

START_TEST(T16_what_is_unsent_counts_as_the_memory_that_it_takes)
{
    begin();
    hold_reading();
    fill_system();
    /* Of a message of 8 bytes most is what keeping it takes. */
    ck_assert_uint_gt(grown(pong_any), sizeof(uv_write_t));
    ck_assert_uint_gt(grown(answer), grown(pong_any) + KVC_KEYS_MAX / 8 - 16);
    end();
}
END_TEST

/* A message at a time, over and over, many times what may wait: it is given back. */
START_TEST(T16_what_was_sent_counts_no_more)
{
    const uint64_t most = 4 * LINK_OUT_MAX / sizeof(uv_write_t);
    uint64_t sent = 0;

    begin();
    while (sent < most) {
        for (uint32_t i = 0; i < 100; i++)
            pong(++sent);
        wait_for(turn() && asker.last == sent, MS);
        ck_assert_uint_eq(source.link->unsent, 0);
    }
    ck_assert_uint_eq(asker.heard, sent);
    end();
}
END_TEST

/* Small messages or large ones: the other side reads none, and neither is kept for it for ever. */
START_TEST(T16_who_does_not_read_is_cut)
{
    uint64_t bytes = 0, sent = 0;
#ifdef KVC_DEBUG
    const uint64_t before = mem_live_bytes();
#endif

    begin();
    hold_reading();
    fill_system();
    while (source.link->state == LINK_OPEN) {
        ck_assert_uint_le(source.link->unsent, LINK_OUT_MAX);
#ifdef KVC_DEBUG
        ck_assert_uint_le(mem_live_bytes() - before, LINK_OUT_MAX + 2 * sizeof(struct link) + 4096);
#endif
        bytes = source.link->unsent;
        if (_i == 0)
            pong(++sent);
        else
            answer();
    }
    ck_assert_uint_gt(bytes, LINK_OUT_MAX - 4096);
    ck_assert_uint_lt(sent, LINK_OUT_MAX / sizeof(uv_write_t));
    wait_for(turn() && source.link == NULL, MS);
    ck_assert_str_eq(source.why, "it does not read what it is sent");
    end();
}
END_TEST

/* Who reads again in time has missed nothing. */
START_TEST(T16_who_reads_again_gets_everything_in_order)
{
    uint64_t sent = 0;

    begin();
    hold_reading();
    fill_system();
    while (source.link->unsent < LINK_OUT_MAX / 2)
        pong(++sent);
    read_again();
    wait_for(turn() && asker.last == sent, MS);
    ck_assert_uint_eq(source.link->unsent, 0);
    ck_assert_uint_ge(asker.heard, sent);
    end();
}
END_TEST

/* What waits when it ends is given back, and nobody is told twice. */
START_TEST(T13_a_link_that_ends_with_something_unsent)
{
    begin();
    hold_reading();
    fill_system();
    for (uint32_t i = 0; i < 1000; i++)
        pong(i);
    link_end(source.link, "once");
    link_end(source.link, "twice");
    pong(1); /* into nothing */
    wait_for(turn() && source.link == NULL, MS);
    ck_assert_str_eq(source.why, "once");
    end();
}
END_TEST

/* Memory for each thing that a greeting makes, at both ends, is missing once: whatever it was, the
 * link comes to nothing at both, once. _i: without a secret, and with one. */
static bool is_decided(void)
{
    if (connect_status != KVC_OK || accept_status != KVC_OK)
        return true;
    return (asker.open && source.open) || (asker.link == NULL && source.link == NULL);
}

START_TEST(T13_a_greeting_that_runs_out_of_memory)
{
    const uint32_t made = _i == 0 ? 6 : 8; /* two links, and what both send */
    uint32_t k = 0;
    bool fired = true;

    if (_i == 1)
        secret.len = (size_t)snprintf((char *)secret.bytes, sizeof(secret.bytes), "of both sides");
    for (; fired; k++) {
        fault_arm("mem.alloc", k, 1);
        listen_and_connect();
        wait_for(turn() && is_decided(), MS);
        fired = fault_fired("mem.alloc") > 0;
        fault_off("mem.alloc");
        ck_assert_msg(fired != (asker.open && source.open), "allocation %u", k);
        end();
    }
    ck_assert_uint_eq(k, made + 1);
}
END_TEST

CHECK_MAIN_LOOPS("peer/link", CHECK_UNIT_S,
                 {T16_what_is_unsent_counts_as_the_memory_that_it_takes, 0, 0},
                 {T16_what_was_sent_counts_no_more, 0, 0}, {T16_who_does_not_read_is_cut, 0, 1},
                 {T16_who_reads_again_gets_everything_in_order, 0, 0},
                 {T13_a_link_that_ends_with_something_unsent, 0, 0},
                 {T13_a_greeting_that_runs_out_of_memory, 0, 1})
