#include "daemon/setup.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/tier/copier.h"
#include "daemon/tier/mover.h"

/* Both kinds of copies in flight, and two threads for what nobody should have to wait for. */
#define POOL_THREADS (MOVER_BATCHES + COPIER_LANES + 2u)
/* The shortest that Linux gives. */
#define LOOP_SLICE_NS 100000u
#ifndef SCHED_FLAG_RESET_ON_FORK /* linux/sched.h, which glibc's sched.h does not go with */
#define SCHED_FLAG_RESET_ON_FORK 0x01
#endif
/* ... and packing and unpacking for peers. */
#define PEER_THREADS 2u

/* Each connection is two descriptors, so the soft limit, made for other programs, is too low. */
void setup_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        log_warn("main", "cannot raise the limit of descriptors error=\"%m\"");
}

/*
 * The loop's work comes in short pieces that somebody waits for. Linux 6.12 and later let a thread
 * that asks for short time slices go before those that have longer ones as soon as it wakes up,
 * the copying threads of this process among them; it gets no more time for that. Older ones take no
 * notice.
 */
void setup_loop_slice(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attributes = {.size = sizeof(attributes)};
    const long self = 0;

    if (syscall(SYS_sched_getattr, self, &attributes, sizeof(attributes), 0) < 0 ||
        attributes.policy != SCHED_OTHER)
        return;
    attributes.size = sizeof(attributes);
    attributes.flags |= SCHED_FLAG_RESET_ON_FORK; /* threads that it starts are as usual */
    attributes.runtime_ns = LOOP_SLICE_NS;
    if (syscall(SYS_sched_setattr, self, &attributes, 0) < 0)
        log_debug("main", "no short time slices for the loop error=\"%m\"");
}

/* The pool's size is read from the environment when its first work comes. */
void setup_pool(void)
{
    char threads[12];

    snprintf(threads, sizeof(threads), "%u", POOL_THREADS + PEER_THREADS);
    setenv("UV_THREADPOOL_SIZE", threads, 0);
}

void setup_mask_signals(int how)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(how, &set, NULL);
}

/*
 * Larger at each start as long as nobody sets the clock back, and another one all the same: the
 * lower bits are random. There is room for 2^20 numbers a millisecond, and it fits 62 bits until
 * the year 2109. "server.clock" has the clock stand still.
 */
uint64_t setup_boot_epoch(void)
{
    struct timespec now = {.tv_sec = 1};
    uint32_t random = 0;

    if (!fault_fires("server.clock"))
        clock_gettime(CLOCK_REALTIME, &now);
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
        random = (uint32_t)getpid();
    return ((uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u) << 20 |
           (random & 0xfffffu);
}
