/*
 * Packing on the GPU against one copy of the same bytes, all columns from one run: medians in
 * microseconds between events, the L2 cache flushed before every measurement, other blocks in
 * another order each time, the bytes checked against pack_host before and after.
 *
 *   bench_pack_gpu [repeats]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/gpu/driver.h"
#include "tests/lib/random.h"

#define FLUSH_BYTES   (256u << 20)
#define ENGINE_FACTOR 2u /* engine blocks for each block of the chunk */

struct shape {
    uint32_t n_slices, bytes, n_blocks;
    bool together; /* a block's slices in the engine's memory, instead of each slice's blocks */
};

static const struct shape shapes[] = {
    {48, 4096, 64, false},  {64, 32768, 8, false}, {64, 32768, 64, false},
    {61, 18432, 64, false}, {32, 65536, 8, false}, {32, 65536, 8, true},
    {61, 576, 64, false},   {61, 576, 512, false}, {48, 4096, 512, false},
};
#define BLOCKS_MAX 512u
#define WORDS_MAX  64u

static uint64_t state = RANDOM_STATE;

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float quantile(float *values, uint32_t n, double q)
{
    qsort(values, n, sizeof *values, by_value);
    return values[(uint32_t)(q * (n - 1))];
}

struct page {
    uint64_t cells[BLOCKS_MAX];
    uint64_t words[WORDS_MAX];
};

struct bench {
    struct gpu gpu;
    uint32_t repeats;
    void *start, *end;
    gpu_ptr flush, scratch, device_page;
    struct page *page;

    struct shape shape;
    struct pack_layout layout;
    uint32_t *slice_bytes;
    struct pack_slice *slices, *device_slices;
    struct pack_block blocks[BLOCKS_MAX], device_blocks[BLOCKS_MAX];
    size_t paged_bytes, slab_bytes;
    uint8_t *paged, *slab, *seen;
    gpu_ptr device_paged, device_slab, device_table;
    void *table;
};

static void choose_blocks(struct bench *bench)
{
    uint32_t n = bench->shape.n_blocks * ENGINE_FACTOR;
    uint32_t ids[BLOCKS_MAX * ENGINE_FACTOR];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i;
    for (uint32_t b = 0; b < bench->shape.n_blocks; b++) {
        uint32_t other = b + (uint32_t)(random_next(&state) >> 33) % (n - b);
        uint32_t id = ids[other];
        ids[other] = ids[b];
        bench->blocks[b].id = bench->device_blocks[b].id = id;
    }
}

static void build(struct bench *bench, struct shape shape)
{
    struct gpu *gpu = &bench->gpu;
    bench->shape = shape;
    bench->slice_bytes = calloc(shape.n_slices, sizeof *bench->slice_bytes);
    bench->layout.slice_offsets = calloc(shape.n_slices, sizeof *bench->layout.slice_offsets);
    bench->slices = calloc(shape.n_slices, sizeof *bench->slices);
    bench->device_slices = calloc(shape.n_slices, sizeof *bench->slices);
    for (uint32_t s = 0; s < shape.n_slices; s++)
        bench->slice_bytes[s] = shape.bytes;
    if (pack_layout_init(&bench->layout, bench->slice_bytes, shape.n_slices) != KVC_OK)
        abort();

    uint64_t per_slice = (uint64_t)shape.n_blocks * ENGINE_FACTOR * shape.bytes;
    bench->paged_bytes = per_slice * shape.n_slices;
    bench->slab_bytes = shape.n_blocks * bench->layout.slot_bytes;
    bench->paged = malloc(bench->paged_bytes);
    bench->slab = malloc(bench->slab_bytes);
    bench->seen = malloc(bench->paged_bytes + bench->slab_bytes);
    bench->device_paged = gpu_alloc(gpu, bench->paged_bytes);
    bench->device_slab = gpu_alloc(gpu, bench->slab_bytes);
    uint64_t step = shape.together ? shape.bytes : per_slice;
    uint64_t stride = shape.together ? (uint64_t)shape.n_slices * shape.bytes : shape.bytes;
    for (uint32_t s = 0; s < shape.n_slices; s++) {
        bench->slices[s] = (struct pack_slice){bench->paged + s * step, stride};
        bench->device_slices[s] =
            (struct pack_slice){(uint8_t *)(bench->device_paged + s * step), stride};
    }
    for (uint32_t b = 0; b < shape.n_blocks; b++) {
        uint64_t at = b * bench->layout.slot_bytes;
        bench->blocks[b].slot = bench->slab + at;
        bench->device_blocks[b].slot = (uint8_t *)bench->device_slab + at;
    }
    for (size_t i = 0; i < bench->paged_bytes / 8; i++)
        ((uint64_t *)bench->paged)[i] = random_next(&state);

    size_t table_bytes = pack_cuda_table_bytes(shape.n_slices);
    bench->table = malloc(table_bytes);
    pack_cuda_table_fill(bench->table, &bench->layout, bench->device_slices);
    bench->device_table = gpu_alloc(gpu, table_bytes);
    GPU(gpu->to_device(bench->device_table, bench->table, table_bytes));
}

