/* kvcachectl replay and bench: whole, interrupted, killed, with a daemon that dies. */
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

// Requests, where a replay is to take its time.
static int many(int requests)
{
    return check_valgrind() ? requests / 40 : requests;
}

static const char *trace_file(int requests)
{
    const char *path = tmpdir_file("trace");
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < requests; i++)
        fprintf(file,
                "{\"timestamp\": %d, \"input_length\": 1536, \"output_length\": 1, "
                "\"hash_ids\": [0, %d, %d]}\n",
                i, 1 + i % 50, 1000 + i);
    fclose(file);
    return path;
}

/* Folders that a private daemon left in the test's folder. */
static int count_leftovers(void)
{
    DIR *folder = opendir(tmpdir_path());
    struct dirent *entry;
    int n = 0;

    ck_assert_ptr_nonnull(folder);
    while ((entry = readdir(folder)))
        n += strncmp(entry->d_name, "kvcache-", 8) == 0;
    closedir(folder);
    return n;
}

static double seconds(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    ck_assert_msg(json_is_number(value) && json_number_value(value) >= 0, "no time %s", name);
    return json_number_value(value);
}

/* Where the time went, of the daemon and of the workers, is all of it. */
static void expect_time_adds_up(const json_t *root, const char *const *phases, size_t n)
{
    const json_t *cpu = json_object_get(root, "cpu_s"), *all = json_object_get(root, "phases");
    double workers = seconds(cpu, "workers"), sum = 0;

    ck_assert_double_le(
        fabs(seconds(cpu, "daemon_user") + seconds(cpu, "daemon_system") - seconds(cpu, "daemon")),
        1e-6);
    ck_assert_double_le(
        fabs(seconds(cpu, "workers_user") + seconds(cpu, "workers_system") - workers), 1e-6);
    ck_assert_double_le(seconds(cpu, "daemon_share"), 1);
    for (size_t i = 0; i < n; i++)
        sum += seconds(json_object_get(all, phases[i]), "cpu_s");
    /* The worker's own end is not in it. */
    ck_assert_double_gt(sum, 0);
    ck_assert_double_le(sum, workers + 0.1);
}

START_TEST(replay_reports_what_it_did)
{
    static const char *const names[] = {
        "requests",     "blocks",         "hit_blocks",  "hit_ratio",    "hits",
        "saved_blocks", "skipped_blocks", "bytes_saved", "bytes_loaded", "verified_bytes",
        "mismatches",   "demotions",      "evictions",   "lookup_us",    "save_us",
        "load_us",      "seconds",        "blocks_per_s"};
    static const char *const phases[] = {"lookups",    "loads", "verifying",
                                         "generating", "saves", "rest"};
    struct daemon *d = daemon_start(NULL);
    json_t *root;

    ck_assert_int_eq(CTL_RUN("replay", trace_file(200), "--socket", daemon_socket(d), "--json",
                             "--verify", "--slices", "3", "--slice-bytes", "5000"),
                     0);
    root = ctl_json();
    ctl_expect_fields(root, names, sizeof(names) / sizeof(names[0]));
    ck_assert_int_eq(ctl_number(root, "requests"), 200);
    ck_assert_int_eq(ctl_number(root, "blocks"), 600);
    ck_assert_int_gt(ctl_number(root, "hit_blocks"), 200);
    ck_assert_int_eq(ctl_number(root, "bytes_loaded"), ctl_number(root, "hit_blocks") * 15000);
    ck_assert_int_eq(ctl_number(root, "verified_bytes"), ctl_number(root, "bytes_loaded"));
    ck_assert_int_eq(ctl_number(root, "bytes_saved"), ctl_number(root, "saved_blocks") * 15000);
    ck_assert_int_eq(ctl_number(root, "mismatches"), 0);
    ck_assert_int_eq(ctl_number(root, "errors"), 0);
    expect_time_adds_up(root, phases, sizeof(phases) / sizeof(phases[0]));
    json_decref(root);
    ck_assert_int_eq(count_leftovers(), 0);
    daemon_stop(d);
}
END_TEST

static bool finds_room_at_once(const char *trace)
{
    json_t *root;
    double admitted;
    bool moved;

    ck_assert_int_eq(CTL_RUN("replay", trace, "--private", "--gpu-bytes", "4M", "--host-bytes",
                             "12M", "--json", "--verify"),
                     0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "mismatches"), 0);
    admitted = (double)ctl_number(root, "admitted_blocks");
    moved = check_valgrind() || (ctl_number(root, "demotions") > 1000 && admitted > 2000);
    moved = moved && (double)ctl_number(root, "admitted_at_once") >= 0.99 * admitted;
    json_decref(root);
    return moved;
}

