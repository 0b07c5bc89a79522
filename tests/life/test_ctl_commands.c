/* kvcachectl as its users run it: the program, its output, its exit status. */
#include <jansson.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define RUN_MS 20000

/* The program of the same build as this test. */
static const char *program(const char *name)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);
    char *at;

    ck_assert_int_gt(n, 0);
    path[n] = '\0';
    at = strstr(path, "/tests/");
    ck_assert_ptr_nonnull(at);
    snprintf(at, 64, "/%s", name);
    return path;
}

/* $TMPDIR of what is started; NULL: the test's folder. */
static const char *temporary;

/* Starts it with its output in two files, the first of which may be a descriptor instead. */
static pid_t start_to(int to, const char *const args[])
{
    const char *argv[32] = {program("kvcachectl")};
    const char *out_path = tmpdir_file("out"), *err_path = tmpdir_file("err");
    pid_t pid;

    for (size_t i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    pid = proc_fork();
    if (pid == 0) {
        int out = to >= 0 ? to : open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int err = open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        dup2(out, 1);
        dup2(err, 2);
        unsetenv("KVCACHE_SOCKET");
        setenv("TMPDIR", temporary ? temporary : tmpdir_path(), 1);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid;
}

static pid_t start(const char *const args[])
{
    return start_to(-1, args);
}

static int end_of(pid_t pid)
{
    int status = proc_wait(pid, RUN_MS);

    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int run(const char *const args[])
{
    return end_of(start(args));
}

#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

static const char *text_of(const char *name)
{
    static char text[2][65536];
    char *to = text[strcmp(name, "err") == 0];
    FILE *file = fopen(tmpdir_file(name), "re");
    size_t n;

    ck_assert_ptr_nonnull(file);
    n = fread(to, 1, sizeof(text[0]) - 1, file);
    to[n] = '\0';
    fclose(file);
    return to;
}

static json_t *json_of(const char *name)
{
    json_error_t error;
    json_t *root = json_loads(text_of(name), 0, &error);

    ck_assert_msg(root != NULL, "not JSON: %s", error.text);
    return root;
}

static int64_t number(const json_t *root, const char *name)
{
    const json_t *value = json_object_get(root, name);

    ck_assert_msg(json_is_number(value), "no number %s", name);
    return (int64_t)json_number_value(value);
}

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

static void expect_fields(const json_t *root, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(json_object_get(root, names[i]) != NULL, "no %s", names[i]);
}

START_TEST(usage_is_exit_status_2)
{
    static const char *const bad[][4] = {
        {NULL},
        {"nonsense"},
        {"--nonsense"},
        {"status", "extra"},
        {"status", "--nonsense"},
        {"ping", "--socket"},
        {"replay"},
        {"replay", "a", "b"},
        {"replay", "a", "--workers=0"},
        {"replay", "a", "--workers=-1"},
        {"replay", "a", "--workers=2x"},
        {"replay", "a", "--slices=0"},
        {"replay", "a", "--slice-bytes=0"},
        {"replay", "a", "--limit=0"},
        {"replay", "a", "--copy=nobody"},
        {"replay", "a", "--gpu-bytes=1G"},
        {"replay", "a", "--private=1"},
        {"replay", "a", "--workers"},
        {"flush", "-n"},
        {"flush", "--seconds=1"},
        {"pin", "--namespace=0", "--seconds=0"},
        {"pin", "--all"},
        {"config", "set"},
        {"config", "sett", "a", "b"},
        {"config", "set", "socket"},
        {"bench", "--socket=a"},
        {"bench", "--blocks=1"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(run(bad[i]) == 2, "row %zu", i);
        ck_assert_uint_gt(strlen(text_of("err")), 0);
        ck_assert_str_eq(text_of("out"), "");
    }
}
END_TEST

START_TEST(what_is_mistyped_is_refused_with_what_was_meant)
{
    static const char *const mistyped[][4] = {
        {"stauts", NULL, NULL, "status?"},         {"--sokcet=a", NULL, NULL, "--socket?"},
        {"status", "--jsn", NULL, "--json?"},      {"flush", "--al", NULL, "--all?"},
        {"replay", "a", "--wokers", "--workers?"}, {"bench", "--pair=2", NULL, "--pairs?"},
        {"pin", "--second=1", NULL, "--seconds?"}, {"replay", "a", "-verify", "--verify?"},
    };

    for (size_t i = 0; i < sizeof(mistyped) / sizeof(mistyped[0]); i++) {
        const char *args[] = {mistyped[i][0], mistyped[i][1], mistyped[i][2], NULL};

        ck_assert_msg(run(args) == 2, "row %zu", i);
        ck_assert_msg(strstr(text_of("err"), mistyped[i][3]) != NULL, "row %zu: %s", i,
                      text_of("err"));
    }
    ck_assert_int_eq(RUN("status", "--frobnicate"), 2);
    ck_assert_ptr_null(strstr(text_of("err"), "did you mean"));
}
END_TEST

START_TEST(every_command_has_its_help)
{
    static const char *const commands[] = {"status",     "ping",   "clients", "config",
                                           "namespaces", "flush",  "pin",     "unpin",
                                           "quota",      "replay", "bench",   "version"};

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        char usage[64];

        snprintf(usage, sizeof(usage), "usage: kvcachectl %s ", commands[i]);
        ck_assert_int_eq(RUN(commands[i], "--help"), 0);
        ck_assert_int_eq(strncmp(text_of("out"), usage, strlen(usage)), 0);
        ck_assert_ptr_nonnull(strstr(text_of("out"), "--json"));
        ck_assert_str_eq(text_of("err"), "");
    }
}
END_TEST

START_TEST(help_and_version)
{
    ck_assert_int_eq(RUN("--help"), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "replay"));
    ck_assert_int_eq(RUN("replay", "--help"), 0);
    ck_assert_int_eq(RUN("status", "--help"), 0);
    ck_assert_int_eq(RUN("version"), 0);
    ck_assert_int_eq(strncmp(text_of("out"), "kvcachectl ", 11), 0);
    ck_assert_int_eq(RUN("--version"), 0);
    ck_assert_int_eq(RUN("version", "--json"), 0);
    json_decref(json_of("out"));
}
END_TEST

START_TEST(without_a_daemon_it_fails_with_1)
{
    static const char *const commands[] = {"status", "ping", "clients"};
    const char *path = tmpdir_file("absent");

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        ck_assert_int_eq(RUN(commands[i], "--socket", path), 1);
        ck_assert_ptr_nonnull(strstr(text_of("err"), path));
    }
    ck_assert_int_eq(RUN("--socket", path, "replay", trace_file(1)), 1);
}
END_TEST

START_TEST(status_has_its_fields)
{
    static const char *const names[] = {"version",       "boot_epoch",
                                        "uptime_s",      "device",
                                        "tiers",         "blocks",
                                        "sessions",      "leases",
                                        "open_loads",    "hits",
                                        "misses",        "evictions",
                                        "filling_slots", "quarantined_slots",
                                        "demotions",     "promotions",
                                        "oldest_op_ms"};
    static const char *const tier_names[] = {"bytes", "used_bytes", "slots", "used_slots"};
    struct daemon *d = daemon_start(NULL);
    json_t *root;

    ck_assert_int_eq(RUN("status", "--json", "--socket", daemon_socket(d)), 0);
    root = json_of("out");
    expect_fields(root, names, sizeof(names) / sizeof(names[0]));
    for (int t = 0; t < 2; t++)
        expect_fields(json_object_get(json_object_get(root, "tiers"), t ? "host" : "gpu"),
                      tier_names, 4);
    ck_assert_int_eq(number(json_object_get(json_object_get(root, "tiers"), "gpu"), "bytes"),
                     16 << 20);
    ck_assert_int_eq(number(root, "sessions"), 0); /* operators do not count */
    json_decref(root);
    ck_assert_int_eq(RUN("status", "--socket", daemon_socket(d)), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "device host"));
    daemon_stop(d);
}
END_TEST

