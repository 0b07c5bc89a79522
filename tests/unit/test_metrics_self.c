/* Figures of this process, as metrics. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/fd.h"
#include "daemon/metrics/self.h"
#include "tests/lib/check_main.h"

#define MORE    100
#define CPU_US  1500000u
#define START_S 3600.0 /* no test runs for longer */

static struct text text;

static double value(const char *name)
{
    char line[96];
    const char *at;

    snprintf(line, sizeof(line), "\n%s ", name);
    at = strstr(text.bytes, line);
    ck_assert_msg(at != NULL, "no %s", name);
    return strtod(at + strlen(line), NULL);
}

static void write_all(const struct self *self)
{
    text_clear(&text);
    self_write(self, CPU_US, &text);
}

START_TEST(all_figures_are_there_and_those_of_this_process)
{
    const double now = (double)time(NULL);
    struct rlimit limit;
    struct self self;
    double open_fds;
    int fds[MORE];

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    self_open(&self);
    write_all(&self);
    ck_assert(value("process_start_time_seconds") > now - START_S);
    ck_assert(value("process_start_time_seconds") < now + 2);
    ck_assert(value("process_cpu_seconds_total") == 1.5);
    ck_assert(value("process_max_fds") == (double)limit.rlim_cur);
    ck_assert(value("kvcached_private_memory_bytes") > 0);
    ck_assert(value("process_resident_memory_bytes") >= value("kvcached_private_memory_bytes"));
    ck_assert(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
    open_fds = value("process_open_fds");
    for (int i = 0; i < MORE; i++)
        fds[i] = fd_dup(STDERR_FILENO);
    write_all(&self);
    ck_assert(value("process_open_fds") == open_fds + MORE);
    for (int i = 0; i < MORE; i++)
        fd_close(fds[i]);
    text_free(&text);
}
END_TEST

START_TEST(descriptors_are_counted_where_linux_does_not_tell)
{
    ck_assert_uint_eq(self_count_descriptors(SELF_SLOTS_MAX), (uint64_t)fd_count_open());
    ck_assert_uint_eq(self_count_descriptors(0), 0);
}
END_TEST

CHECK_MAIN("unit/metrics_self", CHECK_UNIT_S, all_figures_are_there_and_those_of_this_process,
           descriptors_are_counted_where_linux_does_not_tell)
