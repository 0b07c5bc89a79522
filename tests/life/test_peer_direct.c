/*
 * Blocks that come from a peer's GPU into one here without host memory between, on a GPU or the
 * driver without one, by a UCX that reads GPUs (KVC_UCX): refused, cut off in the middle, wrong,
 * and beside others that the peer has in host memory. Every byte is compared.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/gpu.h"
#include "tests/lib/http.h"
#include "tests/lib/pair.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define MS           10000
#define BLOCKS       256u
#define SLOT_PADDING 8u       /* behind the 1000 bytes of the second slice, in what is moved */
#define OTHERS       1000000u /* keys that are of no interest */
#ifdef KVC_METRICS
#define METRICS "127.0.0.1:0" /* of the asker */
#else
#define METRICS "off"
#endif

static struct pair p;
static struct engine a, b, operator; /* of the source; of the asker */
static char deaf[256];
static const char *transports = "tcp,cuda_copy,cuda_ipc";

static bool reads_gpu(void)
{
    struct pair_row row;

    return pair_look(p.daemons[1], "serves", 0, &row) && strcmp(row.state, "open") == 0 &&
           strstr(row.reason, "from GPU to GPU") != NULL;
}

/* What is missing for it, or NULL. */
static const char *begin(const char *source_gpu_bytes, uint32_t remote_ms)
{
    const char *ucx = getenv("KVC_UCX");
    const char *const args[] = {
        "--ucx", ucx,           "--gpu-memory",   "legacy",       "--peer-time",
        "2s",    "--gpu-bytes", source_gpu_bytes, "--host-bytes", "64M",
        NULL};

    if (!gpu_is_used() || ucx == NULL)
        return "no GPU, or KVC_UCX names no UCX with CUDA";
    snprintf(deaf, sizeof(deaf), "%s", tmpdir_file("deaf"));
    setenv("KVC_FAKE_UCX_DEAF", deaf, 1);
    setenv("UCX_TLS", transports, 1);
    pair_open_with(&p, 2, args,
                   (const char *const[]){"--gpu-bytes", "64M", "--metrics", METRICS, NULL});
    wait_for(reads_gpu(), MS);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), remote_ms);
    engine_connect(&operator, daemon_socket(p.daemons[1]), KVC_ROLE_OPERATOR);
    return NULL;
}

#define BEGIN(source_gpu_bytes, remote_ms)                                                         \
    do {                                                                                           \
        const char *missing = begin(source_gpu_bytes, remote_ms);                                  \
                                                                                                   \
        if (missing != NULL)                                                                       \
            TEST_SKIP("%s", missing);                                                              \
    } while (0)

static void end(void)
{
    if (a.client != NULL)
        engine_close(&a);
    engine_close(&b);
    engine_close(&operator);
    pair_end(&p);
}

static void make_file(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    close(fd);
}

/* The source does nothing of what UCX asks of it: what is read of it stays under way. */
static bool make_deaf(void)
{
    char file[300];

    if (strstr(getenv("KVC_UCX"), "libucp-gpu") == NULL)
        return false;
    snprintf(file, sizeof(file), "%s.%d", deaf, (int)daemon_pid(p.daemons[0]));
    make_file(file);
    return true;
}

static void kill_source(void)
{
    kvc_close(a.client);
    a.client = NULL;
    daemon_kill(p.daemons[0]);
    p.daemons[0] = NULL;
}

static bool is_lost(void)
{
    struct pair_row row;

    return pair_look(p.daemons[1], "serves", 0, &row) && strcmp(row.state, "open") != 0;
}

static uint64_t held(void)
{
    struct admin_stats stats = engine_stats(operator.client);

    return stats.filling_slots + stats.quarantined_slots;
}

static struct pair_row asked(void)
{
    return pair_row(p.daemons[1], "serves", 0);
}

