#include "tests/lib/daemon.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "tests/lib/check_main.h"
#include "tests/lib/gpu.h"
#include "tests/lib/log_file.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define ARGS_MAX  32
#define PATH_SIZE 108
#define START_MS  5000
#define STOP_MS   8000

static int passed[DAEMON_PASSED_MAX], n_passed;
static const char *passed_names;

struct daemon {
    pid_t pid;
    char socket[PATH_SIZE];
    bool passed; // the socket is the test's
    char switches[PATH_SIZE];
    struct log_file log;
    struct fault_page *page;
    const char *argv[ARGS_MAX];
};

void daemon_program(char *ret_path, size_t size, const char *name)
{
    const char *build = getenv("KVC_TEST_BUILD");
    char self[512];
    ssize_t n;
    char *at;

    if (!build) {
        // Run by hand: <build>/tests/<kind>/<program> is this one.
        n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        ck_assert_int_gt(n, 0);
        self[n] = '\0';
        at = strstr(self, "/tests/");
        ck_assert_ptr_nonnull(at);
        *at = '\0';
        build = self;
    }
    ck_assert_int_lt(snprintf(ret_path, size, "%s/%s", build, name), (int)size);
}

static const char *program(void)
{
    static char path[512];

    daemon_program(path, sizeof(path), "kvcached");
    return path;
}

static void set_arguments(struct daemon *d, const char *const extra[])
{
    const char *const usual[] = {
        program(),     "--socket", d->socket,      "--device", gpu_is_used() ? "cuda" : "host",
        "--gpu-bytes", "16M",      "--host-bytes", "32M",      "--metrics",
        "off"};
    size_t n = sizeof(usual) / sizeof(usual[0]);

    memcpy(d->argv, usual, sizeof(usual));
    for (size_t i = 0; extra && extra[i]; i++) {
        ck_assert_uint_lt(n, ARGS_MAX - 1);
        d->argv[n++] = extra[i];
    }
    d->argv[n] = NULL;
}

// With the pid that it has already. They may be in each other's places, so they step aside first.
static void pass_sockets(void)
{
    char pid[16], n[16];

    for (int i = 0; i < n_passed; i++)
        passed[i] = fcntl(passed[i], F_DUPFD_CLOEXEC, 3 + DAEMON_PASSED_MAX);
    for (int i = 0; i < n_passed; i++)
        if (dup2(passed[i], 3 + i) < 0)
            _exit(127);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    snprintf(n, sizeof(n), "%d", n_passed);
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", n, 1);
    if (passed_names != NULL)
        setenv("LISTEN_FDNAMES", passed_names, 1);
}

// In the child: nothing of the test's but standard input (none), output and error (the log).
static void exec_daemon(const struct daemon *d)
{
    int in = open("/dev/null", O_RDONLY);
    int out = open(d->log.path, O_WRONLY | O_CREAT | O_APPEND, 0600);

    if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(127);
    if (n_passed > 0)
        pass_sockets();
    if (close_range(3 + (unsigned)n_passed, ~0U, 0) < 0)
        _exit(127);
    setenv("KVC_DEBUG_SWITCHES", d->switches, 1);
    unsetenv("JOURNAL_STREAM");
    unsetenv("KVCACHE_SOCKET");
    execv(d->argv[0], (char *const *)d->argv);
    _exit(127);
}

static void spawn(struct daemon *d)
{
    d->pid = proc_fork();
    if (d->pid == 0)
        exec_daemon(d);
}

static void use_passed_socket(struct daemon *d)
{
    struct sockaddr_un address = {0};
    socklen_t len = sizeof(address);

    ck_assert_int_eq(getsockname(passed[0], (struct sockaddr *)&address, &len), 0);
    ck_assert_uint_lt(strlen(address.sun_path), sizeof(d->socket));
    strcpy(d->socket, address.sun_path);
    d->passed = true;
}

static struct daemon *prepare(const char *const extra_args[])
{
    static unsigned number;
    struct daemon *d = calloc(1, sizeof(*d));
    char name[16];

    ck_assert_ptr_nonnull(d);
    number++;
    snprintf(name, sizeof(name), "s%u", number);
    strcpy(d->socket, tmpdir_file(name));
    if (n_passed > 0)
        use_passed_socket(d);
    snprintf(name, sizeof(name), "switches%u", number);
    strcpy(d->switches, tmpdir_file(name));
    snprintf(name, sizeof(name), "kvcached%u.log", number);
    log_file_init(&d->log, tmpdir_file(name));
    ck_assert_int_eq(fault_page_map(d->switches, &d->page), 0);
    set_arguments(d, extra_args);
    return d;
}

static void forget(struct daemon *d)
{
    fault_page_unmap(d->page);
    free(d);
}

static bool accepts(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool ok;

    ck_assert_int_ge(fd, 0);
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    ok = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    close(fd);
    return ok;
}

void daemon_pass_sockets(const int socks[], int n, const char *names)
{
    ck_assert_int_le(n, DAEMON_PASSED_MAX);
    for (int i = 0; i < n; i++)
        passed[i] = socks[i];
    n_passed = n;
    passed_names = names;
}

void daemon_pass_socket(int sock)
{
    daemon_pass_sockets(&sock, sock >= 0, NULL);
}

static bool ended(const struct daemon *d)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)d->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

static void wait_ready(struct daemon *d)
{
    bool ready = false;

    (void)wait_until((ready = accepts(d->socket)) || ended(d), START_MS);
    if (!ready)
        log_file_print(&d->log);
    ck_assert_msg(ready, "%s does not accept connections", d->argv[0]);
}

struct daemon *daemon_start(const char *const extra_args[])
{
    struct daemon *d = prepare(extra_args);

    spawn(d);
    wait_ready(d);
    return d;
}

