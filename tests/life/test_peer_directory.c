/* Daemons that find each other, and who has what, in a directory: a redis-server of the test's. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/engine.h"
#include "tests/lib/kv.h"
#include "tests/lib/pair.h"
#include "tests/lib/port.h"
#include "tests/lib/redis.h"
#include "tests/lib/wait.h"

#define MS        8000
#define SLIDING   20u      /* blocks of a prompt */
#define PEERS     16       /* that a daemon knows, at most */
#define LONG      "6s"     /* --directory-time, which whoever lives keeps */
#define SHORT     "1500ms" /* and which a busy machine may have one miss */
#define REMOTE_MS KVC_REMOTE_MS_MAX

static int port;
static redisContext *client;
static struct daemon *d[2];
static char listens[2][32], directory[32];
static struct engine a, b;

static void ask_it(void)
{
    client = redisConnect("127.0.0.1", port);
    ck_assert(client != NULL && client->err == 0);
}

static void end_asking(void)
{
    redisFree(client);
    client = NULL;
}

static struct daemon *start(int i, const char *time)
{
    snprintf(listens[i], sizeof(listens[i]), "127.0.0.1:%d", port_take());
    return daemon_start((const char *[]){"--peer-listen", listens[i], "--directory", directory,
                                         "--directory-time", time, "--peer-time", "60s", NULL});
}

static bool linked(void)
{
    return daemon_log_count(d[0], "peer open") > 0 && daemon_log_count(d[1], "peer open") > 0;
}

/* false: the test is to be skipped. */
static bool begin(const char *time)
{
    port = port_take();
    if (!redis_start(port))
        return false;
    ask_it();
    snprintf(directory, sizeof(directory), "127.0.0.1:%d", port);
    for (int i = 0; i < 2; i++) {
        d[i] = start(i, time);
        if (strcmp(time, SHORT) == 0)
            daemon_log_allow(d[i], "directory lost");
    }
    wait_for(linked(), MS);
    engine_open(&a, daemon_socket(d[0]));
    engine_open_with_peers(&b, daemon_socket(d[1]), REMOTE_MS);
    return true;
}

static void end(void)
{
    engine_close(&a);
    engine_close(&b);
    for (int i = 0; i < 2; i++)
        if (d[i] != NULL)
            daemon_stop(d[i]);
    end_asking();
    redis_kill();
}

/* How many keys a node says that it has, in all of its sets. */
static long long count_keys(int node)
{
    redisReply *sets = redisCommand(client, "KEYS kvcached:keys:%s:*", listens[node]);
    long long n = 0;

    ck_assert_ptr_nonnull(sets);
    for (size_t i = 0; i < sets->elements; i++) {
        redisReply *count = redisCommand(client, "SCARD %s", sets->element[i]->str);

        n += count->type == REDIS_REPLY_INTEGER ? count->integer : 0;
        freeReplyObject(count);
    }
    freeReplyObject(sets);
    return n;
}

static bool is_node(int node)
{
    redisReply *reply = redisCommand(client, "SISMEMBER kvcached:nodes %s", listens[node]);
    bool is = reply->integer == 1;

    freeReplyObject(reply);
    return is;
}

static const uint8_t *key_of(uint32_t number)
{
    static uint8_t key[KVC_KEY_BYTES];

    kvc_key(&number, sizeof(number), key);
    return key;
}

#define BEGIN(time)                                                                                \
    if (!begin(time))                                                                              \
        TEST_SKIP("no redis-server");

/* When the directory says again who has them. */
static void verify_by_and_by(uint32_t first, uint32_t n)
{
    wait_for(engine_lookup_all(&b, first, n) == n, MS);
    engine_load(&b);
    engine_release(&b);
}

