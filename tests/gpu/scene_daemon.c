#include "tests/gpu/scene.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGS_MAX 32

static void exec_daemon(const struct scene_daemon *d, const char *const args[])
{
    const char *argv[ARGS_MAX] = {scene_program(), "--socket",    d->socket, "--device",
                                  "cuda",          "--gpu-bytes", "256M",    "--host-bytes",
                                  "256M",          "--metrics",   "off"};
    size_t n = 11;
    int out = open(d->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    for (size_t i = 0; args != NULL && args[i] != NULL && n < ARGS_MAX - 1; i++)
        argv[n++] = args[i];
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(127);
    (void)close_range(3, ~0U, 0);
    execv(scene_program(), (char *const *)argv);
    _exit(127);
}

static void name_daemon(struct scene_daemon *d)
{
    static int number;

    number++;
    snprintf(d->socket, sizeof(d->socket), "%s/%d-%d.sock", scene_folder(), (int)getpid(), number);
    snprintf(d->log, sizeof(d->log), "%s/%d-%d.log", scene_folder(), (int)getpid(), number);
}

static void launch(struct scene_daemon *d, const char *const args[])
{
    name_daemon(d);
    d->pid = fork();
    CHECK(d->pid >= 0);
    if (d->pid == 0)
        exec_daemon(d, args);
}

static void read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : 0;

    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

void scene_log(const struct scene_daemon *d, char *text, size_t size)
{
    read_file(d->log, text, size);
}

void scene_show_log(const struct scene_daemon *d)
{
    char text[4096];

    read_file(d->log, text, sizeof(text));
    fprintf(stderr, "%s", text);
}

void scene_daemon_start(struct scene_daemon *d, const char *const args[])
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    char text[8192];

    launch(d, args);
    for (;;) {
        read_file(d->log, text, sizeof(text));
        if (strstr(text, "ready version") != NULL)
            return;
        if (strstr(text, "device cuda: no CUDA driver") != NULL ||
            strstr(text, "device cuda: the CUDA driver finds no GPU") != NULL)
            scene_waive("no CUDA driver, or no GPU");
        if (waitpid(d->pid, NULL, WNOHANG) == d->pid || scene_now_us() > until_us) {
            scene_show_log(d);
            exit(1);
        }
        usleep(5000);
    }
}

bool scene_daemon_try(struct scene_daemon *d, const char *const args[])
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    char text[8192];
    int status;

    launch(d, args);
    for (;;) {
        read_file(d->log, text, sizeof(text));
        if (strstr(text, "ready version") != NULL)
            return true;
        if (waitpid(d->pid, &status, WNOHANG) == d->pid)
            break;
        CHECK(scene_now_us() < until_us);
        usleep(2000);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    return false;
}

int scene_daemon_run(const char *const args[], char *output, size_t size)
{
    struct scene_daemon d;
    int status;

    launch(&d, args);
    CHECK(waitpid(d.pid, &status, 0) == d.pid);
    read_file(d.log, output, size);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void scene_daemon_stop(struct scene_daemon *d)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    int status = 0;

    CHECK(kill(d->pid, SIGTERM) == 0);
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        CHECK(scene_now_us() < until_us);
        usleep(2000);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        scene_show_log(d);
        exit(1);
    }
}

void scene_populated(const struct scene_daemon *d)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    char text[8192];

    for (;;) {
        read_file(d->log, text, sizeof(text));
        if (strstr(text, "memory is populated") != NULL)
            return;
        CHECK(scene_now_us() < until_us);
        usleep(10000);
    }
}

struct admin_stats scene_stats(const struct scene_daemon *d)
{
    const kvc_options options = {.socket = d->socket, .role = KVC_ROLE_OPERATOR};
    struct admin_stats stats;
    kvc_client *client;

    CHECK(kvc_connect(&options, &client) == KVC_OK);
    CHECK(admin_stats(client, &stats) == KVC_OK);
    kvc_close(client);
    return stats;
}

void scene_settled(const struct scene_daemon *d)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;

    for (;;) {
        const struct admin_stats stats = scene_stats(d);

        if (stats.filling_slots + stats.quarantined_slots + stats.open_loads + stats.leases == 0)
            return;
        if (scene_now_us() > until_us) {
            fprintf(stderr, "filling %llu, in quarantine %llu, loads %llu, leases %llu\n",
                    (unsigned long long)stats.filling_slots,
                    (unsigned long long)stats.quarantined_slots,
                    (unsigned long long)stats.open_loads, (unsigned long long)stats.leases);
            scene_show_log(d);
            exit(1);
        }
        usleep(10000);
    }
}
