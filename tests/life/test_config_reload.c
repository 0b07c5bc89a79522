/* Settings of a running daemon: SIGHUP, and kvcachectl's changes through the library. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

static kvc_client *connect_to(struct daemon *d)
{
    kvc_options options = {
        .socket = daemon_socket(d), .role = KVC_ROLE_OPERATOR, .connect_ms = wait_patient_ms(5000)};
    kvc_client *client;

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    return client;
}

static const char *write_config(const char *text)
{
    const char *path = tmpdir_file("conf");
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    return path;
}

/* Value and origin of a setting, as "value origin". */
static const char *setting(kvc_client *client, const char *name)
{
    static char text[512];
    struct admin_list list;

    ck_assert_int_eq(admin_list(client, "config", 0, 0, &list), KVC_OK);
    ck_assert(!list.more);
    for (size_t i = 0; i < list.n_rows; i++) {
        if (strcmp(list.rows[i].values[0], name) != 0)
            continue;
        snprintf(text, sizeof(text), "%s %s", list.rows[i].values[1], list.rows[i].values[2]);
        return text;
    }
    ck_abort_msg("no setting %s", name);
}

START_TEST(reload_takes_what_can_change)
{
    const char *path = write_config("lease-time = 1m\n");
    struct daemon *d = daemon_start((const char *const[]){"--config", path, NULL});
    kvc_client *client = connect_to(d);

    ck_assert_str_eq(setting(client, "lease-time"), "1m file");
    ck_assert_str_eq(setting(client, "gpu-bytes"), "16M argument");
    write_config("lease-time = 2m\nsocket-mode = 0600\n");
    daemon_log_expect(d, "change only with a restart: socket-mode");
    kill(daemon_pid(d), SIGHUP);
    wait_for(strcmp(setting(client, "lease-time"), "2m file") == 0, 2000);
    ck_assert_str_eq(setting(client, "socket-mode"), "0660 default");
    kvc_close(client);
    daemon_stop(d);
}
END_TEST

START_TEST(a_bad_file_changes_nothing)
{
    const char *path = write_config("lease-time = 1m\n");
    struct daemon *d = daemon_start((const char *const[]){"--config", path, NULL});
    kvc_client *client = connect_to(d);

    write_config("lease-time = 2m\nlaese-time = 3m\n");
    daemon_log_expect(d, "line 2: unknown option \"laese-time\"; did you mean \"lease-time\"?");
    kill(daemon_pid(d), SIGHUP);
    wait_for(daemon_log_count(d, "configuration not reloaded") == 1, 2000);
    ck_assert_str_eq(setting(client, "lease-time"), "1m file");
    kvc_close(client);
    daemon_stop(d);
}
END_TEST

START_TEST(settings_change_at_run_time)
{
    struct daemon *d = daemon_start(NULL);
    kvc_client *client = connect_to(d);

    ck_assert_int_eq(admin_config(client, "clean-high", "33.5%"), KVC_OK);
    ck_assert_str_eq(setting(client, "clean-high"), "33.5% runtime");
    ck_assert_int_eq(admin_config(client, "clean-low", "50%"), KVC_E_INVALID);
    ck_assert_ptr_nonnull(strstr(kvc_error(client), "clean-low is more than clean-high"));
    ck_assert_int_eq(admin_config(client, "gpu-bytes", "64M"), KVC_E_INVALID);
    ck_assert_ptr_nonnull(strstr(kvc_error(client), "only with a restart"));
    ck_assert_int_eq(admin_config(client, "nonsense", ""), KVC_E_INVALID);
    ck_assert_int_eq(admin_config(client, "log-level", "debug"), KVC_OK);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    kvc_close(client);
    daemon_stop(d);
}
END_TEST

START_TEST(others_may_look_and_not_change)
{
    struct daemon *d;
    pid_t pid;

    if (geteuid() != 0)
        TEST_SKIP("needs root for a second user");
    d = daemon_start((const char *const[]){"--socket-mode", "0666", NULL});
    ck_assert_int_eq(chmod(tmpdir_path(), 0711), 0);
    pid = proc_fork();
    if (pid == 0) {
        if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
            _exit(1);
        kvc_client *client = connect_to(d);
        bool right = admin_config(client, "lease-time", "5s") == KVC_E_DENIED;
        setting(client, "lease-time");
        kvc_close(client);
        _exit(right ? 0 : 1);
    }
    proc_wait_ok(pid, 5000);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("config/reload", CHECK_LIFE_S, reload_takes_what_can_change, a_bad_file_changes_nothing,
           settings_change_at_run_time, others_may_look_and_not_change)
