#include "client/map.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "client/cuda.h"

/* Far more than any host has, far less than overflows. */
#define TIER_BYTES_MAX (1ull << 46)
#define PAGE_BYTES_MAX (1ull << 24)

/* Whether size bytes of fd can be relied on to stay: hugetlb passes for sealed and still faults. */
static bool is_stable_memfd(int fd, uint64_t size)
{
    struct statfs fs;
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstatfs(fd, &fs) == 0 &&
           fs.f_type == TMPFS_MAGIC && fstat(fd, &st) == 0 && st.st_size >= 0 &&
           (uint64_t)st.st_size >= size;
}

static bool reserve(void *at, uint64_t bytes, uint8_t **base)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *got = mmap(at, bytes, PROT_NONE, at != NULL ? flags | MAP_FIXED : flags, -1, 0);

    if (got == MAP_FAILED)
        return false;
    (void)madvise(got, bytes, MADV_DONTFORK);
    *base = got;
    return true;
}

static bool sane_tier(const struct codec_tier *tier)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    return tier->extents > 0 && tier->extents < 1u << 31 && tier->extent_bytes > 0 &&
           tier->extent_bytes % page == 0 && tier->extent_bytes <= TIER_BYTES_MAX &&
           tier->bytes <= TIER_BYTES_MAX && tier->bytes / tier->extent_bytes == tier->extents &&
           tier->bytes % tier->extent_bytes == 0;
}

/* The gpu tier of a daemon that has a GPU. */
static bool is_on_gpu(const struct map *map, const struct map_tier *tier)
{
    return map->cuda != NULL && tier == &map->tiers[0];
}

static kvc_status open_tier(struct map *map, struct map_tier *tier,
                            const struct codec_tier *geometry, const char **what)
{
    bool reserved;

    if (geometry->bytes == 0 && geometry->extents == 0)
        return KVC_OK;
    *what = "tiers";
    if (!sane_tier(geometry))
        return KVC_E_PROTOCOL;
    tier->states = calloc(geometry->extents, 1);
    if (tier->states == NULL)
        return KVC_E_NO_MEMORY;
    tier->on_gpu = is_on_gpu(map, tier);
    reserved = tier->on_gpu ? cuda_reserve(map->cuda, geometry->bytes, &tier->base) == KVC_OK
                            : reserve(NULL, geometry->bytes, &tier->base);
    if (!reserved)
        return KVC_E_MAP;
    tier->bytes = geometry->bytes;
    tier->extent_bytes = geometry->extent_bytes;
    tier->n_extents = geometry->extents;
    return KVC_OK;
}

static kvc_status open_page(struct map *map, const struct codec_hello_reply *hello, int fd,
                            const char **what)
{
    const uint64_t bytes = (uint64_t)hello->page_words * hello->page_stride;
    void *page;

    *what = "page";
    if (hello->page_words < KVC_PAGE_GATES || hello->page_stride != KVC_PAGE_STRIDE ||
        bytes > PAGE_BYTES_MAX || !is_stable_memfd(fd, bytes))
        return KVC_E_PROTOCOL;
    page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return KVC_E_MAP;
    (void)madvise(page, bytes, MADV_DONTFORK);
    if (map->cuda != NULL && cuda_register(map->cuda, page, bytes, true) != KVC_OK) {
        munmap(page, bytes);
        return KVC_E_MAP;
    }
    map->page = page;
    if (map->cuda != NULL)
        cuda_know_page(map->cuda, page);
    if (map->cuda != NULL && map->tiers[1].base != NULL)
        cuda_know_host(map->cuda, map->tiers[1].base, map->tiers[1].bytes);
    map->page_words = hello->page_words;
    map->page_stride = hello->page_stride;
    return KVC_OK;
}

kvc_status map_open(struct map *map, const struct codec_hello_reply *hello, int page_fd,
                    bool writable, struct cuda *cuda, const char **what)
{
    kvc_status status = KVC_OK;

    *map = (struct map){.writable = writable, .cuda = cuda};
    for (uint32_t i = 0; i < CODEC_TIERS && status == KVC_OK; i++)
        status = open_tier(map, &map->tiers[i], &hello->tiers[i], what);
    if (status == KVC_OK)
        status = open_page(map, hello, page_fd, what);
    if (status != KVC_OK)
        map_close(map, false);
    return status;
}

