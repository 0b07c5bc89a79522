/* The copier: exact bytes, each read and written once; whose turn it is; jobs that are dropped. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/fault.h"
#include "daemon/base/guard.h"
#include "daemon/tier/copier.h"
#include "tests/lib/check_main.h"

#define MIB  (1ull << 20)
#define JOBS 40u

/* A worker's memory and its queue. */
struct worker {
    struct copier_queue queue;
    struct region *region;
    uint8_t *memory;
    uint64_t bytes;
    int fd;
};

struct fixture {
    uv_loop_t loop;
    struct tier *tiers[TIER_COUNT];
    struct copier *copier;
};

struct task {
    struct copier_job job;
    struct copier_block blocks[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS];
    uint32_t calls, order;
    kvc_status status;
};

static uint32_t order;
static bool inside;

static void setup(struct fixture *f)
{
    uv_loop_init(&f->loop);
    ck_assert_int_eq(tier_create(TIER_GPU, &device_all_host, 32 * MIB, 2, &f->tiers[TIER_GPU]),
                     KVC_OK);
    ck_assert_int_eq(tier_create(TIER_HOST, &device_all_host, 2 * MIB, 8, &f->tiers[TIER_HOST]),
                     KVC_OK);
    ck_assert_int_eq(copier_create(&f->loop, f->tiers, NULL, &f->copier), KVC_OK);
    ck_assert_int_eq(guard_install(), 0);
    order = 0;
}

static void drain(struct fixture *f)
{
    uv_run(&f->loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(copier_count(f->copier), 0);
}

static void teardown(struct fixture *f)
{
    drain(f);
    copier_destroy(f->copier);
    ck_assert_int_eq(uv_loop_close(&f->loop), 0);
    tier_destroy(f->tiers[TIER_GPU]);
    tier_destroy(f->tiers[TIER_HOST]);
    uv_library_shutdown();
}

/* Slices lie one behind the other, their blocks too. */
static void open_worker(struct worker *w, const uint32_t *slice_bytes, uint32_t n_slices,
                        uint32_t blocks)
{
    uint32_t pieces[8] = {0};
    uint64_t offsets[8], strides[8];
    const struct region_shape shape = {.blocks = blocks,
                                       .n_slices = n_slices,
                                       .n_pieces = 1,
                                       .slice_bytes = slice_bytes,
                                       .slice_pieces = pieces,
                                       .slice_offsets = offsets,
                                       .slice_strides = strides};
    struct region_refusal why;

    w->bytes = 0;
    for (uint32_t i = 0; i < n_slices; i++) {
        offsets[i] = w->bytes;
        strides[i] = slice_bytes[i];
        w->bytes += (uint64_t)slice_bytes[i] * blocks;
    }
    w->fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(w->fd, (off_t)w->bytes), 0);
    ck_assert_int_eq(fallocate(w->fd, 0, 0, (off_t)w->bytes), 0);
    w->memory = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
    ck_assert_ptr_ne(w->memory, MAP_FAILED);
    for (uint64_t i = 0; i < w->bytes; i++)
        w->memory[i] = (uint8_t)(i * 2654435761u >> 11);
    copier_queue_init(&w->queue);
    fault_arm("region.unsealed", 0, 1);
    ck_assert_int_eq(region_create(&shape, &w->region, &why), KVC_OK);
    ck_assert_int_eq(region_add(w->region, w->fd, w->bytes, 0, &why), KVC_OK);
    ck_assert_int_eq(region_finish(w->region, &why), KVC_OK);
}

static void close_worker(struct fixture *f, struct worker *w)
{
    region_destroy(&f->loop, w->region, NULL, NULL);
    munmap(w->memory, w->bytes);
    close(w->fd);
}

static void on_copied(struct copier_job *job, kvc_status status)
{
    struct task *task = container_of(job, struct task, job);

    ck_assert(!inside);
    task->calls++;
    task->order = ++order;
    task->status = status;
}

/* Blocks first .. of the worker, and slots from `slot` on of a tier: as the store gives them out,
 * no slot is in two jobs. */
static void fill_task(struct worker *w, struct task *task, enum copier_way way, uint32_t first,
                      uint32_t n, enum tier_kind tier, uint32_t slot)
{
    memset(task, 0, sizeof(*task));
    for (uint32_t i = 0; i < n; i++)
        task->blocks[i] = (struct copier_block){
            .region = w->region,
            .offset = (slot + i) * region_layout(w->region)->slot_bytes,
            .id = first + i,
            .tier = (uint8_t)tier,
        };
    task->job = (struct copier_job){
        .way = way, .blocks = task->blocks, .n_blocks = n, .cells = task->cells, .done = on_copied};
}

