/*
 * Launches of packing, on a driver that only notes what it is given: where pieces lie, how blocks
 * are cut into spans, how many thread blocks are asked for, and which launches may begin early.
 */
#include <string.h>

#include "kernels/pack_cuda_args.h"
#include "tests/lib/check_main.h"

#define STREAM ((void *)0x5)
/* Of a gather without checksums; and that with as long lists as there may be. */
#define LARGE      ((void *)2)
#define SMALL      ((void *)4)
#define LONG(name) ((void *)((uintptr_t)(name)-1))

static struct {
    struct pack_cuda_args args;
    void *function, *stream;
    uint32_t launches, grid;
    bool early; /* with the attribute that lets it begin before the one in front has ended */
    int fails;
} seen;

static int note_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       void *stream, void **parameters, void **extra)
{
    ck_assert_uint_eq(grid_y * grid_z * block_y * block_z, 1);
    ck_assert_uint_eq(block_x, PACK_CUDA_THREADS);
    ck_assert(shared_bytes == 0 && extra == NULL);
    memset(&seen.args, 0xa5, sizeof(seen.args));
    memcpy(&seen.args, parameters[0],
           (uintptr_t)function % 2 == 0 ? sizeof(struct pack_cuda_short_args) : sizeof(seen.args));
    seen.function = function;
    seen.stream = stream;
    seen.grid = grid_x;
    seen.early = false;
    seen.launches++;
    return seen.fails;
}

static int note_launch_with(const struct pack_cuda_config *config, void *function,
                            void **parameters, void **extra)
{
    const int error = note_launch(function, config->grid_x, config->grid_y, config->grid_z,
                                  config->block_x, config->block_y, config->block_z,
                                  config->shared_bytes, config->stream, parameters, extra);

    ck_assert_uint_eq(config->n_attributes, 1);
    ck_assert(config->attributes->id == 6 && config->attributes->flag == 1);
    seen.early = true;
    return error;
}

static const struct pack_cuda_driver driver = {
    .launch = note_launch,
    .launch_with = note_launch_with,
};

#define KERNEL(n)                                                                                  \
    {                                                                                              \
        .function = (void *)(uintptr_t)(n), .thread_blocks = 100                                   \
    }
#define KERNELS(n)                                                                                 \
    {                                                                                              \
        KERNEL(n), KERNEL((n) + 1)                                                                 \
    }
static const struct pack_cuda cuda = {
    .driver = &driver,
    .kernels = {{{KERNELS(1), KERNELS(3)}, {KERNELS(5), KERNELS(7)}},
                {{KERNELS(9), KERNELS(11)}, {KERNELS(13), KERNELS(15)}}},
};

/* n slices of so many bytes, whose table is made; the engine's memory is nowhere. */
struct setup {
    struct pack_layout layout;
    uint32_t slice_bytes[64];
    uint64_t slice_offsets[64];
    struct pack_slice slices[64];
    uint8_t table[65 * 40] __attribute__((aligned(16)));
    struct pack_block blocks[PACK_CUDA_BLOCKS];
    struct pack_cuda_job job;
};

static void set_up(struct setup *s, uint32_t n_slices, uint32_t bytes, uint32_t n_blocks)
{
    *s = (struct setup){.layout.slice_offsets = s->slice_offsets};
    for (uint32_t i = 0; i < n_slices; i++) {
        s->slice_bytes[i] = bytes;
        s->slices[i] = (struct pack_slice){(uint8_t *)(uintptr_t)(0x100000 * (i + 1)), bytes};
    }
    ck_assert_int_eq(pack_layout_init(&s->layout, s->slice_bytes, n_slices), KVC_OK);
    ck_assert_uint_le(pack_cuda_table_bytes(n_slices), sizeof(s->table));
    pack_cuda_table_fill(s->table, &s->layout, s->slices);
    for (uint32_t i = 0; i < PACK_CUDA_BLOCKS; i++)
        s->blocks[i] = (struct pack_block){(uint8_t *)(uintptr_t)(0x40000000 + i * 512), 7 * i};
    s->job = (struct pack_cuda_job){
        .direction = PACK_CUDA_GATHER,
        .layout = &s->layout,
        .table = s->table,
        .device_table = 0x9000,
        .blocks = s->blocks,
        .n_blocks = n_blocks,
        .n_slices = n_slices,
        .scratch = 0x8000,
    };
    memset(&seen, 0, sizeof(seen));
}