START_TEST(T17_daemons_find_each_other_by_the_directory)
{
    BEGIN(LONG);
    engine_put(&a, 100, 100);
    wait_for(count_keys(0) == 100, MS);
    engine_verify_all(&b, 100, 100);
    /* What was fetched is said, too. */
    wait_for(count_keys(1) == 100, MS);
    /* Nobody has these, so nobody is asked. */
    ck_assert_uint_eq(engine_lookup_all(&b, 5000, 10), 0);
    end();
}
END_TEST

/* A worker of a model that has but a sliding window. */
static kvc_client *open_sliding(const struct daemon *daemon, struct kv *kv, kvc_part *part)
{
    const kvc_options options = {.socket = daemon_socket(daemon),
                                 .connect_ms = wait_patient_ms(MS),
                                 .save_ms = wait_patient_ms(MS),
                                 .load_ms = wait_patient_ms(MS),
                                 .lookup_ms = wait_patient_ms(MS),
                                 .remote_ms = REMOTE_MS};
    kvc_client *worker;

    ck_assert_int_eq(kvc_connect(&options, &worker), KVC_OK);
    kv_init(kv, (const uint32_t[]){1000}, 1, SLIDING);
    kv->desc.block_tokens = 16;
    kv->desc.rule = KVC_RULE_WINDOW;
    kv->desc.window = 16 * 3 + 1;
    ck_assert_int_eq(kvc_register(worker, &kv->desc, part), KVC_OK);
    return worker;
}

static void save_sliding(kvc_client *worker, kvc_part part, const uint8_t *keys)
{
    uint32_t ids[SLIDING];
    const kvc_save_entry entry = {part, keys, ids, SLIDING, NULL};
    kvc_outcome outcome;
    uint64_t id;

    kv_ids(0, SLIDING, ids);
    ck_assert_int_eq(kvc_save(worker, &(kvc_save_args){.entries = &entry, .n_entries = 1}, &id),
                     KVC_OK);
    ck_assert_int_eq(kvc_wait(worker, id, wait_patient_ms(MS), &outcome), KVC_OK);
}

