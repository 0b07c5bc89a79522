#include "tests/gpu/switch.h"

#include <fcntl.h>
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
    char path[256], whole[300];
    FILE *file;

    break_path(call, path);
    snprintf(whole, sizeof(whole), "%s.new", path);
    file = fopen(whole, "we");
    CHECK(file != NULL);
    fprintf(file, "%d %d %d %d ", (int)d->pid, skip, error, stays);
    CHECK(fclose(file) == 0 && rename(whole, path) == 0);
}

bool switch_is_set(const char *call)
{
    char name[64];

    snprintf(name, sizeof(name), "break-%s", call);
    return switch_is_on(name);
}