/* What has come lies so, and is right. */
static void expect(uint32_t n, uint32_t on_gpu)
{
    ck_assert_uint_eq(b.lease.blocks, n);
    ck_assert_uint_eq(b.lease.gpu, on_gpu);
    ck_assert_uint_eq(b.lease.host, n - on_gpu);
    engine_load(&b);
    engine_release(&b);
}

START_TEST(T7_from_gpu_to_gpu)
{
    BEGIN("64M", MS);
    engine_put(&a, 100, BLOCKS);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, BLOCKS), BLOCKS);
    expect(BLOCKS, BLOCKS);
    ck_assert_uint_eq(asked().batches, 4);
    end();
}
END_TEST

/* The source's blocks are elsewhere by now, it says of a batch: that comes by host memory. */
START_TEST(T12_a_batch_that_is_refused_comes_in_another_round)
{
    BEGIN("64M", MS);
    engine_put(&a, 100, BLOCKS);
    daemon_fault_arm(p.daemons[0], "peer.serve", (uint32_t)_i, 1);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, BLOCKS), BLOCKS);
    ck_assert_uint_eq(daemon_fault_fired(p.daemons[0], "peer.serve"), 1);
    /* What is behind it in the prompt is not published, either, and comes again. */
    ck_assert_uint_ge(b.lease.host, 64);
    engine_load(&b);
    engine_release(&b);
    /* Of that lookup only. */
    engine_put(&a, 1000, 100);
    ck_assert_uint_eq(engine_lookup_all(&b, 1000, 100), 100);
    expect(100, 100);
    end();
}
END_TEST

/* ... and the other way is refused, too: a miss. */
START_TEST(T12_batches_that_are_refused_again_are_a_miss)
{
    BEGIN("64M", MS);
    engine_put(&a, 100, 10);
    daemon_fault_arm(p.daemons[0], "peer.serve", 0, 2);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 10), 0);
    ck_assert_uint_eq(daemon_fault_fired(p.daemons[0], "peer.serve"), 2);
    engine_verify_all(&b, 100, 10);
    end();
}
END_TEST

/* A read that fails at once, at the asker. */
START_TEST(T13_a_read_that_fails)
{
    BEGIN("64M", MS);
    engine_put(&a, 100, 10);
    daemon_fault_arm(p.daemons[1], "ucx.op", 0, 1);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 10), 0);
    ck_assert_uint_eq(daemon_fault_fired(p.daemons[1], "ucx.op"), 1);
    wait_for(held() == 0, MS);
    engine_verify_all(&b, 100, 10);
    end();
}
END_TEST

/* Bytes that are not what the source said: none of them is published. */
START_TEST(T21_what_is_read_wrong_is_no_hit)
{
    BEGIN("64M", MS);
    engine_put(&a, 100, 10);
    daemon_log_expect(p.daemons[1], "a batch is not what was published");
    daemon_fault_arm(p.daemons[1], "peer.judge", 0, 1);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 10), 0);
    engine_verify_all(&b, 100, 10);
    end();
}
END_TEST

enum { ANSWERING, READING, JUDGING };