START_TEST(T17_models_without_a_full_part_are_in_it)
{
    uint8_t keys[SLIDING * KVC_KEY_BYTES];
    kvc_client *workers[2];
    struct kv kv[2];
    kvc_part parts[2];
    kvc_lease lease;
    uint32_t blocks = 0;

    BEGIN(LONG);
    kv_keys(1, 0, SLIDING, keys);
    for (int i = 0; i < 2; i++)
        workers[i] = open_sliding(d[i], &kv[i], &parts[i]);
    save_sliding(workers[0], parts[0], keys);
    wait_for(count_keys(0) == SLIDING, MS);
    ck_assert_int_eq(kvc_lookup(workers[1], 1, &parts[1], 1, keys, SLIDING, 0, &lease), KVC_OK);
    ck_assert_int_eq(kvc_remote(workers[1], lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, SLIDING);
    for (int i = 0; i < 2; i++) {
        kvc_close(workers[i]);
        kv_free(&kv[i]);
        daemon_clock_advance(d[i], 2100000);
    }
    end();
}
END_TEST

/* Nodes come and go, each at an address of its own: those that are gone keep nobody out. */
START_TEST(T17_nodes_that_are_gone_make_room_for_others)
{
    char names[PEERS][32];

    port = port_take();
    if (!redis_start(port))
        TEST_SKIP("no redis-server");
    ask_it();
    snprintf(directory, sizeof(directory), "127.0.0.1:%d", port);
    for (int i = 0; i < PEERS; i++) {
        snprintf(names[i], sizeof(names[i]), "127.0.0.2:%d", port_take());
        freeReplyObject(redisCommand(client, "SADD kvcached:nodes %s", names[i]));
        freeReplyObject(redisCommand(client, "SET kvcached:node:%s 1", names[i]));
    }
    d[0] = start(0, LONG);
    wait_for(daemon_log_count(d[0], "the directory has a peer") == PEERS, MS);
    for (int i = 0; i < PEERS; i++)
        freeReplyObject(redisCommand(client, "DEL kvcached:node:%s", names[i]));
    d[1] = start(1, LONG);
    wait_for(linked(), 2 * MS);
    engine_open(&a, daemon_socket(d[0]));
    engine_open_with_peers(&b, daemon_socket(d[1]), REMOTE_MS);
    engine_put(&b, 100, 10);
    engine_close(&a);
    engine_open_with_peers(&a, daemon_socket(d[0]), REMOTE_MS);
    wait_for(engine_lookup_all(&a, 100, 10) == 10, MS);
    engine_load(&a);
    engine_release(&a);
    end();
}
END_TEST

START_TEST(T17_a_stale_hint_is_a_miss)
{
    redisReply *sets, *reply;
    uint32_t number = 777;
    uint8_t key[KVC_KEY_BYTES];

    BEGIN(LONG);
    engine_put(&a, 100, 10);
    wait_for(count_keys(0) == 10, MS);
    sets = redisCommand(client, "KEYS kvcached:keys:%s:*", listens[0]);
    ck_assert_uint_eq(sets->elements, 1);
    kvc_key(&number, sizeof(number), key);
    reply = redisCommand(client, "SADD %s %b", sets->element[0]->str, key, sizeof(key));
    freeReplyObject(reply);
    freeReplyObject(sets);
    ck_assert_uint_eq(engine_lookup_all(&b, 777, 1), 0);
    engine_verify_all(&b, 100, 10);
    end();
}
END_TEST

/* It could not refresh what it had said in time, so that is gone; and then it comes back. */
START_TEST(T17_who_was_silent_says_everything_again)
{
    BEGIN(SHORT);
    engine_put(&a, 100, 40);
    wait_for(count_keys(0) == 40, MS);
    daemon_freeze(d[0]);
    wait_for(count_keys(0) == 0, MS);
    daemon_thaw(d[0]);
    wait_for(count_keys(0) == 40, MS);
    verify_by_and_by(100, 40);
    end();
}
END_TEST

START_TEST(T17_what_a_dead_node_had_vanishes)
{
    BEGIN(SHORT);
    engine_put(&a, 100, 10);
    wait_for(count_keys(0) == 10, MS);
    kvc_close(a.client);
    a = (struct engine){.memory = a.memory, .fd = -1};
    daemon_kill(d[0]);
    d[0] = NULL;
    wait_for(count_keys(0) == 0, MS);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 10), 0);
    engine_put(&b, 100, 10);
    end();
}
END_TEST

START_TEST(T17_who_stops_takes_back_what_it_said)
{
    BEGIN(LONG);
    engine_put(&a, 100, 10);
    wait_for(count_keys(0) == 10, MS);
    engine_close(&a);
    daemon_stop(d[0]);
    d[0] = NULL;
    ck_assert_int_eq(count_keys(0), 0);
    end();
}
END_TEST

START_TEST(T17_who_drains_takes_it_back_and_says_it_again)
{
    BEGIN(SHORT);
    engine_put(&a, 100, 10);
    wait_for(count_keys(0) == 10, MS);
    ck_assert_int_eq(CTL_RUN("drain", "--socket", daemon_socket(d[0])), 0);
    wait_for(count_keys(0) == 0, MS);
    ck_assert(!is_node(0));
    /* What comes to an end meanwhile is not said, nor that it lives. */
    ck_assert_int_eq(kvc_flush_keys(a.client, a.part, key_of(100), 1, NULL), KVC_OK);
    usleep(1600000); /* longer than what it has said could last */
    ck_assert(!is_node(0));
    ck_assert_int_eq(CTL_RUN("drain", "--undo", "--socket", daemon_socket(d[0])), 0);
    wait_for(count_keys(0) == 9 && is_node(0), MS);
    verify_by_and_by(101, 9);
    end();
}
END_TEST

