/*
 * Gather and scatter on the GPU against pack_host: the same bytes, the same checksums, and not a
 * byte beside them touched. Every case has fresh random data and poisoned outputs.
 *
 *   test_pack_gpu [word]    only the shapes whose name has the word
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/gpu/driver.h"
#include "tests/lib/random.h"

#define POISON 0xA5

static uint64_t state = RANDOM_STATE;

struct shape {
    const char *name;
    uint32_t n_slices;
    uint32_t sizes[8]; /* repeated */
    uint32_t n_sizes;
    uint32_t n_blocks;
    uint32_t base_shift;               /* bytes that each slice's base is off a multiple of 256 */
    uint32_t gap;                      /* bytes between a slice's blocks */
    uint32_t first_slice, part_slices; /* 0: all */
    uint32_t max_thread_blocks;
    uint32_t n_spans; /* 0: one */
};

static const struct shape shapes[] = {
    {"48 x 4 KiB x 64", 48, {4096}, 1, 64, 0, 0, 0, 0, 0, 0},
    {"48 x 4 KiB x 64, 8 thread blocks", 48, {4096}, 1, 64, 0, 0, 0, 0, 8, 0},
    {"64 x 32 KiB x 8", 64, {32768}, 1, 8, 0, 0, 0, 0, 0, 0},
    {"61 x 18 KiB x 17", 61, {18432}, 1, 17, 0, 0, 0, 0, 0, 0},
    {"576-byte rows", 32, {576}, 1, 64, 0, 64, 0, 0, 0, 0},
    {"mixed sizes", 40, {4096, 16, 2048, 100, 1, 33000, 48, 7}, 8, 13, 0, 512, 0, 0, 0, 0},
    {"mixed sizes, a part", 40, {4096, 16, 2048, 100, 1, 33000, 48, 7}, 8, 13, 0, 512, 3, 22, 0, 0},
    {"uniform, a part", 48, {4096}, 1, 64, 0, 0, 7, 1, 0, 0},
    {"base off by 8", 9, {4096, 1000}, 2, 5, 8, 16, 0, 0, 0, 0},
    {"base off by 4", 9, {4096, 1000}, 2, 5, 4, 16, 0, 0, 0, 0},
    {"base off by 2", 9, {4096, 1002}, 2, 5, 2, 16, 0, 0, 0, 0},
    {"base off by 1, odd stride", 9, {4099, 1001, 15}, 3, 5, 1, 3, 0, 0, 0, 0},
    {"one byte", 1, {1}, 1, 1, 3, 0, 0, 0, 0, 0},
    {"1024 slices of 16", 1024, {16}, 1, 64, 0, 16, 0, 0, 0, 0},
    {"one slice of 1 MiB and a bit", 1, {(1 << 20) + 48}, 1, 2, 0, 0, 0, 0, 0, 0},
    {"no blocks", 4, {4096}, 1, 0, 0, 0, 0, 0, 0, 0},
    {"576-byte rows, a part", 61, {576}, 1, 9, 0, 64, 5, 3, 0, 0},
    {"576-byte rows, base off by 8", 61, {576}, 1, 9, 8, 64, 0, 0, 0, 0},
    {"2 KiB and a bit", 33, {2064}, 1, 21, 0, 16, 1, 31, 0, 0},
    {"48-byte rows, 28 spans", 37, {48}, 1, 256, 0, 0, 0, 0, 0, 28},
    {"32 x 4 KiB x 256, 4 spans", 32, {4096}, 1, 256, 0, 0, 0, 0, 0, 4},
    {"64 x 32 KiB x 24, 3 spans", 64, {32768}, 1, 24, 0, 0, 0, 0, 0, 3},
    {"61 x 18 KiB x 28, 28 spans", 61, {18432}, 1, 28, 0, 0, 0, 0, 0, 28},
    {"4 KiB, 5 spans, 8 thread blocks", 16, {4096}, 1, 77, 0, 0, 0, 0, 8, 5},
    {"4 KiB, 5 spans, 1 thread block", 16, {4096}, 1, 77, 0, 0, 0, 0, 1, 5},
    {"mixed sizes, 11 spans",
     40,
     {4096, 16, 2048, 100, 1, 33000, 48, 7},
     8,
     131,
     0,
     512,
     0,
     0,
     0,
     11},
    {"576-byte rows, 4 spans", 61, {576}, 1, 250, 0, 64, 0, 0, 0, 4},
    {"16-byte rows, 9 spans", 1000, {16}, 1, 70, 0, 16, 0, 0, 0, 9},
    {"no slices, 3 spans", 4, {4096}, 1, 7, 0, 0, 4, 0, 0, 3},
};

#define SPARE_BLOCKS 8u /* of the engine, and one of the slab, that no job names */

