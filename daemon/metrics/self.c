#include "daemon/metrics/self.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STAT_STARTTIME 22 /* proc(5), as are the names of /proc/self/status */
#define KIB            1024u

static bool read_file(const char *path, char *ret, size_t size)
{
    FILE *file = fopen(path, "re");
    size_t n;

    if (file == NULL)
        return false;
    n = fread(ret, 1, size - 1, file);
    ret[n] = '\0';
    fclose(file);
    return n > 0;
}

static double seconds(clockid_t clock)
{
    struct timespec now = {0};

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void self_open(struct self *self)
{
    const long ticks = sysconf(_SC_CLK_TCK);
    char stat[1024];
    uint64_t start;
    const char *at;

    *self = (struct self){0};
    if (ticks <= 0 || !read_file("/proc/self/stat", stat, sizeof(stat)))
        return;
    /* The second field is a name in brackets, which may have any character. */
    at = strrchr(stat, ')');
    for (int field = 2; at != NULL && field < STAT_STARTTIME; field++)
        at = strchr(at + 1, ' ');
    if (at != NULL && sscanf(at, "%" SCNu64, &start) == 1)
        self->started_s =
            seconds(CLOCK_REALTIME) - seconds(CLOCK_BOOTTIME) + (double)start / (double)ticks;
}

/* A line of /proc/self/status. */
static bool find(const char *status, const char *name, uint64_t *ret)
{
    const char *at = strstr(status, name);

    return at != NULL && sscanf(at + strlen(name), ":%" SCNu64, ret) == 1;
}

uint64_t self_count_descriptors(uint64_t slots)
{
    uint64_t n = 0;

    for (uint64_t fd = 0; fd < slots; fd++)
        n += fcntl((int)fd, F_GETFD) >= 0;
    return n;
}

/*
 * Linux 6.2 and later know the number; /proc/self/fd would take milliseconds to be listed. On older
 * ones the first slots are counted, and if there are more nothing is said.
 */
static bool count_descriptors(const char *status, uint64_t *ret)
{
    struct stat folder;
    uint64_t slots;

    if (stat("/proc/self/fd", &folder) == 0 && folder.st_size > 0) {
        *ret = (uint64_t)folder.st_size;
        return true;
    }
    if (!find(status, "\nFDSize", &slots) || slots > SELF_SLOTS_MAX)
        return false;
    *ret = self_count_descriptors(slots);
    return true;
}

static void write_memory(const char *status, struct text *t)
{
    uint64_t kib;

    if (find(status, "\nVmRSS", &kib))
        text_gauge(t, "process_resident_memory_bytes", kib * KIB,
                   "Resident memory size in bytes, what is mapped of the tiers included.");
    if (find(status, "\nVmSize", &kib))
        text_gauge(t, "process_virtual_memory_bytes", kib * KIB, "Virtual memory size in bytes.");
    if (find(status, "\nRssAnon", &kib))
        text_gauge(t, "kvcached_private_memory_bytes", kib * KIB,
                   "Resident memory that is not shared: what the daemon needs beside its tiers.");
}

void self_write(const struct self *self, uint64_t cpu_us, struct text *t)
{
    char status[4096];
    struct rlimit limit;
    uint64_t n;

    if (self->started_s > 0) {
        text_metric(t, "process_start_time_seconds", "gauge",
                    "Start time of the process since unix epoch in seconds.");
        text_seconds(t, "process_start_time_seconds", "", (uint64_t)(self->started_s * 1e6));
    }
    text_metric(t, "process_cpu_seconds_total", "counter",
                "Total user and system CPU time spent in seconds.");
    text_seconds(t, "process_cpu_seconds_total", "", cpu_us);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        text_gauge(t, "process_max_fds", limit.rlim_cur,
                   "Maximum number of open file descriptors.");
    if (!read_file("/proc/self/status", status, sizeof(status)))
        return;
    if (count_descriptors(status, &n))
        text_gauge(t, "process_open_fds", n, "Number of open file descriptors.");
    write_memory(status, t);
}
