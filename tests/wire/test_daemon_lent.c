// Memory that its owner takes away, or changes, while the daemon has it mapped.
#include <fcntl.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk.h"
#include "tests/lib/talk_region.h"
#include "tests/lib/wait.h"

static struct daemon *d;
static struct talk_lender l;

static void begin(void)
{
    d = daemon_start((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "2M", NULL});
    talk_lender_open(&l, daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
}

static void end(void)
{
    close(l.sock);
    daemon_stop(d);
}

static uint64_t aborted(void)
{
    Kvcache__StatsReply *r = talk_ask(l.sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    uint64_t n = r->filling_slots + r->quarantined_slots == 0 ? r->aborted_saves : 0;

    talk_free(r);
    return n;
}

// Memory that ends under the copy: what would be SIGBUS is a failed save, and the region is of no
// more use. The seal is what prevents it; a fault lets a memfd without one pass.
START_TEST(memory_that_is_cut_off)
{
    const int fd = talk_region_memfd(TALK_REGION_PIECE, 0, true), good = talk_region_good_memfd();
    uint64_t region;

    begin();
    daemon_log_expect(d, "copy failed");
    daemon_fault_arm(d, "region.unsealed", 0, 1);
    region = talk_region_make(&l, fd);
    ck_assert_uint_eq(daemon_fault_fired(d, "region.unsealed"), 1);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    talk_region_save_key(&l, region, 1, 2);
    wait_for(aborted() == 1, 5000);
    // Also when the memory is there again: it is not the one that the worker has.
    ck_assert_int_eq(ftruncate(fd, TALK_REGION_PIECE), 0);
    talk_region_save_key(&l, region, 1, 3);
    wait_for(aborted() == 2, 5000);
    ck_assert_uint_eq(talk_region_published(&l), 0);
    region = talk_region_make(&l, good);
    talk_region_save_key(&l, region, 1, 3);
    wait_for(talk_region_published(&l) == 1, 5000);
    close(fd);
    close(good);
    end();
}
END_TEST

// What a seal against shrinking does not prevent: the page comes back, of zeros, and no harm is
// done.
START_TEST(memory_with_a_hole_punched_into_it)
{
    const int fd = talk_region_good_memfd();
    uint64_t region;

    begin();
    region = talk_region_make(&l, fd);
    ck_assert_int_eq(
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, TALK_REGION_PIECE), 0);
    talk_region_save_key(&l, region, 1, 2);
    wait_for(talk_region_published(&l) == 1, 5000);
    close(fd);
    end();
}
END_TEST

// Unmapping takes its time, and a daemon that stops waits for it.
START_TEST(stopping_while_a_region_is_unmapped)
{
    const int fd = talk_region_good_memfd();

    begin();
    talk_region_make(&l, fd);
    daemon_fault_arm(d, "region.late", 0, 200);
    close(fd);
    end();
}
END_TEST

CHECK_MAIN("daemon/lent", CHECK_LIFE_S, memory_that_is_cut_off, memory_with_a_hole_punched_into_it,
           stopping_while_a_region_is_unmapped)