static void begin(struct fixture *f, struct worker *w, struct task *task)
{
    inside = true;
    copier_start(f->copier, &w->queue, &task->job);
    inside = false;
}

static void start(struct fixture *f, struct worker *w, struct task *task, enum copier_way way,
                  uint32_t first, uint32_t n, enum tier_kind tier, uint32_t slot)
{
    fill_task(w, task, way, first, n, tier, slot);
    begin(f, w, task);
}

static const uint32_t small[] = {512, 36, 1};

START_TEST(S11_each_byte_is_moved_once)
{
    static struct task out, back;
    struct fixture f;
    struct worker w;
    uint64_t block_bytes;
    uint8_t *before;

    setup(&f);
    open_worker(&w, small, 3, 128);
    block_bytes = region_layout(w.region)->block_bytes;
    before = malloc(w.bytes);
    memcpy(before, w.memory, w.bytes);
    start(&f, &w, &out, COPIER_GATHER, 0, 64, TIER_HOST, 3);
    drain(&f);
    ck_assert_uint_eq(out.calls, 1);
    ck_assert_int_eq(out.status, KVC_OK);
    ck_assert_uint_eq(copier_bytes(f.copier), 64 * block_bytes);
    start(&f, &w, &back, COPIER_SCATTER, 64, 64, TIER_HOST, 3);
    drain(&f);
    ck_assert_int_eq(back.status, KVC_OK);
    ck_assert_uint_eq(copier_bytes(f.copier), 128 * block_bytes);
    ck_assert_mem_eq(out.cells, back.cells, sizeof(out.cells));
    for (uint64_t at = 0, s = 0; s < 3; at += 128ull * small[s++]) {
        ck_assert_mem_eq(w.memory + at + 64ull * small[s], before + at, 64ull * small[s]);
        ck_assert_mem_eq(w.memory + at, before + at, 64ull * small[s]);
    }
    free(before);
    close_worker(&f, &w);
    teardown(&f);
}
END_TEST

/* A block that is larger than a piece goes slice by slice; its checksum is that of the whole. */
START_TEST(large_blocks_go_in_pieces)
{
    static const uint32_t large[] = {9u << 20, 9u << 20, 100};
    static struct task out, other;
    struct fixture f;
    struct worker w, v;

    setup(&f);
    open_worker(&w, large, 3, 1);
    open_worker(&v, small, 3, 64);
    start(&f, &w, &out, COPIER_GATHER, 0, 1, TIER_GPU, 0);
    start(&f, &v, &other, COPIER_GATHER, 0, 64, TIER_HOST, 0);
    drain(&f);
    ck_assert_int_eq(out.status, KVC_OK);
    ck_assert_uint_eq(out.calls, 1);
    ck_assert_uint_eq(out.cells[0], pack_checksum_slot(region_layout(w.region),
                                                       tier_address(f.tiers[TIER_GPU], 0)));
    ck_assert_uint_eq(copier_bytes(f.copier), region_layout(w.region)->block_bytes +
                                                  64 * region_layout(v.region)->block_bytes);
    close_worker(&f, &w);
    close_worker(&f, &v);
    teardown(&f);
}
END_TEST

/* Some slices of blocks, of each its own: nothing else is touched, and sums are of those slices. */
START_TEST(S9_S38_ranges_of_slices)
{
    static const struct {
        uint16_t first, n;
    } ranges[4] = {{0, 1}, {1, 2}, {2, 0}, {3, 0}};
    static struct task out[2], back;
    struct fixture f;
    struct worker w;
    uint64_t bytes = 0;

    setup(&f);
    open_worker(&w, small, 3, 8);
    fill_task(&w, &out[0], COPIER_GATHER, 0, 4, TIER_HOST, 0);
    fill_task(&w, &out[1], COPIER_GATHER, 0, 4, TIER_HOST, 0);
    fill_task(&w, &back, COPIER_SCATTER, 4, 4, TIER_HOST, 0);
    for (uint32_t i = 0; i < 4; i++) {
        out[0].blocks[i].first_slice = back.blocks[i].first_slice = ranges[i].first;
        out[0].blocks[i].n_slices = back.blocks[i].n_slices = ranges[i].n;
        out[1].blocks[i].first_slice = ranges[i].n == 1 ? 1 : 0;
        out[1].blocks[i].n_slices = ranges[i].first;
    }
    memset(w.memory + 512 * 4, 0, 512 * 4);
    begin(&f, &w, &out[0]);
    drain(&f);
    begin(&f, &w, &back);
    drain(&f);
    ck_assert_mem_eq(out[0].cells, back.cells, 4 * sizeof(back.cells[0]));
    ck_assert_uint_eq(back.cells[3], 0);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = ranges[i].first; s < (ranges[i].n ? ranges[i].first + ranges[i].n : 3u);
             s++)
            bytes += small[s];
    ck_assert_uint_eq(copier_bytes(f.copier), 2 * bytes);
    ck_assert_mem_eq(w.memory + 512 * 4, w.memory, 512);
    for (uint32_t i = 512; i < 512 * 4; i++)
        ck_assert_uint_eq(w.memory[512 * 4 + i], 0);
    /* The rest of each block, and the sums are those of whole ones. */
    begin(&f, &w, &out[1]);
    drain(&f);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(
            out[0].cells[i] + out[1].cells[i],
            pack_checksum_slot(
                region_layout(w.region),
                tier_address(f.tiers[TIER_HOST], i * region_layout(w.region)->slot_bytes)));
    close_worker(&f, &w);
    teardown(&f);
}
END_TEST

