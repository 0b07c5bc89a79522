/*
 * Gather and scatter on the host: every shape has random bytes all around, and is compared with a
 * plain copy of it, byte by byte, untouched bytes included.
 */
#include <malloc.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/pack.h"
#include "tests/lib/check_main.h"
#include "tests/lib/random.h"

static uint64_t state = RANDOM_STATE;

struct shape {
    const char *name;
    uint32_t n_slices;
    uint32_t sizes[6]; /* repeated */
    uint32_t n_sizes;
    uint32_t n_blocks;
    uint32_t base_shift;               /* how far bases are off a multiple of 64 */
    uint32_t gap;                      /* bytes between a slice's blocks */
    uint32_t first_slice, part_slices; /* 0: all */
};

static const struct shape shapes[] = {
    {"8 x 2 KiB", 8, {2048}, 1, 5, 0, 0, 0, 0},
    {"one byte", 1, {1}, 1, 1, 0, 0, 0, 0},
    {"one byte each", 7, {1}, 1, 9, 3, 1, 0, 0},
    {"mixed sizes", 11, {4096, 16, 2048, 100, 33}, 5, 6, 0, 48, 0, 0},
    {"no multiples of 16", 9, {15, 17, 63, 65, 127, 4099}, 6, 7, 16, 0, 0, 0},
    {"odd strides", 9, {4096, 1000}, 2, 5, 0, 7, 0, 0},
    {"bases off by 8", 9, {4096, 1000}, 2, 5, 8, 16, 0, 0},
    {"bases off by 1, odd strides", 9, {4099, 1001, 15}, 3, 5, 1, 3, 0, 0},
    {"576-byte rows", 32, {576}, 1, 64, 0, 64, 0, 0},
    {"first half of the slices", 8, {512, 100}, 2, 4, 0, 0, 0, 4},
    {"one slice of many", 8, {512, 100}, 2, 4, 0, 0, 5, 1},
    {"large, 4 KiB", 48, {4096}, 1, 16, 0, 0, 0, 0},
    {"large, 18 KiB", 16, {18432}, 1, 8, 0, 0, 0, 0},
    {"large, 2 KiB", 32, {2048}, 1, 64, 0, 32, 0, 0},
    {"large, mixed", 24, {40000, 16, 32768, 100, 8191}, 5, 9, 0, 48, 0, 0},
    {"large, odd", 24, {40001, 17, 4099}, 3, 10, 1, 3, 0, 0},
    {"large, bases off by 8", 24, {40000, 4096}, 2, 10, 8, 8, 0, 0},
    {"large, a part", 24, {40000, 16, 32768, 100, 8191}, 5, 16, 0, 48, 3, 17},
    {"a block larger than a chunk", 3, {6u << 20, 12u << 20, 5}, 3, 1, 0, 16, 0, 0},
};
#define N_SHAPES (int)(sizeof(shapes) / sizeof(shapes[0]))

#define ENGINE_FACTOR 2u

struct fixture {
    uint32_t sizes[KVC_SLICES_MAX];
    uint64_t offsets[KVC_SLICES_MAX];
    struct pack_slice slices[KVC_SLICES_MAX];
    struct pack_block blocks[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS];
    struct pack_layout layout;
    struct pack_job job;
    /* the engine's cache and the slots, and what they have to be */
    uint8_t *paged, *slots, *want_paged, *want_slots;
    size_t paged_bytes, slots_bytes;
};

static uint8_t *memory(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(at, MAP_FAILED);
    return at;
}

static void choose_blocks(struct fixture *f, uint32_t n)
{
    uint32_t ids[KVC_CHUNK_BLOCKS * ENGINE_FACTOR];

    for (uint32_t i = 0; i < n * ENGINE_FACTOR; i++)
        ids[i] = i;
    for (uint32_t b = 0; b < n; b++) {
        uint32_t other = b + (uint32_t)(random_next(&state) >> 33) % (n * ENGINE_FACTOR - b);

        f->blocks[b].id = ids[other];
        f->blocks[b].slot = f->slots + (n - b) * f->layout.slot_bytes;
        ids[other] = ids[b];
    }
}

