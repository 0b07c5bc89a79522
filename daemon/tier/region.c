#include "daemon/tier/region.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/guard.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/tier/region_internal.h"

#define LATE_US 1000u

kvc_status region_refuse(struct region_refusal *why, kvc_status status, const char *field,
                         int64_t index, const char *detail)
{
    *why = (struct region_refusal){.field = field, .detail = detail, .index = index};
    return status;
}

static kvc_status check_shape(const struct region_shape *shape, struct region_refusal *why)
{
    if (shape->blocks == 0)
        return region_refuse(why, KVC_E_INVALID, "blocks", -1, "a region has at least one block");
    if (shape->blocks > KVC_REGION_BLOCKS_MAX)
        return region_refuse(why, KVC_E_LIMIT, "blocks", -1, "more blocks than a region may have");
    if (shape->n_pieces == 0)
        return region_refuse(why, KVC_E_INVALID, "pieces", -1, "a region has at least one piece");
    if (shape->n_pieces > KVC_SESSION_GPU_PIECES_MAX)
        return region_refuse(why, KVC_E_LIMIT, "pieces", -1, "more pieces than a session may have");
    for (uint32_t i = 0; i < shape->n_slices; i++) {
        if (shape->slice_pieces[i] >= shape->n_pieces)
            return region_refuse(why, KVC_E_INVALID, "slice_pieces", i, "no such piece");
        if (shape->blocks > 1 && shape->slice_strides[i] < shape->slice_bytes[i])
            return region_refuse(why, KVC_E_INVALID, "slice_strides", i, "smaller than the slice");
    }
    return KVC_OK;
}

/* One allocation; the arrays with the strictest alignment come first. */
static struct region *allocate(uint32_t n_slices, uint32_t n_pieces)
{
    const size_t places = n_slices * sizeof(struct region_slice);
    const size_t slices = n_slices * sizeof(struct pack_slice);
    const size_t pieces = n_pieces * sizeof(struct region_piece);
    const size_t ranges = n_pieces * sizeof(struct guard_range);
    const size_t offsets = n_slices * sizeof(uint64_t), bytes = n_slices * sizeof(uint32_t);
    struct region *region =
        mem_zalloc(sizeof(*region) + places + slices + pieces + ranges + offsets + bytes);
    uint8_t *at;

    if (region == NULL)
        return NULL;
    at = (uint8_t *)(region + 1);
    region->places = (void *)at;
    region->slices = (void *)(at += places);
    region->pieces = (void *)(at += slices);
    region->ranges = (void *)(at += pieces);
    region->layout.slice_offsets = (void *)(at += ranges);
    region->layout.slice_bytes = (void *)(at + offsets);
    return region;
}

kvc_status region_create(const struct region_shape *shape, struct region **ret,
                         struct region_refusal *why)
{
    kvc_status status = check_shape(shape, why);
    struct region *region;
    uint32_t *slice_bytes;

    if (status != KVC_OK)
        return status;
    region = allocate(shape->n_slices, shape->n_pieces);
    if (region == NULL)
        return region_refuse(why, KVC_E_NO_MEMORY, "", -1, "out of memory");
    slice_bytes = (uint32_t *)region->layout.slice_bytes;
    memcpy(slice_bytes, shape->slice_bytes, shape->n_slices * sizeof(*slice_bytes));
    status = pack_layout_init(&region->layout, slice_bytes, shape->n_slices);
    if (status != KVC_OK) {
        mem_free(region);
        return region_refuse(why, status, "part", -1, "no layout of a part");
    }
    region->blocks = shape->blocks;
    region->n_pieces = shape->n_pieces;
    for (uint32_t i = 0; i < shape->n_slices; i++)
        region->places[i] = (struct region_slice){
            .piece = shape->slice_pieces[i],
            .bytes = slice_bytes[i],
            .offset = shape->slice_offsets[i],
            .stride = shape->slice_strides[i],
        };
    *ret = region;
    return KVC_OK;
}

/*
 * Nothing but a memfd of tmpfs can be sealed against shrinking, but for one on hugetlb, whose pages
 * can be missing in spite of it. "region.unsealed" lets one pass that can be cut short.
 */
static kvc_status check_memfd(int fd, uint64_t bytes, uint64_t offset, uint32_t index,
                              struct stat *st, struct region_refusal *why)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    struct statfs fs;
    uint64_t end;

    /* The first question is the only one that no filesystem of somebody's own can keep waiting. */
    if (seals < 0 || fstat(fd, st) < 0 || !S_ISREG(st->st_mode) || fstatfs(fd, &fs) < 0)
        return region_refuse(why, KVC_E_INVALID, "fds", index, "no memfd");
    if (fs.f_type != TMPFS_MAGIC)
        return region_refuse(why, KVC_E_INVALID, "fds", index, "not on tmpfs");
    if (!fault_fires("region.unsealed") && !(seals & F_SEAL_SHRINK))
        return region_refuse(why, KVC_E_INVALID, "fds", index, "not sealed against shrinking");
    if (bytes == 0 || __builtin_add_overflow(offset, bytes, &end) || end > (uint64_t)st->st_size)
        return region_refuse(why, KVC_E_INVALID, "piece_bytes", index, "not inside the memfd");
    if (offset % (uint64_t)sysconf(_SC_PAGESIZE) != 0)
        return region_refuse(why, KVC_E_INVALID, "piece_offsets", index, "not at a page");
    if ((uint64_t)st->st_blocks * 512 < (uint64_t)st->st_size)
        return region_refuse(why, KVC_E_INVALID, "fds", index, "it does not have all of its pages");
    return KVC_OK;
}