static kvc_status launch(const struct setup *s)
{
    int error = 0;
    kvc_status status = pack_cuda_launch(&cuda, &s->job, STREAM, &error);

    ck_assert_int_eq(error, status == KVC_E_DEVICE ? seen.fails : 0);
    return status;
}

/* As the kernel does it. */
static uint64_t find_slice(uint64_t unit)
{
    return seen.args.inverse ? unit * seen.args.inverse >> 32 : unit;
}

static bool finds_slices(uint64_t n_slices, uint64_t each)
{
    for (uint64_t slice = 0; slice < n_slices; slice++)
        if (find_slice(slice * each) != slice || find_slice((slice + 1) * each - 1) != slice)
            return false;
    return true;
}

START_TEST(slices_that_are_alike_are_found_by_a_multiplication)
{
    struct setup s;

    for (uint32_t units = 1; units < PACK_CUDA_PIECE_BYTES / 16; units++) {
        set_up(&s, 64, units * 16, 1);
        ck_assert_int_eq(launch(&s), KVC_OK);
        ck_assert(seen.function == SMALL && seen.args.each == units);
        ck_assert_uint_eq(seen.args.pieces,
                          (64 * units + PACK_CUDA_SMALL_UNITS - 1) / PACK_CUDA_SMALL_UNITS);
        ck_assert(finds_slices(KVC_SLICES_MAX, units));
    }
    for (uint32_t pieces = 1; pieces < 8192; pieces++) {
        set_up(&s, 64, pieces * PACK_CUDA_PIECE_BYTES, 1);
        ck_assert_int_eq(launch(&s), KVC_OK);
        ck_assert(seen.function == LARGE && seen.args.pieces == 64 * pieces);
        ck_assert(seen.args.each == pieces && finds_slices(64, pieces));
    }
    set_up(&s, 64, 8192 * PACK_CUDA_PIECE_BYTES, 1); /* too large for it, so they are searched */
    ck_assert_int_eq(launch(&s), KVC_OK);
    ck_assert(seen.args.each == 0 && seen.args.pieces == 64 * 8192);
    ck_assert_uint_eq(seen.args.first_piece,
                      0x9000 + 64 * sizeof(struct pack_cuda_row) + sizeof(struct pack_cuda_tail));
}
END_TEST

static bool is_small(struct setup *s)
{
    pack_cuda_table_fill(s->table, &s->layout, s->slices);
    ck_assert_int_eq(launch(s), KVC_OK);
    return seen.function == SMALL;
}

START_TEST(only_small_slices_that_are_alike_share_pieces)
{
    struct setup s;

    set_up(&s, 8, PACK_CUDA_PIECE_BYTES - 16, 1);
    ck_assert(is_small(&s));
    set_up(&s, 8, PACK_CUDA_PIECE_BYTES, 1);
    ck_assert(!is_small(&s));
    set_up(&s, 8, 1000, 1); /* not whole units */
    ck_assert(!is_small(&s));
    set_up(&s, 8, 576, 1);
    s.slices[3].base += 8;
    ck_assert(!is_small(&s));
    set_up(&s, 8, 576, 1);
    s.slices[7].stride += 4;
    ck_assert(!is_small(&s));
}
END_TEST