START_TEST(ping_and_clients)
{
    struct daemon *d = daemon_start(NULL);
    json_t *root;

    ck_assert_int_eq(RUN("--socket", daemon_socket(d), "ping"), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "answered in"));
    ck_assert_int_eq(RUN("--socket", daemon_socket(d), "--json", "clients"), 0);
    root = json_of("out");
    ck_assert(json_is_array(root));
    ck_assert_uint_eq(json_array_size(root), 1); /* itself */
    json_decref(root);
    ck_assert_int_eq(RUN("--socket", daemon_socket(d), "clients"), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "kvcachectl"));
    daemon_stop(d);
}
END_TEST

START_TEST(S42_flush_pin_and_namespaces)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d), *file = tmpdir_file("keys");
    char digest[2 * KVC_NAMESPACE_BYTES + 1], start[9], key[2 * KVC_KEY_BYTES + 1];
    struct talk_worker w = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    ProtobufCBinaryData keys;
    FILE *to = fopen(file, "we");
    json_t *root;

    talk_publish(&w, 0, 8);
    for (int i = 0; i < (int)KVC_NAMESPACE_BYTES; i++)
        snprintf(digest + 2 * i, 3, "a7");
    snprintf(start, sizeof(start), "%.8s", digest);
    keys = talk_keys(0, 8);
    for (int k = 0; k < 8; k++) {
        for (int i = 0; i < (int)KVC_KEY_BYTES; i++)
            snprintf(key + 2 * i, 3, "%02X", keys.data[k * KVC_KEY_BYTES + i]);
        fprintf(to, "%s\n", key);
    }
    fclose(to);

    ck_assert_int_eq(RUN("--socket", socket, "--json", "namespaces"), 0);
    root = json_of("out");
    ck_assert_uint_eq(json_array_size(root), 1);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(root, 0), "namespace")),
                     digest);
    json_decref(root);
    ck_assert_int_eq(RUN("--socket", socket, "--json", "pin", "--namespace", start, "--seconds",
                         "60", "--keys", file),
                     0);
    root = json_of("out");
    ck_assert_int_eq(number(root, "pinned"), 8);
    json_decref(root);
    ck_assert_int_eq(RUN("--socket", socket, "status"), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "pinned blocks 8"));
    ck_assert_int_eq(RUN("--socket", socket, "unpin", "--namespace", digest, key), 0);
    ck_assert_str_eq(text_of("out"), "unpinned 1 blocks\n");
    ck_assert_int_eq(RUN("--socket", socket, "unpin", "--namespace", digest), 0);
    ck_assert_str_eq(text_of("out"), "unpinned 7 blocks\n");
    ck_assert_int_eq(RUN("--socket", socket, "flush", "--namespace", start, key), 0);
    ck_assert_str_eq(text_of("out"), "flushed 1 blocks\n");
    ck_assert_int_eq(RUN("--socket", socket, "flush", "--all"), 0);
    ck_assert_str_eq(text_of("out"), "flushed 7 blocks\n");

    ck_assert_int_eq(RUN("--socket", socket, "flush", "--namespace", "unknown"), 1);
    ck_assert_int_eq(RUN("--socket", socket, "flush"), 2);
    ck_assert_int_eq(RUN("--socket", socket, "flush", "--all", "--namespace", digest), 2);
    ck_assert_int_eq(RUN("--socket", socket, "flush", "--all", key), 2);
    ck_assert_int_eq(RUN("--socket", socket, "pin", "--namespace", digest, "nokey"), 2);
    ck_assert_int_eq(RUN("--socket", socket, "pin", "--namespace", digest, "--seconds", "-1"), 2);
    ck_assert_int_eq(RUN("--socket", socket, "pin", "--namespace", digest, "--seconds", "604801"),
                     2);
    ck_assert_int_eq(RUN("--socket", socket, "pin", "--all"), 2);
    ck_assert_int_eq(RUN("--socket", socket, "pin", "--help"), 0);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Who has how much of the tiers, and of which slot size.
