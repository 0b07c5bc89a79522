/*
 * Devices: where a tier's memory comes from and how bytes move in it. The only place that knows
 * CUDA. `host` implements all of it with memfds and memcpy: the embedded default where there is no
 * GPU, and what the tests run on; nothing above this room takes another path for it.
 *
 * May include base/, kernels/, proto/. This header is the door. Calls that may hang on a real
 * device are made before the loop runs, after it has ended, or on a thread that is not the loop's:
 * populate (which registers), copy and settle on the pool's, lists_process on one of its own, loans
 * on one of each GPU's, lanes on the pool's.
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
    uint8_t *base; /* address of byte 0 in this process; NULL: see device_ops::address */
    uint64_t extent_bytes;
    uint32_t n_extents;
    void *state; /* the device's own */
};

struct device_ops {
    enum device_memory memory;
    /* Where an offset is, of slabs whose extents do not lie one behind the other; NULL: at base. */
    uint8_t *(*address)(const struct device_slab *slab, uint64_t offset);

    /* Reserves address space for a slab; no memory yet. state is the device's. */
    kvc_status (*slab_create)(void *state, uint64_t extent_bytes, uint32_t n_extents,
                              struct device_slab *slab);
    void (*slab_destroy)(struct device_slab *slab);

    /* Makes one extent's memory, exportable, private to this process until exported. */
    kvc_status (*extent_create)(struct device_slab *slab, uint32_t extent);
    /* A new descriptor, CLOEXEC, the caller's, for a worker to map; read-only if so. */
    kvc_status (*extent_export)(struct device_slab *slab, uint32_t extent, bool readonly, int *fd);
    /* In place of that, of memory kind CUDA_HANDLE: what others open it by. */
    kvc_status (*extent_handle)(struct device_slab *slab, uint32_t extent, uint8_t *handle);
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

    /* Copies within or between slabs of one device, on a pool thread; pieces are bounded above.
     * Adds to *begun, which begins as 0, what settle has to wait for, also when it fails. */
    kvc_status (*copy)(struct device_slab *to, uint64_t to_offset, struct device_slab *from,
                       uint64_t from_offset, uint64_t bytes, uint32_t *begun);
    /* Returns when the copies to this slab that were begun have ended: before that, bytes that copy
     * was given may still be read and written. An error is one of any of them. */
    kvc_status (*settle)(struct device_slab *to, uint32_t begun);
    /* The GPU of an extent, of those of the device. NULL: none. */
    uint32_t (*extent_gpu)(const struct device_slab *slab, uint32_t extent);
};

extern const struct device_ops device_host;

/* The GPUs of a daemon, in the order in which extents are spread over them. */
#define DEVICE_GPUS_MAX 8u
struct device_gpu {
    uint8_t uuid[KVC_UUID_BYTES];
    char name[64];
};

/*
 * Copies by the daemon on a GPU: from and to memory of other processes, which lend it, by kernels
 * in a context of this process on the GPU that the memory lies on.
 */
#define DEVICE_HANDLE_BYTES 64u /* of memory: the driver's legacy handles */

struct device_piece {
    enum device_memory kind; /* CUDA_FD or CUDA_HANDLE */
    int fd;                  /* of the first; stays the caller's */
    uint8_t handle[DEVICE_HANDLE_BYTES];
    uint64_t bytes, offset; /* offset: of the second, in its allocation */
};

/* Whose handles they are: the same ones of one process are one allocation. */
struct device_lender {
    int32_t pid;
    uint64_t start_time;
};

struct device_loan; /* memory of one process on one GPU */
struct device_lane; /* what one copy at a time is enqueued on */

/* On a thread of the driver's, which must not be held up and must not call the device. */
typedef void device_done_cb(void *arg);

struct device_lending {
    /*
     * Loans. Pieces are added one after the other; mapped then makes addresses for all of them:
     * consecutive CUDA_FD pieces lie one behind the other. Refusals come with a sentence.
     */
    kvc_status (*loan_open)(void *state, uint32_t gpu, const struct device_lender *lender,
                            uint32_t n_pieces, struct device_loan **loan);
    kvc_status (*loan_add)(struct device_loan *loan, const struct device_piece *piece,
                           const char **why);
    kvc_status (*loan_map)(struct device_loan *loan, const char **why);
    uint8_t *(*loan_address)(const struct device_loan *loan, uint32_t piece);
    /* What kernels need to know of it. The layout outlives the loan. */
    kvc_status (*loan_bind)(struct device_loan *loan, const struct pack_layout *layout,
                            const struct pack_slice *slices);
    /* Nothing copies from or to it. NULL is fine. */
    void (*loan_close)(struct device_loan *loan);

