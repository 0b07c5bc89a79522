#include "client/ctl/private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/ctl/interrupt.h"
#include "client/kvcache.h"

#define START_MS 10000
#define STOP_MS  10000

#define PORT_FIRST 10000
#define PORT_END   32000
#define PORT_TRIES 100

static void pause_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* The daemon that was built with this program, if there is one beside it. */
static void find_program(char *path, size_t size)
{
    ssize_t len = readlink("/proc/self/exe", path, size - 1);
    if (len > 0) {
        path[len] = '\0';
        char *slash = strrchr(path, '/');
        size_t room = slash ? size - (size_t)(slash + 1 - path) : 0;
        if (slash && snprintf(slash + 1, room, "kvcached") < (int)room && access(path, X_OK) == 0)
            return;
    }
    snprintf(path, size, "kvcached");
}

static void run_daemon(const struct private_daemon *daemon, pid_t parent, const char *const *args)
{
    /* Dies with its maker, even if that happened before the request: by a signal that it feels. */
    interrupt_restore();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    setpgid(0, 0);
    int log = open(daemon->log, O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0600);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
        _exit(1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* As the service has it. */
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0);
    execvp(args[0], (char *const *)args);
    dprintf(2, "%s: %s\n", args[0], strerror(errno));
    _exit(127);
}

static bool answers(const struct private_daemon *daemon)
{
    kvc_client *client;
    kvc_options options = {
        .socket = daemon->socket, .name = "start", .role = KVC_ROLE_OPERATOR, .connect_ms = 1000};
    if (kvc_connect(&options, &client) != KVC_OK)
        return false;
    kvc_close(client);
    return true;
}

static void copy_log(const struct private_daemon *daemon)
{
    FILE *log = fopen(daemon->log, "re");
    char line[512];
    while (log && fgets(line, sizeof(line), log))
        fprintf(stderr, "kvcached: %s", line);
    if (log)
        fclose(log);
}

static void remove_folder(const struct private_daemon *daemon)
{
    char lock[128];
    snprintf(lock, sizeof(lock), "%s.lock", daemon->socket);
    unlink(lock);
    unlink(daemon->socket);
    unlink(daemon->log);
    rmdir(daemon->folder);
}

/*
 * A process that outlives the maker, whatever ends that one, and by no more than the daemon: it
 * waits for the end of the pipe, then for the daemon's, which gets its own signal.
 */
static void run_janitor(const struct private_daemon *daemon, int pipe_end, int pidfd)
{
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    char byte;
    ssize_t n;

    setsid();
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    /* Nobody who reads what the maker wrote waits for this process. */
    if (dup2(pipe_end, 0) < 0 || dup2(pidfd, 1) < 0)
        _exit(1);
    close_range(2, ~0u, 0);
    ended.fd = 1;
    do
        n = read(0, &byte, 1);
    while (n < 0 && errno == EINTR);
    if (poll(&ended, 1, STOP_MS) == 0) {
        syscall(SYS_pidfd_send_signal, 1, SIGKILL, NULL, 0);
        poll(&ended, 1, STOP_MS);
    }
    remove_folder(daemon);
    _exit(0);
}

/* Without one the folder of a maker that is killed stays, which is no reason not to start. */
static void start_janitor(struct private_daemon *daemon)
{
    int ends[2], pidfd = (int)syscall(SYS_pidfd_open, daemon->pid, 0);

    if (pidfd < 0)
        return;
    if (pipe2(ends, O_CLOEXEC) == 0) {
        daemon->janitor = fork();
        if (daemon->janitor == 0) {
            close(ends[1]);
            run_janitor(daemon, ends[0], pidfd);
        }
        close(ends[0]);
        daemon->alive = ends[1];
        if (daemon->janitor < 0) {
            close(ends[1]);
            daemon->janitor = 0;
        }
    }
    close(pidfd);
}

static void stop_janitor(struct private_daemon *daemon)
{
    if (daemon->janitor == 0)
        return;
    kill(daemon->janitor, SIGKILL);
    waitpid(daemon->janitor, NULL, 0);
    close(daemon->alive);
    daemon->janitor = 0;
}

static bool is_free(int port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                        .sin_port = htons((uint16_t)port)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    bool free;

    if (sock < 0)
        return false;
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    free = bind(sock, (const struct sockaddr *)&address, sizeof(address)) == 0;
    close(sock);
    return free;
}

/* None that the kernel gives to connections: it may before the daemon has it. */
static int choose_port(void)
{
    for (int i = 0; i < PORT_TRIES; i++) {
        uint16_t random;
        int port;

        if (getrandom(&random, sizeof(random), 0) != sizeof(random))
            return -1;
        port = PORT_FIRST + random % (PORT_END - PORT_FIRST);
        if (is_free(port))
            return port;
    }
    return -1;
}

bool private_peers_choose(const char *directory, struct private_peers peers[2])
{
    int ports[2] = {choose_port(), choose_port()};

    for (int i = 0; i < 2; i++) {
        peers[i].directory = directory;
        snprintf(peers[i].listen, sizeof(peers[i].listen), "127.0.0.1:%d", ports[i]);
        snprintf(peers[i].list, sizeof(peers[i].list), "127.0.0.1:%d", ports[1 - i]);
    }
    return ports[0] > 0 && ports[1] > 0 && ports[0] != ports[1];
}

