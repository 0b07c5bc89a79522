#include "daemon/device/device.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define HUGE_BYTES   (2ull << 20)
#define UNIT_BYTES   HUGE_BYTES /* populated, or not, as a whole */
#define EXTENT_UNITS (KVC_EXTENT_BYTES_MAX / UNIT_BYTES)
/* While pages are made nothing of the process can be mapped or unmapped: the loop's neither. */
#define POPULATE_BYTES (1ull << 20)

/*
 * An extent is one memfd, mapped into its place of one reserved range. Its pages come with
 * populate or with the first touch, whichever is first. Touching a page for which there is no
 * memory is SIGBUS, so this process only touches pages after it has asked for them in a way that
 * can say no: in the units that are marked as populated they are there (the memfd is not punched
 * while it is somebody's), for others copy asks.
 */
struct host_extent {
    int fd;                                        /* -1: not created */
    _Atomic uint64_t populated[EXTENT_UNITS / 64]; /* a bit a unit; the last may be shorter */
};

struct host_slab {
    struct host_extent *extents;
    atomic_bool no_huge; /* the kernel has no huge pages, or none left */
};

static kvc_status status_of(int error)
{
    switch (-error) {
    case ENOMEM:
    case ENOSPC:
    case EFAULT: /* of MADV_POPULATE_WRITE: where touching would be SIGBUS */
        return KVC_E_NO_MEMORY;
    case EMFILE:
    case ENFILE:
        return KVC_E_NO_FDS;
    default:
        return KVC_E_SYSTEM;
    }
}

static kvc_status fail(const char *what, uint32_t extent, int error)
{
    log_warn("device", "%s extent=%u error=%s", what, extent, strerror(-error));
    return status_of(error);
}

