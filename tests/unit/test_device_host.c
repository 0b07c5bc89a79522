#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/device/device.h"
#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"

#define EXTENT   (2u << 20)
#define EXTENTS  3u
#define SOMEBODY 65534

static uint32_t begun; /* what copies leave to settle: nothing */

static struct device_slab make_slab(uint32_t n_extents)
{
    struct device_slab slab;

    ck_assert_int_eq(device_host.slab_create(NULL, EXTENT, n_extents, &slab), KVC_OK);
    for (uint32_t i = 0; i < n_extents; i++)
        ck_assert_int_eq(device_host.extent_create(&slab, i), KVC_OK);
    return slab;
}

static int export(struct device_slab *slab, uint32_t extent, bool readonly)
{
    int fd = -1;

    ck_assert_int_eq(device_host.extent_export(slab, extent, readonly, &fd), KVC_OK);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static bool all_are(const uint8_t *bytes, uint64_t n, uint8_t value)
{
    for (uint64_t i = 0; i < n; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* Pages of the slab that are there, of those in [offset, offset + bytes). */
static uint64_t resident_pages(const struct device_slab *slab, uint64_t offset, uint64_t bytes)
{
    static unsigned char pages[EXTENT * EXTENTS / 4096];
    uint64_t n = 0;

    ck_assert_int_eq(mincore(slab->base + offset, bytes, pages), 0);
    for (uint64_t i = 0; i < bytes / 4096; i++)
        n += pages[i] & 1;
    return n;
}

START_TEST(extents_are_private_and_sealed)
{
    struct device_slab slab = make_slab(1);
    int fd = export(&slab, 0, false);
    struct stat st;

    ck_assert_int_ge(fd, 3);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(st.st_size, EXTENT);
    ck_assert_int_eq(ftruncate(fd, 4096), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(fd, 2 * EXTENT), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    ck_assert_int_eq(errno, EPERM);
    fd_close(fd);
    device_host.slab_destroy(&slab);
}
END_TEST

START_TEST(extents_lie_one_behind_the_other)
{
    struct device_slab slab = make_slab(EXTENTS);

    for (uint32_t i = 0; i < EXTENTS; i++) {
        int fd = export(&slab, i, false);
        char byte;

        slab.base[(uint64_t)i * EXTENT + 5] = (uint8_t)(i + 1);
        ck_assert_int_eq(pread(fd, &byte, 1, 5), 1);
        ck_assert_int_eq(byte, (char)(i + 1));
        fd_close(fd);
    }
    device_host.slab_destroy(&slab);
}
END_TEST

START_TEST(export_shares_the_bytes_both_ways)
{
    struct device_slab slab = make_slab(1);
    int fd = export(&slab, 0, false);
    char *theirs = NULL;

    ck_assert_int_eq(fd_map(fd, EXTENT, PROT_READ | PROT_WRITE, MAP_SHARED, 0, (void **)&theirs),
                     0);
    strcpy(theirs + 100, "from the worker");
    ck_assert_str_eq((char *)slab.base + 100, "from the worker");
    strcpy((char *)slab.base + 200, "from the daemon");
    ck_assert_str_eq(theirs + 200, "from the daemon");
    fd_unmap(theirs, EXTENT);
    fd_close(fd);
    device_host.slab_destroy(&slab);
}
END_TEST

START_TEST(readonly_export_cannot_be_mapped_for_writing)
{
    struct device_slab slab = make_slab(1);
    int fd = export(&slab, 0, true);
    void *addr = NULL;

    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    ck_assert_int_eq(fd_map(fd, EXTENT, PROT_READ | PROT_WRITE, MAP_SHARED, 0, &addr), -EACCES);
    ck_assert_int_eq(write(fd, "x", 1), -1);
    ck_assert_int_eq(fd_map(fd, EXTENT, PROT_READ, MAP_SHARED, 0, &addr), 0);
    ck_assert_int_eq(mprotect(addr, EXTENT, PROT_READ | PROT_WRITE), -1);
    slab.base[7] = 42;
    ck_assert_int_eq(((uint8_t *)addr)[7], 42);
    fd_unmap(addr, EXTENT);
    fd_close(fd);
    device_host.slab_destroy(&slab);
}
END_TEST

/* What another uid gets when it opens again the descriptor that it holds: 0 or an errno. */
static int reopen_as_somebody(int fd, int flags)
{
    pid_t child = proc_fork();

    if (child == 0) {
        char path[32];

        /* Else /proc/self would be root's after setuid, and hide what is to be seen. */
        if (setuid(SOMEBODY) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0)
            _exit(255);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        _exit(open(path, flags) < 0 ? errno : 0);
    }
    return WEXITSTATUS(proc_wait(child, 2000));
}

START_TEST(another_uid_cannot_reopen_a_descriptor)
{
    struct device_slab slab;
    int rw, ro, open_to_all;

    if (geteuid() != 0)
        TEST_SKIP("needs root to become another uid");
    slab = make_slab(1);
    rw = export(&slab, 0, false);
    ro = export(&slab, 0, true);
    open_to_all = memfd_create("control", 0);
    ck_assert_int_eq(reopen_as_somebody(open_to_all, O_RDWR), 0);
    ck_assert_int_eq(reopen_as_somebody(ro, O_RDWR), EACCES);
    ck_assert_int_eq(reopen_as_somebody(ro, O_WRONLY), EACCES);
    ck_assert_int_eq(reopen_as_somebody(ro, O_RDONLY), EACCES);
    ck_assert_int_eq(reopen_as_somebody(rw, O_RDWR), EACCES);
    close(open_to_all);
    fd_close(rw);
    fd_close(ro);
    device_host.slab_destroy(&slab);
}
END_TEST

/* _i: with MADV_POPULATE_WRITE, and without. */
START_TEST(populate_gives_pages_and_changes_nothing)
{
    struct device_slab slab = make_slab(2);

    fault_arm("device.old_kernel", 0, _i ? UINT32_MAX : 0);
    strcpy((char *)slab.base + EXTENT + 4090, "over the end of a page");
    ck_assert_uint_eq(resident_pages(&slab, EXTENT, EXTENT), 2);
    ck_assert_int_eq(device_host.extent_populate(&slab, 1, 0, 16 * 4096), KVC_OK);
    ck_assert_uint_eq(resident_pages(&slab, EXTENT, EXTENT), 16);
    ck_assert_int_eq(device_host.extent_populate(&slab, 1, 16 * 4096, EXTENT - 16 * 4096), KVC_OK);
    ck_assert_uint_eq(resident_pages(&slab, EXTENT, EXTENT), EXTENT / 4096);
    ck_assert_str_eq((char *)slab.base + EXTENT + 4090, "over the end of a page");
    ck_assert_uint_eq(resident_pages(&slab, 0, EXTENT), 0);
    if (_i)
        ck_assert_uint_eq(fault_fired("device.old_kernel"), 2);
    device_host.slab_destroy(&slab);
}
END_TEST

START_TEST(copy_is_exact_across_extents_and_slabs)
{
    struct device_slab a = make_slab(EXTENTS), b = make_slab(EXTENTS);
    const uint64_t from = EXTENT - 1000, to = 2 * EXTENT - 3001, bytes = EXTENT / 2 + 17;

    for (uint64_t i = 0; i < EXTENTS * EXTENT; i++) {
        a.base[i] = (uint8_t)(i * 2654435761u >> 13);
        b.base[i] = 0xee;
    }
    ck_assert_int_eq(device_host.copy(&b, to, &a, from, bytes, &begun), KVC_OK);
    ck_assert_mem_eq(b.base + to, a.base + from, bytes);
    ck_assert(all_are(b.base, to, 0xee));
    ck_assert(all_are(b.base + to + bytes, EXTENTS * EXTENT - to - bytes, 0xee));
    device_host.slab_destroy(&a);
    device_host.slab_destroy(&b);
}
END_TEST

/* So that populate has nothing to copy together when it comes there. */
START_TEST(copy_comes_first_and_makes_the_whole_unit)
{
    struct device_slab a = make_slab(3), b = make_slab(3);

    ck_assert_int_eq(device_host.copy(&b, EXTENT + 100, &a, 200, 10, &begun), KVC_OK);
    ck_assert_uint_eq(resident_pages(&a, 0, 3 * EXTENT), EXTENT / 4096);
    ck_assert_uint_eq(resident_pages(&b, EXTENT, EXTENT), EXTENT / 4096);
    ck_assert_uint_eq(resident_pages(&b, 0, 3 * EXTENT), EXTENT / 4096);
    /* What is there already is not asked for again; what was discarded is. */
    fault_arm("device.populate", 0, UINT32_MAX);
    ck_assert_int_eq(device_host.copy(&b, 2 * EXTENT - 10, &a, 200, 10, &begun), KVC_OK);
    ck_assert_int_ne(device_host.copy(&b, 2 * EXTENT - 10, &a, 200, 11, &begun), KVC_OK);
    ck_assert_int_eq(device_host.extent_discard(&b, 1, 0, EXTENT), KVC_OK);
    ck_assert_int_ne(device_host.copy(&b, EXTENT + 100, &a, 200, 10, &begun), KVC_OK);
    device_host.slab_destroy(&a);
    device_host.slab_destroy(&b);
}
END_TEST

START_TEST(copy_out_of_bounds_is_refused)
{
    struct device_slab a = make_slab(1), b = make_slab(1);

    ck_assert_int_eq(device_host.copy(&a, EXTENT, &b, 0, 1, &begun), KVC_E_INVALID);
    ck_assert_int_eq(device_host.copy(&a, 0, &b, 1, EXTENT, &begun), KVC_E_INVALID);
    ck_assert_int_eq(device_host.copy(&a, UINT64_MAX, &b, 0, 2, &begun), KVC_E_INVALID);
    ck_assert_int_eq(device_host.copy(&a, 0, &b, 2, UINT64_MAX, &begun), KVC_E_INVALID);
    ck_assert_int_eq(device_host.copy(&a, EXTENT, &b, EXTENT, 0, &begun), KVC_OK);
    device_host.slab_destroy(&a);
    device_host.slab_destroy(&b);
}
END_TEST

/* Who has kept the descriptor, or the mapping, reaches nothing of the next tenant's. */
START_TEST(S15_new_memory_of_an_extent_is_not_what_was_exported)
{
    struct device_slab slab = make_slab(2);
    uint8_t *kept;
    int fd = -1, fds;

    memset(slab.base, 0xab, 2 * EXTENT);
    ck_assert_int_eq(device_host.extent_export(&slab, 0, false, &fd), KVC_OK);
    kept = mmap(NULL, EXTENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(kept, MAP_FAILED);
    fds = fd_count_open();
    ck_assert_int_eq(device_host.extent_discard(&slab, 0, 0, EXTENT / 2), KVC_OK);
    ck_assert_int_eq(device_host.extent_discard(&slab, 0, EXTENT / 2, EXTENT / 2), KVC_OK);
    ck_assert(all_are(kept, EXTENT, 0));
    ck_assert_int_eq(device_host.extent_renew(&slab, 0), KVC_OK);
    ck_assert_int_eq(device_host.extent_populate(&slab, 0, 0, EXTENT), KVC_OK);
    ck_assert_int_eq(fd_count_open(), fds);
    memset(kept, 0xcd, EXTENT);
    ck_assert(all_are(slab.base, EXTENT, 0));
    ck_assert(all_are(slab.base + EXTENT, EXTENT, 0xab));
    memset(slab.base, 0xef, EXTENT);
    ck_assert(all_are(kept, EXTENT, 0xcd));
    munmap(kept, EXTENT);
    fd_close(fd);
    device_host.slab_destroy(&slab);
}
END_TEST

START_TEST(an_extent_that_cannot_be_renewed_is_as_it_was)
{
    static const char *const sites[] = {"fd.memfd", "fd.truncate", "fd.seal", "device.map"};
    struct device_slab slab = make_slab(1);
    int fds = fd_count_open();

    memset(slab.base, 0xab, EXTENT);
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        fault_arm(sites[i], 0, 1);
        ck_assert_int_eq(device_host.extent_renew(&slab, 0), KVC_E_BUSY);
        ck_assert_int_eq(fd_count_open(), fds);
        ck_assert(all_are(slab.base, EXTENT, 0xab));
    }
    device_host.slab_destroy(&slab);
}
END_TEST

/* Counts up in the first bytes of every page, until it is told to stop. */
struct counting {
    struct device_slab *slab;
    uint64_t rounds;
    atomic_bool stop;
};

static void *count_up(void *arg)
{
    struct counting *c = arg;

    while (!atomic_load(&c->stop)) {
        c->rounds++;
        for (uint64_t at = 0; at < EXTENTS * EXTENT; at += 4096)
            memcpy(c->slab->base + at, &c->rounds, sizeof(c->rounds));
    }
    return NULL;
}

/* Huge pages take the place of small ones that are in use. */
START_TEST(populate_keeps_what_is_written_meanwhile)
{
    struct device_slab slab = make_slab(EXTENTS);
    struct counting c = {.slab = &slab};
    pthread_t thread;

    ck_assert_uint_eq((uintptr_t)slab.base % (2u << 20), 0);
    for (uint64_t at = 0; at < EXTENTS * EXTENT; at += 12288)
        memset(slab.base + at + 8, 0x5a, 4088);
    ck_assert_int_eq(pthread_create(&thread, NULL, count_up, &c), 0);
    for (uint32_t i = 0; i < EXTENTS; i++)
        ck_assert_int_eq(device_host.extent_populate(&slab, i, 0, EXTENT), KVC_OK);
    atomic_store(&c.stop, true);
    pthread_join(thread, NULL);
    for (uint64_t at = 0; at < EXTENTS * EXTENT; at += 4096) {
        ck_assert(memcmp(slab.base + at, &c.rounds, sizeof(c.rounds)) == 0);
        ck_assert(all_are(slab.base + at + 8, 4088, at % 12288 == 0 ? 0x5a : 0));
    }
    ck_assert_uint_eq(resident_pages(&slab, 0, EXTENTS * EXTENT), EXTENTS * EXTENT / 4096);
    device_host.slab_destroy(&slab);
}
END_TEST

START_TEST(each_failing_call_is_a_status_and_leaves_nothing)
{
    static const struct {
        const char *site;
        kvc_status status;
    } creating[] = {{"fd.memfd", KVC_E_NO_FDS},
                    {"fd.truncate", KVC_E_NO_MEMORY},
                    {"fd.seal", KVC_E_SYSTEM},
                    {"device.map", KVC_E_NO_MEMORY}};
    struct device_slab slab, other = make_slab(1);
    int fd = -1, fds = fd_count_open();

    fault_arm("device.reserve", 0, 1);
    ck_assert_int_eq(device_host.slab_create(NULL, EXTENT, 1, &slab), KVC_E_NO_MEMORY);
    for (uint32_t k = 0; k < 2; k++) {
        fault_arm("mem.alloc", k, 1);
        ck_assert_int_eq(device_host.slab_create(NULL, EXTENT, 1, &slab), KVC_E_NO_MEMORY);
    }
    ck_assert_int_eq(device_host.slab_create(NULL, EXTENT, 1, &slab), KVC_OK);
    for (size_t i = 0; i < sizeof(creating) / sizeof(creating[0]); i++) {
        fault_arm(creating[i].site, 0, 1);
        ck_assert_int_eq(device_host.extent_create(&slab, 0), creating[i].status);
        ck_assert_uint_eq(fault_fired(creating[i].site), 1);
        ck_assert_int_eq(fd_count_open(), fds);
    }
    ck_assert_int_eq(device_host.copy(&other, 0, &slab, 0, 1, &begun), KVC_E_NO_MEMORY);
    ck_assert_int_eq(device_host.extent_create(&slab, 0), KVC_OK);

    fault_arm("fd.dup", 0, 1);
    ck_assert_int_eq(device_host.extent_export(&slab, 0, false, &fd), KVC_E_NO_FDS);
    fault_arm("fd.reopen", 0, 1);
    ck_assert_int_eq(device_host.extent_export(&slab, 0, true, &fd), KVC_E_NO_FDS);
    ck_assert_int_eq(fd, -1);
    fault_arm("device.populate", 0, 1);
    ck_assert_int_eq(device_host.extent_populate(&slab, 0, 0, EXTENT), KVC_E_NO_MEMORY);
    ck_assert_int_eq(fd_count_open(), fds + 1);
    device_host.slab_destroy(&slab);
    device_host.slab_destroy(&other);
}
END_TEST

START_TEST(copy_into_memory_that_is_not_there_is_a_status)
{
    struct device_slab a = make_slab(1), b = make_slab(1);

    fault_arm("device.populate", 1, 1);
    ck_assert_int_eq(device_host.copy(&a, 0, &b, 0, EXTENT, &begun), KVC_E_NO_MEMORY);
    ck_assert_uint_eq(fault_fired("device.populate"), 1);
    ck_assert_int_eq(device_host.extent_populate(&a, 0, 0, EXTENT), KVC_OK);
    ck_assert_int_eq(device_host.extent_populate(&b, 0, 0, EXTENT), KVC_OK);
    fault_arm("device.populate", 0, 1);
    ck_assert_int_eq(device_host.copy(&a, 0, &b, 0, EXTENT, &begun), KVC_OK);
    ck_assert_uint_eq(fault_passed("device.populate"), 0);
    fault_off("*");
    device_host.slab_destroy(&a);
    device_host.slab_destroy(&b);
}
END_TEST

/* The kernel's own refusal: a limit on the size of files makes the memfd impossible. */
START_TEST(a_file_limit_is_a_status)
{
    struct device_slab slab;
    struct rlimit limit = {EXTENT / 2, EXTENT / 2};

    ck_assert_int_eq(device_host.slab_create(NULL, EXTENT, 1, &slab), KVC_OK);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_ne(device_host.extent_create(&slab, 0), KVC_OK);
    device_host.slab_destroy(&slab);
}
END_TEST

START_TEST(an_empty_slab_is_fine)
{
    struct device_slab slab = make_slab(0);

    ck_assert_int_eq(device_host.copy(&slab, 0, &slab, 0, 0, &begun), KVC_OK);
    ck_assert_int_eq(device_host.copy(&slab, 0, &slab, 0, 1, &begun), KVC_E_INVALID);
    device_host.slab_destroy(&slab);
    device_host.slab_destroy(&slab);
}
END_TEST

CHECK_MAIN_LOOPS("device/host", CHECK_UNIT_S, {extents_are_private_and_sealed, 0, 0},
                 {extents_lie_one_behind_the_other, 0, 0},
                 {export_shares_the_bytes_both_ways, 0, 0},
                 {readonly_export_cannot_be_mapped_for_writing, 0, 0},
                 {another_uid_cannot_reopen_a_descriptor, 0, 0},
                 {populate_gives_pages_and_changes_nothing, 0, 1},
                 {copy_is_exact_across_extents_and_slabs, 0, 0},
                 {copy_comes_first_and_makes_the_whole_unit, 0, 0},
                 {copy_out_of_bounds_is_refused, 0, 0},
                 {S15_new_memory_of_an_extent_is_not_what_was_exported, 0, 0},
                 {an_extent_that_cannot_be_renewed_is_as_it_was, 0, 0},
                 {populate_keeps_what_is_written_meanwhile, 0, 0},
                 {each_failing_call_is_a_status_and_leaves_nothing, 0, 0},
                 {copy_into_memory_that_is_not_there_is_a_status, 0, 0},
                 {a_file_limit_is_a_status, 0, 0}, {an_empty_slab_is_fine, 0, 0})
