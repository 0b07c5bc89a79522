/*
 * Devices: where a tier's memory comes from and how bytes move in it. The only place that knows
 * CUDA. `host` implements all of it with memfds and memcpy: the embedded default where there is no
 * GPU, and what the tests run on; nothing above this room takes another path for it.
 *
 * May include base/, kernels/, proto/. This header is the door. Calls that may hang on a real
 * device are made before the loop runs, after it has ended, or on a thread that is not the loop's:
 * populate (which registers), copy and settle on the pool's, lists_process on one of its own.
 */
#ifndef KVC_DEVICE_DEVICE_H
#define KVC_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/pack.h"
#include "proto/limits.h"
#include "proto/status.h"

enum device_memory { /* MemoryKind of kvcache.proto */
                     DEVICE_MEMORY_MEMFD = 1,
                     DEVICE_MEMORY_CUDA_FD = 2,
                     DEVICE_MEMORY_CUDA_HANDLE = 3,
};

/* One reserved address range that extents are mapped into, one behind the other. */
struct device_slab {
    const struct device_ops *ops;
    uint8_t *base; /* address of byte 0 in this process */
    uint64_t extent_bytes;
    uint32_t n_extents;
    void *state; /* the device's own */
};

struct device_ops {
    enum device_memory memory;

    /* Reserves address space for a slab; no memory yet. state is the device's. */
    kvc_status (*slab_create)(void *state, uint64_t extent_bytes, uint32_t n_extents,
                              struct device_slab *slab);
    void (*slab_destroy)(struct device_slab *slab);

    /* Makes one extent's memory, exportable, private to this process until exported. */
    kvc_status (*extent_create)(struct device_slab *slab, uint32_t extent);
    /* A new descriptor, CLOEXEC, the caller's, for a worker to map; read-only if so. */
    kvc_status (*extent_export)(struct device_slab *slab, uint32_t extent, bool readonly, int *fd);
    /* Touches bytes of an extent so that later use is not slowed by page faults. Any thread. */
    kvc_status (*extent_populate)(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                  uint64_t bytes);
    /*
     * For an extent that nobody here uses and that changes its tenant. discard: its bytes are not
     * wanted any more, and their memory may go; a process that still maps it may read zeros. renew:
     * it gets new memory of zeros, and what was exported before leads to none of it. KVC_E_BUSY:
     * nothing has changed; after another error it has no memory. Pool thread.
     */
    kvc_status (*extent_discard)(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                 uint64_t bytes);
    kvc_status (*extent_renew)(struct device_slab *slab, uint32_t extent);

    /* Whether bytes of a slab, which may span extents, have memory: what is not populated yet gets
     * it here, or KVC_E_NO_MEMORY says that there is none. Before gather and scatter; pool thread.
     */
    kvc_status (*slab_ready)(struct device_slab *slab, uint64_t offset, uint64_t bytes);
    /* Worker's blocks to slots, and back, synchronously, on a pool thread. NULL: it cannot. */
    kvc_status (*gather)(const struct pack_job *job);
    kvc_status (*scatter)(const struct pack_job *job);

    /* Copies within or between slabs of one device, on a pool thread; pieces are bounded above. */
    kvc_status (*copy)(struct device_slab *to, uint64_t to_offset, struct device_slab *from,
                       uint64_t from_offset, uint64_t bytes);
    /* Returns when the copies to this slab that were begun before have ended: before that, bytes
     * that copy was given may still be read and written. An error is one of any of them. */
    kvc_status (*settle)(struct device_slab *to);
};

extern const struct device_ops device_host;

/* What the tiers of a daemon stand on. */
struct device {
    const char *name;                    /* "host", "cuda" */
    const struct device_ops *gpu, *host; /* of the two tiers */
    void *state;                         /* for slab_create */
    /*
     * Whether a process, by its pid, has a context on any of these GPUs. May hang. A process that
     * never was listed may be one that the driver does not show here. NULL: nothing can tell.
     */
    kvc_status (*lists_process)(void *state, const uint8_t (*uuids)[KVC_UUID_BYTES],
                                uint32_t n_uuids, int32_t pid, bool *listed);
    void (*close)(struct device *device); /* after its slabs were destroyed */
};

/* Both tiers in host memory. */
extern const struct device device_all_host;

#define DEVICE_WHY_MAX 200

/*
 * The first GPU that the driver shows: extents of its memory that workers map by descriptor, and
 * host memory registered with the driver. KVC_E_NO_DEVICE without a driver or a GPU,
 * KVC_E_UNSUPPORTED for one that cannot do this, KVC_E_DEVICE for one that fails; why is a
 * sentence.
 */
kvc_status device_cuda_open(struct device *device, char why[DEVICE_WHY_MAX]);

#endif