bool private_start(const char *device, const char *gpu_bytes, const char *host_bytes,
                   const struct private_peers *peers, struct private_daemon *daemon, char *error,
                   size_t error_size)
{
    memset(daemon, 0, sizeof(*daemon));
    const char *base = getenv("TMPDIR");
    if (!base || !*base)
        base = "/tmp";
    if (snprintf(daemon->folder, sizeof(daemon->folder), "%s/kvcache-XXXXXX", base) >=
        (int)sizeof(daemon->folder)) {
        snprintf(error, error_size, "TMPDIR is too long for a socket in it");
        return false;
    }
    if (!mkdtemp(daemon->folder)) {
        snprintf(error, error_size, "%s: %s", daemon->folder, strerror(errno));
        return false;
    }
    snprintf(daemon->socket, sizeof(daemon->socket), "%s/socket", daemon->folder);
    snprintf(daemon->log, sizeof(daemon->log), "%s/log", daemon->folder);

    char program[4096];
    find_program(program, sizeof(program));
    const char *args[20];
    size_t n = 0;
    args[n++] = program;
    args[n++] = "--socket";
    args[n++] = daemon->socket;
    args[n++] = "--device";
    args[n++] = device ? device : "auto";
    args[n++] = "--metrics";
    args[n++] = "off";
    if (gpu_bytes) {
        args[n++] = "--gpu-bytes";
        args[n++] = gpu_bytes;
    }
    if (host_bytes) {
        args[n++] = "--host-bytes";
        args[n++] = host_bytes;
    }
    if (peers) {
        args[n++] = "--peer-listen";
        args[n++] = peers->listen;
        args[n++] = peers->directory ? "--directory" : "--peers";
        args[n++] = peers->directory ? peers->directory : peers->list;
    }
    args[n] = NULL;

    pid_t parent = getpid();
    daemon->pid = fork();
    if (daemon->pid == 0)
        run_daemon(daemon, parent, args);
    if (daemon->pid < 0) {
        snprintf(error, error_size, "fork: %s", strerror(errno));
        rmdir(daemon->folder);
        return false;
    }
    start_janitor(daemon);
    for (int waited = 0; waited < START_MS; waited += 5) {
        if (answers(daemon))
            return true;
        if (waitpid(daemon->pid, NULL, WNOHANG) == daemon->pid) {
            daemon->pid = 0;
            break;
        }
        pause_ms(5);
    }
    snprintf(error, error_size, "the daemon did not start:");
    copy_log(daemon);
    stop_janitor(daemon);
    if (daemon->pid) {
        kill(daemon->pid, SIGKILL);
        waitpid(daemon->pid, NULL, 0);
    }
    remove_folder(daemon);
    return false;
}

/* Of the peers that the daemon asks; as `kvcachectl peers` shows them. */
static bool has_open_link(kvc_client *client)
{
    enum { WAY = 1, STATE = 2 };
    struct admin_list list;

    if (admin_list(client, "peers", 0, 0, &list) != KVC_OK)
        return false;
    for (size_t r = 0; r < list.n_rows; r++)
        if (list.rows[r].n_values > STATE && strcmp(list.rows[r].values[WAY], "serves") == 0 &&
            strcmp(list.rows[r].values[STATE], "open") == 0)
            return true;
    return false;
}

static bool is_populated(kvc_client *client)
{
    struct admin_stats stats;

    if (admin_stats(client, &stats) != KVC_OK)
        return false;
    if (stats.lost_extents > 0) /* there is no more of it */
        return true;
    for (uint32_t i = 0; i < ADMIN_TIERS; i++)
        if (stats.tiers[i].populated_bytes < stats.tiers[i].bytes)
            return false;
    return true;
}

/* false: it has not come in the time that a start may take. */
static bool wait_for(const struct private_daemon *daemon, bool (*has_come)(kvc_client *client))
{
    kvc_client *client;
    kvc_options options = {.socket = daemon->socket,
                           .name = "start",
                           .role = KVC_ROLE_OPERATOR,
                           .connect_ms = START_MS};
    bool came = false;

    if (kvc_connect(&options, &client) != KVC_OK)
        return false;
    for (int waited = 0; waited < START_MS && !came && !interrupt_came(); waited += 5) {
        came = has_come(client);
        if (!came)
            pause_ms(5);
    }
    kvc_close(client);
    return came;
}

bool private_wait_linked(const struct private_daemon *daemon)
{
    return wait_for(daemon, has_open_link);
}

bool private_wait_populated(const struct private_daemon *daemon)
{
    return wait_for(daemon, is_populated);
}

bool private_stop(struct private_daemon *daemon)
{
    if (!daemon->folder[0])
        return true;
    int status = -1;
    bool ended = false;
    stop_janitor(daemon);
    kill(daemon->pid, SIGTERM);
    for (int waited = 0; waited < STOP_MS && !ended; waited += 5) {
        ended = waitpid(daemon->pid, &status, WNOHANG) == daemon->pid;
        if (!ended)
            pause_ms(5);
    }
    if (!ended) {
        kill(daemon->pid, SIGKILL);
        waitpid(daemon->pid, &status, 0);
    }
    bool ok = ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ok)
        copy_log(daemon);
    remove_folder(daemon);
    memset(daemon, 0, sizeof(*daemon));
    return ok;
}

void private_kill(struct private_daemon *daemon)
{
    if (!daemon->folder[0])
        return;
    stop_janitor(daemon);
    kill(daemon->pid, SIGKILL);
    waitpid(daemon->pid, NULL, 0);
    remove_folder(daemon);
    memset(daemon, 0, sizeof(*daemon));
}