static bool is_opened(const struct map_tier *tier, uint32_t index)
{
    return tier->opened != NULL && tier->opened[index] != NULL;
}

static void unmap_from_gpu(struct map *map, struct map_tier *tier, uint32_t index)
{
    if (is_opened(tier, index)) {
        cuda_close_handle(map->cuda, tier->opened[index]);
        tier->opened[index] = NULL;
    } else {
        cuda_unmap(map->cuda, tier->base + index * tier->extent_bytes, tier->extent_bytes);
    }
}

static void close_gpu_tier(struct map *map, struct map_tier *tier)
{
    for (uint32_t i = 0; i < tier->n_extents; i++)
        if (tier->states[i] == MAP_MAPPED)
            unmap_from_gpu(map, tier, i);
    cuda_unreserve(map->cuda, tier->base, tier->bytes);
}

static void close_tier(struct map *map, struct map_tier *tier)
{
    if (tier->on_gpu) {
        close_gpu_tier(map, tier);
        return;
    }
    for (uint32_t i = 0; map->cuda != NULL && i < tier->n_extents; i++)
        if (tier->states[i] == MAP_MAPPED)
            cuda_unregister(map->cuda, tier->base + i * tier->extent_bytes);
    for (uint32_t i = 0; i < tier->n_extents;) {
        uint32_t from = i;

        while (i < tier->n_extents && tier->states[i] != MAP_HOLE)
            i++;
        if (i > from)
            munmap(tier->base + from * tier->extent_bytes, (i - from) * tier->extent_bytes);
        i += i < tier->n_extents;
    }
}

void map_close(struct map *map, bool inherited)
{
    for (uint32_t i = 0; i < CODEC_TIERS; i++) {
        if (!inherited && map->tiers[i].base != NULL)
            close_tier(map, &map->tiers[i]);
        free(map->tiers[i].states);
        free(map->tiers[i].opened);
    }
    if (!inherited && map->page != NULL) {
        if (map->cuda != NULL) {
            cuda_know_page(map->cuda, NULL);
            cuda_unregister(map->cuda, map->page);
        }
        munmap(map->page, (size_t)map->page_words * map->page_stride);
    }
    *map = (struct map){0};
}

static struct map_tier *tier_of(struct map *map, uint32_t extent, uint32_t *index)
{
    struct map_tier *tier = &map->tiers[extent >> 31];

    *index = extent & ~(1u << 31);
    return *index < tier->n_extents && tier->states[*index] != MAP_HOLE ? tier : NULL;
}

/*
 * A failed MAP_FIXED may have taken the old mapping away, and another thread may map there since.
 * Addresses that cannot be had back are given up: they are nobody's to unmap here any more.
 */
static void refill(struct map_tier *tier, uint32_t index)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    uint8_t *at = tier->base + index * tier->extent_bytes;

    tier->states[index] = MAP_HOLE;
    if (mmap(at, tier->extent_bytes, PROT_NONE, flags, -1, 0) != at)
        return;
    (void)madvise(at, tier->extent_bytes, MADV_DONTFORK);
    tier->states[index] = MAP_RESERVED;
}

