#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

START_TEST(fault_is_off_until_armed)
{
    for (int i = 0; i < 100; i++)
        ck_assert(!fault_fires("test.site"));
    ck_assert_uint_eq(fault_passed("test.site"), 100);
    ck_assert_uint_eq(fault_fired("test.site"), 0);
}
END_TEST

START_TEST(fault_skips_then_fires_then_rests)
{
    fault_arm("test.site", 2, 3);
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(fault_fires("test.site"), i >= 2 && i < 5);
    ck_assert_uint_eq(fault_passed("test.site"), 10);
    ck_assert_uint_eq(fault_fired("test.site"), 3);
}
END_TEST

START_TEST(fault_sites_are_independent)
{
    fault_arm("test.a", 0, 1);
    ck_assert(!fault_fires("test.b"));
    ck_assert(fault_fires("test.a"));
    ck_assert_uint_eq(fault_fired("test.b"), 0);
}
END_TEST

START_TEST(fault_arming_again_starts_anew)
{
    fault_arm("test.site", 0, 1);
    ck_assert(fault_fires("test.site"));
    fault_arm("test.site", 1, 1);
    ck_assert_uint_eq(fault_passed("test.site"), 0);
    ck_assert_uint_eq(fault_fired("test.site"), 0);
    ck_assert(!fault_fires("test.site"));
    ck_assert(fault_fires("test.site"));
}
END_TEST

START_TEST(fault_off_knows_a_trailing_star)
{
    fault_arm("slot.alloc", 0, 9);
    fault_arm("slot.free", 0, 9);
    fault_arm("page.map", 0, 9);
    fault_off("slot.*");
    ck_assert(!fault_fires("slot.alloc"));
    ck_assert(!fault_fires("slot.free"));
    ck_assert(fault_fires("page.map"));
    fault_off("page.map");
    ck_assert(!fault_fires("page.map"));
}
END_TEST

START_TEST(fault_random_follows_its_seed)
{
    bool first[2000];
    int fired = 0;

    fault_random(7, 10);
    for (int i = 0; i < 2000; i++)
        fired += first[i] = fault_fires("test.site");
    // 20 are expected of 2000; the seed is fixed, so this cannot be flaky.
    ck_assert_int_gt(fired, 5);
    ck_assert_int_lt(fired, 50);
    fault_random(7, 10);
    for (int i = 0; i < 2000; i++)
        ck_assert_int_eq(fault_fires("test.site"), first[i]);
    fault_off("*");
    for (int i = 0; i < 2000; i++)
        ck_assert(!fault_fires("test.site"));
}
END_TEST

#define THREADS   4
#define PASSAGES  5000
#define TO_BE_HIT 700

static void *pass_often(void *arg)
{
    uint64_t *fired = arg;

    for (int i = 0; i < PASSAGES; i++)
        *fired += fault_fires("test.site");
    return NULL;
}

START_TEST(fault_counts_exactly_from_many_threads)
{
    pthread_t threads[THREADS];
    uint64_t fired[THREADS] = {0}, total = 0;

    fault_arm("test.site", 100, TO_BE_HIT);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, pass_often, &fired[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total += fired[i];
    }
    ck_assert_uint_eq(total, TO_BE_HIT);
    ck_assert_uint_eq(fault_fired("test.site"), TO_BE_HIT);
    ck_assert_uint_eq(fault_passed("test.site"), THREADS * PASSAGES);
}
END_TEST

START_TEST(fault_page_steers_another_process)
{
    struct fault_page *page = NULL;
    pid_t child;

    ck_assert_int_eq(fault_page_map(tmpdir_file("switches"), &page), 0);
    fault_page_arm(page, "test.before", 0, 1);
    child = proc_fork();
    if (child == 0) {
        uint64_t start = clock_now_us();

        fault_page_use(page);
        if (!fault_fires("test.before"))
            _exit(1);
        while (!fault_fires("test.while"))
            usleep(200);
        _exit(clock_now_us() - start >= 60 * CLOCK_S_US ? 0 : 2);
    }
    wait_for(fault_page_passed(page, "test.while") > 0, 2000);
    fault_page_move_clock_us(page, 60 * CLOCK_S_US);
    fault_page_arm(page, "test.while", 0, 1);
    proc_wait_ok(child, 2000);
    ck_assert_uint_eq(fault_page_fired(page, "test.before"), 1);
    ck_assert_uint_eq(fault_page_fired(page, "test.while"), 1);
    // This process has switches of its own.
    ck_assert_uint_eq(fault_passed("test.before"), 0);
    fault_page_unmap(page);
}
END_TEST

// Nobody waits for who was killed while he made a site known: the page of a daemon that was killed
// is the next one's.
START_TEST(fault_site_without_a_name_gets_it_from_the_next)
{
    static const char name[] = "test.site";
    const char *file = tmpdir_file("switches");
    struct fault_page *page = NULL;
    uint64_t fired = 0;
    char *memory, *at;
    struct stat st;
    int fd;

    ck_assert_int_eq(fault_page_map(file, &page), 0);
    fault_page_arm(page, name, 0, 1);
    fd = open(file, O_RDWR | O_CLOEXEC);
    ck_assert(fd >= 0 && fstat(fd, &st) == 0);
    memory = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    at = memmem(memory, (size_t)st.st_size, name, sizeof(name));
    ck_assert_ptr_nonnull(at);
    memset(at, 0, 48 + sizeof(uint32_t)); // the name, and that it is whole
    fault_page_use(page);
    pass_often(&fired);
    ck_assert_uint_eq(fired, 1);
    ck_assert_str_eq(at, name);
    munmap(memory, (size_t)st.st_size);
    close(fd);
}
END_TEST

START_TEST(fault_page_says_why_it_cannot)
{
    struct fault_page *page = NULL;

    ck_assert_int_eq(fault_page_map(tmpdir_file("missing/folder"), &page), -ENOENT);
    ck_assert_ptr_null(page);
}
END_TEST

CHECK_MAIN("base/fault", CHECK_UNIT_S, fault_is_off_until_armed, fault_skips_then_fires_then_rests,
           fault_sites_are_independent, fault_arming_again_starts_anew,
           fault_off_knows_a_trailing_star, fault_random_follows_its_seed,
           fault_counts_exactly_from_many_threads, fault_page_steers_another_process,
           fault_site_without_a_name_gets_it_from_the_next, fault_page_says_why_it_cannot)
