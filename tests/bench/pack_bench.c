/*
 * Packing on the host against one memcpy of the same bytes: medians, and medians of the ratios to
 * the memcpy just before. Source and destination are larger than the caches, blocks come in another
 * random order each time, and the bytes and checksums of every round are checked.
 *
 *   pack_bench [--rounds N] [--json]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/pack.h"
#include "tests/lib/random.h"

#define CHUNK_BYTES   (16u << 20)
#define N_CHUNKS      8u /* slots of so many chunks, used in turn */
#define ENGINE_FACTOR 4u /* engine blocks for each block of a chunk */

static uint64_t state = RANDOM_STATE;

/* Of this thread: what others do on the same CPU is not ours. */
static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void *memory(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("pack_bench: mmap");
        exit(1);
    }
    return at;
}

struct bench {
    uint32_t slice_kib, n_slices, n_blocks;
    uint32_t slice_bytes[KVC_SLICES_MAX];
    uint64_t slice_offsets[KVC_SLICES_MAX];
    struct pack_slice slices[KVC_SLICES_MAX];
    struct pack_layout layout;
    struct pack_block blocks[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS];
    uint8_t *paged, *slots, *plain;
    size_t paged_bytes, slots_bytes;
    uint32_t turn;
};

/* 64 slices, or as many as fit a chunk of at least 4 blocks. */
static void build(struct bench *bench, uint32_t slice_kib)
{
    *bench = (struct bench){.slice_kib = slice_kib, .n_slices = 64};
    for (uint32_t s = 0; s < bench->n_slices; s++)
        bench->slice_bytes[s] = slice_kib * 1024;
    bench->layout.slice_offsets = bench->slice_offsets;
    if (pack_layout_init(&bench->layout, bench->slice_bytes, bench->n_slices) != KVC_OK)
        abort();
    bench->n_blocks = (uint32_t)(CHUNK_BYTES / bench->layout.block_bytes);
    if (bench->n_blocks > KVC_CHUNK_BLOCKS)
        bench->n_blocks = KVC_CHUNK_BLOCKS;

    uint64_t per_slice = (uint64_t)bench->n_blocks * ENGINE_FACTOR * slice_kib * 1024;
    bench->paged_bytes = per_slice * bench->n_slices;
    bench->slots_bytes = N_CHUNKS * bench->n_blocks * bench->layout.slot_bytes;
    bench->paged = memory(bench->paged_bytes);
    bench->slots = memory(bench->slots_bytes);
    bench->plain = memory(bench->slots_bytes);
    for (size_t i = 0; i < bench->paged_bytes / 8; i++)
        ((uint64_t *)bench->paged)[i] = random_next(&state);
    for (size_t i = 0; i < bench->slots_bytes / 8; i++)
        ((uint64_t *)bench->slots)[i] = ((uint64_t *)bench->plain)[i] = random_next(&state);
    for (uint32_t s = 0; s < bench->n_slices; s++)
        bench->slices[s] = (struct pack_slice){bench->paged + s * per_slice, slice_kib * 1024};
}

static void destroy(struct bench *bench)
{
    munmap(bench->paged, bench->paged_bytes);
    munmap(bench->slots, bench->slots_bytes);
    munmap(bench->plain, bench->slots_bytes);
}

static void next_blocks(struct bench *bench)
{
    uint32_t n = bench->n_blocks * ENGINE_FACTOR, ids[KVC_CHUNK_BLOCKS * ENGINE_FACTOR];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i;
    bench->turn = (bench->turn + 1) % N_CHUNKS;
    for (uint32_t b = 0; b < bench->n_blocks; b++) {
        uint32_t other = b + (uint32_t)(random_next(&state) >> 33) % (n - b);
        uint64_t slot = bench->turn * bench->n_blocks + b;
        bench->blocks[b].id = ids[other];
        bench->blocks[b].slot = bench->slots + slot * bench->layout.slot_bytes;
        ids[other] = ids[b];
    }
}

static void fail(const char *what)
{
    fprintf(stderr, "pack_bench: wrong %s\n", what);
    exit(1);
}

static void check(const struct bench *bench, bool summed)
{
    for (uint32_t b = 0; b < bench->n_blocks; b++) {
        const struct pack_block *block = &bench->blocks[b];
        for (uint32_t s = 0; s < bench->n_slices; s++) {
            const struct pack_slice *slice = &bench->slices[s];
            if (memcmp(block->slot + bench->slice_offsets[s],
                       slice->base + block->id * slice->stride, bench->slice_bytes[s]) != 0)
                fail("bytes");
        }
        if (summed && bench->cells[b] != pack_checksum_slot(&bench->layout, block->slot))
            fail("checksum");
    }
}

