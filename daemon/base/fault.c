#include "daemon/base/fault.h"

#ifdef KVC_DEBUG

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAULT_SITES    192
#define FAULT_NAME_MAX 48

enum { SITE_FREE, SITE_NAMING, SITE_KNOWN };

struct site {
    _Atomic uint32_t state;
    char name[FAULT_NAME_MAX];
    _Atomic uint32_t skip;
    _Atomic uint32_t count;
    _Atomic uint64_t passed;
    _Atomic uint64_t fired;
};

// Zero is the resting state of all of it, so a fresh file is a valid page.
struct switches {
    _Atomic uint64_t clock_offset_us;
    _Atomic uint64_t random_state;
    _Atomic uint32_t random_per_mille;
    struct site sites[FAULT_SITES];
};

static struct switches own_switches;
static struct switches *switches = &own_switches;

// Finds the site or makes it known. The table only grows, so no lock is needed.
static struct site *site_get(const char *name)
{
    assert(strlen(name) < FAULT_NAME_MAX);
    for (size_t i = 0; i < FAULT_SITES; i++) {
        struct site *s = &switches->sites[i];
        uint32_t free_state = SITE_FREE;

        if (atomic_load(&s->state) == SITE_FREE &&
            atomic_compare_exchange_strong(&s->state, &free_state, SITE_NAMING)) {
            strcpy(s->name, name);
            atomic_store(&s->state, SITE_KNOWN);
            return s;
        }
        while (atomic_load(&s->state) == SITE_NAMING)
            sched_yield();
        if (strcmp(s->name, name) == 0)
            return s;
    }
    assert(!"more fault sites than FAULT_SITES");
    return NULL;
}

static bool take_one(_Atomic uint32_t *counter)
{
    uint32_t n = atomic_load(counter);

    while (n > 0)
        if (atomic_compare_exchange_weak(counter, &n, n - 1))
            return true;
    return false;
}

static bool random_fires(void)
{
    uint32_t per_mille = atomic_load(&switches->random_per_mille);
    uint64_t x;

    if (per_mille == 0)
        return false;
    // splitmix64: a counter is its whole state, so threads need no lock.
    x = atomic_fetch_add(&switches->random_state, 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
    return x % 1000 < per_mille;
}

bool fault_fires(const char *name)
{
    struct site *s = site_get(name);
    bool fires;

    atomic_fetch_add(&s->passed, 1);
    if (atomic_load(&s->count) == 0)
        fires = random_fires();
    else
        fires = !take_one(&s->skip) && take_one(&s->count);
    if (fires)
        atomic_fetch_add(&s->fired, 1);
    return fires;
}

void fault_arm(const char *name, uint32_t skip, uint32_t count)
{
    struct site *s = site_get(name);

    atomic_store(&s->count, 0);
    atomic_store(&s->skip, skip);
    atomic_store(&s->passed, 0);
    atomic_store(&s->fired, 0);
    atomic_store(&s->count, count);
}

void fault_random(uint64_t seed, uint32_t per_mille)
{
    atomic_store(&switches->random_state, seed);
    atomic_store(&switches->random_per_mille, per_mille);
}

void fault_off(const char *pattern)
{
    size_t length = strlen(pattern);
    bool prefix = length > 0 && pattern[length - 1] == '*';

    if (strcmp(pattern, "*") == 0)
        atomic_store(&switches->random_per_mille, 0);
    for (size_t i = 0; i < FAULT_SITES; i++) {
        struct site *s = &switches->sites[i];

        if (atomic_load(&s->state) != SITE_KNOWN)
            continue;
        if (prefix ? strncmp(s->name, pattern, length - 1) == 0 : strcmp(s->name, pattern) == 0)
            atomic_store(&s->count, 0);
    }
}

uint64_t fault_passed(const char *name)
{
    return atomic_load(&site_get(name)->passed);
}

uint64_t fault_fired(const char *name)
{
    return atomic_load(&site_get(name)->fired);
}

int fault_attach(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat st;
    void *page;
    int error = 0;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 ||
        ((size_t)st.st_size < sizeof(*switches) && ftruncate(fd, sizeof(*switches)) < 0)) {
        error = -errno;
        goto close_fd;
    }
    page = mmap(NULL, sizeof(*switches), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        error = -errno;
        goto close_fd;
    }
    if (switches != &own_switches)
        munmap(switches, sizeof(*switches));
    switches = page;
close_fd:
    close(fd);
    return error;
}

uint64_t fault_clock_offset_us(void)
{
    return atomic_load_explicit(&switches->clock_offset_us, memory_order_relaxed);
}

void fault_clock_move_us(uint64_t us)
{
    atomic_fetch_add(&switches->clock_offset_us, us);
}

#else

// ISO C wants a translation unit to declare something.
typedef int fault_is_off_in_release_builds;

#endif