int daemon_run(const char *const extra_args[], char *ret_output, size_t size)
{
    struct daemon *d = prepare(extra_args);
    int status;

    spawn(d);
    status = proc_wait(d->pid, START_MS);
    log_file_read(&d->log, ret_output, size);
    forget(d);
    ck_assert_msg(WIFEXITED(status), "kvcached died of signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

const char *daemon_last_words(void)
{
    // valgrind has descriptors of its own, and so has the driver of a GPU.
    return check_valgrind() || gpu_is_used() ? "exit live_allocations=0 live_bytes=0 fds="
                                             : "exit live_allocations=0 live_bytes=0 fds=3";
}

// How it ended: with nothing alive, which its last line says, and without its files.
static void expect_nothing_alive(const struct daemon *d)
{
    char line[128];

    log_file_expect_last(&d->log, daemon_last_words());
    ck_assert_msg((access(d->socket, F_OK) == 0) == d->passed, "kvcached %s its socket file",
                  d->passed ? "removed" : "left");
    snprintf(line, sizeof(line), "%s.lock", d->socket);
    ck_assert_msg(access(line, F_OK) < 0, "kvcached left its lock file");
}

static void judge_refusal(struct daemon *d, const char *output)
{
    int status = proc_wait(d->pid, START_MS);

    ck_assert_msg(WIFEXITED(status), "kvcached died of signal %d: %s", WTERMSIG(status), output);
    ck_assert_msg(WEXITSTATUS(status) == 1, "kvcached exited with status %d", WEXITSTATUS(status));
    ck_assert_msg(log_file_count(&d->log, "cannot start") == 1, "no reason, or several: %s",
                  output);
    expect_nothing_alive(d);
}

struct daemon *daemon_start_armed(const char *const extra_args[], const char *site, uint32_t skip,
                                  uint32_t count, uint64_t *ret_fired, char *ret_output,
                                  size_t size)
{
    struct daemon *d = prepare(extra_args);
    bool ready = false;

    fault_page_arm(d->page, site, skip, count);
    spawn(d);
    wait_for((ready = accepts(d->socket)) || ended(d), START_MS);
    log_file_read(&d->log, ret_output, size);
    if (!ready)
        judge_refusal(d, ret_output);
    *ret_fired = fault_page_fired(d->page, site);
    if (ready)
        return d;
    forget(d);
    return NULL;
}

const char *daemon_socket(const struct daemon *d)
{
    return d->socket;
}

pid_t daemon_pid(const struct daemon *d)
{
    return d->pid;
}

void daemon_log_expect(struct daemon *d, const char *text)
{
    log_file_announce(&d->log, text, true);
}

void daemon_log_allow(struct daemon *d, const char *text)
{
    log_file_announce(&d->log, text, false);
}

int daemon_log_count(const struct daemon *d, const char *text)
{
    return log_file_count(&d->log, text);
}

void daemon_stop(struct daemon *d)
{
    int status;

    kill(d->pid, SIGTERM);
    if (!wait_until(ended(d), STOP_MS)) {
        log_file_print(&d->log);
        ck_abort_msg("kvcached still runs %d ms after SIGTERM", STOP_MS);
    }
    status = proc_wait(d->pid, STOP_MS);
    log_file_judge(&d->log);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        log_file_print(&d->log);
    ck_assert_msg(WIFEXITED(status), "kvcached died of signal %d", WTERMSIG(status));
    ck_assert_msg(WEXITSTATUS(status) == 0, "kvcached exited with status %d", WEXITSTATUS(status));
    expect_nothing_alive(d);
    forget(d);
}

void daemon_kill(struct daemon *d)
{
    proc_kill(d->pid);
    log_file_judge(&d->log);
    forget(d);
}

void daemon_end_killed(struct daemon *d)
{
    proc_kill(d->pid);
    d->pid = 0;
}

void daemon_restart_killed(struct daemon *d)
{
    if (d->pid > 0)
        proc_kill(d->pid);
    spawn(d);
    wait_ready(d);
}

void daemon_fault_arm(struct daemon *d, const char *site, uint32_t skip, uint32_t count)
{
    fault_page_arm(d->page, site, skip, count);
}

void daemon_fault_random(struct daemon *d, uint64_t seed, uint32_t per_mille)
{
    fault_page_random(d->page, seed, per_mille);
}

void daemon_fault_off(struct daemon *d, const char *pattern)
{
    fault_page_off(d->page, pattern);
}

uint64_t daemon_fault_passed(struct daemon *d, const char *site)
{
    return fault_page_passed(d->page, site);
}

uint64_t daemon_fault_fired(struct daemon *d, const char *site)
{
    return fault_page_fired(d->page, site);
}

void daemon_clock_advance(struct daemon *d, uint64_t us)
{
    // Its first calls of a GPU's driver would seem to hang.
    if (gpu_is_used())
        wait_for(log_file_count(&d->log, "copies by the daemon gpu=") > 0, START_MS);
    fault_page_move_clock_us(d->page, us);
}

int daemon_fds(const struct daemon *d)
{
    return proc_count_fds(d->pid);
}

void daemon_limit_fds(const struct daemon *d, int more)
{
    const rlim_t fds = (rlim_t)(daemon_fds(d) + more); // once: it may be closing some

    ck_assert_int_eq(prlimit(d->pid, RLIMIT_NOFILE, &(struct rlimit){fds, fds}, NULL), 0);
}

void daemon_freeze(struct daemon *d)
{
    siginfo_t info;

    ck_assert_int_eq(kill(d->pid, SIGSTOP), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)d->pid, &info, WSTOPPED | WNOWAIT), 0);
}

void daemon_thaw(struct daemon *d)
{
    ck_assert_int_eq(kill(d->pid, SIGCONT), 0);
}
