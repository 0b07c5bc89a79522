/*
 * Launches of one copy, which run into each other, between kernels of an engine that do so too: the
 * copy takes what the kernel in front of it writes last, and the kernel behind it has all that the
 * copy wrote. Two streams at once, and words that come behind their bytes.
 *
 *   test_early_pack_gpu [word]    only the shapes whose name has the word
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/gpu/driver.h"
#include "tests/gpu/early.h"
#include "tests/lib/random.h"

#define ROUNDS   16u /* on a stream, one behind the other, before anything is waited for */
#define FRESH    3u  /* contents by turns */
#define TRACKS   2u
#define LAUNCHES 24u
#define LATE_NS  60000u

struct shape {
    const char *name;
    uint32_t n_slices, bytes;
    uint32_t n_launches, blocks; /* of a launch */
};

static const struct shape shapes[] = {
    {"2 x 4 KiB, 24 launches of a block", 2, 4096, 24, 1},
    {"16 x 32 KiB, 8 launches of 4 blocks", 16, 32768, 8, 4},
    {"64 x 576 bytes, 16 launches of 12 blocks", 64, 576, 16, 12},
};

/* What both tracks have: the layout, and what the late kernel writes, with what comes of it. */
struct scene {
    struct gpu *gpu;
    void *late;
    const struct shape *shape;
    enum pack_cuda_direction direction;
    struct pack_layout layout;
    uint32_t slice_bytes[64];
    uint64_t slice_offsets[64];
    uint32_t n_blocks;
    size_t bytes; /* of all blocks, as they are in either place */
    gpu_ptr fresh[FRESH], sink;
    uint8_t *wanted[FRESH];
    uint64_t sums[FRESH][LAUNCHES * 16];
};

struct page {
    uint64_t cells[LAUNCHES * 16], words[LAUNCHES];
};

/* A stream with memory of its own. */
struct track {
    void *stream, *table;
    gpu_ptr device_table, scratch, from, to, out; /* out: ROUNDS times what `to` then was */
    struct pack_slice slices[64];
    struct page *page;
    gpu_ptr device_page;
};

static uint64_t state = RANDOM_STATE;

/* Both places have the size of all blocks: slots follow each other, and slices do. */
static void lay(const struct scene *s, uint8_t *paged, struct pack_slice *slices)
{
    for (uint32_t i = 0; i < s->shape->n_slices; i++)
        slices[i] =
            (struct pack_slice){paged + (size_t)i * s->n_blocks * s->shape->bytes, s->shape->bytes};
}

/* Blocks of a launch; their places among themselves are turned round in the slab. */
static void name_blocks(const struct scene *s, uint8_t *slab, uint32_t launch,
                        struct pack_block *blocks)
{
    for (uint32_t b = 0; b < s->shape->blocks; b++) {
        const uint32_t id = launch * s->shape->blocks + b;

        blocks[b] = (struct pack_block){slab + (s->n_blocks - 1 - id) * s->layout.slot_bytes, id};
    }
}

static void want(struct scene *s, uint32_t f)
{
    uint8_t *source = malloc(s->bytes);
    struct pack_slice slices[64];
    struct pack_block blocks[16];
    const bool gather = s->direction == PACK_CUDA_GATHER;

    s->wanted[f] = malloc(s->bytes);
    s->fresh[f] = gpu_alloc(s->gpu, s->bytes);
    random_fill(&state, source, s->bytes);
    GPU(s->gpu->to_device(s->fresh[f], source, s->bytes));
    lay(s, gather ? source : s->wanted[f], slices);
    for (uint32_t i = 0; i < s->shape->n_launches; i++) {
        struct pack_job job = {.layout = &s->layout,
                               .slices = slices,
                               .blocks = blocks,
                               .n_blocks = s->shape->blocks,
                               .n_slices = s->shape->n_slices,
                               .cells = &s->sums[f][i * s->shape->blocks]};

        name_blocks(s, gather ? s->wanted[f] : source, i, blocks);
        (gather ? pack_host_gather : pack_host_scatter)(&job);
    }
    free(source);
}

static void build(struct scene *s, struct gpu *gpu, const struct shape *shape,
                  enum pack_cuda_direction direction)
{
    *s = (struct scene){.gpu = gpu, .shape = shape, .direction = direction, .late = s->late};
    s->layout.slice_offsets = s->slice_offsets;
    for (uint32_t i = 0; i < shape->n_slices; i++)
        s->slice_bytes[i] = shape->bytes;
    if (pack_layout_init(&s->layout, s->slice_bytes, shape->n_slices) != KVC_OK)
        abort();
    s->n_blocks = shape->n_launches * shape->blocks;
    s->bytes = s->n_blocks * s->layout.slot_bytes;
    if (s->layout.slot_bytes != (size_t)shape->n_slices * shape->bytes)
        abort(); /* no gaps, so that both places can be compared as a whole */
    s->sink = gpu_alloc(gpu, EARLY_BLOCKS * EARLY_THREADS * sizeof(uint64_t));
    for (uint32_t f = 0; f < FRESH; f++)
        want(s, f);
}