enum way {
    MEMCPY,
    GATHER,
    GATHER_SUM,
    SCATTER,
    SCATTER_SUM,
    N_WAYS,
};
static const char *const way_names[N_WAYS] = {"memcpy", "gather", "gather+sum", "scatter",
                                              "scatter+sum"};

/* Bytes per microsecond of one way, once. */
static double once(struct bench *bench, enum way way)
{
    bool summed = way == GATHER_SUM || way == SCATTER_SUM;
    bool scatter = way == SCATTER || way == SCATTER_SUM;
    uint64_t bytes = bench->layout.block_bytes * bench->n_blocks;
    struct pack_job job = {
        .layout = &bench->layout,
        .slices = bench->slices,
        .blocks = bench->blocks,
        .n_blocks = bench->n_blocks,
        .n_slices = bench->n_slices,
        .cells = summed ? bench->cells : NULL,
    };

    next_blocks(bench);
    uint8_t *packed = bench->slots + bench->turn * bench->n_blocks * bench->layout.slot_bytes;
    uint8_t *plain = bench->plain + bench->turn * bench->n_blocks * bench->layout.slot_bytes;
    if (scatter) /* other bytes than those that lie there */
        ((uint64_t *)packed)[random_next(&state) % (bytes / 8)] = random_next(&state);

    double start = now_us();
    if (way == MEMCPY)
        memcpy(plain, packed, bytes);
    else if (scatter)
        pack_host_scatter(&job);
    else
        pack_host_gather(&job);
    double us = now_us() - start;

    if (way == MEMCPY && memcmp(plain, packed, bytes) != 0)
        fail("copy");
    if (way != MEMCPY)
        check(bench, summed);
    return (double)bytes / us;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

static void table_row(struct bench *bench, uint32_t rounds, bool json, bool first)
{
    double *rates = malloc(sizeof *rates * rounds), *ratios = malloc(sizeof *ratios * rounds);
    double medians[N_WAYS], ratio[N_WAYS];
    if (!rates || !ratios)
        abort();
    for (enum way way = 0; way < N_WAYS; way++) {
        for (uint32_t r = 0; r < rounds + 2; r++) {
            double plain = once(bench, MEMCPY);
            double rate = way == MEMCPY ? plain : once(bench, way);
            if (r >= 2) {
                rates[r - 2] = rate;
                ratios[r - 2] = rate / plain;
            }
        }
        medians[way] = median(rates, rounds);
        ratio[way] = median(ratios, rounds);
    }
    free(rates);
    free(ratios);

    if (json) {
        printf("%s\n  {\"slice_kib\": %u, \"blocks\": %u, \"slices\": %u", first ? "" : ",",
               bench->slice_kib, bench->n_blocks, bench->n_slices);
        for (enum way way = 0; way < N_WAYS; way++)
            printf(", \"%s_mb_s\": %.0f, \"%s_ratio\": %.3f", way_names[way], medians[way],
                   way_names[way], ratio[way]);
        printf("}");
        return;
    }
    printf("%3u KiB |", bench->slice_kib);
    for (enum way way = 0; way < N_WAYS; way++)
        printf(" %8.2f GB/s", medians[way] / 1000);
    printf(" |");
    for (enum way way = GATHER; way < N_WAYS; way++)
        printf(" %11.2f", ratio[way]);
    printf("\n");
}

int main(int argc, char **argv)
{
    static const uint32_t slices_kib[] = {2, 4, 18, 32};
    static struct bench bench;
    uint32_t rounds = 41;
    bool json = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) {
            rounds = (uint32_t)atoi(argv[++i]);
        } else {
            fprintf(stderr, "usage: pack_bench [--rounds N] [--json]\n");
            return 2;
        }
    }
    if (json) {
        printf("[");
    } else {
        printf("packing on the host, medians of %u, and what part of memcpy's rate\n  slice |",
               rounds);
        for (enum way way = 0; way < N_WAYS; way++)
            printf(" %13s", way_names[way]);
        printf(" |");
        for (enum way way = GATHER; way < N_WAYS; way++)
            printf(" %11s", way_names[way]);
        printf("\n");
    }
    for (size_t i = 0; i < sizeof slices_kib / sizeof slices_kib[0]; i++) {
        build(&bench, slices_kib[i]);
        table_row(&bench, rounds, json, i == 0);
        destroy(&bench);
    }
    if (json)
        printf("\n]\n");
    return 0;
}