START_TEST(spans_are_the_blocks_in_order)
{
    const struct pack_cuda_span spans[] = {
        {.n_blocks = 3, .cells = 0x100, .word = 0x200, .word_value = 11},
        {.n_blocks = 0, .cells = 0x300, .word = 0x400, .word_value = 12},
        {.n_blocks = 7, .cells = 0x500},
    };
    struct setup s;

    set_up(&s, 4, 8192, 10);
    s.job.spans = spans;
    s.job.n_spans = 3;
    ck_assert_int_eq(launch(&s), KVC_OK);
    ck_assert(seen.function == (void *)6 && seen.stream == STREAM);
    ck_assert(seen.args.n_blocks == 10 && seen.args.n_spans == 3 && seen.args.scratch == 0x8000);
    for (uint32_t i = 0, first = 0; i < 3; first += spans[i++].n_blocks) {
        const struct pack_cuda_span_args *span = &pack_cuda_spans(&seen.args)[i];

        ck_assert_uint_eq(span->first_block, first);
        ck_assert_uint_eq(span->n_blocks, spans[i].n_blocks);
        ck_assert_uint_eq(span->cells, spans[i].cells);
        ck_assert_uint_eq(span->word, spans[i].word);
        ck_assert_uint_eq(span->word_value, spans[i].word_value);
    }
    for (uint32_t b = 0; b < 10; b++) {
        ck_assert_uint_eq(pack_cuda_ids(&seen.args)[b], 7 * b);
        ck_assert_uint_eq(pack_cuda_slots(&seen.args)[b], 0x40000000 + b * 512);
    }
}
END_TEST

/* Of every number of spans and blocks the last ones are in the parameter that the kernel has. */
START_TEST(lists_are_as_short_as_they_can_be)
{
    struct pack_cuda_span spans[PACK_CUDA_SPANS] = {0};
    struct setup s;

    set_up(&s, 4, 8192, 1);
    s.job.spans = spans;
    for (uint32_t n_spans = 0; n_spans <= PACK_CUDA_SPANS; n_spans++) {
        for (uint32_t n = 1; n <= PACK_CUDA_BLOCKS; n++) {
            const uint32_t words = n_spans * PACK_CUDA_SPAN_WORDS + n + (n + 1) / 2;

            s.job.n_blocks = n;
            s.job.n_spans = n_spans;
            if (n_spans > 0)
                spans[n_spans - 1] = (struct pack_cuda_span){.n_blocks = n, .word = 0x200 + n};
            ck_assert_int_eq(launch(&s), KVC_OK);
            ck_assert_ptr_eq(seen.function, words <= PACK_CUDA_SHORT_WORDS ? LARGE : LONG(LARGE));
            ck_assert_uint_eq(pack_cuda_ids(&seen.args)[n - 1], 7 * (n - 1));
            ck_assert_uint_eq(pack_cuda_slots(&seen.args)[n - 1], 0x40000000 + (n - 1) * 512);
            if (n_spans > 0)
                ck_assert_uint_eq(pack_cuda_spans(&seen.args)[n_spans - 1].word, 0x200 + n);
        }
        if (n_spans > 0)
            spans[n_spans - 1] = (struct pack_cuda_span){0};
    }
}
END_TEST

START_TEST(what_is_not_launched)
{
    const struct pack_cuda_span word = {.word = 0x200, .word_value = 11};
    struct setup s;

    set_up(&s, 4, 8192, 0);
    ck_assert_int_eq(launch(&s), KVC_OK);
    ck_assert_uint_eq(seen.launches, 0);
    s.job.spans = &word;
    s.job.n_spans = 1;
    ck_assert_int_eq(launch(&s), KVC_OK);
    ck_assert(seen.launches == 1 && seen.grid == 1);
    s.job.scratch = 0;
    ck_assert_int_eq(launch(&s), KVC_E_INVALID);
    s.job.n_blocks = PACK_CUDA_BLOCKS + 1;
    ck_assert_int_eq(launch(&s), KVC_E_LIMIT);
    s.job.n_blocks = 1;
    s.job.n_spans = PACK_CUDA_SPANS + 1;
    ck_assert_int_eq(launch(&s), KVC_E_LIMIT);
    ck_assert_uint_eq(seen.launches, 1);
    s.job.n_spans = 0;
    seen.fails = 719;
    ck_assert_int_eq(launch(&s), KVC_E_DEVICE);
}
END_TEST

