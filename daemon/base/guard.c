#include "daemon/base/guard.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>

// Of this thread: what a signal handler can be told in no other way.
static __thread struct guard_range *volatile guarded;
static __thread volatile uint32_t n_guarded;

static struct guard_range *find(const uint8_t *at)
{
    for (uint32_t i = 0; guarded && i < n_guarded; i++)
        if (at >= guarded[i].start && at < guarded[i].start + guarded[i].bytes)
            return &guarded[i];
    return NULL;
}

// mmap is a bare system call, which a handler may make.
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    struct guard_range *range = find(info->si_addr);
    int error = errno;

    (void)context;
    if (range) {
        atomic_store(&range->lost, true);
        if (mmap(range->start, range->bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == range->start) {
            errno = error;
            return;
        }
    }
    // The access is repeated when this returns, and then ends the process.
    signal(number, SIG_DFL);
}

int guard_install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};

    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) < 0 ? -errno : 0;
}

void guard_enter(struct guard_range *ranges, uint32_t n)
{
    assert(!guarded);
    n_guarded = n;
    guarded = ranges;
}

void guard_leave(void)
{
    guarded = NULL;
}

bool guard_is_lost(const struct guard_range *ranges, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load(&ranges[i].lost))
            return true;
    return false;
}