static void destroy(struct bench *bench)
{
    struct gpu *gpu = &bench->gpu;
    GPU(gpu->free(bench->device_paged));
    GPU(gpu->free(bench->device_slab));
    GPU(gpu->free(bench->device_table));
    free(bench->slice_bytes);
    free(bench->layout.slice_offsets);
    free(bench->slices);
    free(bench->device_slices);
    free(bench->paged);
    free(bench->slab);
    free(bench->seen);
    free(bench->table);
}

struct way {
    const char *name;
    bool reference; /* one copy of the same bytes */
    enum pack_cuda_direction direction;
    bool summed, worded;
    bool each;    /* a launch for each chunk */
    bool written; /* a word by the stream behind all */
    uint32_t max_thread_blocks;
};

static void launch(struct bench *bench, const struct way *way, uint32_t first, uint32_t n,
                   const struct pack_cuda_span *spans, uint32_t n_spans)
{
    struct gpu *gpu = &bench->gpu;
    struct pack_cuda_job job = {
        .direction = way->direction,
        .layout = &bench->layout,
        .table = bench->table,
        .device_table = bench->device_table,
        .blocks = bench->device_blocks + first,
        .n_blocks = n,
        .n_slices = bench->shape.n_slices,
        .spans = spans,
        .n_spans = way->summed || way->worded ? n_spans : 0,
        .scratch = bench->scratch,
        .more = (first + n < bench->shape.n_blocks),
        .follows = (first > 0),
        .max_thread_blocks = way->max_thread_blocks,
    };
    int error = 0;
    if (pack_cuda_launch(&gpu->pack, &job, gpu->stream, &error) != KVC_OK) {
        fprintf(stderr, "launch failed with %d\n", error);
        exit(1);
    }
}

/* All blocks, cut into chunks as saves are, as many chunks a launch as it takes. */
static void put_chunks(struct bench *bench, const struct way *way, uint64_t value)
{
    struct pack_cuda_span spans[PACK_CUDA_SPANS];
    struct pack_cut cut = {0};
    uint32_t n_spans = 0, first = 0, words = 0;

    for (uint32_t b = 0; b < bench->shape.n_blocks; b++) {
        bool starts = pack_cut_next(&cut, bench->layout.block_bytes);
        if (starts && n_spans > 0 &&
            (way->each || n_spans == PACK_CUDA_SPANS ||
             b - first + KVC_CHUNK_BLOCKS > PACK_CUDA_BLOCKS)) {
            launch(bench, way, first, b - first, spans, n_spans);
            first = b;
            n_spans = 0;
        }
        if (starts)
            spans[n_spans++] = (struct pack_cuda_span){
                .cells = way->summed ? bench->device_page + b * sizeof(uint64_t) : 0,
                .word = way->worded ? bench->device_page + offsetof(struct page, words) +
                                          words++ * sizeof(uint64_t)
                                    : 0,
                .word_value = value,
            };
        spans[n_spans - 1].n_blocks++;
    }
    launch(bench, way, first, bench->shape.n_blocks - first, spans, n_spans);
}