/* All pieces are somebody's. */
static void check_shares(uint32_t grid, uint32_t share, uint32_t rest)
{
    ck_assert_uint_eq(seen.grid, grid);
    ck_assert_uint_eq(seen.args.share, share);
    ck_assert_uint_eq(seen.args.rest, rest);
    ck_assert_uint_eq(grid * share + rest, seen.args.n_blocks * seen.args.pieces);
}

START_TEST(thread_blocks_have_so_much_to_do_and_are_no_more_than_may)
{
    struct setup s;

    set_up(&s, 4, 8192, 3); /* 24 pieces, a warp each */
    ck_assert_int_eq(launch(&s), KVC_OK);
    check_shares(3, 8, 0);
    s.job.n_blocks = 128; /* more than run at a time, and each would have too little */
    ck_assert_int_eq(launch(&s), KVC_OK);
    check_shares(100, 10, 24);
    s.job.n_blocks = PACK_CUDA_BLOCKS;
    ck_assert_int_eq(launch(&s), KVC_OK);
    check_shares(128, 16, 0);
    s.job.n_blocks--;
    ck_assert_int_eq(launch(&s), KVC_OK);
    check_shares(128, 15, 120);
    s.job.max_thread_blocks = 120;
    ck_assert_int_eq(launch(&s), KVC_OK);
    check_shares(120, 17, 0);
    s.job.max_thread_blocks = 8;
    ck_assert_int_eq(launch(&s), KVC_OK);
    check_shares(8, 255, 0);
}
END_TEST

START_TEST(small_slices_have_no_more_thread_blocks_than_run)
{
    struct setup s;

    set_up(&s, 64, 576, PACK_CUDA_BLOCKS);
    ck_assert_int_eq(launch(&s), KVC_OK);
    ck_assert_ptr_eq(seen.function, LONG(SMALL));
    check_shares(100, 46, 8);
}
END_TEST

/* What of job.more and job.follows the kernel is told, and the driver. */
static void check_chained(const struct pack_cuda *kernels, struct setup *s, void *stream,
                          bool chained)
{
    int error = 0;

    for (int i = 0; i < 4; i++) {
        s->job.more = i % 2 == 1;
        s->job.follows = i / 2 == 1;
        ck_assert_int_eq(pack_cuda_launch(kernels, &s->job, stream, &error), KVC_OK);
        ck_assert_int_eq(seen.args.more != 0, s->job.more && chained);
        ck_assert_int_eq(seen.args.follows != 0, s->job.follows && chained);
        ck_assert_int_eq(seen.early, s->job.follows && chained);
    }
}

START_TEST(only_what_follows_its_own_copy_begins_early)
{
    struct pack_cuda waiting = cuda;
    struct setup s;

    waiting.chains = true;
    set_up(&s, 4, 8192, 8);
    check_chained(&waiting, &s, STREAM, true);
    for (uintptr_t legacy = 0; legacy <= 2; legacy++)
        check_chained(&waiting, &s, (void *)legacy, false);
    check_chained(&cuda, &s, STREAM, false); /* kernels that do not wait */
    s.job.max_thread_blocks = 8;             /* of all that run at a time */
    check_chained(&waiting, &s, STREAM, false);
}
END_TEST

CHECK_MAIN("kernels/launch", CHECK_UNIT_S, only_what_follows_its_own_copy_begins_early,
           slices_that_are_alike_are_found_by_a_multiplication,
           only_small_slices_that_are_alike_share_pieces, spans_are_the_blocks_in_order,
           lists_are_as_short_as_they_can_be, what_is_not_launched,
           thread_blocks_have_so_much_to_do_and_are_no_more_than_may,
           small_slices_have_no_more_thread_blocks_than_run)