static void destroy(struct scene *s)
{
    for (uint32_t f = 0; f < FRESH; f++) {
        GPU(s->gpu->free(s->fresh[f]));
        free(s->wanted[f]);
    }
    GPU(s->gpu->free(s->sink));
}

static void open_track(const struct scene *s, struct track *t)
{
    struct gpu *gpu = s->gpu;
    const size_t table_bytes = pack_cuda_table_bytes(s->shape->n_slices);

    GPU(gpu->stream_create(&t->stream, 1));
    t->from = gpu_alloc(gpu, s->bytes);
    t->to = gpu_alloc(gpu, s->bytes);
    t->out = gpu_alloc(gpu, s->bytes * ROUNDS);
    t->scratch = gpu_alloc(gpu, pack_cuda_scratch_bytes());
    GPU(gpu->set_async(t->scratch, 0, pack_cuda_scratch_bytes(), t->stream));
    GPU(gpu->set_async(t->from, 0xee, s->bytes, t->stream));
    lay(s, (uint8_t *)(s->direction == PACK_CUDA_GATHER ? t->from : t->to), t->slices);
    t->table = malloc(table_bytes);
    pack_cuda_table_fill(t->table, &s->layout, t->slices);
    t->device_table = gpu_alloc(gpu, table_bytes);
    GPU(gpu->to_device(t->device_table, t->table, table_bytes));
    t->page =
        mmap(NULL, sizeof *t->page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    GPU(gpu->host_register(t->page, sizeof *t->page, 2 /* device map */));
    GPU(gpu->host_pointer(&t->device_page, t->page, 0));
    GPU(gpu->stream_synchronize(t->stream));
}

static void close_track(const struct scene *s, struct track *t)
{
    GPU(s->gpu->free(t->from));
    GPU(s->gpu->free(t->to));
    GPU(s->gpu->free(t->out));
    GPU(s->gpu->free(t->scratch));
    GPU(s->gpu->free(t->device_table));
    GPU(s->gpu->host_unregister(t->page));
    munmap(t->page, sizeof *t->page);
    free(t->table);
}

static void write_late(const struct scene *s, const struct track *t, uint32_t f)
{
    const uint64_t words = s->bytes / 8, near = 24576; /* what a multiprocessor keeps */
    struct early_args args = {t->from, s->fresh[f], words, words < near ? words : near,
                              LATE_NS, s->sink};

    GPU(early_launch(s->gpu->launch_with, s->late, t->stream, &args));
}

/* early: the first launch, too, is said to follow a launch of the copy. */
static void copy(const struct scene *s, const struct track *t, gpu_ptr to, uint64_t value,
                 bool early)
{
    const bool gather = s->direction == PACK_CUDA_GATHER;
    struct pack_block blocks[16];

    for (uint32_t i = 0; i < s->shape->n_launches; i++) {
        const struct pack_cuda_span span = {
            .n_blocks = s->shape->blocks,
            .cells = t->device_page + i * s->shape->blocks * sizeof(uint64_t),
            .word = t->device_page + offsetof(struct page, words) + i * sizeof(uint64_t),
            .word_value = value + i,
        };
        const struct pack_cuda_job job = {
            .direction = s->direction,
            .layout = &s->layout,
            .table = t->table,
            .device_table = t->device_table,
            .blocks = blocks,
            .n_blocks = s->shape->blocks,
            .n_slices = s->shape->n_slices,
            .spans = &span,
            .n_spans = 1,
            .scratch = t->scratch,
            .far = to != t->to,
            .more = i + 1 < s->shape->n_launches,
            .follows = early || i > 0,
        };
        int error = 0;

        name_blocks(s, (uint8_t *)(gather ? to : t->from), i, blocks);
        if (pack_cuda_launch(&s->gpu->pack, &job, t->stream, &error) != KVC_OK) {
            printf("FAIL %s: launch %u failed with %d\n", s->shape->name, i, error);
            exit(1);
        }
    }
}

static void look_behind(const struct scene *s, const struct track *t, uint32_t round)
{
    struct early_args args = {t->out + round * s->bytes, t->to, s->bytes / 8, 0, 0, s->sink};

    GPU(early_launch(s->gpu->launch_with, s->late, t->stream, &args));
}

/* How many of a track's rounds have other bytes than were written last; cells and words are those
 * of the last one. */
static uint32_t count_wrong(const struct scene *s, const struct track *t)
{
    const uint32_t last = (ROUNDS - 1) % FRESH;
    uint8_t *seen = malloc(s->bytes);
    uint32_t wrong = 0;

    GPU(s->gpu->stream_synchronize(t->stream));
    for (uint32_t r = 0; r < ROUNDS; r++) {
        GPU(s->gpu->to_host(seen, t->out + r * s->bytes, s->bytes));
        wrong += memcmp(seen, s->wanted[r % FRESH], s->bytes) != 0;
    }
    free(seen);
    for (uint32_t i = 0; i < s->shape->n_launches; i++)
        wrong += t->page->words[i] != ROUNDS * 100 + i;
    return wrong + (memcmp(t->page->cells, s->sums[last], s->n_blocks * sizeof(uint64_t)) != 0);
}

static uint32_t run_rounds(const struct scene *s, bool early)
{
    struct track tracks[TRACKS] = {0};
    uint32_t wrong = 0;

    for (uint32_t k = 0; k < TRACKS; k++)
        open_track(s, &tracks[k]);
    for (uint32_t r = 0; r < ROUNDS; r++)
        for (uint32_t k = 0; k < TRACKS; k++) {
            write_late(s, &tracks[k], r % FRESH);
            copy(s, &tracks[k], tracks[k].to, (r + 1) * 100, early);
            look_behind(s, &tracks[k], r);
        }
    for (uint32_t k = 0; k < TRACKS; k++)
        wrong += count_wrong(s, &tracks[k]);
    for (uint32_t k = 0; k < TRACKS; k++)
        close_track(s, &tracks[k]);
    return wrong;
}

static void wait_for_word(const uint64_t *word, uint64_t value)
{
    const time_t until = time(NULL) + 10;

    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
        if (time(NULL) > until) {
            printf("FAIL word %llu has not come\n", (unsigned long long)value);
            exit(1);
        }
}

/* Into memory of the host, which looks at a launch's bytes as soon as it sees its word. */
static uint32_t watch_words(const struct scene *s)
{
    const size_t launch_bytes = s->shape->blocks * s->layout.slot_bytes;
    struct track t = {0};
    uint32_t wrong = 0;
    gpu_ptr to;
    uint8_t *slab = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    open_track(s, &t);
    GPU(s->gpu->host_register(slab, s->bytes, 2 /* device map */));
    GPU(s->gpu->host_pointer(&to, slab, 0));
    for (uint32_t r = 0; r < ROUNDS; r++) {
        const uint8_t *wanted = s->wanted[r % FRESH];

        memset(slab, 0xee, s->bytes);
        write_late(s, &t, r % FRESH);
        copy(s, &t, to, (r + 1) * 100, false);
        for (uint32_t i = 0; i < s->shape->n_launches; i++) {
            const size_t at = s->bytes - (i + 1) * launch_bytes;

            wait_for_word(&t.page->words[i], (r + 1) * 100 + i);
            wrong += memcmp(slab + at, wanted + at, launch_bytes) != 0;
        }
        GPU(s->gpu->stream_synchronize(t.stream));
    }
    GPU(s->gpu->host_unregister(slab));
    munmap(slab, s->bytes);
    close_track(s, &t);
    return wrong;
}

/* Whether the engine's kernel is one that a copy would overtake if it were let. */
static bool can_be_overtaken(struct scene *s, struct gpu *gpu)
{
    uint32_t wrong;

    build(s, gpu, &shapes[0], PACK_CUDA_GATHER);
    wrong = run_rounds(s, true);
    destroy(s);
    printf("a first launch that is let begin early takes old bytes: %s\n",
           wrong > 0 ? "yes" : "no");
    return wrong > 0;
}

int main(int argc, char **argv)
{
    struct gpu gpu;
    struct scene s = {0};
    void *module;
    uint32_t failed = 0;

    gpu_open(&gpu);
    if (!gpu.pack.chains) {
        printf("WAIVED launches do not run into each other on this GPU\n");
        return GPU_WAIVED;
    }
    GPU(gpu.module_load(&module, early_code));
    GPU(gpu.module_function(&s.late, module, EARLY_KERNEL));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (argc > 1 && !strstr(shapes[i].name, argv[1]))
            continue;
        for (int scatter = 0; scatter < 2; scatter++) {
            uint32_t wrong;

            build(&s, &gpu, &shapes[i], scatter ? PACK_CUDA_SCATTER : PACK_CUDA_GATHER);
            wrong = run_rounds(&s, false) + (scatter ? 0 : watch_words(&s));
            destroy(&s);
            printf("%s %s, %s\n", wrong == 0 ? "PASS" : "FAIL", shapes[i].name,
                   scatter ? "scattered" : "gathered, also to the host");
            failed += wrong != 0;
        }
    }
    if (failed == 0 && !can_be_overtaken(&s, &gpu)) {
        printf("WAIVED nothing ran into anything\n");
        return GPU_WAIVED;
    }
    pack_cuda_close(&gpu.pack);
    return failed != 0;
}