static void put(struct bench *bench, const struct way *way, uint64_t value)
{
    struct gpu *gpu = &bench->gpu;
    if (way->reference)
        GPU(gpu->copy_async(bench->device_slab, bench->device_paged,
                            bench->layout.block_bytes * bench->shape.n_blocks, gpu->stream));
    else
        put_chunks(bench, way, value);
    if (way->written)
        GPU(gpu->stream_write(gpu->stream, bench->device_page + offsetof(struct page, words), value,
                              0));
}

/* Gathers with checksum on both sides and compares all bytes and cells. */
static void check(struct bench *bench)
{
    struct gpu *gpu = &bench->gpu;
    uint64_t cells[BLOCKS_MAX];
    struct pack_job job = {
        &bench->layout,        bench->slices, bench->blocks, bench->shape.n_blocks, 0,
        bench->shape.n_slices, cells};
    GPU(gpu->to_device(bench->device_paged, bench->paged, bench->paged_bytes)); /* scatter wrote */
    memset(bench->slab, 0xA5, bench->slab_bytes);
    GPU(gpu->set_async(bench->device_slab, 0xA5, bench->slab_bytes, gpu->stream));
    memset(bench->page, 0xA5, sizeof *bench->page);
    pack_host_gather(&job);
    GPU(gpu->context_synchronize());
    put(bench, &(struct way){.direction = PACK_CUDA_GATHER, .summed = true}, 0);
    GPU(gpu->stream_synchronize(gpu->stream));
    GPU(gpu->to_host(bench->seen, bench->device_slab, bench->slab_bytes));
    if (memcmp(bench->seen, bench->slab, bench->slab_bytes) != 0 ||
        memcmp(bench->page->cells, cells, 8 * bench->shape.n_blocks) != 0) {
        fprintf(stderr, "FAIL: gathered bytes or checksums are wrong\n");
        exit(1);
    }
}

static float time_one(struct bench *bench, const struct way *way)
{
    struct gpu *gpu = &bench->gpu;
    float ms = 0;
    choose_blocks(bench);
    GPU(gpu->set_async(bench->flush, (unsigned char)random_next(&state), FLUSH_BYTES, gpu->stream));
    GPU(gpu->event_record(bench->start, gpu->stream));
    put(bench, way, random_next(&state));
    GPU(gpu->event_record(bench->end, gpu->stream));
    GPU(gpu->stream_synchronize(gpu->stream));
    GPU(gpu->event_elapsed(&ms, bench->start, bench->end));
    return ms * 1000;
}

static const struct way ways[] = {
    {"memcpy", .reference = true},
    {"memcpy+word", .reference = true, .written = true},
    {"gather", .direction = PACK_CUDA_GATHER},
    {"gather+sum", .direction = PACK_CUDA_GATHER, .summed = true},
    {"g+words", .direction = PACK_CUDA_GATHER, .worded = true},
    {"g+sum+words", .direction = PACK_CUDA_GATHER, .summed = true, .worded = true},
    {"gsw, each", .direction = PACK_CUDA_GATHER, .summed = true, .worded = true, .each = true},
    {"g+sum, word", .direction = PACK_CUDA_GATHER, .summed = true, .written = true},
    {"scatter", .direction = PACK_CUDA_SCATTER},
    {"scatter+sum", .direction = PACK_CUDA_SCATTER, .summed = true},
    {"s+words", .direction = PACK_CUDA_SCATTER, .worded = true},
    {"s+sum+words", .direction = PACK_CUDA_SCATTER, .summed = true, .worded = true},
    {"gsw, 8", .direction = PACK_CUDA_GATHER, .summed = true, .worded = true,
     .max_thread_blocks = 8},
    {"gsw, 132", .direction = PACK_CUDA_GATHER, .summed = true, .worded = true,
     .max_thread_blocks = 132},
    {"gsw, 264", .direction = PACK_CUDA_GATHER, .summed = true, .worded = true,
     .max_thread_blocks = 264},
};
#define N_WAYS (sizeof ways / sizeof ways[0])

