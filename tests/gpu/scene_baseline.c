#include "tests/gpu/scene.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int scene_fds(const struct scene_daemon *d)
{
    char path[64];
    DIR *list;
    int n = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)d->pid);
    list = opendir(path);
    CHECK(list != NULL);
    while (readdir(list) != NULL)
        n++;
    closedir(list);
    return n;
}

static int count_mappings(const struct scene_daemon *d, bool files)
{
    char path[64], line[512];
    FILE *maps;
    int n = 0;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)d->pid);
    maps = fopen(path, "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        n += !files || strchr(line, '/') != NULL;
    fclose(maps);
    return n;
}

int scene_mappings(const struct scene_daemon *d)
{
    return count_mappings(d, false);
}

int scene_files(const struct scene_daemon *d)
{
    return count_mappings(d, true);
}

static struct {
    int ask[2], answer[2];
    pid_t pid;
} meter;

static void run_meter(void)
{
    struct cuda_driver driver;
    char why[CUDA_WHY_MAX], byte;
    void *context;

    if (cuda_driver_open(&driver, why) != KVC_OK || driver.context_retain(&context, 0) != 0 ||
        driver.context_push(context) != 0)
        _exit(1);
    while (read(meter.ask[0], &byte, 1) == 1) {
        size_t figures[2] = {0, 0};

        if (driver.memory_info(&figures[0], &figures[1]) != 0 ||
            write(meter.answer[1], &figures[0], sizeof(figures[0])) != sizeof(figures[0]))
            break;
    }
    _exit(0);
}

uint64_t scene_free_memory(void)
{
    size_t free = 0;

    if (meter.pid == 0) {
        CHECK(pipe2(meter.ask, O_CLOEXEC) == 0 && pipe2(meter.answer, O_CLOEXEC) == 0);
        meter.pid = fork();
        CHECK(meter.pid >= 0);
        if (meter.pid == 0) {
            close(meter.ask[1]);
            run_meter();
        }
        close(meter.answer[1]);
    }
    CHECK(write(meter.ask[1], "x", 1) == 1);
    if (read(meter.answer[0], &free, sizeof(free)) != sizeof(free))
        scene_waive("no GPU whose memory can be asked for");
    return free;
}

struct scene_baseline scene_baseline(const struct scene_daemon *d)
{
    struct scene_baseline now = {.fds = scene_fds(d),
                                 .mappings = scene_mappings(d),
                                 .files = scene_files(d),
                                 .free_memory = scene_free_memory()};
    char path[64];
    FILE *maps;
    size_t n;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)d->pid);
    maps = fopen(path, "r");
    CHECK(maps != NULL);
    n = fread(now.maps, 1, sizeof(now.maps) - 1, maps);
    now.maps[n] = '\0';
    fclose(maps);
    return now;
}

// The lines of mappings that are there now and were not before.
static void show_new_mappings(const struct scene_baseline *before, const struct scene_baseline *now)
{
    for (const char *line = now->maps, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char text[512];

        snprintf(text, sizeof(text), "%.*s", (int)(end - line), line);
        if (strstr(before->maps, text) == NULL)
            fprintf(stderr, "new: %s\n", text);
    }
}

// The driver's own memory comes and goes by some KiB; arenas of threads are a few mappings each.
#define MEMORY_SLACK   (4u << 20) // less than the least that a worker brings
#define MAPPINGS_SLACK 48

void scene_returns_to(const struct scene_daemon *d, const struct scene_baseline *before)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    struct scene_baseline now;

    for (;;) {
        now = scene_baseline(d);
        if (now.fds <= before->fds && now.files <= before->files + 2 &&
            now.mappings <= before->mappings + MAPPINGS_SLACK &&
            now.free_memory + MEMORY_SLACK >= before->free_memory)
            return;
        if (scene_now_us() > until_us)
            break;
        usleep(5000);
    }
    fprintf(stderr,
            "descriptors %d after %d, mappings %d after %d, of files %d after %d, free memory %llu "
            "after %llu\n",
            now.fds, before->fds, now.mappings, before->mappings, now.files, before->files,
            (unsigned long long)now.free_memory, (unsigned long long)before->free_memory);
    show_new_mappings(before, &now);
    scene_show_log(d);
    exit(1);
}
