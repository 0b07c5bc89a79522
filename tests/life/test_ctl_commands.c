/* kvcachectl's command lines: what is understood, what is refused, and commands with little to
 * show. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"

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
        ck_assert_msg(ctl_run(bad[i]) == 2, "row %zu", i);
        ck_assert_uint_gt(strlen(ctl_err()), 0);
        ck_assert_str_eq(ctl_out(), "");
    }
}
END_TEST

START_TEST(help_and_version)
{
    ck_assert_int_eq(CTL_RUN("--help"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "replay"));
    ck_assert_int_eq(CTL_RUN("replay", "--help"), 0);
    ck_assert_int_eq(CTL_RUN("status", "--help"), 0);
    ck_assert_int_eq(CTL_RUN("version"), 0);
    ck_assert_int_eq(strncmp(ctl_out(), "kvcachectl ", 11), 0);
    ck_assert_int_eq(CTL_RUN("--version"), 0);
    ck_assert_int_eq(CTL_RUN("version", "--json"), 0);
    json_decref(ctl_json());
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

        ck_assert_msg(ctl_run(args) == 2, "row %zu", i);
        ck_assert_msg(strstr(ctl_err(), mistyped[i][3]) != NULL, "row %zu: %s", i, ctl_err());
    }
    ck_assert_int_eq(CTL_RUN("status", "--frobnicate"), 2);
    ck_assert_ptr_null(strstr(ctl_err(), "did you mean"));
    ck_assert_int_eq(CTL_RUN("status", "-h"), 2);
    ck_assert_str_eq(ctl_err(), "kvcachectl: status has no option '-h' (--help lists them)\n");
    ck_assert_int_eq(CTL_RUN("help"), 2); // no "top"
    ck_assert_ptr_null(strstr(ctl_err(), "did you mean"));
}
END_TEST

// What only the daemon can judge: in words of the command line, and each name once.
START_TEST(a_value_that_the_daemon_refuses_is_named_as_it_was_given)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d);
    const struct {
        const char *words[6], *said;
    } cases[] = {
        {{"config", "set", "lease", "7s"},
         "unknown option \"lease\"; did you mean \"lease-time\"?"},
        {{"config", "set", "lease-time", "7"},
         "lease-time: \"7\" is not digits and one of ms, s, m, h"},
        {{"log-level", "loud"}, "log-level: \"loud\" is none of error, warning, info, debug"},
        {{"blocks", "--prefix", "zz"}, "--prefix: not up to 32 hex digits"},
        {{"events", "--after", "9999"}, "--after: nothing of this number has happened yet"},
        {{"quota", "--namespace", "a7", "--gpu", "-1"},
         "--gpu: a quota is more than 0; clear ends one"},
    };
    struct talk_worker w = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    char said[256];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *args[9] = {"--socket", socket};

        for (size_t j = 0; j < 6 && cases[i].words[j] != NULL; j++)
            args[2 + j] = cases[i].words[j];
        snprintf(said, sizeof(said), "kvcachectl: %s\n", cases[i].said);
        ck_assert_msg(ctl_run(args) == 1, "row %zu", i);
        ck_assert_str_eq(ctl_err(), said);
    }
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(every_command_has_its_help)
{
    static char help[8192];
    int n = 0;

    ck_assert_int_eq(CTL_RUN("--help"), 0);
    snprintf(help, sizeof(help), "%s", ctl_out());
    for (const char *line = help; line; line = strchr(line + 1, '\n')) {
        char name[32], usage[64];

        if (strncmp(line, "\n  ", 3) != 0 || sscanf(line + 3, "%31[a-z-] ", name) != 1)
            continue;
        n++;
        snprintf(usage, sizeof(usage), "usage: kvcachectl %s ", name);
        ck_assert_int_eq(CTL_RUN(name, "--help"), 0);
        ck_assert_int_eq(strncmp(ctl_out(), usage, strlen(usage)), 0);
        ck_assert_ptr_nonnull(strstr(ctl_out(), "--json"));
        ck_assert_str_eq(ctl_err(), "");
        ck_assert_int_eq(CTL_RUN(name, "--help", "--json"), 0);
        ck_assert_ptr_nonnull(strstr(ctl_out(), "--json prints "));
        ck_assert_ptr_nonnull(strstr(ctl_out(), "\n  "));
        ck_assert_str_eq(ctl_err(), "");
    }
    ck_assert_int_ge(n, 16);
}
END_TEST

START_TEST(without_a_daemon_it_fails_with_1)
{
    static const char *const commands[] = {"status", "ping", "clients"};
    const char *path = tmpdir_file("absent");
    char path_of_200[201] = "";

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        ck_assert_int_eq(CTL_RUN(commands[i], "--socket", path), 1);
        ck_assert_ptr_nonnull(strstr(ctl_err(), path));
        ck_assert_ptr_nonnull(strstr(ctl_err(), "No such file or directory"));
        ck_assert_ptr_nonnull(strstr(ctl_err(), "hint: is kvcached running"));
    }
    ck_assert_int_eq(CTL_RUN("--socket", path, "replay", "-"), 1);
    // A path that no socket can have leaves room for the reason.
    memset(path_of_200, 'x', sizeof(path_of_200) - 1);
    ck_assert_int_eq(CTL_RUN("ping", "--socket", path_of_200), 1);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "File name too long"));
}
END_TEST

START_TEST(of_a_daemon_that_is_stopped_it_says_so)
{
    struct daemon *d = daemon_start(NULL);

    daemon_freeze(d);
    ck_assert_int_eq(CTL_RUN("ping", "--socket", daemon_socket(d)), 1);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "did not answer in time"));
    ck_assert_ptr_nonnull(strstr(ctl_err(), "hint: the daemon is there"));
    daemon_thaw(d);
    daemon_stop(d);
}
END_TEST

START_TEST(ping_and_clients)
{
    struct daemon *d = daemon_start(NULL);
    json_t *root;

    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "ping"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "answered in"));
    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "--json", "clients"), 0);
    root = ctl_json();
    ck_assert(json_is_array(root));
    ck_assert_uint_eq(json_array_size(root), 1); /* itself */
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "clients"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "kvcachectl"));
    daemon_stop(d);
}
END_TEST