/* Slots have a slot of random bytes before and behind them. */
static void build(struct fixture *f, const struct shape *shape)
{
    memset(f, 0, sizeof(*f));
    for (uint32_t s = 0; s < shape->n_slices; s++)
        f->sizes[s] = shape->sizes[s % shape->n_sizes];
    f->layout.slice_offsets = f->offsets;
    ck_assert_int_eq(pack_layout_init(&f->layout, f->sizes, shape->n_slices), KVC_OK);

    uint64_t starts[KVC_SLICES_MAX];
    for (uint32_t s = 0; s < shape->n_slices; s++) {
        f->slices[s].stride = f->sizes[s] + shape->gap;
        starts[s] = f->paged_bytes + 64 + shape->base_shift;
        f->paged_bytes +=
            (shape->n_blocks * ENGINE_FACTOR * f->slices[s].stride + 3 * 64) / 64 * 64;
    }
    f->slots_bytes = (shape->n_blocks + 2) * f->layout.slot_bytes;
    f->paged = memory(f->paged_bytes);
    f->want_paged = memory(f->paged_bytes);
    f->slots = memory(f->slots_bytes);
    f->want_slots = memory(f->slots_bytes);
    for (uint32_t s = 0; s < shape->n_slices; s++)
        f->slices[s].base = f->paged + starts[s];
    random_fill(&state, f->paged, f->paged_bytes);
    random_fill(&state, f->slots, f->slots_bytes);
    memcpy(f->want_paged, f->paged, f->paged_bytes);
    memcpy(f->want_slots, f->slots, f->slots_bytes);
    choose_blocks(f, shape->n_blocks);
    f->job = (struct pack_job){
        .layout = &f->layout,
        .slices = f->slices,
        .blocks = f->blocks,
        .n_blocks = shape->n_blocks,
        .first_slice = shape->first_slice,
        .n_slices = shape->part_slices ? shape->part_slices : shape->n_slices,
    };
}

static void plain_copy(struct fixture *f, bool gather)
{
    for (uint32_t b = 0; b < f->job.n_blocks; b++) {
        for (uint32_t s = f->job.first_slice; s < f->job.first_slice + f->job.n_slices; s++) {
            uint64_t packed = (uint64_t)(f->blocks[b].slot - f->slots) + f->offsets[s];
            uint64_t paged =
                (uint64_t)(f->slices[s].base - f->paged) + f->blocks[b].id * f->slices[s].stride;

            for (uint32_t i = 0; i < f->sizes[s]; i++) {
                if (gather)
                    f->want_slots[packed + i] = f->want_paged[paged + i];
                else
                    f->want_paged[paged + i] = f->want_slots[packed + i];
            }
        }
    }
}

/* What the cells have to be, from what lies in the slots. */
static uint64_t want_cell(const struct fixture *f, uint32_t b)
{
    uint64_t sum = 0;

    for (uint32_t s = f->job.first_slice; s < f->job.first_slice + f->job.n_slices; s++)
        sum += pack_checksum_slice(f->blocks[b].slot + f->offsets[s], f->sizes[s], s);
    return sum;
}

static void check(const struct fixture *f, const char *name)
{
    ck_assert_msg(memcmp(f->paged, f->want_paged, f->paged_bytes) == 0, "%s: engine", name);
    ck_assert_msg(memcmp(f->slots, f->want_slots, f->slots_bytes) == 0, "%s: slots", name);
    for (uint32_t b = 0; b < f->job.n_blocks; b++) {
        if (f->job.cells && f->cells[b] != want_cell(f, b))
            ck_abort_msg("%s: checksum of %u", name, b);
    }
    for (uint32_t b = f->job.n_blocks; b < KVC_CHUNK_BLOCKS; b++) {
        if (f->cells[b] != 0)
            ck_abort_msg("%s: cell %u written", name, b);
    }
}

