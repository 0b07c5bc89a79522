// F17: what a copy waits for is a word of its session's own page, written by whoever lends.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk.h"
#include "tests/lib/talk_region.h"
#include "tests/lib/wait.h"

static void write_gate(uint8_t *page, uint32_t gate, uint64_t number)
{
    uint8_t *at = page + (size_t)gate * KVC_PAGE_STRIDE + KVC_PAGE_GATE_OFFSET;

    __atomic_store_n((uint64_t *)(void *)at, number, __ATOMIC_RELEASE);
}

START_TEST(F17_copies_wait_for_their_gate)
{
    const size_t bytes = (size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE;
    struct daemon *d;
    struct talk_lender l;
    Kvcache__Save m;
    Kvcache__SaveEntry entry;
    uint64_t region;
    uint8_t *page;
    int fd = -1;

    d = daemon_start((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "2M", NULL});
    talk_lender_open(&l, daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, &fd);
    page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    close(fd);
    fd = talk_region_good_memfd();
    region = talk_region_make(&l, fd);
    close(fd);
    talk_region_save(&l, region, 1, 1, &m, &entry);
    m.gate = KVC_PAGE_GATES;
    m.gate_number = 7;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_SAVE, &m.base), KVC_E_INVALID, "gate");
    m.gate = 3;
    talk_free(talk_ask(l.sock, WIRE_SAVE, &m.base, &kvcache__save_reply__descriptor));
    write_gate(page, 3, 6);
    write_gate(page, 4, 7);
    // Who comes later and waits for nothing does not wait for it.
    (void)talk_region_save_key(&l, region, 2, 2);
    wait_for(talk_region_published(&l) == 1, 5000);
    usleep(20000);
    ck_assert_uint_eq(talk_region_published(&l), 1);
    write_gate(page, 3, 8);
    wait_for(talk_region_published(&l) == 2, 5000);
    // One that has passed already; and one that never does ends with its session.
    talk_region_save(&l, region, 3, 3, &m, &entry);
    m.gate = 3;
    m.gate_number = 8;
    talk_free(talk_ask(l.sock, WIRE_SAVE, &m.base, &kvcache__save_reply__descriptor));
    wait_for(talk_region_published(&l) == 3, 5000);
    talk_region_save(&l, region, 4, 4, &m, &entry);
    m.gate = 3;
    m.gate_number = 9;
    talk_free(talk_ask(l.sock, WIRE_SAVE, &m.base, &kvcache__save_reply__descriptor));
    munmap(page, bytes);
    close(l.sock);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("daemon/gates", CHECK_LIFE_S, F17_copies_wait_for_their_gate)