/* A descriptor that a client has sent, and whose close does not end. */
START_TEST(F4_status_shows_what_does_not_close)
{
    struct daemon *d = daemon_start(NULL);
    struct wire_packet packet = {.type = WIRE_PING + 0x1000, .seq = 5, .n_fds = 1};
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    json_t *root;

    daemon_log_expect(d, "closing a descriptor takes long");
    daemon_fault_arm(d, "closer.stuck", 0, UINT32_MAX);
    packet.fds[0] = 0;
    ck_assert_int_eq(wire_send(sock, &packet), WIRE_OK);
    wait_for(daemon_log_count(d, "closing a descriptor takes long") == 1, RUN_MS);
    ck_assert_int_eq(RUN("status", "--json", "--socket", daemon_socket(d)), 0);
    root = json_of("out");
    ck_assert_int_ge(number(root, "stuck_fds"), 1);
    ck_assert_int_eq(number(root, "left_open_fds"), 0);
    json_decref(root);
    ck_assert_int_eq(RUN("status", "--socket", daemon_socket(d)), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), " do not close, "));
    daemon_fault_off(d, "closer.stuck");
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(S24_status_shows_extents)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 1);
    uint32_t extents = 0;
    const json_t *row;
    json_t *root;
    size_t i;

    talk_publish(&w, 0, 3);
    ck_assert_int_eq(RUN("--socket", daemon_socket(d), "--json", "status"), 0);
    root = json_of("out");
    json_array_foreach(json_object_get(root, "extents"), i, row)
    {
        bool used = strcmp(json_string_value(json_object_get(row, "state")), "used") == 0;

        extents += (uint32_t)atoi(json_string_value(json_object_get(row, "extents")));
        ck_assert_int_eq(strcmp(json_string_value(json_object_get(row, "slot_bytes")), "8192") == 0,
                         used);
        ck_assert_str_eq(json_string_value(json_object_get(row, "used_slots")), used ? "3" : "0");
    }
    ck_assert_uint_eq(extents, w.n_extents);
    ck_assert_int_eq(number(root, "moved_extents"), 0);
    ck_assert_int_eq(number(root, "waiting_extents"), 0);
    json_decref(root);
    ck_assert_int_eq(RUN("--socket", daemon_socket(d), "status"), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "slot_bytes"));
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(S15_status_shows_the_quarantine)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 1);
    Kvcache__SaveReply *save = talk_save(&w, 0, 3, false);
    const json_t *row;
    json_t *root;

    close(w.sock);
    daemon_clock_advance(d, 5000000);
    do {
        ck_assert_int_eq(RUN("--socket", daemon_socket(d), "--json", "status"), 0);
        root = json_of("out");
        row = json_array_get(json_object_get(root, "quarantine"), 0);
    } while (row == NULL);
    ck_assert_str_eq(json_string_value(json_object_get(row, "slots")), "3");
    ck_assert_str_eq(json_string_value(json_object_get(row, "state")), "ended");
    ck_assert_int_eq(atoi(json_string_value(json_object_get(row, "pid"))), (int)getpid());
    ck_assert_int_eq(number(root, "quarantined_slots"), 3);
    json_decref(root);
    ck_assert_int_eq(RUN("--socket", daemon_socket(d), "status"), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "quarantine 3 slots"));
    ck_assert_ptr_nonnull(strstr(text_of("out"), "age_ms"));
    talk_prove(&w, save, 0);
    talk_free(save);
    do {
        ck_assert_int_eq(RUN("--socket", daemon_socket(d), "--json", "status"), 0);
        root = json_of("out");
        row = json_array_get(json_object_get(root, "quarantine"), 0);
        json_decref(root);
    } while (row != NULL);
    munmap(w.page, KVC_PAGE_WORDS * KVC_PAGE_STRIDE);
    daemon_stop(d);
}
END_TEST

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

    ck_assert_int_eq(RUN("replay", trace_file(200), "--socket", daemon_socket(d), "--json",
                         "--verify", "--slices", "3", "--slice-bytes", "5000"),
                     0);
    root = json_of("out");
    expect_fields(root, names, sizeof(names) / sizeof(names[0]));
    ck_assert_int_eq(number(root, "requests"), 200);
    ck_assert_int_eq(number(root, "blocks"), 600);
    ck_assert_int_gt(number(root, "hit_blocks"), 200);
    ck_assert_int_eq(number(root, "bytes_loaded"), number(root, "hit_blocks") * 15000);
    ck_assert_int_eq(number(root, "verified_bytes"), number(root, "bytes_loaded"));
    ck_assert_int_eq(number(root, "bytes_saved"), number(root, "saved_blocks") * 15000);
    ck_assert_int_eq(number(root, "mismatches"), 0);
    ck_assert_int_eq(number(root, "errors"), 0);
    expect_time_adds_up(root, phases, sizeof(phases) / sizeof(phases[0]));
    json_decref(root);
    ck_assert_int_eq(count_leftovers(), 0);
    daemon_stop(d);
}
END_TEST