static void run_shape(const struct shape *shape, bool gather, bool summed)
{
    static struct fixture f;

    build(&f, shape);
    if (summed) {
        f.job.cells = f.cells;
        random_fill(&state, (uint8_t *)f.cells, 8 * shape->n_blocks); /* stored, not added to */
    }
    (gather ? pack_host_gather : pack_host_scatter)(&f.job);
    plain_copy(&f, gather);
    check(&f, shape->name);
}

START_TEST(S4_gather_shapes)
{
    run_shape(&shapes[_i], true, false);
}
END_TEST

START_TEST(S4_gather_shapes_with_checksum)
{
    run_shape(&shapes[_i], true, true);
}
END_TEST

START_TEST(S4_scatter_shapes)
{
    run_shape(&shapes[_i], false, false);
}
END_TEST

START_TEST(S4_scatter_shapes_with_checksum)
{
    run_shape(&shapes[_i], false, true);
}
END_TEST

/* Every size around units and lines, every alignment of the engine's side. */
START_TEST(S4_every_small_size_and_alignment)
{
    for (uint32_t bytes = 1; bytes <= 140; bytes++) {
        uint32_t shift = bytes % 16;
        struct shape shape = {"small", 3, {bytes, 141 - bytes}, 2, 3, shift, bytes % 5, 0, 0};

        run_shape(&shape, bytes % 2, true);
        run_shape(&shape, bytes % 3, false);
    }
}
END_TEST

static void check_counts_up(const uint16_t *values)
{
    uint32_t wrong = 0;

    for (uint32_t i = 0; i < 65536; i++)
        wrong += values[i] != i;
    ck_assert_uint_eq(wrong, 0);
}

/* Exact copies, whatever the bits mean: NaNs, infinities, denormals, negative zeros. */
START_TEST(S4_all_bf16_patterns)
{
    static const struct shape shape = {"bf16", 8, {16384}, 1, 1, 0, 0, 0, 0};
    static struct fixture f;

    build(&f, &shape);
    for (uint32_t s = 0; s < 8; s++) {
        uint16_t *values = (uint16_t *)(f.slices[s].base + f.blocks[0].id * f.slices[s].stride);

        for (uint32_t i = 0; i < 8192; i++)
            values[i] = (uint16_t)(s * 8192 + i);
    }
    memcpy(f.want_paged, f.paged, f.paged_bytes);
    pack_host_gather(&f.job);
    const uint16_t *packed = (const uint16_t *)f.blocks[0].slot;
    check_counts_up(packed);

    f.blocks[0].id ^= 1; /* into the other of the engine's two blocks, and back out */
    pack_host_scatter(&f.job);
    memset(f.blocks[0].slot, 0x5a, f.layout.slot_bytes);
    pack_host_gather(&f.job);
    check_counts_up(packed);
}
END_TEST

/* S9 and the checksum: slices saved in two jobs give the same slot and add up. */
START_TEST(test_parts_add_up)
{
    static const struct shape shape = {"parts", 11, {4096, 16, 2048, 100, 33}, 5, 6, 0, 48, 0, 0};
    static struct fixture f;

    build(&f, &shape);
    plain_copy(&f, true);
    f.job.cells = f.cells;
    for (uint32_t cut = 0; cut <= 11; cut++) {
        uint64_t first[KVC_CHUNK_BLOCKS];

        f.job.first_slice = 0, f.job.n_slices = cut;
        pack_host_gather(&f.job);
        memcpy(first, f.cells, sizeof(first));
        f.job.first_slice = cut, f.job.n_slices = 11 - cut;
        pack_host_gather(&f.job);
        for (uint32_t b = 0; b < f.job.n_blocks; b++)
            ck_assert_uint_eq(first[b] + f.cells[b],
                              pack_checksum_slot(&f.layout, f.blocks[b].slot));
    }
    ck_assert_mem_eq(f.slots, f.want_slots, f.slots_bytes);
}
END_TEST