/* Of a large block, too; and between the pieces others have their turns. */
START_TEST(large_ranges_go_in_pieces)
{
    static const uint32_t large[] = {100, 9u << 20, 9u << 20, 200};
    static struct task range, rest, modest[4];
    struct fixture f;
    struct worker w, v;

    setup(&f);
    open_worker(&w, large, 4, 1);
    open_worker(&v, small, 3, 64);
    fill_task(&w, &range, COPIER_GATHER, 0, 1, TIER_GPU, 0);
    range.blocks[0].first_slice = 1;
    range.blocks[0].n_slices = 2;
    fill_task(&w, &rest, COPIER_GATHER, 0, 1, TIER_GPU, 0);
    rest.blocks[0].first_slice = 3;
    begin(&f, &w, &range);
    drain(&f);
    ck_assert_uint_eq(copier_bytes(f.copier), 18u << 20);
    begin(&f, &w, &rest);
    drain(&f);
    ck_assert_uint_eq(copier_bytes(f.copier), (18u << 20) + 200);
    rest.cells[0] += range.cells[0] + pack_checksum_slice(w.memory, 100, 0);
    memcpy(tier_address(f.tiers[TIER_GPU], 0), w.memory, 100);
    ck_assert_uint_eq(rest.cells[0], pack_checksum_slot(region_layout(w.region),
                                                        tier_address(f.tiers[TIER_GPU], 0)));
    /* Two in flight; the large block comes back to the end of its queue's turn. */
    fault_arm("copier.late", 0, 1);
    start(&f, &w, &range, COPIER_GATHER, 0, 1, TIER_GPU, 0);
    for (uint32_t i = 0; i < 4; i++)
        start(&f, &v, &modest[i], COPIER_GATHER, 0, 64, TIER_HOST, 64 * i);
    drain(&f);
    ck_assert_uint_lt(modest[0].order, range.order);
    close_worker(&f, &w);
    close_worker(&f, &v);
    teardown(&f);
}
END_TEST

/* Copies then end in the order in which they began, whichever thread the machine holds up. */
static void copy_one_at_a_time(void)
{
    setenv("UV_THREADPOOL_SIZE", "1", 1);
}

/* Who asks for much gets one turn in as many as there are others. */
START_TEST(sessions_take_turns)
{
    static struct task greedy[JOBS], modest[3], third[3];
    struct fixture f;
    struct worker w[3];

    copy_one_at_a_time();
    setup(&f);
    for (int i = 0; i < 3; i++)
        open_worker(&w[i], small, 3, 64);
    for (uint32_t i = 0; i < JOBS; i++)
        start(&f, &w[0], &greedy[i], COPIER_GATHER, 0, 64, TIER_HOST, 64 * i);
    for (uint32_t i = 0; i < 3; i++) {
        start(&f, &w[1], &modest[i], COPIER_GATHER, 0, 1, TIER_HOST, 64 * JOBS + i);
        start(&f, &w[2], &third[i], COPIER_GATHER, 0, 1, TIER_HOST, 64 * JOBS + 3 + i);
    }
    drain(&f);
    /* What had begun, then a turn of three each time, give or take what runs beside it. */
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_uint_le(modest[i].order, 3 * (i + 1) + 2 * COPIER_LANES);
        ck_assert_uint_le(third[i].order, 3 * (i + 1) + 2 * COPIER_LANES);
    }
    ck_assert_uint_eq(order, JOBS + 6);
    ck_assert_uint_gt(greedy[JOBS - 1].order, JOBS);
    for (int i = 0; i < 3; i++)
        close_worker(&f, &w[i]);
    teardown(&f);
}
END_TEST