START_TEST(replay_with_a_private_daemon_leaves_nothing)
{
    ck_assert_int_eq(RUN("replay", trace_file(300), "--private", "--gpu-bytes", "2M",
                         "--host-bytes", "2M", "--workers", "3", "--demo", "--verify"),
                     0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "\ndemo: ok, 300 requests, "));
    ck_assert_ptr_nonnull(strstr(text_of("out"), ", 0 mismatches\n"));
    ck_assert_int_eq(count_leftovers(), 0);
    ck_assert_int_eq(RUN("replay", trace_file(3), "--private", "--gpu-bytes", "nonsense"), 1);
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
    ck_assert_int_eq(RUN("replay", path, "--private"), 1);
    ck_assert_ptr_nonnull(strstr(text_of("err"), "line 11: "));
    ck_assert_int_eq(RUN("replay", path, "--private", "--skip-bad", "--json"), 0);
    root = json_of("out");
    ck_assert_int_eq(number(root, "skipped_lines"), 1);
    ck_assert_int_eq(number(root, "requests"), 10);
    json_decref(root);
}
END_TEST

/* A replay that would take minutes: 3 MiB a request. */
#define LONG_REPLAY(...)                                                                           \
    start((const char *const[]){"replay", trace_file(many(30000)), "--verify", "--slice-bytes",    \
                                "131072", __VA_ARGS__, NULL})