/* S5: empty lists are no error and do nothing. */
START_TEST(S5_empty_jobs)
{
    static const struct shape shape = {"empty", 4, {100}, 1, 3, 0, 0, 0, 0};
    static struct fixture f;

    build(&f, &shape);
    f.job.n_blocks = 0;
    pack_host_gather(&f.job);
    pack_host_scatter(&f.job);
    f.job.blocks = NULL;
    pack_host_gather(&f.job);
    f.job.blocks = f.blocks, f.job.n_blocks = 3, f.job.n_slices = 0;
    pack_host_gather(&f.job);
    f.job.first_slice = 4;
    pack_host_scatter(&f.job);
    check(&f, "empty");
}
END_TEST

/*
 * S11: the copy has nowhere to put a temporary. It runs on a stack that is much smaller than a
 * block, allocates nothing, and can write neither the engine's cache (gather) nor the slots
 * (scatter).
 */
static void *gather_thread(void *job)
{
    pack_host_gather(job);
    return NULL;
}

static void *scatter_thread(void *job)
{
    pack_host_scatter(job);
    return NULL;
}

static void on_small_stack(void *(*function)(void *), struct pack_job *job)
{
    pthread_attr_t attributes;
    pthread_t thread;

    ck_assert_int_eq(pthread_attr_init(&attributes), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 64 * 1024), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, function, job), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}

START_TEST(S11_no_temporaries)
{
    static const struct shape shape = {"chunk", 64, {32768, 100}, 2, 8, 0, 0, 0, 0};
    static struct fixture f;

    build(&f, &shape);
    f.job.cells = f.cells;
    plain_copy(&f, true);
    ck_assert_int_eq(mprotect(f.paged, f.paged_bytes, PROT_READ), 0);
    on_small_stack(gather_thread, &f.job);
    check(&f, "gather");
    struct mallinfo2 before = mallinfo2();
    pack_host_gather(&f.job);
    struct mallinfo2 after = mallinfo2();
    ck_assert_uint_eq(after.uordblks + after.hblkhd, before.uordblks + before.hblkhd);
    ck_assert_int_eq(mprotect(f.paged, f.paged_bytes, PROT_READ | PROT_WRITE), 0);

    random_fill(&state, f.slots, f.slots_bytes);
    memcpy(f.want_slots, f.slots, f.slots_bytes);
    plain_copy(&f, false);
    ck_assert_int_eq(mprotect(f.slots, f.slots_bytes, PROT_READ), 0);
    on_small_stack(scatter_thread, &f.job);
    check(&f, "scatter");
}
END_TEST

/* Past the caches or not, no byte beside the range changes. */
START_TEST(S22_plain_copies_of_every_small_size_and_alignment)
{
    enum { ROOM = 400, EDGE = 16 };
    uint8_t from[ROOM + 2 * EDGE], to[ROOM + 2 * EDGE], want[ROOM + 2 * EDGE];

    for (uint32_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 37 + 11);
    for (uint32_t at = 0; at < EDGE; at++) {
        for (uint32_t n = 0; n <= ROOM; n++) {
            memset(to, 0xee, sizeof(to));
            memset(want, 0xee, sizeof(want));
            memcpy(want + at, from + (at * 7 + n) % EDGE, n);
            pack_host_copy(to + at, from + (at * 7 + n) % EDGE, n);
            ck_assert_mem_eq(to, want, sizeof(to));
        }
    }
}
END_TEST

CHECK_MAIN_LOOPS("kernels/pack", CHECK_UNIT_S, {S4_gather_shapes, 0, N_SHAPES - 1},
                 {S4_gather_shapes_with_checksum, 0, N_SHAPES - 1},
                 {S4_scatter_shapes, 0, N_SHAPES - 1},
                 {S4_scatter_shapes_with_checksum, 0, N_SHAPES - 1},
                 {S4_every_small_size_and_alignment, 0, 0}, {S4_all_bf16_patterns, 0, 0},
                 {test_parts_add_up, 0, 0}, {S5_empty_jobs, 0, 0}, {S11_no_temporaries, 0, 0},
                 {S22_plain_copies_of_every_small_size_and_alignment, 0, 0})