/* Somebody waits for a load's bytes. */
START_TEST(loads_go_before_saves_of_one_session)
{
    static struct task saves[JOBS], load;
    struct fixture f;
    struct worker w;

    copy_one_at_a_time();
    setup(&f);
    open_worker(&w, small, 3, 64);
    for (uint32_t i = 0; i < JOBS; i++)
        start(&f, &w, &saves[i], COPIER_GATHER, 1, 63, TIER_HOST, 64 * i);
    start(&f, &w, &load, COPIER_SCATTER, 0, 1, TIER_HOST, 64 * JOBS);
    drain(&f);
    ck_assert_uint_le(load.order, 2 * COPIER_LANES + 1);
    close_worker(&f, &w);
    teardown(&f);
}
END_TEST

START_TEST(dropped_jobs_do_not_begin)
{
    static struct task tasks[JOBS];
    struct fixture f;
    struct worker w;
    uint32_t dropped = 0;

    setup(&f);
    open_worker(&w, small, 3, 64);
    fault_arm("copier.late", 0, UINT32_MAX);
    for (uint32_t i = 0; i < JOBS; i++)
        start(&f, &w, &tasks[i], COPIER_GATHER, 0, 64, TIER_HOST, 64 * i);
    for (uint32_t i = 0; i < JOBS; i++)
        dropped += copier_drop(f.copier, &tasks[i].job);
    ck_assert_uint_eq(dropped, JOBS - COPIER_LANES);
    ck_assert_uint_eq(copier_count(f.copier), COPIER_LANES);
    fault_off("copier.late");
    drain(&f);
    for (uint32_t i = 0; i < JOBS; i++)
        ck_assert_uint_eq(tasks[i].calls, i < COPIER_LANES);
    close_worker(&f, &w);
    teardown(&f);
}
END_TEST

START_TEST(F19_failed_copy_is_told_and_fills_half)
{
    static struct task task, after;
    struct fixture f;
    struct worker w;

    setup(&f);
    open_worker(&w, small, 3, 64);
    fault_arm("copier.copy", 0, 1);
    start(&f, &w, &task, COPIER_GATHER, 0, 64, TIER_HOST, 0);
    drain(&f);
    ck_assert_int_eq(task.status, KVC_E_DEVICE);
    ck_assert_uint_eq(copier_bytes(f.copier), 32 * region_layout(w.region)->block_bytes);
    start(&f, &w, &after, COPIER_GATHER, 0, 64, TIER_HOST, 0);
    drain(&f);
    ck_assert_int_eq(after.status, KVC_OK);
    close_worker(&f, &w);
    teardown(&f);
}
END_TEST

/* Memory that is gone when it is copied from, or to; a neighbour's copies go on. */
START_TEST(lost_memory_is_a_failed_copy)
{
    static struct task out, back, other;
    struct fixture f;
    struct worker w, v;

    setup(&f);
    open_worker(&w, small, 3, 640);
    open_worker(&v, small, 3, 64);
    ck_assert_int_eq(ftruncate(w.fd, 4096), 0);
    start(&f, &w, _i == 0 ? &out : &back, _i == 0 ? COPIER_GATHER : COPIER_SCATTER, 512, 64,
          TIER_HOST, 0);
    start(&f, &v, &other, COPIER_GATHER, 0, 64, TIER_HOST, 64);
    drain(&f);
    ck_assert_int_eq(_i == 0 ? out.status : back.status, KVC_E_MAP);
    ck_assert_int_eq(other.status, KVC_OK);
    /* For good, though the page that is asked for is there. */
    start(&f, &w, &out, COPIER_GATHER, 0, 1, TIER_HOST, 0);
    drain(&f);
    ck_assert_int_eq(out.status, KVC_E_MAP);
    close_worker(&f, &w);
    close_worker(&f, &v);
    teardown(&f);
}
END_TEST

CHECK_MAIN_LOOPS("tier/copier", CHECK_UNIT_S,
                 {S11_each_byte_is_moved_once, 0, 0, CHECK_DAEMON_COPIES},
                 {S9_S38_ranges_of_slices, 0, 0, CHECK_DAEMON_COPIES},
                 {large_ranges_go_in_pieces, 0, 0}, {large_blocks_go_in_pieces, 0, 0},
                 {sessions_take_turns, 0, 0}, {loads_go_before_saves_of_one_session, 0, 0},
                 {dropped_jobs_do_not_begin, 0, 0}, {F19_failed_copy_is_told_and_fills_half, 0, 0},
                 {lost_memory_is_a_failed_copy, 0, 1})