/* Ctrl-C in the middle: workers end, the private daemon stops, the result so far is printed. */
START_TEST(replay_can_be_interrupted)
{
    pid_t pid = LONG_REPLAY("--private", "--demo");

    wait_for(count_leftovers() == 1, RUN_MS);
    usleep(100000); /* anywhere in the middle, or before it: both must end well */
    kill(pid, SIGINT);
    ck_assert_int_eq(end_of(pid), 1);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "demo: failed, "));
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

/* Nobody is left to take it down: its daemon ends, and then its folder goes. */
START_TEST(replay_that_is_killed_leaves_nothing)
{
    if (check_valgrind())
        TEST_SKIP("a replay long enough takes minutes under valgrind");
    pid_t pid = LONG_REPLAY("--private", "--demo");

    wait_for(count_leftovers() == 1, RUN_MS);
    usleep(300000); /* most likely in the middle */
    kill(pid, SIGKILL);
    ck_assert(WIFSIGNALED(proc_wait(pid, RUN_MS)));
    wait_for(count_leftovers() == 0, RUN_MS);
    while (waitpid(-1, NULL, 0) > 0)
        ;
}
END_TEST

START_TEST(bench_can_be_interrupted)
{
    pid_t pid = start((const char *const[]){"bench", "--rounds", "1000", NULL});

    wait_for(count_leftovers() == 1, RUN_MS);
    kill(pid, SIGINT);
    ck_assert_int_eq(end_of(pid), 1);
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

/* `kvcachectl replay --private | head`: its daemon and its folder are taken down all the same. */
START_TEST(replay_whose_output_nobody_reads)
{
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    close(ends[0]);
    ck_assert_int_eq(end_of(start_to(ends[1], (const char *const[]){"replay", trace_file(3),
                                                                    "--private", NULL})),
                     1);
    close(ends[1]);
    ck_assert_ptr_nonnull(strstr(text_of("err"), "Broken pipe"));
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
    temporary = folder;
    ck_assert_int_eq(
        RUN("replay", trace_file(3), "--private", "--gpu-bytes", "4M", "--host-bytes", "4M"), 0);
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
        ck_assert_int_eq(
            RUN("replay", trace_file(100), "--socket", daemon_socket(d), "--slice-bytes", "131072"),
            0);
    while ((evictions = STAT(sock, evictions)) <= 20);
    pid = LONG_REPLAY("--socket", daemon_socket(d), "--json");
    wait_for(STAT(sock, evictions) > evictions, RUN_MS);
    close(sock);
    daemon_restart_killed(d);
    sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    wait_for(STAT(sock, published_blocks) > 0, RUN_MS); /* the workers are back */
    close(sock);
    kill(pid, SIGINT);
    ck_assert_int_eq(end_of(pid), 1);
    root = json_of("out");
    ck_assert_int_eq(number(root, "mismatches"), 0);
    ck_assert_int_gt(number(root, "errors"), 0);
    /* Of the second daemon, which has not counted on from where the first one was. */
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        ck_assert_int_ge(number(root, figures[i]), 0);
    ck_assert_int_ge(number(json_object_get(root, "cpu_s"), "daemon"), 0);
    json_decref(root);
    daemon_stop(d);
}
END_TEST

START_TEST(a_quota_is_set_and_shown)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d);
    struct talk_worker w = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    json_t *root, *row;

    ck_assert_int_eq(RUN("--socket", socket, "--json", "quota", "--namespace", "a7a7", "--gpu",
                         "4M", "--leases", "9"),
                     0);
    root = json_of("out");
    ck_assert_int_eq(number(root, "namespaces"), 1);
    json_decref(root);
    ck_assert_int_eq(RUN("--socket", socket, "--json", "status"), 0);
    root = json_of("out");
    row = json_array_get(json_object_get(root, "namespaces"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(row, "gpu_quota")), "4194304");
    ck_assert_str_eq(json_string_value(json_object_get(row, "leases_quota")), "9");
    json_decref(root);
    ck_assert_int_eq(RUN("--socket", socket, "status"), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "of 4.0 MiB"));
    ck_assert_int_eq(RUN("--socket", socket, "namespaces"), 0);
    ck_assert_ptr_nonnull(strstr(text_of("out"), "gpu_share"));
    ck_assert_int_eq(RUN("--socket", socket, "quota", "--namespace", "a7", "--clear"), 0);
    ck_assert_str_eq(text_of("out"), "quota set for 1 namespace\n");

    ck_assert_int_eq(RUN("--socket", socket, "quota", "--namespace", "a7", "--gpu", "0"), 1);
    ck_assert_ptr_nonnull(strstr(text_of("err"), "gpu_bytes"));
    ck_assert_int_eq(RUN("--socket", socket, "quota", "--namespace", "a7", "--host=-1G"), 1);
    ck_assert_ptr_nonnull(strstr(text_of("err"), "host_bytes"));
    ck_assert_int_eq(RUN("--socket", socket, "quota", "--namespace", "a7", "--gpu", "17M"), 1);
    ck_assert_int_eq(RUN("--socket", socket, "quota", "--namespace", "b8", "--gpu", "1M"), 1);
    ck_assert_int_eq(RUN("--socket", socket, "quota", "--namespace", "a7", "--gpu", "much"), 2);
    ck_assert_int_eq(RUN("--socket", socket, "quota", "--namespace", "a7"), 2);
    ck_assert_int_eq(RUN("--socket", socket, "quota", "--gpu", "1M"), 2);
    talk_worker_close(&w);
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

    wait_for(STAT(sock, published_blocks) > 0, RUN_MS);
    flush.all = true;
    talk_free(talk_ask(sock, WIRE_FLUSH, &flush.base, &kvcache__flush_reply__descriptor));
    published = STAT(sock, published_blocks);
    wait_for(STAT(sock, published_blocks) > published + 50, RUN_MS);
    close(sock);
    kill(pid, SIGINT);
    ck_assert_int_eq(end_of(pid), 1);
    daemon_stop(d);
}
END_TEST

