#include "tests/gpu/switch.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void path_of(const char *name, char path[256])
{
    const char *folder = getenv("KVC_FAKE_CUDA");

    if (folder == NULL)
        scene_waive("this driver does not fail on demand");
    snprintf(path, 256, "%s/%s", folder, name);
}

void switch_check(void)
{
    char path[256];

    path_of("", path);
}

void switch_off(const char *name)
{
    char path[256];

    path_of(name, path);
    unlink(path);
}

void switch_on(const char *name)
{
    char path[256];
    int fd;

    path_of(name, path);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    close(fd);
}

bool switch_is_on(const char *name)
{
    char path[256];

    path_of(name, path);
    return access(path, F_OK) == 0;
}

static void break_path(const char *call, char path[256])
{
    char name[64];

    snprintf(name, sizeof(name), "break-%s", call);
    path_of(name, path);
}

void switch_break(const struct scene_daemon *d, const char *call, int skip, int error, bool stays)
{
    switch_break_in(d->pid, call, skip, error, stays);
}

void switch_break_in(pid_t pid, const char *call, int skip, int error, bool stays)
{
    char path[256], whole[300];
    FILE *file;

    break_path(call, path);
    snprintf(whole, sizeof(whole), "%s.new", path);
    file = fopen(whole, "we");
    CHECK(file != NULL);
    fprintf(file, "%d %d %d %d ", (int)pid, skip, error, stays);
    CHECK(fclose(file) == 0 && rename(whole, path) == 0);
}

bool switch_is_set(const char *call)
{
    char name[64];

    snprintf(name, sizeof(name), "break-%s", call);
    return switch_is_on(name);
}

static void trap_path(char path[128])
{
    snprintf(path, 128, "%s/trap-%d", scene_folder(), (int)getpid());
}

void switch_daemon_with_trap(struct scene_daemon *d, const char *const args[])
{
    char library[600], trap[128];
    char *end;

    snprintf(library, sizeof(library), "%s", scene_program());
    end = strrchr(library, '/');
    CHECK(end != NULL);
    strcpy(end, "/tests/gpu/libtrap.so");
    trap_path(trap);
    if (getenv("KVC_FAKE_CUDA") == NULL) {
        CHECK(access(library, R_OK) == 0);
        setenv("LD_PRELOAD", library, 1);
        setenv("KVC_TRAP", trap, 1);
    }
    scene_daemon_start(d, args);
    unsetenv("LD_PRELOAD");
    unsetenv("KVC_TRAP");
}

void switch_trap(const struct scene_daemon *d, int ordinal)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    char path[128], whole[140];
    FILE *file;

    if (getenv("KVC_FAKE_CUDA") != NULL) {
        switch_break(d, "launch", 0, CUDA_ILLEGAL_ADDRESS, true);
        return;
    }
    trap_path(path);
    snprintf(whole, sizeof(whole), "%s.new", path);
    file = fopen(whole, "we");
    CHECK(file != NULL);
    fprintf(file, "%d\n", ordinal);
    CHECK(fclose(file) == 0 && rename(whole, path) == 0);
    while (access(path, F_OK) == 0) { // until it has been there
        CHECK(scene_now_us() < until_us);
        usleep(2000);
    }
}