/* A memfd at its place; registered, where there is a GPU, or not mapped at all. */
static kvc_status map_memfd(struct map *map, struct map_tier *tier, uint32_t index, int fd)
{
    uint8_t *at = tier->base + index * tier->extent_bytes;

    if (mmap(at, tier->extent_bytes, map->writable ? PROT_READ | PROT_WRITE : PROT_READ,
             MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        refill(tier, index);
        return KVC_E_MAP;
    }
    (void)madvise(at, tier->extent_bytes, MADV_DONTFORK);
    if (map->cuda == NULL ||
        cuda_register(map->cuda, at, tier->extent_bytes, map->writable) == KVC_OK)
        return KVC_OK;
    if (!reserve(at, tier->extent_bytes, &at))
        refill(tier, index);
    return KVC_E_MAP;
}

kvc_status map_extent(struct map *map, uint32_t extent, uint32_t kind, int fd, const char **what)
{
    uint32_t index;
    struct map_tier *tier = tier_of(map, extent, &index);
    kvc_status status;

    *what = "extents";
    if (tier == NULL || kind != (tier->on_gpu ? MAP_CUDA_FD : MAP_MEMFD) ||
        (kind == MAP_MEMFD && !is_stable_memfd(fd, tier->extent_bytes)))
        return KVC_E_PROTOCOL;
    if (tier->states[index] == MAP_MAPPED)
        return KVC_OK;
    if (tier->on_gpu)
        status = cuda_map(map->cuda, tier->base + index * tier->extent_bytes, tier->extent_bytes,
                          fd, map->writable);
    else
        status = map_memfd(map, tier, index, fd);
    if (status != KVC_OK)
        return KVC_E_MAP;
    tier->states[index] = MAP_MAPPED;
    map->n_mapped++;
    return KVC_OK;
}

kvc_status map_open_extent(struct map *map, uint32_t extent, const uint8_t *handle,
                           const char **what)
{
    uint32_t index;
    struct map_tier *tier = tier_of(map, extent, &index);

    *what = "extents";
    if (tier == NULL || !tier->on_gpu)
        return KVC_E_PROTOCOL;
    if (tier->states[index] == MAP_MAPPED)
        return KVC_OK;
    if (tier->opened == NULL)
        tier->opened = calloc(tier->n_extents, sizeof(*tier->opened));
    if (tier->opened == NULL ||
        cuda_open_handle(map->cuda, handle, tier->extent_bytes, &tier->opened[index]) != KVC_OK)
        return KVC_E_MAP;
    tier->states[index] = MAP_MAPPED;
    map->n_mapped++;
    return KVC_OK;
}

kvc_status map_drop(struct map *map, uint32_t extent, const char **what)
{
    uint32_t index;
    struct map_tier *tier = tier_of(map, extent, &index);
    uint8_t *at;

    *what = "withdrawn";
    if (tier == NULL)
        return KVC_E_PROTOCOL;
    if (tier->states[index] != MAP_MAPPED)
        return KVC_OK;
    at = tier->base + index * tier->extent_bytes;
    map->n_mapped--;
    tier->states[index] = MAP_RESERVED;
    if (tier->on_gpu) {
        unmap_from_gpu(map, tier, index);
        return KVC_OK;
    }
    if (map->cuda != NULL)
        cuda_unregister(map->cuda, at);
    if (reserve(at, tier->extent_bytes, &at))
        return KVC_OK;
    refill(tier, index);
    return KVC_E_MAP;
}

bool map_has(const struct map *map, uint32_t extent)
{
    const struct map_tier *tier = &map->tiers[extent >> 31];
    const uint32_t index = extent & ~(1u << 31);

    return index < tier->n_extents && tier->states[index] == MAP_MAPPED;
}

uint8_t *map_at(const struct map *map, uint32_t tier_index, uint64_t offset, uint64_t bytes)
{
    const struct map_tier *tier;
    uint64_t first, last;

    if (tier_index >= CODEC_TIERS || bytes == 0)
        return NULL;
    tier = &map->tiers[tier_index];
    if (offset % KVC_SLOT_ALIGN != 0 || bytes > tier->bytes || offset > tier->bytes - bytes)
        return NULL;
    first = offset / tier->extent_bytes;
    last = (offset + bytes - 1) / tier->extent_bytes;
    for (uint64_t i = first; i <= last; i++)
        if (tier->states[i] != MAP_MAPPED || (is_opened(tier, (uint32_t)i) && first != last))
            return NULL;
    return is_opened(tier, (uint32_t)first) ? tier->opened[first] + offset % tier->extent_bytes
                                            : tier->base + offset;
}

uint64_t *map_cells(const struct map *map, uint32_t word)
{
    if (word >= map->page_words)
        return NULL;
    return (uint64_t *)(void *)(map->page + (size_t)word * map->page_stride);
}

uint64_t *map_word(const struct map *map, uint32_t word)
{
    uint64_t *cells = map_cells(map, word);

    return cells != NULL ? cells + KVC_PAGE_WORD_OFFSET / sizeof(*cells) : NULL;
}
