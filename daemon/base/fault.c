#include "daemon/base/fault.h"

#ifdef KVC_DEBUG

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAULT_SITES    192
#define FAULT_NAME_MAX 48
#define NAME_WORDS     (FAULT_NAME_MAX / sizeof(uint64_t))

struct site {
    _Atomic uint64_t hash; // of the name, which makes the site its own; 0: nobody's
    _Atomic uint64_t name[NAME_WORDS];
    _Atomic uint32_t named;
    _Atomic uint32_t skip;
    _Atomic uint32_t count;
    _Atomic uint64_t passed;
    _Atomic uint64_t fired;
    _Atomic uint32_t armed;    // ever
    _Atomic uint32_t is_there; // passed, ever
};

// Zero is the resting state of all of it, so a fresh file is a valid page.
struct fault_page {
    _Atomic uint64_t clock_offset_us;
    _Atomic uint64_t random_state;
    _Atomic uint32_t random_per_mille;
    struct site sites[FAULT_SITES];
};

static struct fault_page own_page;
static struct fault_page *current = &own_page;

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325; // FNV-1a

    for (; *name != 0; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3;
    return hash != 0 ? hash : 1;
}

static const char *name_of(const struct site *s)
{
    return (const char *)s->name;
}

// Whoever comes to a site without a name gives it the same one, while others may read it.
static void give_name(struct site *s, const char *name)
{
    uint64_t words[NAME_WORDS] = {0};

    memcpy(words, name, strlen(name));
    for (size_t i = 0; i < NAME_WORDS; i++)
        atomic_store_explicit(&s->name[i], words[i], memory_order_relaxed);
    atomic_store(&s->named, 1);
}

static bool has_name(const struct site *s, const char *name)
{
    uint64_t words[NAME_WORDS];

    for (size_t i = 0; i < NAME_WORDS; i++)
        words[i] = atomic_load_explicit(&s->name[i], memory_order_relaxed);
    return strcmp((const char *)words, name) == 0;
}

// Finds the site or makes it known. The table only grows, so no lock is needed; nor would one do:
// who is killed with it leaves the page to those that come.
static struct site *site_get(struct fault_page *page, const char *name)
{
    const uint64_t hash = hash_of(name);

    assert(strlen(name) < FAULT_NAME_MAX);
    for (size_t i = 0; i < FAULT_SITES; i++) {
        struct site *s = &page->sites[i];
        uint64_t found = atomic_load(&s->hash);

        if (found == 0 && atomic_compare_exchange_strong(&s->hash, &found, hash))
            found = hash;
        if (found != hash)
            continue;
        if (!atomic_load(&s->named))
            give_name(s, name);
        assert(has_name(s, name));
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

static bool random_fires(struct fault_page *page)
{
    uint32_t per_mille = atomic_load(&page->random_per_mille);
    uint64_t x;

    if (per_mille == 0)
        return false;
    // splitmix64: a counter is its whole state, so threads need no lock.
    x = atomic_fetch_add(&page->random_state, 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
    return x % 1000 < per_mille;
}

bool fault_fires(const char *name)
{
    struct site *s = site_get(current, name);
    bool fires;

    atomic_fetch_add(&s->passed, 1);
    atomic_store(&s->is_there, 1);
    if (atomic_load(&s->count) == 0)
        fires = random_fires(current);
    else
        fires = !take_one(&s->skip) && take_one(&s->count);
    if (fires)
        atomic_fetch_add(&s->fired, 1);
    return fires;
}

void fault_page_arm(struct fault_page *page, const char *name, uint32_t skip, uint32_t count)
{
    struct site *s = site_get(page, name);

    atomic_store(&s->count, 0);
    atomic_store(&s->skip, skip);
    atomic_store(&s->passed, 0);
    atomic_store(&s->fired, 0);
    atomic_store(&s->count, count);
    atomic_store(&s->armed, 1);
}

void fault_page_random(struct fault_page *page, uint64_t seed, uint32_t per_mille)
{
    atomic_store(&page->random_state, seed);
    atomic_store(&page->random_per_mille, per_mille);
}

void fault_page_off(struct fault_page *page, const char *pattern)
{
    size_t length = strlen(pattern);
    bool prefix = length > 0 && pattern[length - 1] == '*';

    if (strcmp(pattern, "*") == 0)
        atomic_store(&page->random_per_mille, 0);
    for (size_t i = 0; i < FAULT_SITES; i++) {
        struct site *s = &page->sites[i];

        if (!atomic_load(&s->named))
            continue;
        if (prefix ? strncmp(name_of(s), pattern, length - 1) == 0
                   : strcmp(name_of(s), pattern) == 0)
            atomic_store(&s->count, 0);
    }
}

uint64_t fault_page_passed(struct fault_page *page, const char *name)
{
    return atomic_load(&site_get(page, name)->passed);
}

uint64_t fault_page_fired(struct fault_page *page, const char *name)
{
    return atomic_load(&site_get(page, name)->fired);
}

void fault_page_move_clock_us(struct fault_page *page, uint64_t us)
{
    atomic_fetch_add(&page->clock_offset_us, us);
}

int fault_page_map(const char *path, struct fault_page **ret)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat st;
    void *page;
    int error = 0;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 ||
        ((size_t)st.st_size < sizeof(*current) && ftruncate(fd, sizeof(*current)) < 0)) {
        error = -errno;
        goto close_fd;
    }
    page = mmap(NULL, sizeof(*current), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        error = -errno;
    else
        *ret = page;
close_fd:
    close(fd);
    return error;
}

void fault_page_unmap(struct fault_page *page)
{
    assert(page != current);
    if (page)
        munmap(page, sizeof(*page));
}

void fault_page_use(struct fault_page *page)
{
    current = page;
}

void fault_arm(const char *site, uint32_t skip, uint32_t count)
{
    fault_page_arm(current, site, skip, count);
}

void fault_random(uint64_t seed, uint32_t per_mille)
{
    fault_page_random(current, seed, per_mille);
}

void fault_off(const char *pattern)
{
    fault_page_off(current, pattern);
}

const char *fault_unknown(void)
{
    for (size_t i = 0; i < FAULT_SITES; i++) {
        struct site *s = &current->sites[i];

        if (atomic_load(&s->named) && atomic_load(&s->armed) && !atomic_load(&s->is_there))
            return name_of(s);
    }
    return NULL;
}

uint64_t fault_passed(const char *site)
{
    return fault_page_passed(current, site);
}

uint64_t fault_fired(const char *site)
{
    return fault_page_fired(current, site);
}

uint64_t fault_clock_offset_us(void)
{
    return atomic_load_explicit(&current->clock_offset_us, memory_order_relaxed);
}

void fault_clock_move_us(uint64_t us)
{
    fault_page_move_clock_us(current, us);
}

#else

// ISO C wants a translation unit to declare something.
typedef int fault_is_off_in_release_builds;

#endif