static void table_row(struct bench *bench)
{
    uint32_t n = bench->repeats;
    float *times = malloc(sizeof *times * n * N_WAYS);
    float medians[N_WAYS];

    check(bench);
    for (uint32_t r = 0; r < n + 3; r++) {
        for (size_t w = 0; w < N_WAYS; w++) {
            float us = time_one(bench, &ways[w]);
            if (r >= 3)
                times[w * n + r - 3] = us;
        }
    }
    check(bench);

    printf("%2u x %6.3f KiB x %3u,%c%5.1f MiB |", bench->shape.n_slices,
           bench->shape.bytes / 1024.0, bench->shape.n_blocks, bench->shape.together ? '*' : ' ',
           (double)(bench->layout.block_bytes * bench->shape.n_blocks) / (1 << 20));
    for (size_t w = 0; w < N_WAYS; w++) {
        medians[w] = quantile(times + w * n, n, 0.5);
        printf(" %11.2f", medians[w]);
    }
    printf("\n%31s |", "over memcpy");
    for (size_t w = 0; w < N_WAYS; w++)
        printf(" %11.3f", medians[w] / medians[0]);
    printf("\n%31s |", "from the 10th to the 90th %");
    for (size_t w = 0; w < N_WAYS; w++)
        printf(" %5.2f-%5.2f", quantile(times + w * n, n, 0.1), quantile(times + w * n, n, 0.9));
    printf("\n");
    free(times);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

/* From the call to the word seen by a polling CPU, the stream idle before. */
static void word_latency(struct bench *bench, const char *name, const struct way *way)
{
    float times[1000];
    uint32_t n = 500;
    volatile uint64_t *word = bench->page->words;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t value = random_next(&state) | 1;
        choose_blocks(bench);
        double start = now_us();
        put(bench, way, value);
        while (*word != value)
            ;
        times[i] = (float)(now_us() - start);
        GPU(bench->gpu.stream_synchronize(bench->gpu.stream));
    }
    printf("word seen, %-34s p50 %6.2f us, p95 %6.2f\n", name, quantile(times, n, 0.5),
           quantile(times, n, 0.95));
}

int main(int argc, char **argv)
{
    static struct bench bench;
    gpu_open(&bench.gpu);
    struct gpu *gpu = &bench.gpu;
    bench.repeats = argc > 1 ? (uint32_t)atoi(argv[1]) : 101;
    GPU(gpu->event_create(&bench.start, 0));
    GPU(gpu->event_create(&bench.end, 0));
    bench.flush = gpu_alloc(gpu, FLUSH_BYTES);
    bench.scratch = gpu_alloc(gpu, pack_cuda_scratch_bytes());
    GPU(gpu->set_async(bench.scratch, 0, pack_cuda_scratch_bytes(), gpu->stream));
    bench.page =
        mmap(NULL, sizeof *bench.page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    GPU(gpu->host_register(bench.page, sizeof *bench.page, 2 /* device map */));
    GPU(gpu->host_pointer(&bench.device_page, bench.page, 0));

    printf("%s, driver %d, medians of %u, us\n%31s |", gpu->device, gpu->version, bench.repeats,
           "");
    for (size_t w = 0; w < N_WAYS; w++)
        printf(" %11s", ways[w].name);
    printf("\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        build(&bench, shapes[i]);
        choose_blocks(&bench);
        table_row(&bench);
        if (i == 0) {
            word_latency(&bench, "by the kernel, 12 MiB", &ways[5]);
            word_latency(&bench, "by cuStreamWriteValue64, 12 MiB", &ways[7]);
        }
        destroy(&bench);
    }
    pack_cuda_close(&gpu->pack);
    return 0;
}