/* The same things twice: on the host, and on the device. */
struct both {
    struct pack_layout layout;
    uint32_t *slice_bytes;
    struct pack_slice *slices, *device_slices;
    struct pack_block blocks[PACK_CUDA_BLOCKS], device_blocks[PACK_CUDA_BLOCKS];
    size_t paged_bytes, slab_bytes;
    uint8_t *paged, *slab, *seen;
    gpu_ptr device_paged, device_slab, device_table, scratch;
    void *table;
    uint32_t n_blocks, engine_blocks, first_slice, n_slices;
};

static void build(struct gpu *gpu, struct both *both, const struct shape *shape)
{
    *both = (struct both){.n_blocks = shape->n_blocks,
                          .engine_blocks = shape->n_blocks + SPARE_BLOCKS,
                          .first_slice = shape->first_slice};
    both->n_slices = shape->part_slices ? shape->part_slices : shape->n_slices - shape->first_slice;
    both->slice_bytes = calloc(shape->n_slices, sizeof *both->slice_bytes);
    both->layout.slice_offsets = calloc(shape->n_slices, sizeof *both->layout.slice_offsets);
    both->slices = calloc(shape->n_slices, sizeof *both->slices);
    both->device_slices = calloc(shape->n_slices, sizeof *both->slices);
    for (uint32_t s = 0; s < shape->n_slices; s++)
        both->slice_bytes[s] = shape->sizes[s % shape->n_sizes];
    if (pack_layout_init(&both->layout, both->slice_bytes, shape->n_slices) != KVC_OK)
        abort();

    for (uint32_t s = 0; s < shape->n_slices; s++) {
        uint64_t stride = both->slice_bytes[s] + shape->gap;
        both->slices[s].stride = both->device_slices[s].stride = stride;
        both->slices[s].base = (uint8_t *)(both->paged_bytes + shape->base_shift);
        both->paged_bytes += (both->engine_blocks * stride + 512 + 255) / 256 * 256;
    }
    both->slab_bytes = (both->n_blocks + 1) * both->layout.slot_bytes;
    both->paged = malloc(both->paged_bytes);
    both->slab = malloc(both->slab_bytes);
    both->seen = malloc(both->paged_bytes + both->slab_bytes);
    both->device_paged = gpu_alloc(gpu, both->paged_bytes);
    both->device_slab = gpu_alloc(gpu, both->slab_bytes);
    for (uint32_t s = 0; s < shape->n_slices; s++) {
        both->device_slices[s].base = both->slices[s].base + both->device_paged;
        both->slices[s].base += (uintptr_t)both->paged;
    }

    uint32_t taken[PACK_CUDA_BLOCKS + SPARE_BLOCKS];
    for (uint32_t i = 0; i < both->engine_blocks; i++)
        taken[i] = i;
    for (uint32_t b = 0; b < shape->n_blocks; b++) {
        uint32_t other = b + (uint32_t)(random_next(&state) >> 33) % (both->engine_blocks - b);
        uint32_t id = taken[other];
        taken[other] = taken[b];
        uint64_t at = (shape->n_blocks - b) * both->layout.slot_bytes;
        both->blocks[b] = (struct pack_block){.slot = both->slab + at, .id = id};
        both->device_blocks[b] = (struct pack_block){
            .slot = (uint8_t *)both->device_slab + at,
            .id = id,
        };
    }

    size_t table_bytes = pack_cuda_table_bytes(shape->n_slices);
    both->table = malloc(table_bytes);
    pack_cuda_table_fill(both->table, &both->layout, both->device_slices);
    both->device_table = gpu_alloc(gpu, table_bytes);
    GPU(gpu->to_device(both->device_table, both->table, table_bytes));
    both->scratch = gpu_alloc(gpu, pack_cuda_scratch_bytes());
    GPU(gpu->set_async(both->scratch, 0, pack_cuda_scratch_bytes(), gpu->stream));
}

static void destroy(struct gpu *gpu, struct both *both)
{
    GPU(gpu->free(both->device_paged));
    GPU(gpu->free(both->device_slab));
    GPU(gpu->free(both->device_table));
    GPU(gpu->free(both->scratch));
    free(both->slice_bytes);
    free(both->layout.slice_offsets);
    free(both->slices);
    free(both->device_slices);
    free(both->paged);
    free(both->slab);
    free(both->seen);
    free(both->table);
}

struct page {
    uint64_t cells[PACK_CUDA_BLOCKS];
    uint64_t words[PACK_CUDA_SPANS];
};

/* Cuts a job into spans, the first ones the longer. */
static uint32_t cut(const struct shape *shape, uint64_t value, bool summed, bool worded,
                    gpu_ptr page, struct pack_cuda_span *spans)
{
    const uint32_t n = shape->n_spans ? shape->n_spans : 1;
    uint32_t first = 0;

    if (!worded && (!summed || shape->n_blocks == 0))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t blocks = (shape->n_blocks - first + n - i - 1) / (n - i);

        spans[i] = (struct pack_cuda_span){
            .n_blocks = blocks,
            .cells = summed ? page + first * sizeof(uint64_t) : 0,
            .word = worded ? page + offsetof(struct page, words) + i * sizeof(uint64_t) : 0,
            .word_value = value + i,
        };
        first += blocks;
    }
    return n;
}

