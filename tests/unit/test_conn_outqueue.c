#include "daemon/conn/outqueue.h"

#include <malloc.h>

#include "tests/lib/check_main.h"

#define PACKETS 1000u

static void push(struct outqueue *queue, uint32_t body_len)
{
    static const uint8_t body[512];
    const struct wire_packet packet = {.type = 1, .seq = 2, .body = body, .body_len = body_len};

    ck_assert_int_eq(outqueue_push(queue, &packet), KVC_OK);
}

// What stops reading, and cuts, is memory: however small the replies, no more is kept than is said.
START_TEST(F39_small_packets_are_what_their_memory_is)
{
    static const uint32_t lens[] = {0, 1, 16, 100, 512};
    struct outqueue queue;
    size_t before, used;

    outqueue_init(&queue);
    before = mallinfo2().uordblks;
    for (uint32_t i = 0; i < PACKETS; i++)
        push(&queue, lens[_i]);
    used = mallinfo2().uordblks - before; // 0 under the address sanitizer, which has its own
    ck_assert_uint_le(used, queue.bytes + PACKETS * 32 + 4096); // the allocator's own
    ck_assert_uint_ge(queue.bytes, (size_t)PACKETS * lens[_i]);
    outqueue_clear(&queue);
    ck_assert_uint_eq(queue.bytes, 0);
    ck_assert(outqueue_empty(&queue));
}
END_TEST

CHECK_MAIN_LOOPS("conn/outqueue", CHECK_LIFE_S, {F39_small_packets_are_what_their_memory_is, 0, 4})