/* Four of five requests are new blocks, ten times what the gpu tier has; the rest are hits. A save
 * waits a millisecond for room: a daemon whose copies others kept from the processor for longer
 * skips blocks, and says nothing about how far ahead it copies. */
START_TEST(S18_blocks_of_a_replay_find_room_at_once)
{
    wait_for(finds_room_at_once(trace_file(many(2000))), CTL_RUN_MS);
}
END_TEST

START_TEST(replay_at_a_pace_leaves_the_processor_to_others)
{
    json_t *root;

    ck_assert_int_eq(CTL_RUN("replay", trace_file(many(4000)), "--private", "--gpu-bytes", "8M",
                             "--host-bytes", "8M", "--workers", "1", "--json", "--verify", "--pace",
                             "10"),
                     0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "requests"), many(4000));
    ck_assert_int_eq(ctl_number(root, "mismatches"), 0);
    /* Twice the share, for what comes before the first request. */
    ck_assert_double_lt(seconds(json_object_get(root, "cpu_s"), "workers"),
                        0.2 * seconds(root, "seconds") + 0.1);
    json_decref(root);
}
END_TEST

START_TEST(replay_with_a_private_daemon_leaves_nothing)
{
    ck_assert_int_eq(CTL_RUN("replay", trace_file(300), "--private", "--gpu-bytes", "2M",
                             "--host-bytes", "2M", "--workers", "3", "--demo", "--verify"),
                     0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "\ndemo: ok, 300 requests, "));
    ck_assert_ptr_nonnull(strstr(ctl_out(), ", 0 mismatches\n"));
    ck_assert_int_eq(count_leftovers(), 0);
    ck_assert_int_eq(CTL_RUN("replay", trace_file(3), "--private", "--gpu-bytes", "nonsense"), 1);
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

START_TEST(replay_of_bad_lines)
{
    const char *path = trace_file(10);
    FILE *file = fopen(path, "ae");
    json_t *root;

    fputs("{\"timestamp\": 1}\n", file);
    fclose(file);
    ck_assert_int_eq(CTL_RUN("replay", path, "--private"), 1);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "line 11: "));
    ck_assert_int_eq(CTL_RUN("replay", path, "--private", "--skip-bad", "--json"), 0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "skipped_lines"), 1);
    ck_assert_int_eq(ctl_number(root, "requests"), 10);
    json_decref(root);
}
END_TEST

/* A replay that would take minutes: 3 MiB a request. */
#define LONG_REPLAY(...)                                                                           \
    ctl_start(-1, (const char *const[]){"replay", trace_file(many(30000)), "--verify",             \
                                        "--slice-bytes", "131072", __VA_ARGS__, NULL})

/* Ctrl-C in the middle: workers end, the private daemon stops, the result so far is printed. */
START_TEST(replay_can_be_interrupted)
{
    pid_t pid = LONG_REPLAY("--private", "--demo");

    wait_for(count_leftovers() == 1, CTL_RUN_MS);
    usleep(100000); /* anywhere in the middle, or before it: both must end well */
    kill(pid, SIGINT);
    ck_assert_int_eq(ctl_end(pid), 1);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "demo: failed, "));
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

/* Nobody is left to take it down: its daemon ends, and then its folder goes. */
START_TEST(replay_that_is_killed_leaves_nothing)
{
    if (check_valgrind())
        TEST_SKIP("a replay long enough takes minutes under valgrind");
    pid_t pid = LONG_REPLAY("--private", "--demo");

    wait_for(count_leftovers() == 1, CTL_RUN_MS);
    usleep(300000); /* most likely in the middle */
    kill(pid, SIGKILL);
    ck_assert(WIFSIGNALED(proc_wait(pid, CTL_RUN_MS)));
    wait_for(count_leftovers() == 0, CTL_RUN_MS);
    while (waitpid(-1, NULL, 0) > 0)
        ;
}
END_TEST

START_TEST(bench_can_be_interrupted)
{
    pid_t pid = ctl_start(-1, (const char *const[]){"bench", "--rounds", "1000", NULL});

    wait_for(count_leftovers() == 1, CTL_RUN_MS);
    kill(pid, SIGINT);
    ck_assert_int_eq(ctl_end(pid), 1);
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

/* `kvcachectl replay --private | head`: its daemon and its folder are taken down all the same. */
START_TEST(replay_whose_output_nobody_reads)
{
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    close(ends[0]);
    ck_assert_int_eq(ctl_end(ctl_start(ends[1], (const char *const[]){"replay", trace_file(3),
                                                                      "--private", NULL})),
                     1);
    close(ends[1]);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "Broken pipe"));
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