static void *map(const char *site, void *at, uint64_t bytes, int prot, int flags, int fd)
{
    if (fault_fires(site)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return mmap(at, bytes, prot, flags, fd, 0);
}

static struct host_extent *extent_of(const struct device_slab *slab, uint32_t extent)
{
    struct host_slab *host = slab->state;

    assert(extent < slab->n_extents);
    return &host->extents[extent];
}

static bool is_populated(const struct host_extent *e, uint64_t unit)
{
    return atomic_load(&e->populated[unit / 64]) >> unit % 64 & 1;
}

static void forget_pages(struct host_extent *e)
{
    for (size_t i = 0; i < EXTENT_UNITS / 64; i++)
        atomic_store(&e->populated[i], 0);
}

static uint8_t *extent_base(const struct device_slab *slab, uint32_t extent)
{
    return slab->base + extent * slab->extent_bytes;
}

/* Addresses for a slab, so that huge pages can lie in it. MAP_FAILED: errno says why. */
static void *reserve(uint64_t bytes)
{
    uint8_t *got = map("device.reserve", NULL, bytes + HUGE_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    uint64_t before;

    if (got == MAP_FAILED)
        return got;
    before = -(uintptr_t)got % HUGE_BYTES;
    if (before > 0)
        fd_unmap(got, before);
    fd_unmap(got + before + bytes, HUGE_BYTES - before);
    return got + before;
}

static kvc_status host_slab_create(void *state, uint64_t extent_bytes, uint32_t n_extents,
                                   struct device_slab *slab)
{
    struct host_slab *host;
    void *base = NULL;
    kvc_status status = KVC_E_NO_MEMORY;

    (void)state;
    assert(extent_bytes % (uint64_t)sysconf(_SC_PAGESIZE) == 0);
    assert(extent_bytes <= KVC_EXTENT_BYTES_MAX);
    host = mem_zalloc(sizeof(*host));
    if (!host)
        return KVC_E_NO_MEMORY;
    if (n_extents > 0) {
        host->extents = mem_array(n_extents, sizeof(*host->extents));
        if (!host->extents)
            goto free_host;
        base = reserve(extent_bytes * n_extents);
        if (base == MAP_FAILED) {
            status = fail("no address space for the slab", 0, -errno);
            goto free_extents;
        }
    }
    for (uint32_t i = 0; i < n_extents; i++)
        host->extents[i].fd = -1;
    *slab = (struct device_slab){.ops = &device_host,
                                 .base = base,
                                 .extent_bytes = extent_bytes,
                                 .n_extents = n_extents,
                                 .state = host};
    return KVC_OK;

free_extents:
    mem_free(host->extents);
free_host:
    mem_free(host);
    return status;
}

static void host_slab_destroy(struct device_slab *slab)
{
    struct host_slab *host = slab->state;

    if (!host)
        return;
    if (slab->base)
        fd_unmap(slab->base, slab->extent_bytes * slab->n_extents);
    for (uint32_t i = 0; i < slab->n_extents; i++)
        fd_close(host->extents[i].fd);
    mem_free(host->extents);
    mem_free(host);
    *slab = (struct device_slab){0};
}

/* A memfd of this size, that nobody can resize, execute or, as another uid, open again. */
static int make_memfd(uint64_t bytes)
{
    int fd = fd_memfd("kvcached-slab", MFD_NOEXEC_SEAL), error;

    if (fd == -EINVAL) /* a kernel that does not know the flag */
        fd = fd_memfd("kvcached-slab", 0);
    if (fd < 0)
        return fd;
    error = fd_truncate(fd, bytes);
    if (!error)
        error = fd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    if (error) {
        fd_close(fd);
        return error;
    }
    return fd;
}

static kvc_status host_extent_create(struct device_slab *slab, uint32_t extent)
{
    struct host_extent *e = extent_of(slab, extent);
    uint8_t *base = extent_base(slab, extent);
    int fd;

    assert(e->fd < 0);
    fd = make_memfd(slab->extent_bytes);
    if (fd < 0)
        return fail("no memory file", extent, fd);
    if (map("device.map", base, slab->extent_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
            fd) == MAP_FAILED) {
        int error = -errno;

        fd_close(fd);
        return fail("cannot map", extent, error);
    }
    /* Users' data, and larger than a core dump should be. */
    madvise(base, slab->extent_bytes, MADV_DONTDUMP);
    e->fd = fd;
    return KVC_OK;
}

static kvc_status host_extent_export(struct device_slab *slab, uint32_t extent, bool readonly,
                                     int *fd)
{
    struct host_extent *e = extent_of(slab, extent);
    int copy;

    assert(e->fd >= 0);
    copy = readonly ? fd_reopen_readonly(e->fd) : fd_dup(e->fd);
    if (copy < 0)
        return fail("cannot export", extent, copy);
    *fd = copy;
    return KVC_OK;
}

/* A write that changes nothing, also while somebody else writes there. Of an addition of nothing a
 * compiler may make a barrier. */
static void touch(_Atomic uint8_t *at)
{
    uint8_t was = atomic_load(at);

    while (!atomic_compare_exchange_weak(at, &was, was))
        ;
}

/* What Linux before 5.14 leaves: fallocate, which can say no, and a write to each page. */
static int make_pages_by_touching(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                  uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    _Atomic uint8_t *base = (_Atomic uint8_t *)extent_base(slab, extent);

    while (fallocate(extent_of(slab, extent)->fd, 0, (off_t)offset, (off_t)bytes) < 0)
        if (errno != EINTR)
            return -errno;
    for (uint64_t at = offset; at < offset + bytes; at = (at / page + 1) * page)
        touch(base + at);
    return 0;
}

/*
 * Huge pages where the kernel has them: they come ten times faster, and cost processes that map
 * them a fault each. MADV_COLLAPSE makes them of memory files whatever the machine's settings for
 * those are, but not where there is nothing yet. Whatever this leaves, make_pages does.
 */
static void make_huge_pages(struct device_slab *slab, uint32_t extent, uint64_t offset,
                            uint64_t bytes)
{
    struct host_slab *host = slab->state;
    uintptr_t start = (uintptr_t)extent_base(slab, extent) + offset;
    uint8_t *first = (uint8_t *)((start + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    uint8_t *end = (uint8_t *)((start + bytes) / HUGE_BYTES * HUGE_BYTES);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (first >= end || atomic_load(&host->no_huge))
        return;
    for (uint8_t *at = first; at < end; at += HUGE_BYTES)
        if (madvise(at, page, MADV_POPULATE_WRITE) < 0)
            return;
    if (madvise(first, (size_t)(end - first), MADV_COLLAPSE) < 0 && errno != EAGAIN)
        atomic_store(&host->no_huge, true);
}

/* "device.old_kernel" stands for a kernel without MADV_POPULATE_WRITE. */
static int make_pages(struct device_slab *slab, uint32_t extent, uint64_t offset, uint64_t bytes)
{
    uint64_t first = offset - offset % (uint64_t)sysconf(_SC_PAGESIZE);
    uint8_t *base = extent_base(slab, extent);

    if (fault_fires("device.populate"))
        return -ENOMEM;
    if (fault_fires("device.old_kernel"))
        return make_pages_by_touching(slab, extent, offset, bytes);
    for (uint64_t at = first, n; at < offset + bytes; at += n) {
        n = offset + bytes - at < POPULATE_BYTES ? offset + bytes - at : POPULATE_BYTES;
        while (madvise(base + at, n, MADV_POPULATE_WRITE) < 0) {
            if (errno == EINVAL)
                return make_pages_by_touching(slab, extent, offset, bytes);
            if (errno != EINTR && errno != EAGAIN)
                return -errno;
        }
    }
    return 0;
}

/* Marks the units that are there from the first to the last byte. */
static void mark_populated(struct device_slab *slab, uint32_t extent, uint64_t offset,
                           uint64_t bytes)
{
    struct host_extent *e = extent_of(slab, extent);
    const uint64_t end = offset + bytes;

    for (uint64_t unit = (offset + UNIT_BYTES - 1) / UNIT_BYTES; unit * UNIT_BYTES < end; unit++)
        if ((unit + 1) * UNIT_BYTES <= end || end == slab->extent_bytes)
            atomic_fetch_or(&e->populated[unit / 64], 1ull << unit % 64);
}

/* How many of the bytes are of units that are there, or of units that are not, like the first. */
static uint64_t run_of(const struct host_extent *e, uint64_t offset, uint64_t bytes)
{
    const bool there = is_populated(e, offset / UNIT_BYTES);
    uint64_t at = offset;

    while (at < offset + bytes && is_populated(e, at / UNIT_BYTES) == there)
        at = (at / UNIT_BYTES + 1) * UNIT_BYTES;
    return at < offset + bytes ? at - offset : bytes;
}

/* What copies have made already is left: to make huge pages of that would be to copy it. */
static int populate(struct device_slab *slab, uint32_t extent, uint64_t offset, uint64_t bytes)
{
    const struct host_extent *e = extent_of(slab, extent);
    int error = 0;

    for (uint64_t at = offset, n; at < offset + bytes && !error; at += n) {
        n = run_of(e, at, offset + bytes - at);
        if (is_populated(e, at / UNIT_BYTES))
            continue;
        make_huge_pages(slab, extent, at, n);
        error = make_pages(slab, extent, at, n);
    }
    if (!error)
        mark_populated(slab, extent, offset, bytes);
    return error;
}

static kvc_status host_extent_populate(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                       uint64_t bytes)
{
    int error;

    assert(offset <= slab->extent_bytes && bytes <= slab->extent_bytes - offset);
    if (bytes == 0)
        return KVC_OK;
    error = populate(slab, extent, offset, bytes);
    return error ? fail("no memory to populate", extent, error) : KVC_OK;
}

/* Piece by piece: all at once would keep this process from touching other memory for a while. */
static kvc_status host_extent_discard(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                      uint64_t bytes)
{
    struct host_extent *e = extent_of(slab, extent);

    assert(offset <= slab->extent_bytes && bytes <= slab->extent_bytes - offset);
    forget_pages(e);
    while (fallocate(e->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                     (off_t)bytes) < 0)
        if (errno != EINTR)
            return fail("cannot empty", extent, -errno);
    return KVC_OK;
}

/* A new memfd in its place: who has kept the old one has memory of its own. */
static kvc_status host_extent_renew(struct device_slab *slab, uint32_t extent)
{
    struct host_extent *e = extent_of(slab, extent);
    int old = e->fd;
    kvc_status status;

    e->fd = -1;
    status = host_extent_create(slab, extent);
    if (status != KVC_OK) {
        e->fd = old;
        return KVC_E_BUSY;
    }
    forget_pages(e);
    fd_close(old);
    return KVC_OK;
}

/*
 * What a copy comes to before populate does: the whole unit, so that populate can leave it alone.
 * But without huge pages, for which the kernel waits until every processor has been asked.
 */
static int ensure_units(struct device_slab *slab, uint32_t extent, uint64_t offset, uint64_t bytes)
{
    int error = 0;

    for (uint64_t unit = offset / UNIT_BYTES; unit * UNIT_BYTES < offset + bytes && !error;
         unit++) {
        const uint64_t first = unit * UNIT_BYTES, left = slab->extent_bytes - first;
        const uint64_t n = left < UNIT_BYTES ? left : UNIT_BYTES;

        if (is_populated(extent_of(slab, extent), unit))
            continue;
        error = make_pages(slab, extent, first, n);
        if (!error)
            mark_populated(slab, extent, first, n);
    }
    return error;
}

/* Makes sure that the bytes can be touched; they may span extents. */
static kvc_status ensure_pages(struct device_slab *slab, uint64_t offset, uint64_t bytes)
{
    while (bytes > 0) {
        uint32_t extent = (uint32_t)(offset / slab->extent_bytes);
        uint64_t at = offset % slab->extent_bytes;
        uint64_t n = slab->extent_bytes - at < bytes ? slab->extent_bytes - at : bytes;
        int error;

        if (extent_of(slab, extent)->fd < 0)
            return KVC_E_NO_MEMORY;
        error = ensure_units(slab, extent, at, n);
        if (error)
            return fail("no memory to copy", extent, error);
        offset += n;
        bytes -= n;
    }
    return KVC_OK;
}

static bool in_slab(const struct device_slab *slab, uint64_t offset, uint64_t bytes)
{
    uint64_t size = slab->extent_bytes * slab->n_extents;

    return offset <= size && bytes <= size - offset;
}

static kvc_status host_slab_ready(struct device_slab *slab, uint64_t offset, uint64_t bytes)
{
    return in_slab(slab, offset, bytes) ? ensure_pages(slab, offset, bytes) : KVC_E_INVALID;
}

static kvc_status host_gather(const struct pack_job *job)
{
    pack_host_gather(job);
    return KVC_OK;
}

static kvc_status host_scatter(const struct pack_job *job)
{
    pack_host_scatter(job);
    return KVC_OK;
}

static kvc_status host_copy(struct device_slab *to, uint64_t to_offset, struct device_slab *from,
                            uint64_t from_offset, uint64_t bytes, uint32_t *begun)
{
    kvc_status status;

    (void)begun;
    if (!in_slab(to, to_offset, bytes) || !in_slab(from, from_offset, bytes))
        return KVC_E_INVALID;
    status = ensure_pages(from, from_offset, bytes);
    if (status == KVC_OK)
        status = ensure_pages(to, to_offset, bytes);
    if (status == KVC_OK && bytes > 0)
        pack_host_copy(to->base + to_offset, from->base + from_offset, bytes);
    return status;
}

static kvc_status host_settle(struct device_slab *to, uint32_t begun)
{
    (void)to;
    (void)begun;
    return KVC_OK;
}

static void host_close(struct device *device)
{
    (void)device;
}

const struct device_ops device_host = {
    .memory = DEVICE_MEMORY_MEMFD,
    .slab_create = host_slab_create,
    .slab_destroy = host_slab_destroy,
    .extent_create = host_extent_create,
    .extent_export = host_extent_export,
    .extent_populate = host_extent_populate,
    .extent_discard = host_extent_discard,
    .extent_renew = host_extent_renew,
    .slab_ready = host_slab_ready,
    .gather = host_gather,
    .scatter = host_scatter,
    .copy = host_copy,
    .settle = host_settle,
};

const struct device device_all_host = {
    .name = "host",
    .gpu = &device_host,
    .host = &device_host,
    .close = host_close,
};