START_TEST(S42_flush_pin_and_namespaces)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d);
    char digest[2 * KVC_NAMESPACE_BYTES + 1], start[9], key[2 * KVC_KEY_BYTES + 1];
    char file[512];
    struct talk_worker w = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    ProtobufCBinaryData keys;
    json_t *root;
    FILE *to;

    snprintf(file, sizeof(file), "%.500s", tmpdir_file("keys"));
    to = fopen(file, "we");
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

    ck_assert_int_eq(CTL_RUN("--socket", socket, "--json", "namespaces"), 0);
    root = ctl_json();
    ck_assert_uint_eq(json_array_size(root), 1);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(root, 0), "namespace")),
                     digest);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "--json", "pin", "--namespace", start, "--seconds",
                             "60", "--keys", file),
                     0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "pinned"), 8);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "status"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "pinned blocks 8"));
    ck_assert_int_eq(CTL_RUN("--socket", socket, "unpin", "--namespace", digest, key), 0);
    ck_assert_str_eq(ctl_out(), "unpinned 1 block\n");
    ck_assert_int_eq(CTL_RUN("--socket", socket, "unpin", "--namespace", digest), 0);
    ck_assert_str_eq(ctl_out(), "unpinned 7 blocks\n");
    ck_assert_int_eq(CTL_RUN("--socket", socket, "flush", "--namespace", start, key), 0);
    ck_assert_str_eq(ctl_out(), "flushed 1 block\n");
    ck_assert_int_eq(CTL_RUN("--socket", socket, "flush", "--all"), 0);
    ck_assert_str_eq(ctl_out(), "flushed 7 blocks\n");

    /* All of these keys are gone; a namespace without keys is no request to pin it. */
    ck_assert_int_eq(CTL_RUN("--socket", socket, "pin", "--namespace", digest, "--keys", file), 1);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "none of these keys is stored"));
    ck_assert_int_eq(CTL_RUN("--socket", socket, "pin", "--namespace", digest), 2);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "--keys FILE"));

    ck_assert_int_eq(CTL_RUN("--socket", socket, "flush", "--namespace", "unknown"), 1);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "flush"), 2);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "flush", "--all", "--namespace", digest), 2);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "flush", "--all", key), 2);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "pin", "--namespace", digest, "nokey"), 2);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "pin", "--namespace", digest, "--seconds", "-1"),
                     2);
    ck_assert_int_eq(
        CTL_RUN("--socket", socket, "pin", "--namespace", digest, "--seconds", "604801"), 2);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "pin", "--all"), 2);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "pin", "--help"), 0);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(a_quota_is_set_and_shown)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d);
    struct talk_worker w = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    json_t *root, *row;

    ck_assert_int_eq(CTL_RUN("--socket", socket, "--json", "quota", "--namespace", "a7a7", "--gpu",
                             "4M", "--leases", "9"),
                     0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "namespaces"), 1);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "--json", "status"), 0);
    root = ctl_json();
    row = json_array_get(json_object_get(root, "namespaces"), 0);
    ck_assert_int_eq(ctl_number(row, "gpu_quota"), 4194304);
    ck_assert_int_eq(ctl_number(row, "leases_quota"), 9);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "status"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), " 4.0M"));
    ck_assert_int_eq(CTL_RUN("--socket", socket, "namespaces"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "SHARE"));
    ck_assert_int_eq(CTL_RUN("--socket", socket, "quota", "--namespace", "a7", "--clear"), 0);
    ck_assert_str_eq(ctl_out(), "quota set for 1 namespace\n");

    ck_assert_int_eq(CTL_RUN("--socket", socket, "quota", "--namespace", "a7", "--gpu", "0"), 1);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "--gpu:"));
    ck_assert_int_eq(CTL_RUN("--socket", socket, "quota", "--namespace", "a7", "--host=-1G"), 1);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "--host:"));
    ck_assert_int_eq(CTL_RUN("--socket", socket, "quota", "--namespace", "a7", "--gpu", "17M"), 1);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "quota", "--namespace", "b8", "--gpu", "1M"), 1);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "quota", "--namespace", "a7", "--gpu", "much"), 2);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "quota", "--namespace", "a7"), 2);
    ck_assert_int_eq(CTL_RUN("--socket", socket, "quota", "--gpu", "1M"), 2);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("ctl/commands", CHECK_LIFE_S, usage_is_exit_status_2, help_and_version,
           what_is_mistyped_is_refused_with_what_was_meant, every_command_has_its_help,
           a_value_that_the_daemon_refuses_is_named_as_it_was_given,
           without_a_daemon_it_fails_with_1, of_a_daemon_that_is_stopped_it_says_so,
           ping_and_clients, S42_flush_pin_and_namespaces, a_quota_is_set_and_shown)