static uint64_t round_to_page(uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

kvc_status region_add(struct region *region, int fd, uint64_t bytes, uint64_t offset,
                      struct region_refusal *why)
{
    const uint32_t index = region->n_mapped;
    struct stat st;
    void *start;
    kvc_status status;
    int error;

    if (index == region->n_pieces)
        return region_refuse(why, KVC_E_INVALID, "kinds", -1, "more pieces than the region has");
    status = check_memfd(fd, bytes, offset, index, &st, why);
    if (status != KVC_OK)
        return status;
    error = fd_map(fd, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, offset, &start);
    if (error == -EACCES || error == -EPERM)
        return region_refuse(why, KVC_E_INVALID, "fds", index, "not to be written");
    if (error != 0) {
        log_warn("tier", "cannot map a region's piece bytes=%llu error=\"%s\"",
                 (unsigned long long)bytes, strerror(-error));
        return region_refuse(why, KVC_E_MAP, "fds", index, "it cannot be mapped now");
    }
    region->ranges[index].start = start;
    region->ranges[index].bytes = round_to_page(bytes);
    region->pieces[index] = (struct region_piece){
        .device = st.st_dev, .inode = st.st_ino, .offset = offset, .bytes = bytes};
    region->n_mapped++;
    return KVC_OK;
}

static const struct region_slice *end_of(const struct region *region)
{
    return region->places + region->layout.n_slices;
}

kvc_status region_finish(struct region *region, struct region_refusal *why)
{
    const struct region_slice *place;
    kvc_status status;

    if (region->n_mapped != region->n_pieces)
        return region_refuse(why, KVC_E_INVALID, "pieces", -1, "not all of them have come");
    status = region_check_places(region, region->n_pieces, why);
    if (status != KVC_OK)
        return status;
    for (place = region->places; place < end_of(region); place++)
        region->slices[place - region->places] = (struct pack_slice){
            .base = region->ranges[place->piece].start + place->offset, .stride = place->stride};
    return KVC_OK;
}

kvc_status region_check_places(const struct region *region, uint32_t n_pieces,
                               struct region_refusal *why)
{
    const struct region_slice *place;

    for (place = region->places; place < end_of(region); place++)
        if (!region_slice_fits(place, region->blocks, region->pieces[place->piece].bytes))
            return region_refuse(why, KVC_E_INVALID, "slice_offsets", place - region->places,
                                 "a block ends behind its piece");
    switch (region_check_overlap(region->places, region->layout.n_slices, region->blocks,
                                 region->pieces, n_pieces)) {
    case REGION_APART:
        break;
    case REGION_SLICES_OVERLAP:
        return region_refuse(why, KVC_E_INVALID, "slice_offsets", -1, "slices overlap");
    case REGION_PIECES_OVERLAP:
        return region_refuse(why, KVC_E_INVALID, "piece_offsets", -1, "pieces are the same memory");
    case REGION_NO_MEMORY:
        return region_refuse(why, KVC_E_NO_MEMORY, "", -1, "out of memory");
    }
    return KVC_OK;
}

bool region_equal(const struct region *a, const struct region *b)
{
    const uint32_t n = a->layout.n_slices;

    return (a->loan != NULL) == (b->loan != NULL) && a->blocks == b->blocks &&
           n == b->layout.n_slices && a->n_pieces == b->n_pieces &&
           memcmp(a->places, b->places, n * sizeof(*a->places)) == 0 &&
           memcmp(a->pieces, b->pieces, a->n_pieces * sizeof(*a->pieces)) == 0;
}

uint32_t region_blocks(const struct region *region)
{
    return region->blocks;
}

const struct pack_layout *region_layout(const struct region *region)
{
    return &region->layout;
}

const struct pack_slice *region_slices(const struct region *region)
{
    return region->slices;
}

void region_enter(struct region *region)
{
    assert(region->loan == NULL);
    guard_enter(region->ranges, region->n_pieces);
}

kvc_status region_leave(struct region *region)
{
    guard_leave();
    return guard_is_lost(region->ranges, region->n_pieces) ? KVC_E_MAP : KVC_OK;
}

/*
 * Unmapping gigabytes takes long enough to be felt by others on the loop. "region.late" holds it up
 * for a millisecond each time that it fires.
 */
static void unmap(uv_work_t *work)
{
    struct region *region = work->data;

    while (fault_fires("region.late"))
        usleep(LATE_US);
    for (uint32_t i = 0; i < region->n_mapped; i++)
        fd_unmap(region->ranges[i].start, region->ranges[i].bytes);
}

void region_free(struct region *region)
{
    region_unmapped_cb *done = region->done;
    void *arg = region->arg;

    mem_free(region);
    if (done != NULL)
        done(arg);
}

static void unmapped(uv_work_t *work, int cancelled)
{
    (void)cancelled;
    region_free(work->data);
}

void region_destroy(uv_loop_t *loop, struct region *region, region_unmapped_cb *done, void *arg)
{
    int error;

    if (region == NULL)
        return;
    region->done = done;
    region->arg = arg;
    if (region->loan != NULL) {
        region_lend_end(region);
        return;
    }
    region->work.data = region;
    error = uv_queue_work(loop, &region->work, unmap, unmapped);
    assert(error == 0); /* it only refuses a NULL function */
    (void)error;
}