static int compare(const char *shape, const char *what, const uint8_t *seen, const uint8_t *want,
                   size_t bytes)
{
    if (memcmp(seen, want, bytes) == 0)
        return 0;
    size_t at = 0;
    while (seen[at] == want[at])
        at++;
    printf("FAIL %s: %s differs at %zu of %zu\n", shape, what, at, bytes);
    return 1;
}

static int check_one(struct gpu *gpu, const struct shape *shape, enum pack_cuda_direction direction,
                     bool summed, bool worded, struct page *page, gpu_ptr device_page)
{
    struct both both;
    build(gpu, &both, shape);
    bool gather = direction == PACK_CUDA_GATHER;

    random_fill(&state, both.paged, both.paged_bytes);
    random_fill(&state, both.slab, both.slab_bytes);
    memset(gather ? both.slab : both.paged, POISON, gather ? both.slab_bytes : both.paged_bytes);
    GPU(gpu->to_device(both.device_paged, both.paged, both.paged_bytes));
    GPU(gpu->to_device(both.device_slab, both.slab, both.slab_bytes));
    memset(page, POISON, sizeof *page);

    uint64_t cells[PACK_CUDA_BLOCKS];
    memset(cells, POISON, sizeof cells);
    struct pack_job job = {
        .layout = &both.layout,
        .slices = both.slices,
        .blocks = both.blocks,
        .n_blocks = both.n_blocks,
        .first_slice = both.first_slice,
        .n_slices = both.n_slices,
        .cells = summed ? cells : NULL,
    };
    (gather ? pack_host_gather : pack_host_scatter)(&job);

    uint64_t value = random_next(&state) | 1;
    struct pack_cuda_span spans[PACK_CUDA_SPANS];
    struct pack_cuda_job device_job = {
        .direction = direction,
        .layout = &both.layout,
        .table = both.table,
        .device_table = both.device_table,
        .blocks = both.device_blocks,
        .n_blocks = both.n_blocks,
        .first_slice = both.first_slice,
        .n_slices = both.n_slices,
        .spans = spans,
        .n_spans = cut(shape, value, summed, worded, device_page, spans),
        .scratch = both.scratch,
        .max_thread_blocks = shape->max_thread_blocks,
    };
    int failed = 0, error = 0;
    GPU(gpu->context_synchronize());
    /* Again: the second launch finds the scratch as the first one left it, and so do two more,
     * which begin before the one in front of them has ended. */
    for (int round = 0; round < 4; round++) {
        device_job.more = round < 3 && round > 0;
        device_job.follows = round > 1;
        if (pack_cuda_launch(&gpu->pack, &device_job, gpu->stream, &error) != KVC_OK) {
            printf("FAIL %s: launch failed with %d\n", shape->name, error);
            failed = 1;
        }
    }
    GPU(gpu->stream_synchronize(gpu->stream));

    GPU(gpu->to_host(both.seen, both.device_paged, both.paged_bytes));
    failed |= compare(shape->name, gather ? "source" : "scattered", both.seen, both.paged,
                      both.paged_bytes);
    GPU(gpu->to_host(both.seen, both.device_slab, both.slab_bytes));
    failed |=
        compare(shape->name, gather ? "gathered" : "source", both.seen, both.slab, both.slab_bytes);
    failed |= compare(shape->name, "cells", (uint8_t *)page->cells, (uint8_t *)cells, sizeof cells);
    for (uint32_t i = 0; worded && i < device_job.n_spans; i++) {
        if (page->words[i] != value + i) {
            printf("FAIL %s: no word %u\n", shape->name, i);
            failed = 1;
        }
    }
    destroy(gpu, &both);
    return failed;
}

int main(int argc, char **argv)
{
    struct gpu gpu;
    gpu_open(&gpu);

    struct page *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    gpu_ptr device_page;
    GPU(gpu.host_register(page, 4096, 2 /* device map */));
    GPU(gpu.host_pointer(&device_page, page, 0));

    int failed = 0, count = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int before = failed;
        if (argc > 1 && !strstr(shapes[i].name, argv[1]))
            continue;
        for (int variant = 0; variant < 8; variant++) {
            failed +=
                check_one(&gpu, &shapes[i], variant & 1 ? PACK_CUDA_SCATTER : PACK_CUDA_GATHER,
                          variant & 2, variant & 4, page, device_page);
            count++;
        }
        printf("%s %s\n", failed == before ? "PASS" : "FAIL", shapes[i].name);
    }
    printf("%d of %d cases failed\n", failed, count);
    pack_cuda_close(&gpu.pack);
    return failed != 0;
}
