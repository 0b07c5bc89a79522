#include "tests/lib/hosts.h"

#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/lib/tmpdir.h"

static bool run(const char *format, ...) __attribute__((format(printf, 1, 2)));

static bool run(const char *format, ...)
{
    char command[512];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(command, sizeof(command) - 32, format, args);
    va_end(args);
    snprintf(command + n, sizeof(command) - (size_t)n, " >/dev/null 2>&1");
    return system(command) == 0;
}

static bool join(const struct hosts *h)
{
    // For the moment that they are on this host.
    const char *unique = tmpdir_name();

    if (!run("ip link add kva%s type veth peer name kvb%s", unique, unique))
        return false;
    for (int i = 0; i < 2; i++)
        if (!run("ip link set kv%c%s netns %s", 'a' + i, unique, h->names[i]) ||
            !run("ip -n %s link set kv%c%s name veth", h->names[i], 'a' + i, unique) ||
            !run("ip -n %s addr add %s/24 dev veth", h->names[i], h->addresses[i]) ||
            !run("ip -n %s link set veth up", h->names[i]) ||
            !run("ip -n %s link set lo up", h->names[i]))
            return false;
    return true;
}

bool hosts_open(struct hosts *h)
{
    *h = (struct hosts){.addresses = {"10.213.77.1", "10.213.77.2"}, .own = -1};
    if (geteuid() != 0)
        return false;
    // Of tests that failed.
    run("for n in $(ip netns list | sed -n 's/^\\(kvctest-[0-9]*-[^ ]*\\).*/\\1/p'); do "
        "p=${n#kvctest-}; "
        "kill -0 ${p%%%%-*} || ip netns del $n; done");
    for (int i = 0; i < 2; i++)
        snprintf(h->names[i], sizeof(h->names[i]), "kvctest-%d-%s-%c", (int)getpid(), tmpdir_name(),
                 'a' + i);
    h->own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (h->own >= 0 && run("ip netns add %s", h->names[0]) && run("ip netns add %s", h->names[1]) &&
        join(h))
        return true;
    hosts_close(h);
    return false;
}

void hosts_close(struct hosts *h)
{
    for (int i = 0; i < 2; i++)
        run("ip netns del %s", h->names[i]);
    if (h->own >= 0)
        close(h->own);
    h->own = -1;
}

void hosts_enter(const struct hosts *h, int host)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/run/netns/%s", h->names[host]);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(setns(fd, CLONE_NEWNET), 0);
    close(fd);
    // UCX reads the devices of a host in /sys, which shows those of whoever mounted it.
    ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
    ck_assert_int_eq(mount("", "/", "none", MS_SLAVE | MS_REC, NULL), 0);
    umount2("/sys", MNT_DETACH);
    ck_assert_int_eq(mount("sysfs", "/sys", "sysfs", 0, NULL), 0);
}

void hosts_leave(const struct hosts *h)
{
    ck_assert_int_eq(setns(h->own, CLONE_NEWNET), 0);
}

void hosts_link(const struct hosts *h, int host, bool up)
{
    ck_assert(run("ip -n %s link set veth %s", h->names[host], up ? "up" : "down"));
}

bool hosts_worsen(const struct hosts *h, const char *how)
{
    return run("ip netns exec %s tc qdisc add dev veth root netem %s", h->names[0], how);
}