START_TEST(T18_what_is_dropped_leaves_the_directory)
{
    BEGIN(LONG);
    engine_put(&a, 100, 50);
    wait_for(count_keys(0) == 50, MS);
    ck_assert_int_eq(kvc_flush(a.client, a.part, NULL), KVC_OK);
    engine_put(&a, 1000, 5);
    /* In one order: when the new ones are there, the old ones are gone. */
    wait_for(count_keys(0) == 5, MS);
    /* Evicted ones, too: both tiers together have room for less than that. */
    for (uint32_t i = 0; i < 20; i++)
        engine_put_some(&a, 10000 + 400 * i, 400);
    wait_for((uint64_t)count_keys(0) == engine_stats(a.client).blocks, MS);
    end();
}
END_TEST

START_TEST(T18_a_directory_that_is_down_costs_remote_hits_and_no_more)
{
    struct timespec before, after;

    BEGIN(LONG);
    daemon_log_allow(d[0], "directory lost");
    daemon_log_allow(d[1], "directory lost");
    engine_put(&a, 100, 20);
    wait_for(count_keys(0) == 20, MS);
    end_asking();
    redis_kill();
    wait_for(daemon_log_count(d[0], "directory lost") > 0 &&
                 daemon_log_count(d[1], "directory lost") > 0,
             MS);
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 20), 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_int_lt(after.tv_sec - before.tv_sec, REMOTE_MS / 4000);
    /* Both go on; what comes and goes meanwhile is said when there is somebody to tell. */
    engine_put(&a, 200, 30);
    ck_assert(redis_start(port));
    ask_it();
    wait_for(count_keys(0) == 50, MS);
    // The other one comes back to it when its own time is.
    verify_by_and_by(100, 20);
    verify_by_and_by(200, 30);
    end();
}
END_TEST

/* Nothing says that it is gone, as when its machine is. */
START_TEST(T18_a_directory_that_hangs_is_given_up_and_comes_back)
{
    struct timespec before, after;

    BEGIN(SHORT);
    engine_put(&a, 100, 20);
    wait_for(count_keys(0) == 20, MS);
    redis_freeze();
    for (int i = 0; i < 2; i++) {
        daemon_log_expect(d[i], "directory lost");
        wait_for(daemon_log_count(d[i], "it does not answer") > 0, MS);
    }
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 20), 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_int_lt(after.tv_sec - before.tv_sec, REMOTE_MS / 4000);
    engine_put(&a, 200, 30);
    redis_thaw();
    wait_for(count_keys(0) == 50, MS);
    verify_by_and_by(100, 20);
    verify_by_and_by(200, 30);
    end();
}
END_TEST

/* Peers that are named in the settings are asked whatever the directory says. */
START_TEST(T18_named_peers_need_no_directory)
{
    static struct pair p;
    const char *const args[] = {"--directory", "127.0.0.1:9", "--directory-time", "1s", NULL};

    pair_open(&p, 2, args);
    for (int i = 0; i < 2; i++)
        daemon_log_expect(p.daemons[i], "directory lost");
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    engine_put(&a, 100, 20);
    engine_verify_all(&b, 100, 20);
    for (int i = 0; i < 2; i++)
        wait_for(daemon_log_count(p.daemons[i], "directory lost") > 0, MS);
    engine_close(&a);
    engine_close(&b);
    pair_close(&p);
}
END_TEST

CHECK_MAIN("peer/directory", CHECK_LIFE_S, T17_daemons_find_each_other_by_the_directory,
           T17_models_without_a_full_part_are_in_it, T17_nodes_that_are_gone_make_room_for_others,
           T17_a_stale_hint_is_a_miss, T17_who_was_silent_says_everything_again,
           T17_what_a_dead_node_had_vanishes, T17_who_stops_takes_back_what_it_said,
           T17_who_drains_takes_it_back_and_says_it_again, T18_what_is_dropped_leaves_the_directory,
           T18_a_directory_that_is_down_costs_remote_hits_and_no_more,
           T18_a_directory_that_hangs_is_given_up_and_comes_back, T18_named_peers_need_no_directory)