    /*
     * Lanes. A copy is some jobs, each with the place of its first cell, and a flush; done is
     * called once when all of them have ended, at the earliest inside of flush. A job that fails
     * was not enqueued, and ends the copy: settle returns when those before it have ended. look is
     * for a copy whose done is overdue: KVC_E_BUSY says to wait on, anything else that done will
     * not be called for it any more, and how it ended. Cells are read when it has.
     */
    kvc_status (*lane_open)(void *state, uint32_t gpu, device_done_cb *done, void *arg,
                            struct device_lane **lane);
    kvc_status (*lane_job)(struct device_lane *lane, const struct device_loan *loan, bool gather,
                           const struct pack_job *job, uint32_t first_cell, bool touches_host);
    /* The checksums of slots of the GPU's tier, in cells as of a job, at once: it waits for them.
     * The layout outlives the lane, which keeps tables of it. */
    kvc_status (*lane_sum)(struct device_lane *lane, const struct pack_layout *layout,
                           const struct pack_block *blocks, uint32_t n_blocks);
    kvc_status (*lane_flush)(struct device_lane *lane);
    void (*lane_settle)(struct device_lane *lane);
    kvc_status (*lane_look)(struct device_lane *lane);
    const uint64_t *(*lane_cells)(const struct device_lane *lane);
    void (*lane_close)(struct device_lane *lane); /* nothing is enqueued; NULL is fine */

    /*
     * How many thread blocks a copy takes at most: those that calibrate (on the GPU's thread, for
     * some milliseconds) found to be enough, until then as many as run at a time; or as many as
     * were set, if not 0. Any thread.
     */
    void (*calibrate)(void *state, uint32_t gpu);
    void (*limit_thread_blocks)(void *state, uint32_t thread_blocks);
    uint32_t (*thread_blocks)(void *state, uint32_t gpu);
};

/* On any thread; must not call the device. */
typedef void device_lost_cb(void *arg);

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

    uint32_t n_gpus;
    struct device_gpu gpus[DEVICE_GPUS_MAX];
    const struct device_lending *lending; /* NULL: of host memory only, by gather and scatter */

    /*
     * GPUs that fail for good, which is found out by calls that fail: nothing of this process works
     * there any more, and all calls for them fail with KVC_E_DEVICE. lost is called when there is
     * another, until somebody else, or NULL, is named. Both are NULL where there are no GPUs.
     */
    void (*watch)(void *state, device_lost_cb *lost, void *arg);
    bool (*is_lost)(void *state, uint32_t gpu);

    /* Between them this thread is on a GPU, for a library that expects it. NULL: there are none. */
    kvc_status (*enter)(void *state, uint32_t gpu);
    void (*leave)(void *state);
};

/* Both tiers in host memory. */
extern const struct device device_all_host;

#define DEVICE_WHY_MAX 200

/*
 * GPUs of this machine: extents of their memory that workers map by descriptor, and host memory
 * registered with the driver. gpus: "first" of those that the driver shows, "all" of them, or their
 * UUIDs ("GPU-...") with commas between. KVC_E_NO_DEVICE without a driver or such a GPU,
 * KVC_E_UNSUPPORTED for one that cannot do this, KVC_E_DEVICE for one that fails; why is a
 * sentence.
 */
struct device_cuda_choice {
    const char *gpus;
    /* Whether memory that has a legacy handle takes the place of memory with descriptors, which
     * DEVICE_MEMORY_AUTO does where a GPU has no other. Blocks are then no larger than extents. */
    enum { DEVICE_MEMORY_AUTO, DEVICE_MEMORY_DESCRIPTORS, DEVICE_MEMORY_HANDLES } memory;
};
kvc_status device_cuda_open(struct device *device, const struct device_cuda_choice *choice,
                            char why[DEVICE_WHY_MAX]);

#endif