START_TEST(S15_replay_with_workers_killed)
{
    json_t *root;

    ck_assert_int_eq(RUN("replay", trace_file(many(20000)), "--private", "--gpu-bytes", "8M",
                         "--host-bytes", "16M", "--verify", "--json", "--kill-every",
                         check_valgrind() ? "150" : "10"),
                     0);
    root = json_of("out");
    ck_assert_int_eq(number(root, "mismatches"), 0);
    ck_assert_int_ge(number(root, "requests"), many(20000));
    ck_assert_int_gt(number(root, "killed_workers"), 0);
    json_decref(root);
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

CHECK_MAIN("ctl/commands", CHECK_LIFE_S, usage_is_exit_status_2, help_and_version,
           what_is_mistyped_is_refused_with_what_was_meant, every_command_has_its_help,
           without_a_daemon_it_fails_with_1, status_has_its_fields, S42_flush_pin_and_namespaces,
           a_quota_is_set_and_shown, F4_status_shows_what_does_not_close, S24_status_shows_extents,
           S15_status_shows_the_quarantine, ping_and_clients, replay_reports_what_it_did,
           replay_with_a_private_daemon_leaves_nothing, replay_of_bad_lines,
           replay_can_be_interrupted, replay_that_is_killed_leaves_nothing,
           bench_can_be_interrupted, replay_whose_output_nobody_reads,
           replay_in_a_folder_with_a_long_name, F6_replay_survives_its_daemon,
           S42_replay_goes_on_after_a_flush, S15_replay_with_workers_killed)