START_TEST(T13_a_source_is_killed_in_each_state)
{
    uint32_t blocks = 7;

    BEGIN("64M", MS);
    engine_put(&a, 100, BLOCKS);
    if (_i == ANSWERING)
        daemon_freeze(p.daemons[0]);
    if (_i == READING)
        (void)make_deaf();
    if (_i == JUDGING)
        daemon_fault_arm(p.daemons[1], "peer.judge_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, BLOCKS), KVC_OK);
    ck_assert_uint_eq(b.lease.remote, BLOCKS);
    if (_i == READING) /* on a GPU it may be over by then */
        wait_for(pair_row(p.daemons[0], "asks", 0).running >= 2 ||
                     engine_probe(&b, 100, BLOCKS) == BLOCKS,
                 MS);
    if (_i == JUDGING)
        wait_for(daemon_fault_fired(p.daemons[1], "peer.judge_late") > 0, MS);
    kill_source();
    wait_for(is_lost(), MS);
    daemon_fault_off(p.daemons[1], "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    if (_i == ANSWERING)
        ck_assert_uint_eq(blocks, 0);
    wait_for(held() == 0, MS);
    /* What had come is right, and the slots of the rest are slots again. */
    ck_assert_uint_eq(engine_lookup(&b, 100, BLOCKS), blocks);
    engine_load(&b);
    engine_release(&b);
    ck_assert_int_eq(kvc_flush(b.client, b.part, NULL), KVC_OK);
    engine_put(&b, 5000, BLOCKS);
    engine_verify(&b, 5000, BLOCKS);
    end();
}
END_TEST

/* The waiter has its answer in time; the slots that are still read into wait for the endpoint's
 * end.
 */
START_TEST(T13_a_source_that_hangs_while_it_is_read)
{
    uint32_t blocks = 7;

    BEGIN("64M", 1000);
    engine_put(&a, 100, BLOCKS);
    if (!make_deaf()) {
        end();
        TEST_SKIP("a real GPU reads without its owner");
    }
    ck_assert_int_eq(engine_try_lookup(&b, 100, BLOCKS), KVC_OK);
    wait_for(pair_row(p.daemons[0], "asks", 0).running == 4, MS);
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 0);
    ck_assert_uint_eq(held(), BLOCKS);
    wait_for(daemon_log_count(p.daemons[1], "a batch does not come to its end") > 0, MS);
    wait_for(held() == 0, MS);
    engine_put(&b, 5000, BLOCKS);
    engine_verify(&b, 5000, BLOCKS);
    kill_source(); /* UCX 1.13 ends it, when it hears of reads that it emulates, too late */
    end();
}
END_TEST

/* Fetches whose blocks lie on the source's GPU only in part. */

static struct kvc_lease look(uint32_t first, uint32_t n)
{
    kvc_lease lease;

    ck_assert_uint_eq(engine_lookup(&a, first, n), n);
    lease = a.lease;
    engine_release(&a);
    return lease;
}

static void put(uint32_t first, uint32_t n)
{
    wait_for((engine_put_some(&a, first, n), engine_probe(&a, first, n)) == n, MS);
}

/* All that is there now is in the host tier afterwards: the GPU has room for fewer than these. */
static void push_out(void)
{
    for (uint32_t i = 0; i < 4; i++)
        put(OTHERS + 100 * i, 100);
}

/* Keys of the prompt that are pushed out; the rest is not. */
static void put_prompt(const uint32_t (*out)[2], uint32_t n_out, uint32_t n)
{
    for (uint32_t i = 0; i < n_out; i++)
        put(out[i][0], out[i][1]);
    push_out();
    put(0, n);
}

START_TEST(T7_what_is_on_the_gpu_comes_directly_and_the_rest_by_host_memory)
{
    static const uint32_t rows[][2][2] = {
        {{0, 100}}, {{120, 80}}, {{40, 100}}, {{0, 20}, {150, 50}}};
    const uint32_t n = 200, n_out = _i == 3 ? 2 : 1;
    uint32_t on_gpu;

    BEGIN("4M", MS);
    put_prompt(rows[_i], n_out, n);
    on_gpu = look(0, n).gpu;
    ck_assert_uint_gt(on_gpu, 0);
    ck_assert_uint_lt(on_gpu, n);
    ck_assert_uint_eq(engine_lookup_all(&b, 0, n), n);
    expect(n, on_gpu);
    end();
}
END_TEST

/* Batches are of one way: a few blocks go the way of those around them. */
START_TEST(T7_a_few_blocks_are_no_batch_of_their_own)
{
    uint32_t out[50][2];

    BEGIN("4M", MS);
    for (uint32_t i = 0; i < 50; i++)
        memcpy(out[i], (uint32_t[]){4 * i, 2}, sizeof(out[i]));
    put_prompt(out, 50, 200);
    ck_assert_uint_gt(look(0, 200).gpu, 50);
    ck_assert_uint_eq(engine_lookup_all(&b, 0, 200), 200);
    expect(200, 0);
    ck_assert_uint_eq(asked().batches, 4);
    end();
}
END_TEST

/*
 * A lane that reads by itself, as InfiniBand's: memory of the source's host and of its GPU is read.
 * A block that is to come into host memory and is on a GPU there cannot be, and is sent.
 */
START_TEST(T7_what_a_lane_reads_by_itself)
{
    static const uint32_t out[][2] = {{0, 97}, {100, 50}}; /* and 3 that are a few */
    uint32_t on_gpu;

    if (getenv("KVC_UCX") != NULL && strstr(getenv("KVC_UCX"), "libucp-gpu") == NULL)
        TEST_SKIP("no InfiniBand");
    setenv("KVC_FAKE_UCX_LANE", "rc_mlx5/mlx5_0:1", 1);
    transports = "tcp,cuda_copy";
    BEGIN("4M", MS);
    ck_assert_str_eq(asked().mode, "exact, get");
    put_prompt(out, 2, 200);
    on_gpu = look(0, 200).gpu;
    ck_assert_uint_eq(on_gpu, 53);
    ck_assert_uint_eq(engine_lookup_all(&b, 0, 200), 200);
    expect(200, 50);
    ck_assert_uint_eq(pair_row(p.daemons[0], "asks", 0).running, 0);
    ck_assert_uint_eq(asked().wire, asked().useful + 200 * SLOT_PADDING);
    end();
}
END_TEST

static void expect_slow_lanes(int n)
{
#ifdef KVC_METRICS
    static struct http answer;

    http_get(http_port(2), "/metrics", &answer);
    ck_assert(http_value(&answer, "kvcached_slow_peer_lanes_total") == n);
#else
    (void)n;
#endif
}

/* The way that was fast is not there any more: said once, and counted. */
START_TEST(T7_a_fall_from_a_fast_lane_is_told)
{
    const char *slow = tmpdir_file("slow");

    setenv("KVC_FAKE_UCX_SLOW", slow, 1);
    BEGIN("64M", MS);
    if (strstr(getenv("KVC_UCX"), "libucp-gpu") == NULL) {
        end();
        TEST_SKIP("this UCX is a real one");
    }
    expect_slow_lanes(0);
    make_file(slow);
    kvc_close(a.client);
    daemon_log_allow(p.daemons[0], "peer is slower");
    daemon_log_expect(p.daemons[1], "peer is slower than it was");
    daemon_restart_killed(p.daemons[0]);
    wait_for(daemon_log_count(p.daemons[1], "peer is slower than it was") == 1, 2 * MS);
    wait_for(!is_lost(), MS);
    ck_assert_str_eq(asked().lanes, "tcp");
    expect_slow_lanes(1);
    a = (struct engine){.fd = -1};
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_put(&a, 100, 20);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 20), 20);
    expect(20, 0);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("peer/direct", CHECK_LONG_S, {T7_from_gpu_to_gpu, 0, 0},
                 {T12_a_batch_that_is_refused_comes_in_another_round, 0, 3},
                 {T12_batches_that_are_refused_again_are_a_miss, 0, 0},
                 {T13_a_read_that_fails, 0, 0}, {T21_what_is_read_wrong_is_no_hit, 0, 0},
                 {T13_a_source_is_killed_in_each_state, ANSWERING, JUDGING},
                 {T13_a_source_that_hangs_while_it_is_read, 0, 0},
                 {T7_what_is_on_the_gpu_comes_directly_and_the_rest_by_host_memory, 0, 3},
                 {T7_a_few_blocks_are_no_batch_of_their_own, 0, 0},
                 {T7_what_a_lane_reads_by_itself, 0, 0}, {T7_a_fall_from_a_fast_lane_is_told, 0, 0})