/* As long as its socket's name allows. */
START_TEST(replay_in_a_folder_with_a_long_name)
{
    char folder[80];

    memset(folder, 'x', sizeof(folder));
    memcpy(folder, tmpdir_path(), strlen(tmpdir_path()));
    folder[strlen(tmpdir_path())] = '/';
    folder[sizeof(folder) - 1] = '\0';
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ctl_set_tmpdir(folder);
    ck_assert_int_eq(
        CTL_RUN("replay", trace_file(3), "--private", "--gpu-bytes", "4M", "--host-bytes", "4M"),
        0);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing is left in it */
}
END_TEST

static uint64_t stat_of(int sock, size_t offset)
{
    Kvcache__StatsReply *stats = talk_stats(sock);
    uint64_t value;

    memcpy(&value, (const char *)stats + offset, sizeof(value));
    talk_free(stats);
    return value;
}

#define STAT(sock, field) stat_of(sock, offsetof(Kvcache__StatsReply, field))

/* The result of a daemon that dies under the workers is misses, not wrong bytes. */
START_TEST(F6_replay_survives_its_daemon)
{
    if (check_valgrind())
        TEST_SKIP("a replay long enough takes minutes under valgrind");
    static const char *const figures[] = {"mismatches", "demotions", "promotions", "evictions"};
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    uint64_t evictions;
    json_t *root;
    pid_t pid;

    /* More than the second daemon will have counted. On a busy machine saves may find no room in
     * time, and evict nothing. */
    do
        ck_assert_int_eq(CTL_RUN("replay", trace_file(100), "--socket", daemon_socket(d),
                                 "--slice-bytes", "131072"),
                         0);
    while ((evictions = STAT(sock, evictions)) <= 20);
    pid = LONG_REPLAY("--socket", daemon_socket(d), "--json");
    wait_for(STAT(sock, evictions) > evictions, CTL_RUN_MS);
    close(sock);
    daemon_restart_killed(d);
    sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    wait_for(STAT(sock, published_blocks) > 0, CTL_RUN_MS); /* the workers are back */
    close(sock);
    kill(pid, SIGINT);
    ck_assert_int_eq(ctl_end(pid), 1);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "mismatches"), 0);
    ck_assert_int_gt(ctl_number(root, "errors"), 0);
    /* Of the second daemon, which has not counted on from where the first one was. */
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        ck_assert_int_ge(ctl_number(root, figures[i]), 0);
    ck_assert_int_ge(ctl_number(json_object_get(root, "cpu_s"), "daemon"), 0);
    json_decref(root);
    daemon_stop(d);
}
END_TEST

/* Its part is stale then: it registers again and goes on saving. */
START_TEST(S42_replay_goes_on_after_a_flush)
{
    struct daemon *d = daemon_start(NULL);
    pid_t pid = LONG_REPLAY("--socket", daemon_socket(d), "--json");
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    Kvcache__Flush flush = KVCACHE__FLUSH__INIT;
    uint64_t published;

    wait_for(STAT(sock, published_blocks) > 0, CTL_RUN_MS);
    flush.all = true;
    talk_free(talk_ask(sock, WIRE_FLUSH, &flush.base, &kvcache__flush_reply__descriptor));
    published = STAT(sock, published_blocks);
    wait_for(STAT(sock, published_blocks) > published + 50, CTL_RUN_MS);
    close(sock);
    kill(pid, SIGINT);
    ck_assert_int_eq(ctl_end(pid), 1);
    daemon_stop(d);
}
END_TEST

START_TEST(S15_replay_with_workers_killed)
{
    json_t *root;

    ck_assert_int_eq(CTL_RUN("replay", trace_file(many(20000)), "--private", "--gpu-bytes", "8M",
                             "--host-bytes", "16M", "--verify", "--json", "--kill-every",
                             check_valgrind() ? "150" : "10"),
                     0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "mismatches"), 0);
    ck_assert_int_ge(ctl_number(root, "requests"), many(20000));
    ck_assert_int_gt(ctl_number(root, "killed_workers"), 0);
    json_decref(root);
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

CHECK_MAIN("ctl/replay", CHECK_LIFE_S, replay_reports_what_it_did,
           S18_blocks_of_a_replay_find_room_at_once,
           replay_at_a_pace_leaves_the_processor_to_others,
           replay_with_a_private_daemon_leaves_nothing, replay_of_bad_lines,
           replay_can_be_interrupted, replay_that_is_killed_leaves_nothing,
           bench_can_be_interrupted, replay_whose_output_nobody_reads,
           replay_in_a_folder_with_a_long_name, F6_replay_survives_its_daemon,
           S42_replay_goes_on_after_a_flush, S15_replay_with_workers_killed)
